"""Linear maps that are kept as int8."""

import copy
import dataclasses

import pytest
import torch
from torch import nn

from clearhead.decoding import Beam, Greedy, Rules, generate
from clearhead.errors import OptionError
from clearhead.model import int8_matmul, presets
from clearhead.model.int8 import (
    CODES,
    DTYPES,
    SCALE,
    Int8Linear,
    check_dtype,
    count_weights,
    dequantize,
    dtype_name,
    int8_maps,
    quantize,
    quantize_output,
    round_inputs,
)
from clearhead.model.int8_matmul import EXACT, ROUNDED, round_to_int8
from clearhead.model.outputs import NextToken
from clearhead.model.presets import Size
from clearhead.taps import watching
from clearhead.training.checkpoints import copy_into, named_tensors
from tests.decoding.rows import Rows


def maps(seed=0):
    torch.manual_seed(seed)
    return nn.Linear(11, 7), nn.Linear(5, 9, bias=False)


@pytest.mark.parametrize("plain", maps())
def test_a_weight_is_rounded_to_a_step_of_its_row(plain):
    made = Int8Linear(plain)
    step = plain.weight.detach().abs().amax(1, keepdim=True) / 127
    assert made.codes.dtype is torch.int8
    assert made.codes.abs().amax(1).eq(127).all()  # the largest number of each row is kept
    assert ((made.weight - plain.weight).abs() <= step / 2 * 1.0001).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("plain", maps())
def test_it_computes_what_the_rounded_weight_does(plain, dtype):
    made = Int8Linear(plain).to(dtype)
    x = torch.randn(3, 4, plain.in_features, dtype=dtype)
    expected = made.plain()(x)
    assert made(x).dtype is dtype
    torch.testing.assert_close(made(x), expected, atol=0.02 if dtype is torch.bfloat16 else 1e-6, rtol=0.02)


def test_a_row_of_zeros_stays_zeros():
    plain = nn.Linear(4, 2, bias=False)
    nn.init.zeros_(plain.weight)
    made = Int8Linear(plain)
    assert made.weight.eq(0).all()
    assert made(torch.ones(1, 4)).eq(0).all()


def test_rounding_twice_changes_nothing_more():
    once = Int8Linear(maps()[0])
    twice = Int8Linear(once.plain())
    assert torch.equal(twice.codes, once.codes)
    torch.testing.assert_close(twice.scale, once.scale)


def test_the_maps_of_blocks_are_replaced_and_come_back():
    model = presets.gpt2("tiny", vocabulary=50).build().eval()
    before = copy.deepcopy(model)
    ids = torch.arange(12)[None]
    quantize(model)
    assert all("blocks" in name for name in int8_maps(model.state_dict()))
    assert not any(type(one) is nn.Linear for one in model.modules())
    assert count_weights(model) == sum(one.numel() for one in before.parameters())
    now, then = (one.state_dict() for one in (model, before))
    assert size_of_blocks(now) < 0.3 * size_of_blocks(then)
    made = model(ids)
    assert not torch.equal(made, before(ids))
    torch.testing.assert_close(made, before(ids), atol=0.2, rtol=0.05)
    dequantize(model)
    assert model.state_dict().keys() == before.state_dict().keys()
    torch.testing.assert_close(model(ids), made, atol=1e-4, rtol=1e-4)


def size_of_blocks(tensors):
    return sum(one.nbytes for name, one in tensors.items() if "blocks" in name)


class Sharing(nn.Module):
    """A user's block: a map with two names, and two maps with one weight."""

    def __init__(self):
        super().__init__()
        self.query = self.key = nn.Linear(8, 8)
        self.up, self.again = nn.Linear(8, 8), nn.Linear(8, 8)
        self.again.weight = self.up.weight

    def forward(self, x):
        return self.again(self.up(self.key(self.query(x))))


def test_shared_maps_and_weights_stay_shared():
    torch.manual_seed(0)
    model = nn.ModuleDict({"blocks": Sharing()})
    names, x, counted = list(named_tensors(model)), torch.randn(2, 8), count_weights(model)
    block = quantize(model)["blocks"]
    assert block.query is block.key
    assert type(block.query) is Int8Linear
    assert block.up.codes is block.again.codes
    assert block.up.bias is not block.again.bias
    assert count_weights(model) == counted
    saved = named_tensors(model)
    other = quantize(nn.ModuleDict({"blocks": Sharing()}), int8_maps(saved))
    copy_into(named_tensors(other), saved, "here")
    assert other["blocks"](x).equal(block(x))
    int8 = block(x)
    assert list(named_tensors(dequantize(model))) == names
    assert (model["blocks"](x) - int8).abs().max() < 1e-5


def test_only_a_plain_map_can_be_int8():
    model = presets.gpt2("tiny", vocabulary=50).build()
    with pytest.raises(OptionError, match="embedding is no plain linear map"):
        quantize(model, ["embedding"])


def test_other_codes_are_no_int8_maps():
    assert int8_maps({"a" + CODES: torch.zeros(2, 2)}) == []
    assert int8_maps({"a" + CODES: torch.zeros(2, 2, dtype=torch.int8)}) == []
    assert int8_maps({"a" + CODES: torch.zeros(2, 2, dtype=torch.int8), "a" + SCALE: torch.ones(2)}) == ["a"]


def large(bias=True, d_in=513, d_out=300):
    torch.manual_seed(1)
    return nn.Linear(d_in, d_out, bias=bias)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_a_large_map_computes_what_the_rounded_weight_does_in_every_dtype(dtype, bias):
    made = Int8Linear(large(bias)).to(dtype)
    tolerance = {torch.float32: 1e-5, torch.float64: 1e-12}.get(dtype, 0.02)
    for shape in ((3, 513), (2, 4, 513), (70, 1, 513), (0, 513), (2, 0, 513), (513,)):
        x = torch.randn(shape).to(dtype)
        with torch.no_grad():
            found, expected = made(x), made.plain().double()(x.double())
        assert found.dtype is dtype
        torch.testing.assert_close(found.double(), expected, atol=tolerance, rtol=tolerance)


def test_gradients_reach_inputs_and_bias():
    made = Int8Linear(large())
    x = torch.randn(2, 513, requires_grad=True)
    made(x).pow(2).sum().backward()
    plain, again = made.plain(), x.detach().clone().requires_grad_()
    expected = torch.autograd.grad(plain(again).pow(2).sum(), (again, plain.bias))
    torch.testing.assert_close((x.grad, made.bias.grad), expected, atol=1e-3, rtol=1e-4)


@torch.no_grad()
def test_other_codes_give_other_products():
    made, x = Int8Linear(large()), torch.randn(2, 513)
    first = made(x)
    other = Int8Linear(nn.Linear(513, 300))
    made.load_state_dict(other.state_dict())
    assert torch.equal(made(x), other(x))
    assert not torch.equal(made(x), first)
    again = copy.deepcopy(made)
    made.codes.zero_()
    assert torch.equal(made(x), made.bias.expand(2, -1))
    assert torch.equal(again(x), other(x))
    assert again.state_dict().keys() == {"bias", "codes", "scale"}


@torch.no_grad()
def test_an_int8_map_under_vmap_and_autocast():
    made, x = Int8Linear(large()), torch.randn(3, 2, 513)
    torch.testing.assert_close(torch.func.vmap(made)(x), made(x), atol=1e-4, rtol=1e-4)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(made(x).float(), made(x.bfloat16()).float(), atol=0.1, rtol=0.05)


@torch.no_grad()
def test_rounded_inputs_are_asked_for_and_nothing_else_changes():
    model = presets.gpt2("tiny", vocabulary=50).build().eval()
    quantize(model)
    kept = {name: one.clone() for name, one in model.state_dict().items()}
    assert {one.digits for one in model.modules() if isinstance(one, Int8Linear)} == {EXACT}
    round_inputs(model)
    assert {one.digits for one in model.modules() if isinstance(one, Int8Linear)} == {ROUNDED}
    assert all(torch.equal(one, kept[name]) for name, one in model.state_dict().items())
    made, x = Int8Linear(large()), torch.randn(2, 513)
    exact = made(x)
    made.digits = ROUNDED
    error = (made(x) - exact).std() / exact.std()
    assert 1e-3 < error < 0.05


@torch.no_grad()
def test_the_table_of_an_output_is_rounded_for_the_embedding_too():
    model = presets.gpt2(Size(1, 64, 2, 2, 64), vocabulary=3001, length=16).build().eval()
    ids, before = torch.arange(12)[None], model.output.table.clone()
    quantize_output(model)
    assert model.embedding.table is model.output.table
    codes, scale = round_to_int8(before)
    assert torch.equal(model.output.table, codes * scale[:, None])
    found = model(ids)
    plain = dequantize(copy.deepcopy(model))
    assert plain.output.int8_digits is None
    assert torch.equal(plain.output.table, model.output.table)
    torch.testing.assert_close(found, plain(ids), atol=1e-4, rtol=1e-4)
    round_inputs(model)
    assert not torch.equal(model(ids), found)
    torch.testing.assert_close(model(ids), found, atol=0.2, rtol=0.05)
    assert model.state_dict().keys() == plain.state_dict().keys()
    model.output.table.zero_()
    assert model(ids).eq(0).all()


@torch.no_grad()
def test_a_bias_and_a_factor_of_the_output_are_kept():
    spec = presets.gpt2(Size(1, 64, 2, 2, 64), vocabulary=3001, length=16)
    model = dataclasses.replace(spec, output=NextToken(bias=True, scaled=True)).build().eval()
    nn.init.normal_(model.output.bias)
    quantize_output(model)
    ids = torch.arange(5)[None]
    torch.testing.assert_close(model(ids), dequantize(copy.deepcopy(model))(ids), atol=1e-4, rtol=1e-4)


SPECS = {
    "classic": presets.classic(61, size=Size(2, 32, 4, 4, 64)),
    "gpt2": presets.gpt2(Size(2, 32, 4, 4, 64), vocabulary=61, length=40),
    "llama": presets.llama(Size(2, 32, 4, 2, 64), vocabulary=61),
}
SOURCES = [[5, 6, 7, 8], [9, 3], [4, 4, 4]]
RULES = Rules(max_new=12, end=(1,))


@pytest.fixture
def every_map_packed(monkeypatch):
    """Small maps are multiplied in the way of large ones too."""
    monkeypatch.setattr(int8_matmul, "LARGE", 1)


def build(name, seed=0):
    torch.manual_seed(seed)
    return SPECS[name].build().eval()


def decoded(model, method):
    given = {"prefix": [[0]] * len(SOURCES)} if len(model.stacks) > 1 else {}
    return [[one.tokens for one in found] for found in generate(model, SOURCES, method, rules=RULES, **given)]


def test_int8_in_a_bfloat16_model_has_codes_of_its_own_scale():
    model = DTYPES["int8-bfloat16"](build("gpt2"))
    assert dtype_name(model) == "int8-bfloat16"
    assert {one.dtype for one in model.parameters()} == {torch.bfloat16}
    maps = [one for one in model.modules() if isinstance(one, Int8Linear)]
    plain = dict(build("gpt2").bfloat16().named_modules())
    assert len(maps) == 12
    for name, module in model.named_modules():
        if isinstance(module, Int8Linear):
            weight, scale = plain[name].weight.double(), module.scale.double()[:, None]
            # Half a step, but for the largest of a row, which a rounded scale may not reach.
            inside = weight.abs() <= 127 * scale
            assert ((module.codes.double() * scale - weight).abs() <= 0.5001 * scale)[inside].all()
            assert module.codes.abs().amax(1).ge(126).all()


def test_what_each_name_makes_of_a_model():
    found = {name: make(build("gpt2")) for name, make in DTYPES.items()}
    assert {one.dtype for one in found["float32"].parameters()} == {torch.float32}
    assert {one.dtype for one in found["bfloat16"].parameters()} == {torch.bfloat16}
    for name, digits in (("int8", int8_matmul.EXACT), ("int8-dynamic", int8_matmul.ROUNDED)):
        maps = [one for one in found[name].modules() if isinstance(one, Int8Linear)]
        assert len(maps) == len(int8_maps(found[name].state_dict())) == 12
        assert {one.digits for one in maps} == {found[name].output.int8_digits} == {digits}
        back = DTYPES["float32"](found[name])
        assert not int8_maps(back.state_dict())
        assert back.output.int8_digits is None
        assert back.state_dict().keys() == build("gpt2").state_dict().keys()


def test_bfloat16_becomes_int8_with_the_rest_in_float32():
    model = DTYPES["int8"](DTYPES["bfloat16"](build("gpt2")))
    assert {one.dtype for one in model.parameters()} == {torch.float32}
    again = DTYPES["int8-dynamic"](model)  # a model that is int8 already
    assert again.output.int8_digits == int8_matmul.ROUNDED


def test_other_names_are_refused():
    check_dtype(None)
    with pytest.raises(
        OptionError, match=r"there is no 'int4'. Did you mean 'int8'\? There are float32, bfloat16, int8, int8-dynamic"
    ):
        check_dtype("int4")


@pytest.mark.usefixtures("every_map_packed")
@pytest.mark.parametrize("method", [Greedy(), Beam(width=4, n_best=2)], ids=["greedy", "beam"])
@pytest.mark.parametrize("name", SPECS)
def test_int8_decodes_what_its_rounded_weights_do(name, method):
    for seed in range(3):
        model = DTYPES["int8"](build(name, seed))
        plain = dequantize(copy.deepcopy(model))
        assert decoded(model, method) == decoded(plain, method)


@pytest.mark.usefixtures("every_map_packed")
@pytest.mark.parametrize("dtype", ["int8", "int8-dynamic"])
@pytest.mark.parametrize("name", SPECS)
@torch.no_grad()
def test_the_fast_step_gives_what_the_forward_gives(name, dtype):
    model = DTYPES[dtype](build(name))

    def logits():
        session = Rows(model, [[0], [2], [3]], SOURCES)
        found = [session.logits.clone(), session.extend(torch.tensor([4, 5, 6])).clone()]
        session.select(torch.tensor([0, 0, 2]))
        return torch.stack([*found, session.extend(torch.tensor([7, 8, 9]))]), session.fast_step

    fast, step = logits()
    assert step is not None
    with watching(model, lambda name, value: value):
        plain, watched = logits()
    assert watched is None
    # Rounded inputs: a difference in the last bit can become one of a whole step, for a number between two of them.
    torch.testing.assert_close(fast, plain, rtol=0, atol=2e-5 if dtype == "int8" else 0.1)


@pytest.mark.usefixtures("every_map_packed")
@torch.no_grad()
def test_a_sentence_is_decoded_the_same_by_itself():
    model = DTYPES["int8-dynamic"](build("classic"))
    together = decoded(model, Greedy())
    alone = [generate(model, [row], Greedy(), rules=RULES, prefix=[[0]])[0][0].tokens for row in SOURCES]
    assert [tokens for [tokens] in together] == alone


@pytest.mark.usefixtures("every_map_packed")
def test_maps_that_differ_are_not_joined():
    model = DTYPES["int8"](build("gpt2"))
    layer = model.stack.blocks[0].attention
    layer.key.linear.digits = int8_matmul.ROUNDED
    with torch.no_grad():
        found = Rows(model, [[1]]).extend(torch.tensor([2]))
        torch.testing.assert_close(found, model(torch.tensor([[1, 2]]))[:, -1], rtol=0, atol=1e-5)
