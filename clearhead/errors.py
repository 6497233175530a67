"""The errors that Clearhead raises for a user's request: one family, so that `except ClearheadError` catches them all.

A message says what was expected, what came, and what to do.
"""

__all__ = [
    "ArgumentError",
    "ClearheadError",
    "DataError",
    "DeviceError",
    "DtypeError",
    "NotBuiltError",
    "OptionError",
    "PlaceError",
    "ProgramError",
    "RunError",
    "ShapeError",
    "TraceError",
    "UnsupportedError",
]


class ClearheadError(Exception):
    """Base class of every error that Clearhead raises for a request it cannot serve."""


class ShapeError(ClearheadError, ValueError):
    """A tensor has the wrong shape, or the shapes of two tensors do not match."""


class DtypeError(ClearheadError, ValueError):
    """A tensor has the wrong dtype, or the dtypes of two tensors differ."""


class DeviceError(ClearheadError, ValueError):
    """Tensors that belong together are on different devices."""


class OptionError(ClearheadError, ValueError):
    """An option has an unknown name or an invalid value: an unknown kernel, zero heads, a negative temperature."""


class ArgumentError(OptionError, TypeError):
    """A call has an argument that the function does not take, one of another type, or lacks one that it needs."""


class PlaceError(OptionError, IndexError):
    """There is no layer, head or row with this number."""


class NotBuiltError(ClearheadError, RuntimeError):
    """A part with learned parameters was used before it was built."""


class UnsupportedError(ClearheadError, RuntimeError):
    """The request is valid, but the named kernel cannot compute it."""


class DataError(ClearheadError, ValueError):
    """A user's file cannot be used: the message names the file and the line."""


class RunError(ClearheadError, RuntimeError):
    """A run folder cannot be used: another process uses it, it is damaged, not a run, or not writable."""


class TraceError(ClearheadError, RuntimeError):
    """A trace cannot be used: recomputed values differ from the recorded ones, or it belongs to another model."""


class ProgramError(ClearheadError, ValueError):
    """A RASP program or a designed head is invalid: its types do not match, or attention cannot compute it."""
