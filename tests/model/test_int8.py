"""Linear maps that are kept as int8."""

import copy

import pytest
import torch
from torch import nn

from clearhead.errors import OptionError
from clearhead.model import presets
from clearhead.model.int8 import CODES, SCALE, Int8Linear, count_weights, dequantize, int8_maps, quantize


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


def test_only_a_plain_map_can_be_int8():
    model = presets.gpt2("tiny", vocabulary=50).build()
    with pytest.raises(OptionError, match="embedding is no plain linear map"):
        quantize(model, ["embedding"])


def test_other_codes_are_no_int8_maps():
    assert int8_maps({"a" + CODES: torch.zeros(2, 2)}) == []
    assert int8_maps({"a" + CODES: torch.zeros(2, 2, dtype=torch.int8)}) == []
    assert int8_maps({"a" + CODES: torch.zeros(2, 2, dtype=torch.int8), "a" + SCALE: torch.ones(2)}) == ["a"]
