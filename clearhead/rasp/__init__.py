"""RASP (Weiss et al., 2021): programs of select, aggregate and map; and a compiler, like Tracr (Lindner et al., 2023).

A program becomes an ordinary encoder, decoder or encoder-decoder whose weights were written, not trained.
"""

from clearhead.rasp.compiled_model import CompiledModel, TextLayout
from clearhead.rasp.compiler import ProgramPlan, compile, plan
from clearhead.rasp.interpreter import run
from clearhead.rasp.language import (
    aggregate,
    categorical,
    constant,
    indices,
    map,
    numeric,
    past,
    select,
    selector_width,
    sequence_map,
    source_indices,
    source_tokens,
    tokens,
)
from clearhead.rasp.programs import PROGRAMS, Program

__all__ = [
    "PROGRAMS",
    "CompiledModel",
    "Program",
    "ProgramPlan",
    "TextLayout",
    "aggregate",
    "categorical",
    "compile",
    "constant",
    "indices",
    "map",
    "numeric",
    "past",
    "plan",
    "run",
    "select",
    "selector_width",
    "sequence_map",
    "source_indices",
    "source_tokens",
    "tokens",
]
