"""`attend`'s shortcut for plain softmax attention gives what the kernel it goes around gives, or declines."""

import pytest
import torch

import clearhead as ch
from clearhead.attention.attend import NO_POSITION
from clearhead.attention.kernels import run
from clearhead.attention.kernels.fused import attend_directly
from clearhead.attention.request import AttentionOptions

MASKS = {"none": None, "causal": ch.masks.causal()}


def draw(*shape, dtype=torch.float32):
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for _ in range(3)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_the_shortcut_is_the_fused_kernel(mask, dtype):
    tensors, grad = draw(2, 3, 37, 5, dtype=dtype), torch.randn(2, 3, 37, 5, dtype=dtype)
    direct = attend_directly(*tensors, mask)
    assert direct is not None
    wanted = run("fused", AttentionOptions(None, ch.weighting.Softmax(), NO_POSITION, mask).inputs(tuple(tensors)))
    assert torch.equal(direct, wanted)
    pairs = zip(torch.autograd.grad(direct, tensors, grad), torch.autograd.grad(wanted, tensors, grad), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_the_shortcut_has_no_second_derivative_either():
    tensors = draw(1, 2, 33, 4)
    (first,) = torch.autograd.grad(ch.attend(*tensors).square().sum(), tensors[:1], create_graph=True)
    with pytest.raises(ch.ClearheadError, match="no second derivative"):
        first.sum().backward()


class Marked(torch.Tensor):
    """A subclass, which may have arithmetic of its own."""


@pytest.mark.parametrize(
    "tensors",
    [
        draw(1, 2, 31, 4),  # so few keys that torch's kernel may lose a NaN
        draw(2, 33, 4),  # no batch
        draw(0, 2, 33, 4),
        [*draw(1, 2, 33, 4)[:2], torch.randn(1, 2, 33, 5)],
        [*draw(1, 2, 33, 4)[:2], torch.randn(1, 2, 33, 4).double()],
        [tensor.detach().int() for tensor in draw(1, 2, 33, 4)],
        [tensor.detach().to("meta") for tensor in draw(1, 2, 33, 4)],
        [tensor.detach().as_subclass(Marked) for tensor in draw(1, 2, 33, 4)],
    ],
)
def test_the_shortcut_declines_what_needs_checks_or_rules(tensors):
    assert attend_directly(*tensors, None) is None


def test_the_shortcut_declines_other_masks_and_modes():
    tensors = [tensor.detach() for tensor in draw(1, 2, 33, 4)]
    assert attend_directly(*tensors, ch.masks.window(3)) is None
    assert attend_directly(*tensors, torch.ones(33, 33, dtype=torch.bool)) is None
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert attend_directly(*tensors, None) is None
    assert torch.func.vmap(lambda x: torch.ones(1) if attend_directly(x, x, x, None) is None else x)(
        torch.randn(2, 1, 2, 33, 4)
    ).shape == (2, 1)


def test_options_are_checked_when_they_are_made():
    for wrong in ({"dropout": 1.0}, {"kernel": "fastest"}, {"similarity": ch.weighting.Kernelized().similarity}):
        given = {"similarity": None, "weighting": ch.weighting.Softmax(), "position": NO_POSITION, "mask": None}
        with pytest.raises(ch.ClearheadError, match=next(iter(wrong))):
            AttentionOptions(**{**given, **wrong})
