"""Whole models are torch's nn.Transformer in both placements of the norm, on the same weights: logits and gradients.

torch ends each stack with a norm in either placement. Before the branch that is where ours ends too; after it, it would
be a second norm on what is normed already, which the paper's model does not have, and it is removed here. torch has no
embedding and no logits, so the peer is given the paper's: a table scaled by √d_model, plus sines and cosines.
"""

import math
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from clearhead import Heads
from clearhead.model import presets
from clearhead.model.arrangements import PostNorm, PreNorm
from clearhead.model.feedforward import GELU, ReLU
from clearhead.model.norms import LayerNorm
from clearhead.model.presets import AttentionSpec, Size
from tests.model.copying import agree, attention, built, copy, draw, dtypes, own, pairs_of_lengths, randomised, under
from tests.rounding import assert_equal_but_rounding

VOCABULARY = 29
NETWORKS = {"relu": ReLU, "gelu": GELU}
pytestmark = [
    # It says that it will not use nested tensors: because of norm_first, of an odd number of heads, or of bias=False.
    pytest.mark.filterwarnings("ignore:enable_nested_tensor is True, but self.use_nested_tensor is False:UserWarning"),
]


@dataclass(frozen=True)
class Kind:
    """What the compared models differ in."""

    size: Size
    activation: str = "relu"
    bias: bool = True


placements = pytest.mark.parametrize("norm_first", [True, False], ids=["norm before", "norm after"])
kinds = pytest.mark.parametrize(
    "kind",
    [
        Kind(Size(2, 24, 3, 3, 40)),
        Kind(Size(1, 20, 4, 4, 33), activation="gelu"),
        Kind(Size(3, 14, 1, 1, 7), bias=False),
    ],
    ids=["relu", "gelu", "no bias"],
)


class Classic(nn.Module):
    """nn.Transformer between the paper's embedding and logits by the same table."""

    def __init__(self, kind, *, norm_first):
        super().__init__()
        size = kind.size
        self.table = nn.Embedding(VOCABULARY, size.d_model)
        self.transformer = nn.Transformer(
            size.d_model,
            size.n_heads,
            size.n_layers,
            size.n_layers,
            size.d_ff,
            dropout=0.0,
            activation=kind.activation,
            batch_first=True,
            norm_first=norm_first,
            bias=kind.bias,
        )
        if not norm_first:
            self.transformer.encoder.norm = self.transformer.decoder.norm = None

    def embed(self, tokens):
        d_model = self.table.embedding_dim
        angles = [[p / 10_000 ** (2 * (i // 2) / d_model) for i in range(d_model)] for p in range(tokens.shape[1])]
        waves = [[math.cos(a) if i % 2 else math.sin(a) for i, a in enumerate(row)] for row in angles]
        return self.table(tokens) * math.sqrt(d_model) + torch.tensor(waves, dtype=self.table.weight.dtype)

    def forward(self, source, target):
        n = target.tokens.shape[1]
        vectors = self.transformer(
            self.embed(source.tokens),
            self.embed(target.tokens),
            tgt_mask=torch.ones(n, n, dtype=torch.bool).triu(1),
            src_key_padding_mask=~source.real,
            tgt_key_padding_mask=~target.real,
            memory_key_padding_mask=~source.real,
        )
        return vectors @ self.table.weight.T


def spec_of(kind, *, norm_first):
    norm = LayerNorm(bias=kind.bias)
    made = presets.classic(
        VOCABULARY,
        size=kind.size,
        arrangement=PreNorm(norm) if norm_first else PostNorm(norm),
        attention=AttentionSpec(heads=Heads(kind.size.n_heads, bias=kind.bias)),
    )
    network = NETWORKS[kind.activation](kind.size.d_ff, bias=kind.bias)
    encoder, decoder = (
        replace(half, blocks=tuple(replace(block, feed_forward=network) for block in half.blocks))
        for half in (made.encoder, made.decoder)
    )
    return replace(made, encoder=encoder, decoder=decoder)


def multihead(path, peer):
    """torch has the maps to queries, keys and values one above the other."""
    maps = zip(*(tensor.chunk(3) for tensor in own(peer)), strict=True)
    return attention(path, *maps, own(peer.out_proj))


def layer_weights(layer, norm):
    return multihead("attention", layer.self_attn) | {
        "around_attention.norm": own(layer.norm1),
        "feed_forward.up": own(layer.linear1),
        "feed_forward.down": own(layer.linear2),
        "around_feed_forward.norm": own(norm),
    }


def decoder_layer_weights(layer):
    crossing = multihead("cross", layer.multihead_attn) | {"around_cross.norm": own(layer.norm2)}
    return layer_weights(layer, layer.norm3) | crossing


def encoder_weights(encoder):
    weights = {} if encoder.norm is None else {"stack.norm": own(encoder.norm)}
    for i, layer in enumerate(encoder.layers):
        weights |= under(f"stack.blocks.{i}", layer_weights(layer, layer.norm2))
    return weights


def decoder_weights(decoder):
    weights = {} if decoder.norm is None else {"stack.norm": own(decoder.norm)}
    for i, layer in enumerate(decoder.layers):
        weights |= under(f"stack.blocks.{i}", decoder_layer_weights(layer))
    return weights


def classic_weights(peer):
    table = own(peer.table)
    return (
        {"encoder.embedding": table, "decoder.embedding": table, "decoder.output": table}
        | under("encoder", encoder_weights(peer.transformer.encoder))
        | under("decoder", decoder_weights(peer.transformer.decoder))
    )


def translate(model, source, target):
    return model(source.tokens, target.tokens, source_lengths=source.lengths)[target.real]


@dtypes
@placements
@kinds
@pairs_of_lengths
@pytest.mark.pairs
def test_encoder_decoder(lengths, kind, norm_first, dtype):
    peer = randomised(Classic(kind, norm_first=norm_first), dtype)
    ours = built(spec_of(kind, norm_first=norm_first), dtype)
    source, target = (draw(own_lengths, VOCABULARY) for own_lengths in lengths)
    theirs = peer(source, target)[target.real]
    agree(ours, peer, classic_weights(peer), lambda model: translate(model, source, target), theirs)


@dtypes
@placements
@kinds
@pytest.mark.parametrize("lengths", [(9, 5, 1), (17, 17)], ids=["padded", "whole"])
@pytest.mark.pairs
def test_encoder(lengths, kind, norm_first, dtype):
    """An encoder without output gives the vectors themselves."""
    whole = randomised(Classic(kind, norm_first=norm_first), dtype)
    table, encoder = whole.table, whole.transformer.encoder
    ours = built(spec_of(kind, norm_first=norm_first).encoder, dtype)
    batch = draw(lengths, VOCABULARY)
    theirs = encoder(whole.embed(batch.tokens), src_key_padding_mask=~batch.real)[batch.real]
    weights = encoder_weights(encoder) | {"embedding": own(table)}

    def answer(model):
        return model(batch.tokens, lengths=batch.lengths)[batch.real]

    agree(ours, nn.ModuleList([table, encoder]), weights, answer, theirs)


@dtypes
def test_a_second_norm_at_the_end_would_show(dtype):
    """So that it is known to be removed for a reason: with it, torch's post-norm is another model."""
    kind = Kind(Size(2, 24, 3, 3, 40))
    peer = randomised(Classic(kind, norm_first=False), dtype)
    ours = built(spec_of(kind, norm_first=False), dtype)
    source, target = draw((9, 5, 1), VOCABULARY), draw((4, 7, 2), VOCABULARY)
    copy(ours, classic_weights(peer))
    assert_equal_but_rounding(translate(ours, source, target), peer(source, target)[target.real])
    peer.transformer.encoder.norm = nn.LayerNorm(kind.size.d_model, dtype=dtype)
    with pytest.raises(AssertionError, match="not close"):
        assert_equal_but_rounding(translate(ours, source, target), peer(source, target)[target.real])
