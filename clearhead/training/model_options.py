"""Options that choose a model: a preset or a size, and the parts in it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, final

from clearhead.attention.positions import Learned
from clearhead.errors import ClearheadError, OptionError, WordError, no_such
from clearhead.model.shapes import build_for_shapes
from clearhead.model.sizes import PRESETS, Spec, named, parse_count, resized, sized
from clearhead.options import OWN, option
from clearhead.registry import options as part_names
from clearhead.text.kinds import SPECIALS
from clearhead.text.tokenizer import Tokenizer
from clearhead.text.vocabulary_size import expected_size
from clearhead.training import defaults, variants
from clearhead.training.default_models import PLACEHOLDER, text_bytes
from clearhead.training.recipe import Recipe
from clearhead.training.tasks import task_named
from clearhead.training.tasks.learning import with_article


def part_option(text: str, names: Iterable[str]) -> Any:
    """Return an option that names a part: one of these, or one of the user's own."""
    return option(None, f"{text}: {', '.join(names)}; {OWN}.", takes="NAME", names=names, several=True, own=True)


@final
@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """What learns."""

    preset: str | None = option(
        None, "A model by name: tiny, base, gpt2, bert, … (clearhead describe).", takes="NAME", names=PRESETS
    )
    size: str | None = option(None, "Or a model with about this many parameters: 300k, 10M, 1.5B.", takes="COUNT")
    attention: str | None = part_option("Kind of attention", defaults.ATTENTIONS)
    position: str | None = part_option("Positional encoding", defaults.POSITIONS)
    heads: str | None = option(
        None,
        "whole: each head sees the whole input; sliced: its own slice of it.",
        takes="NAME",
        names=variants.HEADS,
        several=True,
    )
    value_rank: str | None = option(None, "Low-rank values: d_model to N to d_value, in each head.", takes="N")
    d_value: str | None = option(None, "Width of a head's values.  [default: the width of its keys]", takes="N")
    block: str | None = part_option("Where the norm is", part_names("arrangement"))
    norm: str | None = part_option("Kind of norm", part_names("norm"))
    scale: str | None = option(
        None,
        "What q·k is multiplied by: sqrt (1/√d_head), none, or a number.",
        takes="X",
        names=variants.SCALES,
        several=True,
    )
    feed_forward: str | None = part_option("Activation", [*part_names("feed-forward"), "none"])
    mask: str | None = part_option("A mask in self-attention besides the usual one", ["none"])
    window: str | None = option(
        None, "Self-attention sees N tokens: itself and those before, in an encoder as many after.", takes="N"
    )
    dropout: float | None = option(None, "Dropout rate, 0 to 1.", takes="X", least=0, below=1)


FEW_TOKENS = {"char": PLACEHOLDER, "byte": 256 + len(SPECIALS)}


def as_model(options: ModelOptions, recipe: Recipe) -> Spec:
    """Return the model by preset, by size, or the task's own; then with what else was given."""
    if options.preset and options.size:
        raise WordError("size", f"the preset {options.preset} has its own size; give one of the two")
    context = recipe.batching.context
    spec = with_context(base_model(options, recipe), context)
    if options.dropout is not None:
        spec = defaults.with_dropout(spec, options.dropout)
    parts = {name: value for name in variants.PARTS if (value := getattr(options, name)) is not None}
    return with_parts(spec, parts, context) if parts else spec


def with_parts(spec: Spec, parts: Mapping[str, str], context: int) -> Spec:
    """Return the model with other parts. Whether they go together is found out by building it of nothing."""
    for name in variants.PARTS:
        if name in parts:
            try:
                spec = variants.with_part(spec, name, parts[name], context=context)
            except OptionError as error:
                raise WordError(name, str(error).removeprefix(f"{name}: ")) from error
    try:
        build_for_shapes(spec)
    except ClearheadError as error:
        raise WordError(" with ".join(parts), str(error)) from error
    return spec


def base_model(options: ModelOptions, recipe: Recipe) -> Spec:
    task = task_named(recipe.task)
    if options.preset is not None:
        if options.preset not in PRESETS:
            raise WordError("preset", no_such(options.preset, PRESETS))
        spec = named(options.preset, PLACEHOLDER)
        if spec.kind != task.family:
            raise WordError("preset", f"{task.name} takes {with_article(task.family)}, and {options.preset} is none")
    elif options.size is not None:
        try:
            spec = sized(task.family, parse_count(options.size), likely_vocabulary(recipe))
            if not recipe.tokenizing.shared:
                # Two vocabularies take more tables of tokens: the least size is larger.
                resized(spec.with_own_tables(), parse_count(options.size))
        except OptionError as error:
            raise WordError("size", str(error)) from error
    else:
        return recipe.model
    if spec.decoder is None and recipe.model.decoder is None:
        return replace(spec, output=recipe.model.output)
    return spec


SURELY_ENOUGH = 500_000
"""Bytes of text in which a tokeniser finds as many tokens as it is asked for."""


def likely_vocabulary(recipe: Recipe) -> int:
    """Return how many tokens there will be, before the tokeniser is trained.

    Once it is trained, the size is met (`Recipe.parameters`). Characters and bytes are few, however long the text is.
    """
    tokenizing = recipe.tokenizing
    if tokenizing.given is not None:
        return Tokenizer.load(tokenizing.given).vocabulary
    if tokenizing.kind in FEW_TOKENS:
        return FEW_TOKENS[tokenizing.kind]
    # Of a large corpus a sample is read, of at most twice this many megabytes.
    n_bytes = min(text_bytes(recipe.corpus), 2_000_000 * tokenizing.sample_mb)
    # A short text has too few different words for all the tokens that a factor asks for. It is also read in a moment,
    # so a size that is too small for them is refused early enough when they are known.
    factor = tokenizing.size_factor if n_bytes >= SURELY_ENOUGH else 1.0
    return tokenizing.size or expected_size(n_bytes, factor)


def with_context(spec: Spec, context: int) -> Spec:
    """Return the same with as many learned positions as rows are long: those beyond would never be trained."""
    return defaults.map_embeddings(
        spec,
        lambda embedding: (
            replace(embedding, position=Learned(context)) if isinstance(embedding.position, Learned) else embedding
        ),
    )
