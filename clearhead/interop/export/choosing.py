"""Choose a model that other programs can express, near the usual one: what `train --must-export` trains."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from clearhead.attention.heads import Heads
from clearhead.errors import OptionError
from clearhead.interop.export import check_exportable
from clearhead.model import GELU, Classes
from clearhead.model.presets import Size, bert
from clearhead.model.sizes import Spec
from clearhead.training.recipe import Recipe
from clearhead.training.variants import map_blocks


class Change(NamedTuple):
    """A change that makes a model easier to export, in words, and how it is made."""

    words: str
    make: Callable[[Spec, int], Spec]


def without_ngrams(spec: Spec, context: int) -> Spec:
    if spec.decoder is None and isinstance(spec.output, Classes):
        return replace(spec, output=replace(spec.output, ngrams=None))
    return spec


def like_bert(spec: Spec, context: int) -> Spec:
    """Return an encoder with BERT's parts, of the same size; its classes are read from the first token."""
    if spec.decoder is not None:
        return spec
    heads = spec.blocks[0].attention.head_layout
    if not isinstance(heads, Heads) or spec.blocks[0].feed_forward is None:
        return spec
    size = Size(len(spec.blocks), spec.d_model, heads.count, heads.count, spec.blocks[0].feed_forward.d_ff)
    output = replace(spec.output, pool="first", hidden=True) if isinstance(spec.output, Classes) else spec.output
    dropout = spec.blocks[0].dropout
    like = bert(size, vocabulary=spec.vocabulary, length=context, dropout=dropout)
    return without_ngrams(replace(like, output=output), context)


def with_tanh_gelu(spec: Spec, context: int) -> Spec:
    """Return a decoder whose GELU is llama.cpp's, the tanh formula."""
    if spec.encoder is not None:
        return spec
    return map_blocks(
        spec,
        lambda block: (
            replace(block, feed_forward=replace(block.feed_forward, form="tanh"))
            if isinstance(block.feed_forward, GELU)
            else block
        ),
    )


CHANGES = (
    Change("as usual", lambda spec, context: spec),
    Change("without the wide part, which is linear in n-grams", without_ngrams),
    Change("with GELU by the tanh formula", with_tanh_gelu),
    Change("with BERT's parts: the norm after each branch, learned positions, normed embeddings", like_bert),
)
"""From the usual model on, each further away from it."""


def exportable_recipe(recipe: Recipe, formats: Sequence[str], *, may_change: bool = True) -> tuple[Recipe, str]:
    """Return a recipe whose model all of these formats can express, and how it differs from the usual one, in words.

    The nearest to the recipe's is taken; without `may_change`, since its parts were chosen, only that. OptionError,
    naming the parts, where none of those known here will do.
    """
    kinds = () if recipe.tokenizing.given else (recipe.tokenizing.kind,)
    refusal: OptionError | None = None
    for words, make in CHANGES if may_change else CHANGES[:1]:
        changed = replace(recipe, model=make(recipe.model, recipe.batching.context))
        try:
            for name in formats:
                check_exportable(name, changed.model, changed.task, kinds)
        except OptionError as error:
            refusal = refusal or error
        else:
            return changed, "" if changed == recipe else f"to be exported to {', '.join(formats)}, the model is {words}"
    assert refusal is not None
    raise refusal
