"""Clearhead: the Transformer, whole. Build it, train it, run it, and see every number inside it."""

from clearhead.attention import masks, positions, similarity, weighting
from clearhead.attention.attend import attend, explain, which_kernel
from clearhead.attention.grid import check_part
from clearhead.attention.heads import Heads, SlicedHeads
from clearhead.attention.kernels import Choice
from clearhead.attention.layer import Attention
from clearhead.attention.parts import HeadShape
from clearhead.attention.reference import Steps
from clearhead.compiling import compile
from clearhead.errors import ClearheadError

__all__ = [
    "Attention",
    "Choice",
    "ClearheadError",
    "HeadShape",
    "Heads",
    "SlicedHeads",
    "Steps",
    "attend",
    "check_part",
    "compile",
    "explain",
    "masks",
    "positions",
    "similarity",
    "weighting",
    "which_kernel",
]
