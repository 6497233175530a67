"""Encoder-decoders are Hugging Face's Marian and BART, on the same weights: logits, inner vectors, every gradient.

In float32 to 1e-5 and in float64 to 1e-10. Both have the paper's arrangement, with biases everywhere; the bias on their
logits is a buffer there, and learned here.
"""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from clearhead import Heads, positions
from clearhead.model import presets
from clearhead.model.embedding import Embedding
from clearhead.model.feedforward import GELU, ReLU
from clearhead.model.norms import LayerNorm
from clearhead.model.outputs import NextToken
from clearhead.model.presets import AttentionSpec, Size
from tests.model.copying import (
    agree,
    asked,
    attention,
    built,
    copy,
    draw,
    dtypes,
    own,
    pairs_of_lengths,
    randomised,
    seen,
    under,
)
from tests.peers import transformers
from tests.rounding import assert_equal_but_rounding

VOCABULARY, LENGTH = 29, 17
COMPUTED = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")
NETWORKS = {"relu": ReLU, "gelu": GELU, "gelu_pytorch_tanh": lambda d_ff: GELU(d_ff, form="tanh")}
pytestmark = pytest.mark.slow


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What the compared models differ in."""

    size: Size
    n_target_layers: int
    activation: str
    scaled: bool
    tied: str = "three"
    implementation: str = "sdpa"

    @property
    def target_vocabulary(self):
        return VOCABULARY if self.tied == "three" else VOCABULARY + 6

    def settings(self):
        """The configuration that Marian and BART have in common."""
        return {
            "vocab_size": VOCABULARY,
            "max_position_embeddings": LENGTH,
            "d_model": self.size.d_model,
            "encoder_layers": self.size.n_layers,
            "decoder_layers": self.n_target_layers,
            "encoder_attention_heads": self.size.n_heads,
            "decoder_attention_heads": self.size.n_heads,
            "encoder_ffn_dim": self.size.d_ff,
            "decoder_ffn_dim": self.size.d_ff,
            "activation_function": self.activation,
            "scale_embedding": self.scaled,
            "dropout": 0.0,
            "pad_token_id": None,
            "bos_token_id": None,
            "eos_token_id": None,
            "forced_eos_token_id": None,
            "decoder_start_token_id": 0,
            "tie_word_embeddings": self.tied != "none",
            "attn_implementation": self.implementation,
        }

    def spec(self, embedding):
        """The preset, with the parts that Marian and BART have otherwise."""
        heads = Heads(self.size.n_heads, bias=True)
        made = presets.classic(VOCABULARY, size=self.size, attention=AttentionSpec(heads=heads))
        encoding, decoding = (
            replace(half.blocks[0], feed_forward=NETWORKS[self.activation](self.size.d_ff))
            for half in (made.encoder, made.decoder)
        )
        encoder = replace(made.encoder, blocks=(encoding,) * self.size.n_layers, embedding=embedding)
        decoder = replace(
            made.decoder,
            vocabulary=self.target_vocabulary,
            blocks=(decoding,) * self.n_target_layers,
            embedding=embedding,
            output=NextToken(bias=True),
        )
        return replace(made, encoder=encoder, decoder=decoder, tied=self.tied)


def marian(kind, dtype):
    config = transformers.MarianConfig(
        **kind.settings(),
        decoder_vocab_size=kind.target_vocabulary,
        share_encoder_decoder_embeddings=kind.tied == "three",
    )
    embedding = Embedding(position=positions.Sinusoidal(layout="halves"), scaled=kind.scaled)
    return unrounded(randomised(transformers.MarianMTModel(config), dtype)), built(kind.spec(embedding), dtype)


def unrounded(peer):
    """Marian's positions by its own formula: its table has them rounded to float32, whatever the model's dtype."""
    for half in (peer.model.encoder, peer.model.decoder):
        table = half.embed_positions.weight
        n, d_model = table.shape
        angle = np.arange(n)[:, None] / np.power(10_000, 2 * np.arange(d_model // 2) / d_model)
        exact = torch.from_numpy(np.concatenate([np.sin(angle), np.cos(angle)], 1))
        assert_equal_but_rounding(table.float(), exact.float())
        table.copy_(exact)
    return peer


def bart(kind, dtype):
    embedding = Embedding(position=positions.Learned(LENGTH), scaled=kind.scaled, norm=LayerNorm())
    peer = transformers.BartForConditionalGeneration(transformers.BartConfig(**kind.settings()))
    return randomised(peer, dtype), built(kind.spec(embedding), dtype)


def projections(inner):
    return own(inner.q_proj), own(inner.k_proj), own(inner.v_proj), own(inner.out_proj)


def layer_weights(layer):
    return attention("attention", *projections(layer.self_attn)) | {
        "around_attention.norm": own(layer.self_attn_layer_norm),
        "feed_forward.up": own(layer.fc1),
        "feed_forward.down": own(layer.fc2),
        "around_feed_forward.norm": own(layer.final_layer_norm),
    }


def crossing_weights(layer):
    crossing = attention("cross", *projections(layer.encoder_attn))
    return crossing | {"around_cross.norm": own(layer.encoder_attn_layer_norm)}


def marian_weights(peer):
    body, bias = peer.model, peer.final_logits_bias.normal_().requires_grad_()
    weights = {
        "encoder.embedding": own(body.encoder.embed_tokens),
        "decoder.embedding": own(body.decoder.embed_tokens),
        "decoder.output": (*own(peer.lm_head), bias[0]),
    }
    for i, layer in enumerate(body.encoder.layers):
        weights |= under(f"encoder.stack.blocks.{i}", layer_weights(layer))
    for i, layer in enumerate(body.decoder.layers):
        weights |= under(f"decoder.stack.blocks.{i}", layer_weights(layer) | crossing_weights(layer))
    return weights


def bart_weights(peer):
    """As Marian's, with learned positions, which begin in row 2 of their table, and a norm on the embeddings."""
    weights = marian_weights(peer)
    for name, half in (("encoder", peer.model.encoder), ("decoder", peer.model.decoder)):
        weights[f"{name}.embedding.position"] = (half.embed_positions.weight[2:],)
        weights[f"{name}.embedding.norm"] = own(half.layernorm_embedding)
    return weights


def translate(model, source, target):
    return model(source.tokens, target.tokens, source_lengths=source.lengths)


def asked_of_two(source, target):
    return asked(source) | {"decoder_input_ids": target.tokens, "decoder_attention_mask": target.attention_mask}


@dtypes
@pytest.mark.parametrize(
    "kind",
    [
        Kind(size=Size(2, 24, 3, 3, 40), n_target_layers=2, activation="relu", scaled=True, implementation="eager"),
        Kind(size=Size(2, 24, 3, 3, 40), n_target_layers=1, activation="gelu", scaled=True, tied="two"),
        Kind(size=Size(1, 20, 4, 4, 33), n_target_layers=3, activation="relu", scaled=False, tied="none"),
    ],
    ids=lambda kind: f"tied {kind.tied}",
)
@pairs_of_lengths
@pytest.mark.pairs
def test_marian(lengths, kind, dtype):
    peer, ours = marian(kind, dtype)
    source, target = draw(lengths[0], VOCABULARY), draw(lengths[1], kind.target_vocabulary)
    weights = marian_weights(peer)
    theirs = peer(**asked_of_two(source, target)).logits[target.real]
    agree(ours, peer, weights, lambda model: translate(model, source, target)[target.real], theirs, fixed=COMPUTED)


@dtypes
@pytest.mark.parametrize(
    "kind",
    [
        Kind(size=Size(2, 24, 3, 3, 40), n_target_layers=2, activation="gelu", scaled=False, implementation="eager"),
        Kind(size=Size(1, 20, 4, 4, 33), n_target_layers=3, activation="gelu_pytorch_tanh", scaled=True),
    ],
    ids=lambda kind: kind.activation,
)
@pairs_of_lengths
@pytest.mark.pairs
def test_bart(lengths, kind, dtype):
    peer, ours = bart(kind, dtype)
    source, target = draw(lengths[0], VOCABULARY), draw(lengths[1], VOCABULARY)
    weights = bart_weights(peer)
    theirs = peer(**asked_of_two(source, target)).logits[target.real]
    agree(ours, peer, weights, lambda model: translate(model, source, target)[target.real], theirs)


@dtypes
def test_marian_vectors_between_the_blocks(dtype):
    peer, ours = marian(Kind(size=Size(2, 24, 3, 3, 40), n_target_layers=3, activation="relu", scaled=True), dtype)
    copy(ours, marian_weights(peer))
    source, target = draw((9, 5, 1), VOCABULARY), draw((4, 7, 2), VOCABULARY)
    theirs = peer(**asked_of_two(source, target), output_hidden_states=True)
    values = seen(ours, lambda model: translate(model, source, target))
    for half, batch, vectors in (
        ("encoder", source, theirs.encoder_hidden_states),
        ("decoder", target, theirs.decoder_hidden_states),
    ):
        names = [f"{half}.embedding.out", *(f"{half}.stack.blocks.{i}.out" for i in range(len(vectors) - 1))]
        assert len(names) == len(ours.get_submodule(f"{half}.stack.blocks")) + 1
        for name, value in zip(names, vectors, strict=True):
            assert_equal_but_rounding(values[name][batch.real], value[batch.real], name)
