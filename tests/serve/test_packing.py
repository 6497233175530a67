"""Weights of several steps as levels and differences: nothing is lost but what rounding takes."""

import base64
import zlib

import numpy as np
import pytest
import torch

from clearhead.serve.packing import pack_steps, script_json


def unpack(packed, step):
    """The tensors of a step, by its number in the order of the steps."""
    scales, *changes = (zlib.decompress(base64.b64decode(line)) for line in packed.lines)
    levels = 0
    for change in changes[: step + 1]:
        low, high = np.frombuffer(change, np.uint8).reshape(2, -1).astype(np.int64)
        folded = low | high << 8
        levels = (levels + ((folded >> 1) ^ -(folded & 1)) + 32_768) % 65_536 - 32_768
    scale, place, found = np.frombuffer(scales, "<f4"), 0, {}
    for name, shape in packed.tensors.items():
        rows, size = (shape[0] if len(shape) > 1 else 1), int(np.prod(shape))
        found[name] = (levels[place : place + size].reshape(rows, -1) * scale[:rows, None]).reshape(shape)
        place, scale = place + size, scale[rows:]
    return found


def test_each_number_is_the_nearest_of_its_rows_levels():
    torch.manual_seed(0)
    steps = [{"map": torch.randn(3, 4, 5) * 10**step, "bias": torch.randn(6) * (-1) ** step} for step in range(3)]
    packed = pack_steps(range(3), steps.__getitem__)
    largest = torch.stack([step["map"] for step in steps]).flatten(2).abs().amax((0, 2))
    for number, step in enumerate(steps):
        found = unpack(packed, number)
        assert (np.abs(found["map"] - step["map"].numpy()).max((1, 2)) <= largest.numpy() / 1023 / 1.99).all()
        assert found["bias"] == pytest.approx(step["bias"].numpy(), abs=1e-4)


def test_a_change_from_one_end_to_the_other_wraps_around():
    packed = pack_steps([0, 1], lambda step: {"gamma": torch.tensor([2.0, -2.0]) * (-1) ** step})
    assert [list(unpack(packed, step)["gamma"]) for step in (0, 1)] == [
        pytest.approx([2.0, -2.0]),
        pytest.approx([-2.0, 2.0]),
    ]


def test_a_tensor_that_a_step_has_not_is_zeros_there():
    steps = [{"map": torch.ones(2, 2)}, {"map": torch.ones(2, 2), "bias": torch.tensor([0.5])}]
    packed = pack_steps([0, 1], steps.__getitem__)
    assert [list(unpack(packed, step)["bias"]) for step in (0, 1)] == [[0.0], [pytest.approx(0.5)]]


def test_nothing_in_json_ends_its_script():
    assert script_json({"a": "</script>", "b": float("nan")}) == '{"a":"\\u003c/script>","b":null}'
