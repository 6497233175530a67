"""Tracing: every number inside a model, rebuilt from what passed while its fast kernels ran."""

from clearhead.tracing import sentence
from clearhead.tracing.edits import Edit, Swap
from clearhead.tracing.head_metrics import Effect, Lens, Readings, Spaces, compare_spaces, effects, lens, readings
from clearhead.tracing.recording import recording
from clearhead.tracing.trace import Trace, trace_model

__all__ = [
    "Edit",
    "Effect",
    "Lens",
    "Readings",
    "Spaces",
    "Swap",
    "Trace",
    "compare_spaces",
    "effects",
    "lens",
    "readings",
    "recording",
    "sentence",
    "trace_model",
]
