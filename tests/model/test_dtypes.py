"""How weights are kept in memory, by name."""

import copy

import pytest
import torch

from clearhead.decoding import Beam, Greedy, Rules, generate
from clearhead.errors import OptionError
from clearhead.model import int8_matmul, presets
from clearhead.model.dtypes import DTYPES, check_dtype
from clearhead.model.int8 import Int8Linear, dequantize, int8_maps
from clearhead.model.presets import Size
from clearhead.taps import watching
from tests.decoding.rows import Rows

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
