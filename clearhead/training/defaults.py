"""What a recipe is when the user names files and nothing else: model, optimiser, batches and budget for a task and the
size of its text, on this kind of machine.

The figures come from the runs in docs/results.md: small text wants a small model and much dropout, and a machine
without a GPU wants a model that it can train within the hour.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import final

from clearhead.attention import weighting
from clearhead.attention.heads import Heads
from clearhead.attention.positions import EmbeddedPosition, Position
from clearhead.attention.similarity import Similarity
from clearhead.attention.weighting import Weighting
from clearhead.errors import OptionError
from clearhead.model import presets
from clearhead.model.arrangements import PreNorm
from clearhead.model.blocks import AttentionSpec, BlockSpec
from clearhead.model.embedding import Embedding
from clearhead.model.feedforward import GELU
from clearhead.model.outputs import Blanks, Classes
from clearhead.model.presets import Size
from clearhead.model.sizes import Spec
from clearhead.model.transformers import DecoderSpec, EncoderDecoderSpec, EncoderSpec
from clearhead.registry import Chosen, options, parse
from clearhead.text.encoding import Corpus
from clearhead.text.preparing import Tokenizing
from clearhead.training.averaging import Ema, Last
from clearhead.training.machine import chosen_device
from clearhead.training.recipe import Batching, Budget, Checkpointing, Machine, Optimizer, Recipe
from clearhead.training.schedules import Cosine, InverseSqrt

__all__ = [
    "ATTENTIONS",
    "KINDS",
    "POSITIONS",
    "Kind",
    "choose",
    "default_recipe",
    "text_bytes",
    "with_attention",
    "with_dropout",
    "with_position",
]

PLACEHOLDER = 64
"""A vocabulary until the tokeniser is there."""
PACKED = 3
"""How much longer gzipped text is when it is unpacked."""


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
}
"""The kinds of registered parts that each option of a model names."""
ABSENT = ("position", "feed_forward")
"""The options that take `none`: a model without the part."""


def choose(option: str, text: str) -> Chosen:
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


def default_recipe(task: str, corpus: Corpus, machine: Machine = Machine()) -> Recipe:
    """The recipe for a task on this corpus."""
    if task not in DEFAULTS:
        raise OptionError(f"task: there is no {task!r}; there are {', '.join(DEFAULTS)}")
    on_gpu = chosen_device(machine.device).type == "cuda"
    return replace(DEFAULTS[task](corpus, text_bytes(corpus), on_gpu), machine=machine)


def text_bytes(corpus: Corpus) -> int:
    """About how much text there is, from the sizes of the files."""
    found = 0
    for path in corpus.train.files:
        if os.path.exists(path):
            found += os.path.getsize(path) * (PACKED if path.endswith(".gz") else 1)
    return found


def translating(corpus: Corpus, n_bytes: int, on_gpu: bool) -> Recipe:
    small = n_bytes < 20e6
    size = Size(4, 128, 4, 4, 256) if small or not on_gpu else Size(6, 512, 8, 8, 2048)
    dropout = 0.3 if small else 0.1
    steps = epochs(40 if small else 20, n_bytes / 4, 8192 if small else 25_000)
    return Recipe(
        task="translate",
        corpus=corpus,
        tokenizing=Tokenizing(kind="metaspace"),
        model=presets.classic(PLACEHOLDER, size=size, dropout=dropout),
        optimizer=Optimizer(
            lr=5e-3 if size.d_model == 128 else 1e-3,
            schedule=InverseSqrt(warmup=min(2000, max(100, steps // 4))),
            smoothing=0.1,
            weight_decay=0.0,
            averaging=Last(),
        ),
        batching=Batching(tokens=8192 if small else 25_000, micro_batch_tokens=None if small or on_gpu else 4096),
        budget=Budget(steps=steps, patience=10),
        checkpointing=Checkpointing(evaluate=max(100, steps // 20)),
    )


def generating(corpus: Corpus, n_bytes: int, on_gpu: bool) -> Recipe:
    size = Size(6, 384, 6, 6, 1536) if on_gpu else Size(4, 128, 4, 4, 512)
    context = 256 if on_gpu else 128
    tokens = 64 * 256 if on_gpu else 16 * 128
    dropout = 0.2 if n_bytes < 5e6 and on_gpu else 0.0
    steps = epochs(20, n_bytes / 4, tokens, most=5000 if on_gpu else 3000)
    return Recipe(
        task="generate",
        corpus=corpus,
        tokenizing=Tokenizing(kind="bpe"),
        model=decoder(size, context, dropout),
        optimizer=Optimizer(
            lr=1e-3, schedule=Cosine(warmup=100), betas=(0.9, 0.99), weight_decay=0.1, averaging=Ema(0.99)
        ),
        batching=Batching(tokens=tokens, context=context),
        budget=Budget(steps=steps, patience=10),
        checkpointing=Checkpointing(evaluate=max(100, steps // 20)),
    )


def filling(corpus: Corpus, n_bytes: int, on_gpu: bool) -> Recipe:
    steps = epochs(40, n_bytes / 4, 8192)
    size = Size(6, 384, 6, 6, 1536) if on_gpu else Size(4, 128, 4, 4, 512)
    return Recipe(
        task="fill",
        corpus=corpus,
        tokenizing=Tokenizing(kind="bpe"),
        model=encoder(size, Blanks(), 0.1),
        optimizer=Optimizer(lr=1e-3, schedule=Cosine(warmup=min(500, steps // 10)), averaging=Ema(0.999)),
        batching=Batching(tokens=8192, context=256),
        budget=Budget(steps=steps, patience=10),
        checkpointing=Checkpointing(evaluate=max(100, steps // 20)),
    )


def classifying(corpus: Corpus, n_bytes: int, on_gpu: bool) -> Recipe:
    steps = epochs(4, n_bytes / 4, 4096, least=200)
    return Recipe(
        task="classify",
        corpus=corpus,
        tokenizing=Tokenizing(kind="metaspace", lower=True),
        model=encoder(Size(2, 128, 4, 4, 256), Classes(2, pool="mean"), 0.4),
        optimizer=Optimizer(
            lr=1e-3,
            schedule=Cosine(warmup=steps // 10),
            weight_decay=0.05,
            smoothing=0.1,
            r_drop=2.0,
            averaging=Ema(0.999),
        ),
        batching=Batching(tokens=4096, context=256),
        budget=Budget(steps=steps, patience=10),
        checkpointing=Checkpointing(evaluate=max(50, steps // 20)),
    )


DEFAULTS: dict[str, Callable[[Corpus, int, bool], Recipe]] = {
    "translate": translating,
    "generate": generating,
    "fill": filling,
    "classify": classifying,
}


def epochs(count: int, n_tokens: float, batch: int, *, least: int = 500, most: int = 20_000) -> int:
    """The steps of so many epochs, to the hundred."""
    return int(min(most, max(least, count * n_tokens / batch))) // 100 * 100


def decoder(size: Size, context: int, dropout: float) -> DecoderSpec:
    """A decoder as nanoGPT's: norm before, learned positions, GELU, no biases, output tied."""
    spec = presets.gpt2(size, vocabulary=PLACEHOLDER, length=context, dropout=dropout)
    block = replace(
        spec.blocks[0],
        attention=AttentionSpec(heads=Heads(size.n_heads), dropout=dropout),
        feed_forward=GELU(size.d_ff, bias=False),
    )
    return replace(spec, blocks=(block,) * size.n_layers)


def encoder(size: Size, output: Blanks | Classes, dropout: float) -> EncoderSpec:
    """An encoder with the norm before and sinusoidal positions."""
    block = BlockSpec(
        attention=AttentionSpec(heads=Heads(size.n_heads)),
        feed_forward=GELU(size.d_ff),
        arrangement=PreNorm(),
        dropout=dropout,
    )
    return EncoderSpec(
        vocabulary=PLACEHOLDER,
        d_model=size.d_model,
        blocks=(block,) * size.n_layers,
        embedding=Embedding(dropout=dropout),
        output=output,
    )


def each_block(spec: Spec, change: Callable[[BlockSpec], BlockSpec]) -> Spec:
    if isinstance(spec, EncoderDecoderSpec):
        encoder = replace(spec.encoder, blocks=tuple(map(change, spec.encoder.blocks)))
        return replace(
            spec, encoder=encoder, decoder=replace(spec.decoder, blocks=tuple(map(change, spec.decoder.blocks)))
        )
    return replace(spec, blocks=tuple(map(change, spec.blocks)))


def each_attention(spec: Spec, change: Callable[[AttentionSpec], AttentionSpec]) -> Spec:
    """Return the model with every attention slot changed, cross-attention included."""

    def changed(block: BlockSpec) -> BlockSpec:
        cross = None if block.cross is None else change(block.cross)
        return replace(block, attention=change(block.attention), cross=cross)

    return each_block(spec, changed)


def with_attention(spec: Spec, name: str) -> Spec:
    """The same model with another kind of attention in every slot."""
    kind = attention_of(name)
    return each_attention(spec, lambda slot: replace(slot, similarity=kind.similarity, weighting=kind.weighting))


def with_position(spec: Spec, name: str, context: int) -> Spec:
    """The same model that knows the order of tokens in another way; cross-attention has none of its own.

    Positions as large as 1, such as sines, have embeddings beside them that are scaled to be so too.
    """
    part = None if name == "none" else choose("position", name).make(length=context)
    embedded = part if isinstance(part, EmbeddedPosition) else None
    inside = part if isinstance(part, Position) else None

    def change(block: BlockSpec) -> BlockSpec:
        cross = None if block.cross is None else replace(block.cross, position=None)
        return replace(block, attention=replace(block.attention, position=inside), cross=cross)

    return each_embedding(
        each_block(spec, change),
        lambda embedding: replace(
            embedding,
            position=embedded,
            scaled=embedding.scaled or (embedded is not None and embedded.scales_tokens),
        ),
    )


def with_dropout(spec: Spec, dropout: float) -> Spec:
    """The same model with this dropout on embeddings and branches."""
    changed = each_block(spec, lambda block: replace(block, dropout=dropout))
    return each_embedding(changed, lambda embedding: replace(embedding, dropout=dropout))


def each_embedding(spec: Spec, change: Callable[[Embedding], Embedding]) -> Spec:
    if isinstance(spec, EncoderDecoderSpec):
        encoder = replace(spec.encoder, embedding=change(spec.encoder.embedding))
        return replace(spec, encoder=encoder, decoder=replace(spec.decoder, embedding=change(spec.decoder.embedding)))
    return replace(spec, embedding=change(spec.embedding))
