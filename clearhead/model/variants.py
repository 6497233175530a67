"""Variants: a model with one part exchanged for another, by the name of an option and its value as text.

`clearhead train` and `clearhead compare` change models with these functions, so whatever they can name is trained,
compared and stored in the recipe like any other model.

>>> from clearhead.model import presets
>>> spec = with_part(presets.tiny(vocabulary=100), "block", "pre", context=64)
>>> spec.decoder.blocks[0].arrangement
PreNorm()
"""

import functools
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, cast

from clearhead.attention import masks, weighting
from clearhead.attention.heads import HeadLayout, Heads, SlicedHeads
from clearhead.attention.positions import EmbeddedPosition, Position
from clearhead.attention.similarity import Dot, ScaledDot, Similarity
from clearhead.attention.weighting import Softmax, Weighting
from clearhead.calls import public
from clearhead.errors import OptionError, errors_as, no_such
from clearhead.model import Arrangement, AttentionSpec, BlockSpec, Embedding, FeedForward, LayerNorm, Norm
from clearhead.model.sizes import Spec
from clearhead.registry import PartOption, options, parse


@dataclass(frozen=True)
class Kind:
    """A kind of attention by name: how scores are made, and how they become weights."""

    similarity: Similarity | None = None
    weighting: Weighting | None = None


KINDS = {
    "attention": ("weighting", "similarity", "feature map"),
    "position": ("embedded position", "position"),
    "block": ("arrangement",),
    "norm": ("norm",),
    "feed_forward": ("feed-forward",),
    "mask": ("mask",),
}
"""The kinds of registered parts that each option of a model names."""
ABSENT = ("position", "feed_forward", "mask")
"""The options that take `none`: a model without the part."""


def choose(option: str, text: str) -> PartOption:
    """Return the part that the text of an option names."""
    with errors_as(OptionError, option):
        return parse(text, *KINDS[option], also=("none",) if option in ABSENT else ())


def attention_of(name: str) -> Kind:
    """Return the kind of attention that a name stands for, or a part of the user's own."""
    part = choose("attention", name).make()
    if isinstance(part, Similarity):
        return Kind(similarity=part)
    if isinstance(part, weighting.Features):
        return Kind(weighting=weighting.Kernelized(part))
    return Kind(weighting=None if part == weighting.Softmax() else part)


ATTENTIONS: dict[str, Kind] = {name: attention_of(name) for name in (*options("weighting"), *options("similarity"))}
"""What `--attention` takes, beside parts of a user's own."""

POSITIONS = (*options("embedded position"), *options("position"), "none")
"""What `--position` takes, beside parts of a user's own."""


def map_blocks(spec: Spec, change: Callable[[BlockSpec], BlockSpec]) -> Spec:
    return spec.map_stacks(lambda stack: replace(stack, blocks=tuple(map(change, stack.blocks))))


@public
def map_attention(spec: Spec, change: Callable[[AttentionSpec], AttentionSpec]) -> Spec:
    """Return the model with every attention slot changed, cross-attention included.

    Args:
        spec: Spec of a model.
        change: Takes and returns the spec of an attention.

    Returns:
        The changed spec.
    """

    def changed(block: BlockSpec) -> BlockSpec:
        cross = None if block.cross is None else change(block.cross)
        return replace(block, attention=change(block.attention), cross=cross)

    return map_blocks(spec, changed)


def with_attention(spec: Spec, name: str) -> Spec:
    """Return the model with another kind of attention in every slot."""
    kind = attention_of(name)
    return map_attention(spec, lambda slot: replace(slot, similarity=kind.similarity, weighting=kind.weighting))


def with_position(spec: Spec, name: str, context: int) -> Spec:
    """Return the model that knows the order of tokens in another way; cross-attention has none of its own.

    Positions as large as 1, such as sines, have embeddings beside them that are scaled to be so too.
    """
    part = None if name == "none" else choose("position", name).make(length=context)
    embedded = part if isinstance(part, EmbeddedPosition) else None
    inside = part if isinstance(part, Position) else None

    def change(block: BlockSpec) -> BlockSpec:
        cross = None if block.cross is None else replace(block.cross, position=None)
        return replace(block, attention=replace(block.attention, position=inside), cross=cross)

    return map_embeddings(
        map_blocks(spec, change),
        lambda embedding: replace(
            embedding,
            position=embedded,
            scaled=embedding.scaled or (embedded is not None and embedded.scales_tokens),
        ),
    )


def with_dropout(spec: Spec, dropout: float) -> Spec:
    """Return the model with this dropout on embeddings and branches."""
    changed = map_blocks(spec, lambda block: replace(block, dropout=dropout))
    return map_embeddings(changed, lambda embedding: replace(embedding, dropout=dropout))


def map_embeddings(spec: Spec, change: Callable[[Embedding], Embedding]) -> Spec:
    return spec.map_stacks(lambda stack: replace(stack, embedding=change(stack.embedding)))


HEADS = ("whole", "sliced")
"""What `--heads` takes: every head sees the whole input, or head i only slice i of it."""

SCALES = ("sqrt", "none")
"""What `--scale` takes beside a number: q·k times 1/√d_head, or q·k as it is."""


def with_heads(spec: Spec, name: str) -> Spec:
    """Return the model with heads that see the whole input, or with heads that each see their own slice of it."""
    if name not in HEADS:
        raise OptionError(f"heads: {no_such(name, HEADS)}")
    change = sliced if name == "sliced" else whole
    return map_attention(spec, lambda slot: replace(slot, heads=change(slot.head_layout)))


def sliced(heads: HeadLayout) -> HeadLayout:
    if isinstance(heads, SlicedHeads):
        return heads
    if not isinstance(heads, Heads):
        raise OptionError(f"heads: sliced heads can replace Heads; this model has {heads}")
    if heads.kv not in (None, heads.count) or (heads.d_head, heads.d_value) != (None, None):
        raise OptionError(
            "heads: sliced heads have maps as wide as their slice for query, key and value: they share no key heads, "
            f"and take no width of their own; this model has {heads}"
        )
    return SlicedHeads(heads.count, bias=heads.bias, output=heads.output, value_rank=heads.value_rank)


def whole(heads: HeadLayout) -> HeadLayout:
    if isinstance(heads, SlicedHeads):
        return Heads(heads.count, bias=heads.bias, output=heads.output, value_rank=heads.value_rank)
    return heads


def with_value_rank(spec: Spec, text: str) -> Spec:
    """Return the model whose value maps are V_down, to `rank` numbers in each head, then V_up, to d_value."""
    rank = parse_whole("value_rank", text)

    def change(slot: AttentionSpec) -> AttentionSpec:
        heads = slot.head_layout
        ranked = heads if isinstance(heads, SlicedHeads) else whole_heads("value_rank", slot)
        return replace(slot, heads=replace(ranked, value_rank=rank))

    return map_attention(spec, change)


def with_d_value(spec: Spec, text: str) -> Spec:
    """Return the model whose values have this width in each head, whatever the width of queries and keys."""
    width = parse_whole("d_value", text)
    return map_attention(spec, lambda slot: replace(slot, heads=replace(whole_heads("d_value", slot), d_value=width)))


def whole_heads(option: str, slot: AttentionSpec) -> Heads:
    heads = slot.head_layout
    if not isinstance(heads, Heads):
        raise OptionError(
            f"{option}: only heads that see the whole input can choose it; this model has {heads}, whose value "
            "maps are square. Leave out sliced heads"
        )
    return heads


def with_block(spec: Spec, name: str) -> Spec:
    """Return the model with its norms elsewhere: before each branch, after it, as the notes have it, or nowhere."""
    part_choice = choose("block", name)

    def change(block: BlockSpec) -> BlockSpec:
        norm = norm_of(block.arrangement) or LayerNorm()
        return replace(block, arrangement=part_choice.make(norm=norm))

    return map_blocks(spec, change)


def norm_of(arrangement: Arrangement) -> Norm | None:
    """Return the norm that an arrangement has; None if it has none."""
    norms = (getattr(arrangement, field.name) for field in fields(cast(Any, arrangement)) if field.name == "norm")
    return next(norms, None)


def with_norm(spec: Spec, name: str) -> Spec:
    """Return the model with another norm wherever it has one."""
    part_choice = choose("norm", name)

    def replacement(norm: Norm) -> Norm:
        return norm if type(norm) is part_choice.cls and not part_choice.fields else part_choice.make()

    def change(block: BlockSpec) -> BlockSpec:
        norm = norm_of(block.arrangement)
        if norm is None:
            raise OptionError(f"norm: {block.arrangement} has no norm that could be another; choose a block with one")
        return replace(block, arrangement=replace(cast(Any, block.arrangement), norm=replacement(norm)))

    return map_embeddings(
        map_blocks(spec, change),
        lambda embedding: embedding if embedding.norm is None else replace(embedding, norm=replacement(embedding.norm)),
    )


def with_scale(spec: Spec, text: str) -> Spec:
    """Return the model whose scores are q·k times another factor: 1/√d_head (`sqrt`), 1 (`none`), or this number."""
    similarity = parse_scale(text)

    def change(slot: AttentionSpec) -> AttentionSpec:
        current = slot.similarity or (slot.weighting or Softmax()).similarity
        if not isinstance(current, Dot | ScaledDot):
            raise OptionError(
                f"scale: it multiplies the dot product of query and key; this attention scores by {current}, which has "
                "no such factor. Leave it out, or choose attention by dot product"
            )
        return replace(slot, similarity=similarity)

    return map_attention(spec, change)


def parse_scale(text: str) -> Similarity:
    """Return the dot product with the factor that is written: `sqrt`, `none` or a number above 0."""
    if text in SCALES:
        return ScaledDot() if text == "sqrt" else Dot()
    try:
        factor = float(text)
    except ValueError:
        factor = math.nan
    if not 0 < factor < math.inf:
        raise OptionError(f"scale: expected {', '.join(SCALES)}, or a number above 0 such as 0.125; came {text!r}")
    return ScaledDot(factor)


def with_feed_forward(spec: Spec, name: str) -> Spec:
    """Return the model with another feed-forward of the same d_ff in every block, or without any."""
    if name == "none":
        return map_blocks(spec, lambda block: replace(block, feed_forward=None))
    part_choice = choose("feed_forward", name)

    def replacement(current: FeedForward | None) -> FeedForward:
        if current is not None and type(current) is part_choice.cls and not part_choice.fields:
            return current
        if current is None and "d_ff" not in part_choice.fields:
            raise OptionError(f"feed_forward: {name} takes its d_ff from the one there is, and this block has none")
        return part_choice.make(**({} if current is None else {"d_ff": current.d_ff}))

    return map_blocks(spec, lambda block: replace(block, feed_forward=replacement(block.feed_forward)))


def with_mask(spec: Spec, name: str) -> Spec:
    """Return the model with this mask in all self-attention, besides what hides padding and, in a decoder, the future.

    Cross-attention keeps its own: its keys are another text's.
    """
    mask = None if name == "none" else choose("mask", name).make()
    return map_blocks(spec, lambda block: replace(block, attention=replace(block.attention, mask=mask)))


def with_window(spec: Spec, text: str) -> Spec:
    """Return the model whose self-attention sees `text` tokens: itself and those before it, in an encoder after it too.

    Another mask that it has stays; another window does not.
    """
    back = parse_whole("window", text) - 1

    def change(stack: Any) -> Any:
        window = masks.window(back, 0 if stack.encoder is None else back)

        def seen(slot: AttentionSpec) -> AttentionSpec:
            others = [term for term in (slot.mask or window).terms if type(term) is not type(window)]
            return replace(slot, mask=functools.reduce(operator.and_, others, window))

        return replace(stack, blocks=tuple(replace(block, attention=seen(block.attention)) for block in stack.blocks))

    return spec.map_stacks(change)


def parse_whole(option: str, text: str) -> int:
    """Return the whole number, from 1 to a billion, that an option was given as text."""
    if not text.isdecimal() or len(text) > 9 or int(text) < 1:
        raise OptionError(f"{option}: expected a whole number from 1 to 999,999,999; came {text[:40]!r}")
    return int(text)


def with_width(spec: Spec, d_model: int) -> Spec:
    """Return the model with another width. Where its heads do not divide it, there are as many fewer as need be."""

    def change(slot: AttentionSpec) -> AttentionSpec:
        heads = slot.head_layout
        if not isinstance(heads, Heads | SlicedHeads):
            return slot
        fitting = max(count for count in range(1, heads.count + 1) if d_model % count == 0)
        if isinstance(heads, Heads) and fitting != heads.count:
            return replace(slot, heads=replace(heads, count=fitting, kv=None))
        return replace(slot, heads=replace(heads, count=fitting))

    return map_attention(spec, change).map_stacks(lambda stack: replace(stack, d_model=d_model))


PARTS: dict[str, Callable[[Spec, str, int], Spec]] = {
    "attention": lambda spec, value, context: with_attention(spec, value),
    "scale": lambda spec, value, context: with_scale(spec, value),
    "heads": lambda spec, value, context: with_heads(spec, value),
    "value_rank": lambda spec, value, context: with_value_rank(spec, value),
    "d_value": lambda spec, value, context: with_d_value(spec, value),
    "block": lambda spec, value, context: with_block(spec, value),
    "norm": lambda spec, value, context: with_norm(spec, value),
    "feed_forward": lambda spec, value, context: with_feed_forward(spec, value),
    "mask": lambda spec, value, context: with_mask(spec, value),
    "window": lambda spec, value, context: with_window(spec, value),
    "position": with_position,
}
"""The parts of a model that can be changed by name, in the order in which they are: scale works on the attention that
is chosen, value_rank on its heads, norm on the block, window on the mask."""


def with_part(spec: Spec, name: str, value: str, *, context: int) -> Spec:
    """Return the model with one part changed; `context` is the longest row, which learned positions must know."""
    if name not in PARTS:
        raise OptionError(f"a model's {name!r} cannot be varied; there are {', '.join(PARTS)}")
    return PARTS[name](spec, value, context)


@public
def with_parts(spec: Spec, values: Mapping[str, str], *, context: int) -> Spec:
    """Return the model with several parts changed, whatever the order in which they are given.

    Args:
        spec: Spec of a model.
        values: By option, the new value.
        context: Context length, for positions that have one.

    Returns:
        The changed spec.
    """
    for name in sorted(values, key=lambda name: [*PARTS, name].index(name)):
        spec = with_part(spec, name, values[name], context=context)
    return spec
