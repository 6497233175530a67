"""Craft: attention designed by hand, and programs compiled into ordinary models."""

from clearhead.craft import ready
from clearhead.craft.building import layer, model_of
from clearhead.craft.compiling import Plan, compile, plan
from clearhead.craft.crafted import Crafted, Layout
from clearhead.craft.design import Design
from clearhead.craft.designs import by_content, by_position, combine
from clearhead.craft.fitting import fit_content, fit_position
from clearhead.craft.inputs import Inputs, inputs
from clearhead.craft.installing import Installed, install
from clearhead.craft.interpreter import run
from clearhead.craft.language import (
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
from clearhead.craft.programs import PROGRAMS, Program
from clearhead.craft.sharpness import Measured, Sharpness

__all__ = [
    "PROGRAMS",
    "Crafted",
    "Design",
    "Inputs",
    "Installed",
    "Layout",
    "Measured",
    "Plan",
    "Program",
    "Sharpness",
    "aggregate",
    "by_content",
    "by_position",
    "categorical",
    "combine",
    "compile",
    "constant",
    "fit_content",
    "fit_position",
    "indices",
    "inputs",
    "install",
    "layer",
    "map",
    "model_of",
    "numeric",
    "past",
    "plan",
    "ready",
    "run",
    "select",
    "selector_width",
    "sequence_map",
    "source_indices",
    "source_tokens",
    "tokens",
]
