"""Every error Clearhead raises for a user's request: one family, so that `except ClearheadError` catches them all.

A message says what was expected, what came, and what to do about it.
"""

__all__ = [
    "ClearheadError",
    "DataError",
    "DeviceError",
    "DtypeError",
    "NotBuiltError",
    "OptionError",
    "ProgramError",
    "RunError",
    "ShapeError",
    "TraceError",
    "UnsupportedError",
]


class ClearheadError(Exception):
    """The root of the family."""


class ShapeError(ClearheadError, ValueError):
    """A tensor has the wrong shape, or two that belong together do not fit."""


class DtypeError(ClearheadError, ValueError):
    """A tensor has the wrong dtype, or two that belong together differ in it."""


class DeviceError(ClearheadError, ValueError):
    """Tensors that belong together live on different devices."""


class OptionError(ClearheadError, ValueError):
    """A part, a name or a number that cannot be: an unknown kernel, zero heads, a negative temperature."""


class NotBuiltError(ClearheadError, RuntimeError):
    """A spec whose values are learned was used before a layer built it."""


class UnsupportedError(ClearheadError, RuntimeError):
    """What was asked makes sense, but the named kernel cannot do it."""


class DataError(ClearheadError, ValueError):
    """A file of the user's that cannot be used as it is: the message names it, and the line."""


class RunError(ClearheadError, RuntimeError):
    """A run folder that cannot be used: in use by another process, not whole, not a run, or not writable."""


class TraceError(ClearheadError, RuntimeError):
    """A trace that cannot be trusted or used: what is rebuilt differs from what ran, or it is of another model."""


class ProgramError(ClearheadError, ValueError):
    """A program, or a head designed by hand, that cannot be: types that do not fit, or what no attention can do."""
