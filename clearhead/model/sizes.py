"""Sizes: a model by the name of a preset, or by one dial: its number of parameters; and models that are built
for their shapes alone, without memory for their numbers; and specs as JSON, and back.

>>> from clearhead.model.sizes import parse_count, sized
>>> spec = sized("decoder", parse_count("10M"), vocabulary=8_000)
>>> spec.d_model, len(spec.blocks)
(256, 10)
>>> spec_from_json(spec_to_json(spec)) == spec
True
"""

import dataclasses
import functools
import math
import re
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from clearhead.attention.heads import Heads, SlicedHeads
from clearhead.errors import OptionError, RunError
from clearhead.model import presets
from clearhead.model.arrangements import PreNorm
from clearhead.model.blocks import AttentionSpec, BlockSpec
from clearhead.model.embedding import Embedding
from clearhead.model.outputs import NgramLogits
from clearhead.model.presets import Size
from clearhead.model.transformers import DecoderSpec, EncoderDecoderSpec, EncoderSpec
from clearhead.registry import CLASSES
from clearhead.serialization import from_json, table_of, to_json

SMALL = 8_000_000
"""Numbers of a model up to which it is built for real to see its shapes, in a tenth of a second."""


class TooManyNumbers(Exception):
    """More numbers were asked for than are allowed."""


class Bounded(TorchFunctionMode):
    """Raise TooManyNumbers, before any memory is taken, where tensors of more than `limit` numbers in all are made."""

    def __init__(self, limit: int | float) -> None:
        super().__init__()
        self.left = limit

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in (torch.empty, torch.zeros, torch.ones, torch.rand, torch.randn):
            size = kwargs.get("size", args)
            self.left -= math.prod(size[0] if len(size) == 1 and isinstance(size[0], Sequence) else size)
            if self.left < 0:
                raise TooManyNumbers
        return func(*args, **kwargs)


class WithoutValues(TorchFunctionMode):
    """Within it, tensors are made on the meta device and never filled: what fills or scales one returns it as it is.

    To compute on that device, torch imports 880 modules at the first use, which takes most of a second.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        fills = name.endswith("_") and not name.endswith("__") and name != "requires_grad_"
        scales = func is torch.Tensor.mul and isinstance(args[1], int | float)
        if fills or scales:
            return args[0] if args else kwargs["tensor"]
        if func in (torch.rand, torch.randn):
            func, kwargs = torch.empty, {key: value for key, value in kwargs.items() if key != "generator"}
        if func in (torch.rand_like, torch.randn_like):
            return torch.empty(args[0].shape)
        if func is torch.arange:  # short, and computed with
            kwargs = {**kwargs, "device": "cpu"}
        return func(*args, **kwargs)


def build_for_shapes(spec: EncoderSpec | DecoderSpec | EncoderDecoderSpec) -> nn.Module:
    """Build a model for its shapes alone: with real weights where it is small, else on the meta device."""
    try:
        with torch.random.fork_rng(devices=[]), Bounded(SMALL):
            return spec.build()
    except TooManyNumbers:
        with torch.device("meta"), WithoutValues():
            return spec.build()


Spec = EncoderSpec | DecoderSpec | EncoderDecoderSpec

UNITS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
NARROWEST, MOST = 16, 10**13
FAR = 1.1
"""Sizes further apart than this have others between them, whose feed-forward is narrower."""


class Preset(NamedTuple):
    """A preset for any vocabulary, and the one it is meant for."""

    make: Callable[[int], Spec]
    vocabulary: int


class ModelFamily(NamedTuple):
    """A kind of model that can have any size."""

    make: Callable[[Size, int], Spec]
    """From a size and a vocabulary."""
    n_stacks: int
    """Number of stacks that share the depth."""
    widening: float
    """d_ff / d_model."""


def family(
    name: str, make: Callable[[str, int], Spec], sizes: Mapping[str, Size], *, usual: str, vocabulary: int
) -> dict[str, Preset]:
    """Return the presets of a family, `gpt2-medium` and so on; the family's bare name is the usual one."""
    named = {size: Preset(functools.partial(make, size), vocabulary) for size in sizes}
    return {name: named[usual], **{f"{name}-{size}": preset for size, preset in named.items()}}


PRESETS: dict[str, Preset] = {
    "tiny": Preset(presets.tiny, 37_000),
    "base": Preset(presets.base, 37_000),
    "big": Preset(presets.big, 37_000),
    **family(
        "gpt2",
        lambda size, vocabulary: presets.gpt2(size, vocabulary=vocabulary),
        presets.GPT2,
        usual="small",
        vocabulary=50_257,
    ),
    **family(
        "bert",
        lambda size, vocabulary: presets.bert(size, vocabulary=vocabulary),
        presets.BERT,
        usual="base",
        vocabulary=30_522,
    ),
    **family(
        "llama",
        lambda size, vocabulary: presets.llama(size, vocabulary=vocabulary),
        presets.LLAMA,
        usual="110m",
        vocabulary=32_000,
    ),
}
"""Every preset by name."""

KINDS: dict[str, ModelFamily] = {
    "encoder-decoder": ModelFamily(
        lambda size, vocabulary: presets.classic(vocabulary, size=size, arrangement=PreNorm()), 2, 4
    ),
    "decoder": ModelFamily(lambda size, vocabulary: presets.llama(size, vocabulary=vocabulary, tied=True), 1, 8 / 3),
    "encoder": ModelFamily(lambda size, vocabulary: presets.bert(size, vocabulary=vocabulary), 1, 4),
}
"""Kinds of `sized`: the paper's Transformer with the norm before each branch, a decoder like Llama (with its output
tied), an encoder like BERT."""


def named(name: str, vocabulary: int | None = None) -> Spec:
    """Return the spec of a preset, for its own vocabulary unless another is given."""
    if name not in PRESETS:
        raise OptionError(f"there is no preset {name!r}; there are {', '.join(PRESETS)}")
    preset = PRESETS[name]
    return preset.make(preset.vocabulary if vocabulary is None else check_vocabulary(vocabulary))


def parse_count(text: str) -> int:
    """Read a number of parameters as people write it.

    >>> [parse_count(text) for text in ("300k", "10M", "1.5B", "2_000_000")]
    [300000, 10000000, 1500000000, 2000000]
    """
    match = re.fullmatch(r"(\d+(?:_\d+)*(?:\.\d+)?)([kmbt]?)", text.strip().lower())
    count = round(float(match[1]) * UNITS[match[2]]) if match else 0
    if count < 1:
        raise OptionError(f"{text!r} is no number of parameters; write 300k, 10M, 1.5B or 2_000_000")
    return count


def sized(kind: str, parameters: int, vocabulary: int) -> Spec:
    """Return the spec of this kind whose number of parameters is nearest to the one asked for.

    The depth goes with the width (`depth`), heads are 16, 32 or 64 wide, and d_ff is 4 d_model, or 8/3 of it in the
    gated network of a decoder; where that leaves a gap, d_ff is less, but no less than half of it. From 100 thousand
    parameters to 10 billion the count is within 10 % of what was asked if there are 96 or more for each word of the
    vocabulary; with fewer, most are the table's, which grows by 16 for each word at a time. Asking for more never gives
    less. Nothing is built but three narrow models of one or two blocks.
    """
    if kind not in KINDS:
        raise OptionError(f"there is no kind {kind!r}; there are {', '.join(KINDS)}")
    return KINDS[kind].make(nearest_size(kind, parameters, vocabulary), vocabulary)


def resized(spec: Spec, parameters: int) -> Spec:
    """Return the model with the same parts and vocabulary at the size that `sized` gives for this many parameters.

    The size of a vocabulary is known once the tokeniser is trained: then the model is brought to its size.
    """
    size = nearest_size(spec.kind, parameters, spec.table_rows)
    return spec.map_stacks(lambda stack: with_size(stack, size))


def nearest_size(kind: str, parameters: int, vocabulary: int) -> Size:
    """Return the size whose number of parameters is nearest; raise if no model is that small or that large."""
    least = count(kind, rung(kind, NARROWEST), check_vocabulary(vocabulary))
    if parameters < least:
        raise OptionError(
            f"{parameters:,} parameters are too few for this {kind} with a vocabulary of {vocabulary:,}: the least is "
            f"{least:,}; raise the size, or lower the vocabulary"
        )
    if parameters > MOST:
        raise OptionError(f"{parameters:,} parameters are too many; the most is {MOST:,}")
    sizes = ladder(kind, parameters, vocabulary)
    return min(sizes, key=lambda size: abs(math.log(count(kind, size, vocabulary) / parameters)))


def with_size(spec: EncoderSpec | DecoderSpec, size: Size) -> EncoderSpec | DecoderSpec:
    """Return the stack at another size. Every block gets the parts of the first one, at that size."""
    first = spec.blocks[0]
    block = replace(
        first,
        attention=with_heads(first.attention, size),
        cross=None if first.cross is None else with_heads(first.cross, size),
        feed_forward=None if first.feed_forward is None else replace(first.feed_forward, d_ff=size.d_ff),
    )
    return replace(spec, d_model=size.d_model, blocks=(block,) * size.n_layers)


def with_heads(spec: AttentionSpec, size: Size) -> AttentionSpec:
    heads = spec.heads
    if isinstance(heads, Heads):
        return replace(spec, heads=replace(heads, count=size.n_heads, kv=size.n_kv_heads))
    if isinstance(heads, SlicedHeads):
        return replace(spec, heads=replace(heads, count=size.n_heads))
    return replace(spec, heads=size.n_heads) if isinstance(heads, int) else spec


def check_vocabulary(vocabulary: int) -> int:
    if vocabulary < 1:
        raise OptionError(f"vocabulary must be 1 or more; came {vocabulary}")
    return vocabulary


def depth(kind: str, width: int) -> int:
    """Return the number of blocks: half the square root of the width in all, so 4096 wide is 32 deep, 64 wide 4."""
    return max(1, round(width**0.5 / 2 / KINDS[kind].n_stacks))


def step(width: int) -> int:
    """Return what widths are multiples of, and how wide a head is."""
    return 64 if width >= 512 else 32 if width >= 128 else 16


def rung(kind: str, width: int, n_layers: int | None = None) -> Size:
    """Return the size of this width: as deep as goes with it, unless given."""
    n_heads = width // step(width)
    d_ff = round(KINDS[kind].widening * width / step(width)) * step(width)
    return Size(n_layers or depth(kind, width), width, n_heads, n_heads, d_ff)


def ladder(kind: str, parameters: int, vocabulary: int) -> Iterator[Size]:
    """Return the sizes about a number of parameters: from the widest that does not exceed it to the next in width.

    Each has more parameters than the one before. They are rungs of one ladder for a kind and a vocabulary, so the one
    nearest to a number never falls as the number rises.
    """
    lower = rung(kind, widest(kind, parameters, vocabulary))
    wider = rung(kind, lower.d_model + step(lower.d_model))
    yield lower
    for n_layers in range(lower.n_layers + 1, 2 * lower.n_layers + 2):
        deeper = rung(kind, lower.d_model, n_layers)
        if count(kind, deeper, vocabulary) >= count(kind, wider, vocabulary):
            break
        yield from between(kind, lower, deeper, vocabulary)
        yield deeper
        lower = deeper
    yield from between(kind, lower, wider, vocabulary)
    yield wider


def widest(kind: str, parameters: int, vocabulary: int) -> int:
    """Return the greatest width whose own rung does not exceed a number of parameters."""

    def fits(width: int) -> bool:
        return count(kind, rung(kind, width), vocabulary) <= parameters

    width = NARROWEST
    while fits(2 * width):
        width *= 2
    stride = width // 2
    while stride >= step(width):
        width, stride = (width + stride if fits(width + stride) else width), stride // 2
    return width


def between(kind: str, lower: Size, upper: Size, vocabulary: int) -> Iterator[Size]:
    """Return sizes between two rungs far apart: the upper one with less feed-forward, from the least up."""
    floor, unit = count(kind, lower, vocabulary), step(upper.d_model)
    if count(kind, upper, vocabulary) <= FAR * floor:
        return
    least, stride = (unit * math.ceil(upper.d_ff / parts / unit) for parts in (2, 16))
    for d_ff in range(least, upper.d_ff, stride):
        narrower = upper._replace(d_ff=d_ff)
        if count(kind, narrower, vocabulary) > floor:
            yield narrower


def count(kind: str, size: Size, vocabulary: int) -> int:
    """Return the parameters of a model of this size: each token, block and number of d_ff adds the same amount."""
    least, token, block, hidden = growth(kind, size.d_model)
    inside = block * (size.n_layers - 1) + hidden * size.n_layers * (size.d_ff - 1)
    return least + token * (vocabulary - 1) + inside


def growth(kind: str, width: int) -> tuple[int, int, int, int]:
    """Return the parameters of the least model so wide, and what one more token, block, or number in d_ff adds.

    Maps have d_model x d_model parameters, tables and norms d_model, so each is a polynomial of the second degree in
    the width: three narrow models tell it, by Newton's formula, and no wide one is ever built.
    """
    steps_up = (width - NARROWEST) // NARROWEST
    narrow = (growth_when_built(kind, NARROWEST * steps) for steps in (1, 2, 3))
    first, second, third, fourth = (
        one + steps_up * (two - one) + steps_up * (steps_up - 1) // 2 * (three - 2 * two + one)
        for one, two, three in zip(*narrow, strict=True)
    )
    return first, second, third, fourth


@functools.cache
def growth_when_built(kind: str, width: int) -> tuple[int, int, int, int]:
    """Return what `growth` does, of models that are built."""
    least_size = rung(kind, width, 1)._replace(d_ff=1)
    least = count_parameters(kind, least_size, 1)
    token, block = count_parameters(kind, least_size, 2), count_parameters(kind, least_size._replace(n_layers=2), 1)
    return least, token - least, block - least, count_parameters(kind, least_size._replace(d_ff=2), 1) - least


def count_parameters(kind: str, size: Size, vocabulary: int) -> int:
    model = build_for_shapes(KINDS[kind].make(size, vocabulary))
    return sum(parameter.numel() for parameter in model.parameters())


SPECS = table_of((AttentionSpec, BlockSpec, Embedding, EncoderSpec, DecoderSpec, EncoderDecoderSpec, NgramLogits))
"""What holds parts in a model, and is none itself."""
PARTS: Mapping[str, type] = ChainMap(CLASSES, SPECS)
"""Everything a saved model can have, by name: registered parts, of users too."""


def spec_to_json(spec: Spec) -> dict[str, Any]:
    """Return the spec as JSON; raise if a part of it is not one that `spec_from_json` could make again."""
    return to_json(spec, PARTS)


def spec_from_json(content: Any, *, where: str = "JSON") -> Spec:
    """Return the spec, every field checked; errors begin with `where`, the file."""
    spec = from_json(content, PARTS, where=where)
    if not isinstance(spec, Spec):
        raise RunError(f"{where}: a model was expected, and a {type(spec).__name__} was written")
    return spec


COUNTS = ("count", "heads", "buckets", "width")
"""Fields of parts that say how often or how wide something is built: each is an axis of one of its tensors."""


def counts_in(part: Any) -> Iterator[tuple[str, int]]:
    """Yield the counts anywhere in a spec or a part, by the names of their fields.

    >>> from clearhead.attention.heads import Heads
    >>> list(counts_in(Heads(8, kv=2)))
    [('count', 8)]
    """
    if isinstance(part, tuple):
        for item in part:
            yield from counts_in(item)
    elif dataclasses.is_dataclass(part):
        for field in dataclasses.fields(part):
            value = getattr(part, field.name)
            if field.name in COUNTS and isinstance(value, int):
                yield field.name, value
            yield from counts_in(value)
