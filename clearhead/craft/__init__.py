"""Attention designed by hand: heads by content and by position, as layers, as models, and inside a trained model."""

from clearhead.craft import ready
from clearhead.craft.design import Design, layer
from clearhead.craft.designs import by_content, by_position, combine
from clearhead.craft.fitting import fit_content, fit_position
from clearhead.craft.inputs import Inputs, inputs
from clearhead.craft.installing import Installed, install
from clearhead.craft.ready import model_of
from clearhead.craft.sharpness import Measured, Sharpness, least_scale

__all__ = [
    "Design",
    "Inputs",
    "Installed",
    "Measured",
    "Sharpness",
    "by_content",
    "by_position",
    "combine",
    "fit_content",
    "fit_position",
    "inputs",
    "install",
    "layer",
    "least_scale",
    "model_of",
    "ready",
]
