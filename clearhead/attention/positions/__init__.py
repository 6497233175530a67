"""Positions: how attention knows the order of tokens. Each kind has one file, and one line that registers it.

`Rotary`, `ALiBi` and `T5Bias` act inside attention; `Sinusoidal` and `Learned` are added to the embeddings before it:

>>> import clearhead as ch
>>> encoding = ch.positions.Sinusoidal().embed(d_model=4)
>>> [round(x, 3) for x in encoding(3)[1].tolist()]                # sin 1, cos 1, sin 0.01, cos 0.01
[0.841, 0.54, 0.01, 1.0]
"""

from collections.abc import Mapping

from clearhead.attention.positions.base import EmbeddedPosition, NoPosition, Position
from clearhead.attention.positions.biases import ALiBi, T5Bias
from clearhead.attention.positions.embedded import Learned, Sinusoidal
from clearhead.attention.positions.rotary import LinearScaling, Llama3Scaling, Rotary, RotaryScaling, YaRNScaling
from clearhead.registry import Examples, register

__all__ = [
    "ALiBi",
    "EmbeddedPosition",
    "Learned",
    "LinearScaling",
    "Llama3Scaling",
    "NoPosition",
    "Position",
    "Rotary",
    "RotaryScaling",
    "Sinusoidal",
    "T5Bias",
    "YaRNScaling",
]

register(Sinusoidal, option="sinusoidal")
register(Learned, option="learned")
register(NoPosition, examples={"none": NoPosition()})
register(
    Rotary,
    option="rotary",
    examples={
        "rotary": Rotary(),
        "rotary halves": Rotary(pairing="halves"),
        "rotary partial": Rotary(width=4),
        "rotary scaled": Rotary(scaling=Llama3Scaling(4.0, low=1.0, high=4.0, original=64)),
    },
)
register(ALiBi, option="alibi", examples={"alibi": ALiBi()})
register(T5Bias, option="t5", examples={"t5": T5Bias()})

TABLE: Mapping[str, Position] = Examples("position")
"""Every position that acts inside attention, by name, those that users register too: the command line and the test grid
read it."""
