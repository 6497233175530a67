"""Clearhead: the Transformer, whole. Build it, train it, run it, and see every number inside it.

Names are imported when they are first used: torch takes a second or two, and `clearhead --help` needs none of it.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clearhead import (
        circuits,
        craft,
        decoding,
        errors,
        exercises,
        experiments,
        model,
        rasp,
        serve,
        tracing,
        training,
    )
    from clearhead.attention import masks, positions, similarity, weighting
    from clearhead.attention.attend import attend, explain, which_kernel
    from clearhead.attention.grid import check_part
    from clearhead.attention.heads import Heads, SlicedHeads
    from clearhead.attention.kernels import Choice
    from clearhead.attention.layer import Attention
    from clearhead.attention.parts import HeadShape
    from clearhead.attention.reference import Steps
    from clearhead.attention.sequence_split import SequenceSplit
    from clearhead.compiling import compile
    from clearhead.decoding import Beam, Greedy, Rules, Sample, generate, score, stream
    from clearhead.errors import ClearheadError
    from clearhead.experiments.patching import attribute, patch
    from clearhead.experiments.tracing import trace
    from clearhead.interop.export import export
    from clearhead.interop.run import import_model
    from clearhead.model import presets
    from clearhead.registry import register
    from clearhead.taps import replacing, watching
    from clearhead.tracing import Edit, Swap, Trace
    from clearhead.training import Run, load, train

    __version__: str

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
    "SequenceSplit",
    "SlicedHeads",
    "Steps",
    "Swap",
    "Trace",
    "attend",
    "attribute",
    "check_part",
    "circuits",
    "compile",
    "craft",
    "decoding",
    "errors",
    "exercises",
    "experiments",
    "explain",
    "export",
    "generate",
    "import_model",
    "load",
    "masks",
    "model",
    "patch",
    "positions",
    "presets",
    "rasp",
    "register",
    "replacing",
    "score",
    "serve",
    "similarity",
    "stream",
    "trace",
    "tracing",
    "train",
    "training",
    "watching",
    "weighting",
    "which_kernel",
]

SUBMODULES = {
    "circuits": "clearhead.circuits",
    "craft": "clearhead.craft",
    "decoding": "clearhead.decoding",
    "exercises": "clearhead.exercises",
    "experiments": "clearhead.experiments",
    "errors": "clearhead.errors",
    "model": "clearhead.model",
    "rasp": "clearhead.rasp",
    "serve": "clearhead.serve",
    "tracing": "clearhead.tracing",
    "training": "clearhead.training",
    "masks": "clearhead.attention.masks",
    "positions": "clearhead.attention.positions",
    "similarity": "clearhead.attention.similarity",
    "weighting": "clearhead.attention.weighting",
    "presets": "clearhead.model.presets",
}
"""Modules that are parts of the public interface, by the name they have here."""
CONTENTS = {
    "clearhead.attention.attend": ("attend", "explain", "which_kernel"),
    "clearhead.attention.grid": ("check_part",),
    "clearhead.attention.heads": ("Heads", "SlicedHeads"),
    "clearhead.attention.kernels": ("Choice",),
    "clearhead.attention.layer": ("Attention",),
    "clearhead.attention.parts": ("HeadShape",),
    "clearhead.attention.reference": ("Steps",),
    "clearhead.attention.sequence_split": ("SequenceSplit",),
    "clearhead.compiling": ("compile",),
    "clearhead.decoding": ("Beam", "Greedy", "Rules", "Sample", "generate", "score", "stream"),
    "clearhead.errors": ("ClearheadError",),
    "clearhead.interop.export": ("export",),
    "clearhead.interop.run": ("import_model",),
    "clearhead.registry": ("register",),
    "clearhead.taps": ("replacing", "watching"),
    "clearhead.tracing": ("Edit", "Swap", "Trace"),
    "clearhead.training": ("Run", "load", "train"),
    "clearhead.experiments.patching": ("attribute", "patch"),
    "clearhead.experiments.tracing": ("trace",),
}
"""The other public names, by the module that each comes from."""


def __getattr__(name: str) -> Any:
    """Import a public name where it is first asked for."""
    if name == "__version__":
        value = installed_version()
    elif name in SUBMODULES:
        value = importlib.import_module(SUBMODULES[name])
    else:
        home = next((module for module, names in CONTENTS.items() if name in names), None)
        if home is None:
            raise AttributeError(f"module 'clearhead' has no attribute {name!r}")
        value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def installed_version() -> str:
    from importlib import metadata  # takes longer than all else that this module does

    try:
        return metadata.version("clearhead")
    except metadata.PackageNotFoundError:
        return "0+unknown"  # the folder is on Python's path, and nothing was installed


def __dir__() -> list[str]:
    return ["__version__", *__all__]
