"""Presets: well-known models as plain functions. Each returns a spec; `.build()` makes the model.

Change one with `dataclasses.replace`, or put another attention into every slot:

>>> import clearhead as ch
>>> from clearhead.model import presets
>>> spec = presets.tiny(vocabulary=1000, attention=presets.AttentionSpec(heads=4, weighting=ch.weighting.Argmax()))
>>> sum(parameter.numel() for parameter in spec.build().parameters())
1446912
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from clearhead.attention.heads import Heads
from clearhead.attention.positions import Learned, Rotary
from clearhead.calls import public
from clearhead.errors import OptionError
from clearhead.model.arrangements import Arrangement, PostNorm, PreNorm
from clearhead.model.blocks import AttentionSpec, BlockSpec
from clearhead.model.embedding import Embedding
from clearhead.model.feedforward import GELU, ReLU, SwiGLU
from clearhead.model.norms import LayerNorm, RMSNorm
from clearhead.model.outputs import Blanks, NextToken, Output
from clearhead.model.transformers import DecoderSpec, EncoderDecoderSpec, EncoderSpec, Tied

__all__ = ["AttentionSpec", "Size", "base", "bert", "big", "classic", "gpt2", "llama", "tiny"]


@public
class Size(NamedTuple):
    """Size of a model: blocks, width, heads and d_ff.

    Attributes:
        n_layers: Blocks; for an encoder-decoder, on each side.
        d_model: Width of the residual stream.
        n_heads: Query heads.
        n_kv_heads: Key and value heads.
        d_ff: Hidden width of the feed-forward.

    >>> import clearhead as ch
    >>> size = ch.presets.Size(n_layers=2, d_model=16, n_heads=2, n_kv_heads=2, d_ff=32)
    >>> len(ch.presets.gpt2(size, vocabulary=20).blocks)
    2
    """

    n_layers: int
    d_model: int
    n_heads: int
    n_kv_heads: int
    d_ff: int


GPT2 = {
    "tiny": Size(2, 64, 4, 4, 256),
    "small": Size(12, 768, 12, 12, 3072),
    "medium": Size(24, 1024, 16, 16, 4096),
    "large": Size(36, 1280, 20, 20, 5120),
    "xl": Size(48, 1600, 25, 25, 6400),
}
"""The published sizes, and `tiny` for trying things out."""

BERT = {
    "tiny": Size(2, 128, 2, 2, 512),
    "mini": Size(4, 256, 4, 4, 1024),
    "small": Size(4, 512, 8, 8, 2048),
    "medium": Size(8, 512, 8, 8, 2048),
    "base": Size(12, 768, 12, 12, 3072),
    "large": Size(24, 1024, 16, 16, 4096),
}
"""The published sizes."""

LLAMA = {
    "tiny": Size(2, 64, 4, 2, 176),
    "15m": Size(6, 288, 6, 6, 768),
    "110m": Size(12, 768, 12, 12, 2048),
    "1b": Size(16, 2048, 32, 8, 8192),
    "7b": Size(32, 4096, 32, 32, 11008),
}
"""`15m` and `110m` are llama2.c's, `1b` Llama 3.2's and `7b` Llama 2's, whatever the vocabulary; `tiny` is ours."""


@public
def classic(
    vocabulary: int,
    *,
    size: Size,
    dropout: float = 0.1,
    arrangement: Arrangement = PostNorm(),
    attention: AttentionSpec | None = None,
    tied: Tied = "three",
) -> EncoderDecoderSpec:
    """Return the paper's encoder-decoder at any size: as many blocks in the decoder as in the encoder.

    Args:
        vocabulary: Number of token ids.
        size: Its size.
        dropout: Dropout.
        arrangement: Where norms and residuals are.
        attention: Spec that takes the place of the default one.
        tied: Which tables are shared, as in `EncoderDecoderSpec`.

    Returns:
        The spec.

    >>> import clearhead as ch
    >>> size = ch.presets.Size(n_layers=2, d_model=16, n_heads=2, n_kv_heads=2, d_ff=32)
    >>> len(ch.presets.classic(20, size=size).decoder.blocks)
    2
    """
    self_attention = attention or AttentionSpec(heads=heads(size))
    block = BlockSpec(attention=self_attention, feed_forward=ReLU(size.d_ff), arrangement=arrangement, dropout=dropout)
    crossing = replace(block, cross=replace(self_attention, mask=None))
    embedding = Embedding(dropout=dropout)
    return EncoderDecoderSpec(
        encoder=EncoderSpec(
            vocabulary=vocabulary,
            d_model=size.d_model,
            blocks=(block,) * size.n_layers,
            embedding=embedding,
            output=None,
        ),
        decoder=DecoderSpec(
            vocabulary=vocabulary, d_model=size.d_model, blocks=(crossing,) * size.n_layers, embedding=embedding
        ),
        tied=tied,
    )


@public
def tiny(vocabulary: int, *, attention: AttentionSpec | None = None, dropout: float = 0.1) -> EncoderDecoderSpec:
    """Return an encoder-decoder of 4 + 4 blocks, 128 wide: it learns a small corpus on two cores.

    Args:
        vocabulary: Number of token ids.
        attention: Spec that takes the place of the default one.
        dropout: Dropout.

    Returns:
        The spec.

    >>> import clearhead as ch
    >>> ch.presets.tiny(50).encoder.d_model
    128
    """
    return classic(vocabulary, size=Size(4, 128, 4, 4, 256), attention=attention, dropout=dropout)


@public
def base(vocabulary: int, *, attention: AttentionSpec | None = None, dropout: float = 0.1) -> EncoderDecoderSpec:
    """Return the paper's base model: 6 + 6 blocks, 512 wide.

    Args:
        vocabulary: Number of token ids.
        attention: Spec that takes the place of the default one.
        dropout: Dropout.

    Returns:
        The spec; `.build()` makes the model.

    >>> import clearhead as ch
    >>> ch.presets.base(1000).encoder.d_model
    512
    """
    return classic(vocabulary, size=Size(6, 512, 8, 8, 2048), attention=attention, dropout=dropout)


@public
def big(vocabulary: int, *, attention: AttentionSpec | None = None, dropout: float = 0.3) -> EncoderDecoderSpec:
    """Return the paper's big model: 6 + 6 blocks, 1024 wide.

    Args:
        vocabulary: Number of token ids.
        attention: Spec that takes the place of the default one.
        dropout: Dropout.

    Returns:
        The spec.

    >>> import clearhead as ch
    >>> ch.presets.big(1000).encoder.d_model
    1024
    """
    return classic(vocabulary, size=Size(6, 1024, 16, 16, 4096), attention=attention, dropout=dropout)


@public
def gpt2(
    size: str | Size = "small",
    *,
    vocabulary: int = 50_257,
    length: int = 1024,
    attention: AttentionSpec | None = None,
    dropout: float = 0.1,
) -> DecoderSpec:
    """Return a decoder like GPT-2: norm before, learned positions, GELU by tanh, biases, output tied.

    Args:
        size: A name, or a `Size`.
        vocabulary: Number of token ids.
        length: Number of positions.
        attention: Spec that takes the place of the default one.
        dropout: Dropout.

    Returns:
        The spec.

    >>> import clearhead as ch
    >>> len(ch.presets.gpt2("small").blocks)
    12
    """
    size = sized("GPT-2", size, GPT2)
    block = BlockSpec(
        attention=attention or AttentionSpec(heads=heads(size, bias=True), dropout=dropout),
        feed_forward=GELU(size.d_ff, form="tanh"),
        arrangement=PreNorm(),
        dropout=dropout,
    )
    return DecoderSpec(
        vocabulary=vocabulary,
        d_model=size.d_model,
        blocks=(block,) * size.n_layers,
        embedding=Embedding(position=Learned(length), scaled=False, dropout=dropout),
    )


@public
def bert(
    size: str | Size = "base",
    *,
    vocabulary: int = 30_522,
    length: int = 512,
    output: Output = Blanks(),
    attention: AttentionSpec | None = None,
    dropout: float = 0.1,
) -> EncoderSpec:
    """Return an encoder like BERT: norm after, learned positions, normed embeddings, GELU, biases; one segment.

    Args:
        size: A name, or a `Size`.
        vocabulary: Number of token ids.
        length: Number of positions.
        output: `Blanks()`; for classes `Classes(count, hidden=True)`.
        attention: Spec that takes the place of the default one.
        dropout: Dropout.

    Returns:
        The spec.

    >>> import clearhead as ch
    >>> len(ch.presets.bert("base").blocks)
    12
    """
    size = sized("BERT", size, BERT)
    norm = LayerNorm(1e-12)
    block = BlockSpec(
        attention=attention or AttentionSpec(heads=heads(size, bias=True), dropout=dropout),
        feed_forward=GELU(size.d_ff),
        arrangement=PostNorm(norm),
        dropout=dropout,
    )
    return EncoderSpec(
        vocabulary=vocabulary,
        d_model=size.d_model,
        blocks=(block,) * size.n_layers,
        embedding=Embedding(position=Learned(length), scaled=False, norm=norm, dropout=dropout),
        output=output,
    )


@public
def llama(
    size: str | Size = "110m",
    *,
    vocabulary: int = 32_000,
    rotary_base: float = 10_000.0,
    tied: bool = False,
    attention: AttentionSpec | None = None,
) -> DecoderSpec:
    """Return a decoder like Llama: RMSNorm before, rotary positions in halves, SwiGLU, shared key heads, no bias.

    Args:
        size: A name, or a `Size`.
        vocabulary: Number of token ids.
        rotary_base: Base of the rotary frequencies.
        tied: Tie the output to the embedding.
        attention: Spec that takes the place of the default one.

    Returns:
        The spec.

    >>> import clearhead as ch
    >>> ch.presets.llama("110m").d_model
    768
    """
    size = sized("Llama", size, LLAMA)
    rotary = Rotary(pairing="halves", base=rotary_base)
    block = BlockSpec(
        attention=attention or AttentionSpec(heads=heads(size), position=rotary),
        feed_forward=SwiGLU(size.d_ff),
        arrangement=PreNorm(RMSNorm()),
    )
    return DecoderSpec(
        vocabulary=vocabulary,
        d_model=size.d_model,
        blocks=(block,) * size.n_layers,
        embedding=Embedding(position=None, scaled=False),
        output=NextToken(tied=tied),
    )


def heads(size: Size, *, bias: bool = False) -> Heads:
    return Heads(size.n_heads, kv=size.n_kv_heads, bias=bias)


def sized(family: str, size: str | Size, sizes: Mapping[str, Size]) -> Size:
    if isinstance(size, Size):
        return size
    if size not in sizes:
        raise OptionError(f"there is no {family} of size {size!r}; there are {', '.join(sizes)}, or give a Size")
    return sizes[size]
