"""Sizes: a model by the name of a preset, or by one dial, how many parameters it shall have.

>>> from clearhead.model.sizes import parse_count, sized
>>> spec = sized("decoder", parse_count("10M"), vocabulary=8_000)
>>> spec.d_model, len(spec.blocks)
(288, 8)
"""

import functools
import math
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

from clearhead.errors import OptionError
from clearhead.model import presets
from clearhead.model.presets import Size
from clearhead.model.transformers import DecoderSpec, EncoderDecoderSpec, EncoderSpec

__all__ = ["FAMILIES", "KINDS", "Kind", "Spec", "family_and_size", "named", "parse_count", "sized"]

Spec = EncoderSpec | DecoderSpec | EncoderDecoderSpec

UNITS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
NARROWEST = 16
FAR = 1.1
"""Rungs further apart than this are joined by others, whose feed-forward is narrower."""


class Kind(NamedTuple):
    """A kind of model: how a size and a vocabulary become a spec, and how it grows."""

    make: Callable[[Size, int], Spec]
    stacks: int
    """How many stacks share the depth."""
    widening: float
    """d_ff / d_model."""


KINDS = {
    "encoder-decoder": Kind(lambda size, vocabulary: presets.classic(vocabulary, size=size), 2, 4),
    "decoder": Kind(lambda size, vocabulary: presets.llama(size, vocabulary=vocabulary, tied=True), 1, 8 / 3),
    "encoder": Kind(lambda size, vocabulary: presets.bert(size, vocabulary=vocabulary), 1, 4),
}
"""What `sized` can make: the paper's Transformer, a decoder as Llama is (output tied), an encoder as BERT is."""


class Family(NamedTuple):
    """A family of presets."""

    make: Callable[[str, int], Spec]
    sizes: tuple[str, ...]
    """The first is meant where none is named; no sizes, where the family is one model."""
    vocabulary: int


def usual_first(usual: str, sizes: dict[str, Size]) -> tuple[str, ...]:
    return (usual, *(size for size in sizes if size != usual))


FAMILIES = {
    "tiny": Family(lambda size, vocabulary: presets.tiny(vocabulary), (), 37_000),
    "base": Family(lambda size, vocabulary: presets.base(vocabulary), (), 37_000),
    "big": Family(lambda size, vocabulary: presets.big(vocabulary), (), 37_000),
    "gpt2": Family(
        lambda size, vocabulary: presets.gpt2(size, vocabulary=vocabulary), usual_first("small", presets.GPT2), 50_257
    ),
    "bert": Family(
        lambda size, vocabulary: presets.bert(size, vocabulary=vocabulary), usual_first("base", presets.BERT), 30_522
    ),
    "llama": Family(
        lambda size, vocabulary: presets.llama(size, vocabulary=vocabulary), usual_first("110m", presets.LLAMA), 32_000
    ),
}
"""The presets by name: `base`, `gpt2`, `gpt2-medium`."""


def named(name: str, *, vocabulary: int | None = None) -> Spec:
    """The preset of a name, `base` or `gpt2-medium`; `vocabulary` as published unless given."""
    family, size = family_and_size(name)
    return family.make(size, checked_vocabulary(family.vocabulary if vocabulary is None else vocabulary))


def family_and_size(name: str) -> tuple[Family, str]:
    head, dash, size = name.partition("-")
    family = FAMILIES.get(head)
    if family is None or (dash and size not in family.sizes):
        there = ", ".join(f"{head}[-{'|'.join(family.sizes)}]" if family.sizes else head for head, family in FAMILIES.items())
        raise OptionError(f"there is no preset {name!r}; there are {there}")
    return family, size or (*family.sizes, "")[0]


def parse_count(text: str) -> int:
    """A number of parameters as people write it.

    >>> [parse_count(text) for text in ("300k", "10M", "1.5B", "2_000_000")]
    [300000, 10000000, 1500000000, 2000000]
    """
    found = re.fullmatch(r"(\d[\d_]*(?:\.\d+)?)\s*([kmbt]?)", text.strip().lower())
    count = round(float(found[1]) * UNITS[found[2]]) if found else 0
    if count < 1:
        raise OptionError(f"{text!r} is no number of parameters; write 300k, 10M, 1.5B or 2_000_000")
    return count


def sized(kind: str, parameters: int, vocabulary: int) -> Spec:
    """The spec of this kind whose number of parameters is nearest to the one asked for.

    Depth is chosen by width (`depth`), heads are 16, 32 or 64 wide, and d_ff is 4 d_model, or 8/3 of it in the gated
    network of a decoder; where that would leave a gap, d_ff is less, but at least half of it. From 100 thousand
    parameters to 10 billion the count is within 10 % of what was asked, provided that there are at least 96 for each
    word of the vocabulary: with fewer nearly all of them are the table's, which grows by 16 numbers a word at a time.
    More parameters asked for never give fewer. Nothing is built but on the meta device, two blocks at a time.
    """
    if kind not in KINDS:
        raise OptionError(f"there is no kind {kind!r}; there are {', '.join(KINDS)}")
    checked_vocabulary(vocabulary)
    least = count(kind, rung(kind, NARROWEST), vocabulary)
    if parameters < least:
        raise OptionError(
            f"{parameters:,} parameters are too few for this {kind} and {vocabulary:,} words: the least is {least:,}; "
            "raise the size or lower the vocabulary"
        )
    size = min(ladder(kind, parameters, vocabulary), key=lambda size: away(count(kind, size, vocabulary), parameters))
    return KINDS[kind].make(size, vocabulary)


def checked_vocabulary(vocabulary: int) -> int:
    if vocabulary < 1:
        raise OptionError(f"vocabulary must be 1 or more; came {vocabulary}")
    return vocabulary


def away(count: int, wanted: int) -> float:
    return abs(math.log(count / wanted))


def depth(kind: str, width: int) -> int:
    """Blocks in each stack: half the square root of the width in all, so that 4096 wide is 32 deep and 64 wide 4."""
    return max(1, round(width**0.5 / 2 / KINDS[kind].stacks))


def step(width: int) -> int:
    """What widths go up by here, and how wide a head is: the wider, the rounder."""
    return 64 if width >= 512 else 32 if width >= 128 else 16


def rung(kind: str, width: int, n_layers: int | None = None) -> Size:
    """The size of this width: as deep as it should be, unless told otherwise."""
    n_heads = width // step(width)
    d_ff = rounded(KINDS[kind].widening * width, step(width))
    return Size(n_layers or depth(kind, width), width, n_heads, n_heads, d_ff)


def rounded(number: float, unit: int) -> int:
    return max(unit, round(number / unit) * unit)


def ladder(kind: str, parameters: int, vocabulary: int) -> Iterator[Size]:
    """The sizes about a number of parameters, from the widest that does not have more to the next in width.

    Each yields more parameters than the one before. They are part of one ladder that depends on kind and vocabulary
    alone, so that its rung nearest to a number never falls as the number rises.
    """
    width = widest(kind, parameters, vocabulary)
    wider = rung(kind, width + step(width))
    top = count(kind, wider, vocabulary)
    lower = rung(kind, width)
    yield lower
    for n_layers in range(lower.n_layers + 1, 2 * lower.n_layers):
        upper = rung(kind, width, n_layers)
        if count(kind, upper, vocabulary) >= top:
            break
        yield from between(kind, lower, upper, vocabulary)
        yield upper
        lower = upper
    yield from between(kind, lower, wider, vocabulary)
    yield wider


def widest(kind: str, parameters: int, vocabulary: int) -> int:
    """The greatest width whose size does not have more parameters than asked."""
    width, stride = NARROWEST, NARROWEST
    while count(kind, rung(kind, 2 * width), vocabulary) <= parameters:
        width, stride = 2 * width, width
    while stride >= step(width):
        if count(kind, rung(kind, width + stride), vocabulary) <= parameters:
            width += stride
        else:
            stride //= 2
    return width


def between(kind: str, lower: Size, upper: Size, vocabulary: int) -> Iterator[Size]:
    """Where two sizes are far apart: those between, the upper one with less feed-forward, from the least up."""
    floor = count(kind, lower, vocabulary)
    if count(kind, upper, vocabulary) <= FAR * floor:
        return
    for d_ff in range(rounded(upper.d_ff / 2, 16), upper.d_ff, 16):
        size = upper._replace(d_ff=d_ff)
        if count(kind, size, vocabulary) > floor:
            yield size


def count(kind: str, size: Size, vocabulary: int) -> int:
    """How many parameters a model of this size has: every block adds the same number."""
    one, two = (built(kind, size._replace(n_layers=n_layers), vocabulary) for n_layers in (1, 2))
    return one + (two - one) * (size.n_layers - 1)


@functools.lru_cache(maxsize=4096)
def built(kind: str, size: Size, vocabulary: int) -> int:
    with torch.device("meta"):
        model = KINDS[kind].make(size, vocabulary).build()
    return sum(parameter.numel() for parameter in model.parameters())
