"""Rotary positions as configurations have them: base and scaling, in `rope_parameters` or in the older fields."""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from clearhead.attention.positions import LinearScaling, Llama3Scaling, NoPosition, Rotary, RotaryScaling, YaRNScaling
from clearhead.attention.weighting import Softmax
from clearhead.errors import OptionError
from clearhead.interop.architectures.base import expect
from clearhead.interop.config import Config
from clearhead.model.blocks import AttentionSpec

ORIGINAL = "original_max_position_embeddings"


class Rope(NamedTuple):
    """The position of a layer, mostly rotary, and the weighting where its scaling changes that too (YaRN)."""

    position: Rotary | NoPosition
    weighting: Softmax | None = None


def read_rope(config: Config, *, d_head: int | None = None, base: float = 10_000.0) -> Rope:
    """Return the rotary position; OptionError where the scaling is none of these: `dynamic` depends on the text.

    `d_head` is given for models that may turn a part of it alone (`partial_rotary_factor`). `base` is what their
    `rope_theta` is where config.json lacks it.
    """
    # Of both, transformers reads the older.
    parameters = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(parameters, dict):
        raise config.error("rope_parameters", f"expected an object; came {parameters!r:.80}")
    older = {name: config.get(name) for name in ("rope_theta", "partial_rotary_factor")}
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    values = {**older, ORIGINAL: config.get("max_position_embeddings"), **parameters, "rope_type": kind}
    if config.get(ORIGINAL) is not None:
        values[ORIGINAL] = config.get(ORIGINAL)
    rope = Config(values, f"{config.where}: rope_parameters")
    width = None
    if d_head is None:
        rope.require("partial_rotary_factor", 1.0)
    else:
        width = read_width(rope, d_head)
    scaling = rope.choose("rope_type", SCALINGS)(rope)
    if width is not None and isinstance(scaling, YaRNScaling):
        raise rope.error("rope_type", "yarn is not supported yet where a part of each head is turned")
    position = Rotary(pairing="halves", base=rope.number("rope_theta", base), width=width, scaling=scaling)
    return Rope(position, yarn_weighting(rope) if isinstance(scaling, YaRNScaling) else None)


def read_width(rope: Config, d_head: int) -> int | None:
    """Return how many entries of a head turn; None for all of them."""
    width = int(d_head * rope.number("partial_rotary_factor", 1.0))
    if not 2 <= width <= d_head or width % 2:
        raise rope.error("partial_rotary_factor", f"turns {width} of {d_head} entries; expected an even number of them")
    return None if width == d_head else width


def write_width(position: Rotary, d_head: int) -> float:
    """Return the share of a head that turns, from which `read_width` has the same number of entries."""
    width = position.width or d_head
    return width / d_head if int(d_head * (width / d_head)) == width else (width + 0.5) / d_head


def read_linear(rope: Config) -> LinearScaling:
    return LinearScaling(rope.number("factor"))


def read_llama3(rope: Config) -> Llama3Scaling:
    low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
    return Llama3Scaling(rope.number("factor"), low=low, high=high, original=rope.count(ORIGINAL))


def read_yarn(rope: Config) -> YaRNScaling:
    fast, slow = rope.number("beta_fast", 32.0), rope.number("beta_slow", 1.0)
    factor, original, whole = rope.number("factor"), rope.count(ORIGINAL), rope.flag("truncate", True)
    return YaRNScaling(factor, original=original, fast=fast, slow=slow, whole=whole)


def yarn_weighting(rope: Config) -> Softmax:
    """Return the softmax of YaRN's larger scores: cosines and sines times a factor are scores times its square.

    By default it is 0.1 · ln(factor) + 1, and `mscale` over `mscale_all_dim` change it.
    """

    def magnitude(share: float) -> float:
        return max(1.0, 0.1 * share * math.log(rope.number("factor")) + 1)

    if rope.get("attention_factor") is not None:
        larger = rope.number("attention_factor")
    elif rope.get("mscale") and rope.get("mscale_all_dim"):
        larger = magnitude(rope.number("mscale")) / magnitude(rope.number("mscale_all_dim"))
    else:
        larger = magnitude(1.0)
    return Softmax(temperature=larger**-2)


SCALINGS: Mapping[str, Callable[[Config], RotaryScaling | None]] = {
    "default": lambda rope: None,
    "linear": read_linear,
    "llama3": read_llama3,
    "yarn": read_yarn,
}


def write_rope(layer: AttentionSpec) -> dict[str, Any]:
    """Return the fields of a rotary position; OptionError for a scaling that no configuration has a name for."""
    position = expect(layer.position, Rotary, "attention.position")
    weighting = expect(layer.weighting or Softmax(), Softmax, "attention.weighting")
    values: dict[str, Any] = {"rope_theta": position.base}
    match position.scaling:
        case None:
            values |= {"rope_type": "default"}
        case LinearScaling(factor):
            values |= {"rope_type": "linear", "factor": factor}
        case Llama3Scaling(factor, low, high, original):
            values |= {"rope_type": "llama3", "factor": factor, ORIGINAL: original}
            values |= {"low_freq_factor": low, "high_freq_factor": high}
        case YaRNScaling(factor, original, fast, slow, whole):
            values |= {"rope_type": "yarn", "factor": factor, ORIGINAL: original, "truncate": whole}
            values |= {"beta_fast": fast, "beta_slow": slow, "attention_factor": weighting.temperature**-0.5}
        case other:
            raise OptionError(f"config.json has no name for the scaling {other!r}; there are {', '.join(SCALINGS)}")
    return {"rope_parameters": values}
