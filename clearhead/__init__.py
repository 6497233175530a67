"""Clearhead: the Transformer, whole. Build it, train it, run it, and see every number inside it."""

from clearhead import craft, model, training
from clearhead.attention import masks, positions, similarity, weighting
from clearhead.attention.attend import attend, explain, which_kernel
from clearhead.attention.grid import check_part
from clearhead.attention.heads import Heads, SlicedHeads
from clearhead.attention.kernels import Choice
from clearhead.attention.layer import Attention
from clearhead.attention.parts import HeadShape
from clearhead.attention.reference import Steps
from clearhead.compiling import compile
from clearhead.decoding import Beam, Greedy, Rules, Sample, generate, score, stream
from clearhead.errors import ClearheadError
from clearhead.model import presets
from clearhead.taps import replacing, watching
from clearhead.tracing import Edit, Swap, Trace
from clearhead.training import Run, load
from clearhead.training.tracing import trace

__all__ = [
    "Attention",
    "Beam",
    "Choice",
    "ClearheadError",
    "Edit",
    "Greedy",
    "HeadShape",
    "Heads",
    "Rules",
    "Run",
    "Sample",
    "SlicedHeads",
    "Steps",
    "Swap",
    "Trace",
    "attend",
    "check_part",
    "compile",
    "craft",
    "explain",
    "generate",
    "load",
    "masks",
    "model",
    "positions",
    "presets",
    "replacing",
    "score",
    "similarity",
    "stream",
    "trace",
    "training",
    "watching",
    "weighting",
    "which_kernel",
]
