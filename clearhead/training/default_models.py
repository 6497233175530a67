"""The models and lengths that default recipes are made of, whatever the task."""

import os
from dataclasses import replace

from clearhead.attention.heads import Heads
from clearhead.model import presets
from clearhead.model.arrangements import PreNorm
from clearhead.model.blocks import AttentionSpec, BlockSpec
from clearhead.model.embedding import Embedding
from clearhead.model.feedforward import GELU
from clearhead.model.outputs import Output
from clearhead.model.presets import Size
from clearhead.model.transformers import DecoderSpec, EncoderSpec
from clearhead.text.encoding import Corpus

PLACEHOLDER = 64
"""A vocabulary until the tokeniser is there."""
PACKED = 3
"""How much longer gzipped text is when it is unpacked."""


def text_bytes(corpus: Corpus) -> int:
    """Return about how much text there is, from the sizes of the files."""
    total = 0
    for path in corpus.train.files:
        if os.path.exists(path):
            total += os.path.getsize(path) * (PACKED if path.endswith(".gz") else 1)
    return total


def epochs(count: int, n_tokens: float, batch: int, *, least: int = 500, most: int = 20_000) -> int:
    """Return the steps of so many epochs, to the hundred."""
    return int(min(most, max(least, count * n_tokens / batch))) // 100 * 100


def decoder(size: Size, context: int, dropout: float) -> DecoderSpec:
    """Return a decoder as nanoGPT's: norm before, learned positions, GELU, no biases, output tied."""
    spec = presets.gpt2(size, vocabulary=PLACEHOLDER, length=context, dropout=dropout)
    block = replace(
        spec.blocks[0],
        attention=AttentionSpec(heads=Heads(size.n_heads), dropout=dropout),
        feed_forward=GELU(size.d_ff, bias=False),
    )
    return replace(spec, blocks=(block,) * size.n_layers)


def encoder(size: Size, output: Output, dropout: float) -> EncoderSpec:
    """Return an encoder with the norm before and sinusoidal positions."""
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
