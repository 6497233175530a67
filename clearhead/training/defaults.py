"""What a recipe is when the user names files and nothing else: model, optimiser, batches and budget for a task and the
size of its text, on this kind of machine.

The figures come from the runs in docs/results.md: small text wants a small model and much dropout, and a machine
without a GPU wants a model that it can train within the hour.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import final

from clearhead.attention import weighting
from clearhead.attention.positions import EmbeddedPosition, Position
from clearhead.attention.similarity import Similarity
from clearhead.attention.weighting import Weighting
from clearhead.calls import public
from clearhead.devices import choose_device
from clearhead.errors import OptionError
from clearhead.model.blocks import AttentionSpec, BlockSpec
from clearhead.model.embedding import Embedding
from clearhead.model.sizes import Spec
from clearhead.registry import PartOption, options, parse
from clearhead.text.encoding import Corpus
from clearhead.training.default_models import text_bytes
from clearhead.training.recipe import Machine, Recipe
from clearhead.training.tasks import name_of, task_named


@final
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
    try:
        return parse(text, *KINDS[option], also=("none",) if option in ABSENT else ())
    except OptionError as error:
        raise OptionError(f"{option}: {error}") from error


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


@public
def default_recipe(task: str, corpus: Corpus, machine: Machine = Machine()) -> Recipe:
    """Return the recipe for a task, by name, on this corpus."""
    kind = task_named(task)
    on_gpu = choose_device(machine.device).type == "cuda"
    return replace(kind.default_recipe(corpus, text_bytes(corpus), on_gpu), task=name_of(kind), machine=machine)


def map_blocks(spec: Spec, change: Callable[[BlockSpec], BlockSpec]) -> Spec:
    return spec.map_stacks(lambda stack: replace(stack, blocks=tuple(map(change, stack.blocks))))


@public
def map_attention(spec: Spec, change: Callable[[AttentionSpec], AttentionSpec]) -> Spec:
    """Return the model with every attention slot changed, cross-attention included."""

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
