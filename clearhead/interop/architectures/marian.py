"""Marian, BART, Pegasus, mBART and M2M100 (NLLB): the paper's encoder-decoder.

Marian has a norm after each branch and computes its positions, sines before cosines. Pegasus is the same with the norm
before each branch, and one after the last block. BART has the norm after, learns its positions, in tables whose first
two rows no position uses, and normalises the embeddings; mBART is a BART with the norm before. M2M100, and NLLB, which
is one, is a Pegasus without a bias on the logits, whose waves are a little slower and begin after the number of its
padding token; that token takes no position in a source.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from clearhead.attention.heads import Heads
from clearhead.attention.positions import Learned, Sinusoidal
from clearhead.interop.architectures.base import (
    ACTIVATIONS,
    Architecture,
    attention,
    expect,
    expect_heads,
    name_activation,
    norm,
    pairs,
)
from clearhead.interop.tables import Config, TensorRow, expand
from clearhead.model import AttentionSpec, BlockSpec, Embedding, FeedForward, LayerNorm, NextToken, PostNorm, PreNorm
from clearhead.model.sizes import Spec
from clearhead.model.transformers import DecoderSpec, EncoderDecoderSpec, EncoderSpec, Tied

FIRST = 2
"""The row of BART's first position."""
BASE = 10_000.0
SIDES = ("encoder", "decoder")


@dataclass(frozen=True, kw_only=True)
class MarianMember:
    """One of the five."""

    name: str
    classes: tuple[str, ...]
    learned: bool = False
    """Whether positions are learned and embeddings normalised."""
    norm_first: bool = False
    counted: bool = False
    """Whether positions are computed from the numbers after that of the padding token."""
    logits_bias: bool = True
    activation: str = "gelu"
    """What `activation_function` is where config.json lacks it, and `scaled` the same for `scale_embedding`."""
    scaled: bool = False

    @property
    def one_table(self) -> bool:
        """Return whether source, target and output always have one table: all but Marian."""
        return self.learned or self.norm_first

    def tied(self, config: Config) -> Tied:
        """Return which tables are one."""
        if self.one_table:
            config.require("tie_word_embeddings", True)
            return "three"
        output = config.flag("tie_word_embeddings", True)
        if not config.flag("share_encoder_decoder_embeddings", True):
            return "two" if output else "none"
        config.require("tie_word_embeddings", True)
        return "three"

    def read_spec(self, config: Config) -> EncoderDecoderSpec:
        for name in ("normalize_before", "add_final_layer_norm"):
            config.require(name, self.norm_first)
        config.require("normalize_embedding", self.learned)
        vocabulary, d_model = config.count("vocab_size"), config.count("d_model")
        encoder = EncoderSpec(
            vocabulary=vocabulary,
            d_model=d_model,
            blocks=(self.read_block(config, "encoder"),) * config.layers("encoder_layers"),
            embedding=self.read_embedding(config, "encoder"),
            output=None,
        )
        decoder = DecoderSpec(
            vocabulary=vocabulary if self.one_table else config.count("decoder_vocab_size", vocabulary),
            d_model=d_model,
            blocks=(self.read_block(config, "decoder"),) * config.layers("decoder_layers"),
            embedding=self.read_embedding(config, "decoder"),
            output=NextToken(bias=self.logits_bias, tied=self.tied(config) != "none"),
        )
        return EncoderDecoderSpec(encoder=encoder, decoder=decoder, tied=self.tied(config))

    def read_embedding(self, config: Config, side: str) -> Embedding:
        return Embedding(
            position=self.read_position(config, side),
            scaled=config.flag("scale_embedding", self.scaled),
            norm=LayerNorm() if self.learned else None,
        )

    def read_position(self, config: Config, side: str) -> Learned | Sinusoidal:
        if self.learned:
            return Learned(config.count("max_position_embeddings"), first=FIRST)
        if not self.counted:
            return Sinusoidal(layout="halves")
        [padding] = config.tokens("pad_token_id") or (1,)
        if config.tokens("decoder_start_token_id") == (padding,):
            raise config.error("decoder_start_token_id", "is the padding token, to which M2M100 gives no position")
        half = config.count("d_model") // 2
        if half < 2 or config.count("d_model") % 2:
            raise config.error("d_model", f"expected an even number of 4 or more; came {config.count('d_model')}")
        # Their waves slow down over half - 1 steps, ours over half: the same with a larger base.
        base = BASE ** (half / (half - 1))
        return Sinusoidal(layout="halves", base=base, first=padding + 1, skips=padding if side == "encoder" else None)

    def read_block(self, config: Config, side: str) -> BlockSpec:
        layer = AttentionSpec(heads=Heads(config.count(f"{side}_attention_heads"), bias=True))
        feed_forward = config.choose("activation_function", ACTIVATIONS, self.activation)
        return BlockSpec(
            attention=layer,
            cross=layer if side == "decoder" else None,
            feed_forward=feed_forward(config.count(f"{side}_ffn_dim")),
            arrangement=PreNorm(LayerNorm()) if self.norm_first else PostNorm(LayerNorm()),
        )

    def write_fields(self, model: Spec, context: int) -> dict[str, Any]:
        spec = expect(model, EncoderDecoderSpec, "the model")
        embedding, block = spec.decoder.embedding, spec.decoder.blocks[0]
        if self.learned:
            context = expect(embedding.position, Learned, "embedding.position").length
        own_fields = {}
        if not self.one_table:
            shared = spec.tied in ("three", "embeddings")
            own_fields = {
                "decoder_vocab_size": spec.decoder.vocabulary,
                "share_encoder_decoder_embeddings": shared,
                "tie_word_embeddings": spec.tied in ("two", "three"),
            }
        return {
            "architectures": [self.classes[0]],
            "is_encoder_decoder": True,
            "vocab_size": spec.encoder.vocabulary,
            "d_model": spec.encoder.d_model,
            "max_position_embeddings": context,
            **write_side(spec.encoder, "encoder"),
            **write_side(spec.decoder, "decoder"),
            "activation_function": name_activation(block.feed_forward),
            "scale_embedding": embedding.scaled,
            "dropout": block.dropout,
            "attention_dropout": block.attention.dropout,
            **own_fields,
            **self.write_padding(embedding),
        }

    def write_padding(self, embedding: Embedding) -> dict[str, Any]:
        """Return the padding token, where positions begin after its number."""
        if not self.counted:
            return {}
        return {"pad_token_id": expect(embedding.position, Sinusoidal, "embedding.position").first - 1}

    def list_rows(self, config: Config) -> list[TensorRow]:
        tied = self.tied(config)
        shared = [TensorRow("model.shared.weight", ("encoder.embedding.table",))]
        apart = [TensorRow(f"model.{side}.embed_tokens.weight", (f"{side}.embedding.table",)) for side in SIDES]
        rows = shared if tied == "three" else apart
        if tied == "none":
            rows.append(TensorRow("lm_head.weight", ("decoder.output.table",)))
        if self.logits_bias:
            rows.append(TensorRow("final_logits_bias", ("decoder.output.bias",), leading=True, optional=True))
        for side in SIDES:
            rows += expand(block_rows(side), config.layers(f"{side}_layers"))
            if self.norm_first:
                rows += norm(f"{side}.stack.norm", f"model.{side}.layer_norm")
            if self.learned:
                rows.append(TensorRow(f"model.{side}.embed_positions.weight", (f"{side}.embedding.position.table",)))
                rows += norm(f"{side}.embedding.norm", f"model.{side}.layernorm_embedding")
        return rows

    def list_values(self, config: Config) -> dict[str, Tensor]:
        """Return the positions as vectors: files of Pegasus have them, and some of Marian."""
        position = Sinusoidal(layout="halves").embed(config.count("d_model"))
        return {
            f"model.{side}.embed_positions.weight": position(config.count("max_position_embeddings")) for side in SIDES
        }

    def copies(self, config: Config) -> dict[str, str]:
        tied = self.tied(config)
        if tied == "three":
            names = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight")
            return dict.fromkeys(names, "model.shared.weight")
        return {"lm_head.weight": "model.decoder.embed_tokens.weight"} if tied == "two" else {}

    def make_architecture(self) -> Architecture:
        computed = () if self.learned else ("embed_positions.weights" if self.counted else "embed_positions.weight",)
        return Architecture(
            model_type=self.name,
            classes=dict.fromkeys(self.classes, "translate"),
            spec=self.read_spec,
            rows=self.list_rows,
            fields=self.write_fields,
            context=lambda config: config.count("max_position_embeddings"),
            prefix="model.",
            copies=self.copies,
            values=None if self.learned or self.counted else self.list_values,
            saves_values=self.norm_first,
            aliases={
                "hidden_size": "d_model",
                "num_attention_heads": "encoder_attention_heads",
                "num_hidden_layers": "encoder_layers",
            },
            ignored=computed,
            computed=computed,
        )


def write_side(spec: EncoderSpec | DecoderSpec, side: str) -> dict[str, Any]:
    block = spec.blocks[0]
    return {
        f"{side}_layers": len(spec.blocks),
        f"{side}_attention_heads": expect_heads(block.attention).count,
        f"{side}_ffn_dim": expect(block.feed_forward, FeedForward, "feed_forward").d_ff,
    }


def block_rows(side: str) -> Iterator[TensorRow]:
    ours, theirs, names = f"{side}.stack.blocks.{{i}}", f"model.{side}.layers.{{i}}", "q_proj k_proj v_proj out_proj"
    yield from attention(f"{ours}.attention", f"{theirs}.self_attn", names)
    yield from norm(f"{ours}.around_attention.norm", f"{theirs}.self_attn_layer_norm")
    if side == "decoder":
        yield from attention(f"{ours}.cross", f"{theirs}.encoder_attn", names)
        yield from norm(f"{ours}.around_cross.norm", f"{theirs}.encoder_attn_layer_norm")
    yield from pairs(f"{ours}.feed_forward.up", f"{theirs}.fc1")
    yield from pairs(f"{ours}.feed_forward.down", f"{theirs}.fc2")
    yield from norm(f"{ours}.around_feed_forward.norm", f"{theirs}.final_layer_norm")


MEMBERS = (
    MarianMember(name="marian", classes=("MarianMTModel", "MarianModel")),
    MarianMember(name="pegasus", classes=("PegasusForConditionalGeneration", "PegasusModel"), norm_first=True),
    MarianMember(name="bart", classes=("BartForConditionalGeneration", "BartModel"), learned=True),
    MarianMember(name="mbart", classes=("MBartForConditionalGeneration", "MBartModel"), learned=True, norm_first=True),
    MarianMember(
        name="m2m_100",
        classes=("M2M100ForConditionalGeneration", "M2M100Model"),
        norm_first=True,
        counted=True,
        logits_bias=False,
        activation="relu",
        scaled=True,
    ),
)
MARIAN_FAMILY = tuple(member.make_architecture() for member in MEMBERS)
