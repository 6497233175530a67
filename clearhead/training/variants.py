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
from dataclasses import fields, replace
from typing import Any, cast

from clearhead.attention import masks
from clearhead.attention.heads import HeadLayout, Heads, SlicedHeads
from clearhead.attention.similarity import Dot, ScaledDot, Similarity
from clearhead.attention.weighting import Softmax
from clearhead.calls import public
from clearhead.errors import OptionError, no_such
from clearhead.model.arrangements import Arrangement
from clearhead.model.blocks import AttentionSpec, BlockSpec
from clearhead.model.feedforward import FeedForward
from clearhead.model.norms import LayerNorm, Norm
from clearhead.model.sizes import Spec
from clearhead.training import defaults

HEADS = ("whole", "sliced")
"""What `--heads` takes: every head sees the whole input, or head i only slice i of it."""

SCALES = ("sqrt", "none")
"""What `--scale` takes beside a number: q·k times 1/√d_head, or q·k as it is."""


def with_heads(spec: Spec, name: str) -> Spec:
    """Return the model with heads that see the whole input, or with heads that each see their own slice of it."""
    if name not in HEADS:
        raise OptionError(f"heads: {no_such(name, HEADS)}")
    change = sliced if name == "sliced" else whole
    return defaults.map_attention(spec, lambda slot: replace(slot, heads=change(slot.head_layout)))


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

    return defaults.map_attention(spec, change)


def with_d_value(spec: Spec, text: str) -> Spec:
    """Return the model whose values have this width in each head, whatever the width of queries and keys."""
    width = parse_whole("d_value", text)
    return defaults.map_attention(
        spec, lambda slot: replace(slot, heads=replace(whole_heads("d_value", slot), d_value=width))
    )


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
    part_choice = defaults.choose("block", name)

    def change(block: BlockSpec) -> BlockSpec:
        norm = norm_of(block.arrangement) or LayerNorm()
        return replace(block, arrangement=part_choice.make(norm=norm))

    return defaults.map_blocks(spec, change)


def norm_of(arrangement: Arrangement) -> Norm | None:
    """Return the norm that an arrangement has; None where it has none."""
    norms = (getattr(arrangement, field.name) for field in fields(cast(Any, arrangement)) if field.name == "norm")
    return next(norms, None)


def with_norm(spec: Spec, name: str) -> Spec:
    """Return the model with another norm wherever it has one."""
    part_choice = defaults.choose("norm", name)

    def replacement(norm: Norm) -> Norm:
        return norm if type(norm) is part_choice.cls and not part_choice.fields else part_choice.make()

    def change(block: BlockSpec) -> BlockSpec:
        norm = norm_of(block.arrangement)
        if norm is None:
            raise OptionError(f"norm: {block.arrangement} has no norm that could be another; choose a block with one")
        return replace(block, arrangement=replace(cast(Any, block.arrangement), norm=replacement(norm)))

    return defaults.map_embeddings(
        defaults.map_blocks(spec, change),
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

    return defaults.map_attention(spec, change)


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
        return defaults.map_blocks(spec, lambda block: replace(block, feed_forward=None))
    part_choice = defaults.choose("feed_forward", name)

    def replacement(current: FeedForward | None) -> FeedForward:
        if current is not None and type(current) is part_choice.cls and not part_choice.fields:
            return current
        if current is None and "d_ff" not in part_choice.fields:
            raise OptionError(f"feed_forward: {name} takes its d_ff from the one there is, and this block has none")
        return part_choice.make(**({} if current is None else {"d_ff": current.d_ff}))

    return defaults.map_blocks(spec, lambda block: replace(block, feed_forward=replacement(block.feed_forward)))


def with_mask(spec: Spec, name: str) -> Spec:
    """Return the model with this mask in all self-attention, besides what hides padding and, in a decoder, the future.

    Cross-attention keeps its own: its keys are another text's.
    """
    mask = None if name == "none" else defaults.choose("mask", name).make()
    return defaults.map_blocks(spec, lambda block: replace(block, attention=replace(block.attention, mask=mask)))


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
    """Return the whole number, 1 or more, that an option was given as text."""
    if not text.isdecimal() or int(text) < 1:
        raise OptionError(f"{option}: expected a whole number, 1 or more; came {text!r}")
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

    return defaults.map_attention(spec, change).map_stacks(lambda stack: replace(stack, d_model=d_model))


PARTS: dict[str, Callable[[Spec, str, int], Spec]] = {
    "attention": lambda spec, value, context: defaults.with_attention(spec, value),
    "scale": lambda spec, value, context: with_scale(spec, value),
    "heads": lambda spec, value, context: with_heads(spec, value),
    "value_rank": lambda spec, value, context: with_value_rank(spec, value),
    "d_value": lambda spec, value, context: with_d_value(spec, value),
    "block": lambda spec, value, context: with_block(spec, value),
    "norm": lambda spec, value, context: with_norm(spec, value),
    "feed_forward": lambda spec, value, context: with_feed_forward(spec, value),
    "mask": lambda spec, value, context: with_mask(spec, value),
    "window": lambda spec, value, context: with_window(spec, value),
    "position": defaults.with_position,
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
    """Return the model with several parts changed, whatever the order in which they are given."""
    for name in sorted(values, key=lambda name: [*PARTS, name].index(name)):
        spec = with_part(spec, name, values[name], context=context)
    return spec
