"""Numbers that are computed twice: equal but for rounding, by one tolerance for each dtype.

`torch.equal` is for tensors that are copied, sliced or loaded, and for the same call on the same tensors. A product
that is computed again in another shape or batch, or from a tensor that lies elsewhere in memory, may be summed in
another order. Whether its last bit is then the same depends on the processor.
"""

import math
from dataclasses import astuple, is_dataclass

import torch
from torch import Tensor

ROUNDING = {torch.float64: 1e-12, torch.float32: 1e-5}
"""Of the largest number, or of 1 if that is larger."""


def assert_equal_but_rounding(found: Tensor, wanted: Tensor, what: str = "found") -> None:
    """Fail unless both have the same dtype and shape, the same infinities, and numbers that rounding explains."""
    finite = wanted.detach()[wanted.isfinite()]
    largest = float(finite.abs().max()) if finite.numel() else 0.0
    atol = ROUNDING[wanted.dtype] * max(1.0, largest)
    torch.testing.assert_close(found, wanted, rtol=0, atol=atol, msg=lambda said: f"{what}: {said}")


def same_but_rounding(found: object, wanted: object) -> bool:
    """Whether two outputs (hypotheses, scores, tokens, lists of them) differ in nothing but the rounding of numbers."""
    if isinstance(wanted, float):
        return math.isclose(found, wanted, rel_tol=ROUNDING[torch.float32], abs_tol=ROUNDING[torch.float32])
    if is_dataclass(wanted) and type(found) is type(wanted):
        return same_but_rounding(astuple(found), astuple(wanted))
    if isinstance(wanted, list | tuple) and type(found) is type(wanted) and len(found) == len(wanted):
        return all(map(same_but_rounding, found, wanted))
    return found == wanted
