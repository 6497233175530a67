"""Tracing: every number inside a model, rebuilt from what passed while its fast kernels ran."""

from clearhead.tracing.edits import Edit, Swap
from clearhead.tracing.recording import recording
from clearhead.tracing.trace import Trace, trace_model

__all__ = ["Edit", "Swap", "Trace", "recording", "trace_model"]
