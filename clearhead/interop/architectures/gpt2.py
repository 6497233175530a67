"""GPT-2: learned positions, LayerNorm before each branch, one map for query, key and value, its inputs first."""

from typing import Any

from clearhead.attention.heads import Heads
from clearhead.attention.positions import Learned
from clearhead.attention.similarity import Dot
from clearhead.interop.architectures import base
from clearhead.interop.tables import Config, TensorRow, expand
from clearhead.model import AttentionSpec, BlockSpec, DecoderSpec, Embedding, FeedForward, LayerNorm, NextToken, PreNorm
from clearhead.model.sizes import Spec


def read_spec(config: Config) -> DecoderSpec:
    config.require("scale_attn_by_inverse_layer_idx", False)
    config.require("add_cross_attention", False)
    d_model, d_ff = config.count("n_embd"), config.get("n_inner")
    feed_forward = config.choose("activation_function", base.ACTIVATIONS, "gelu_new")
    block = BlockSpec(
        attention=AttentionSpec(
            heads=Heads(config.count("n_head"), bias=True),
            similarity=None if config.flag("scale_attn_weights", True) else Dot(),
        ),
        feed_forward=feed_forward(4 * d_model if d_ff is None else config.count("n_inner")),
        arrangement=PreNorm(LayerNorm(config.number("layer_norm_epsilon", 1e-5))),
    )
    return DecoderSpec(
        vocabulary=config.count("vocab_size"),
        d_model=d_model,
        blocks=(block,) * config.layers("n_layer"),
        embedding=Embedding(position=Learned(config.count("n_positions")), scaled=False),
        output=NextToken(tied=is_tied(config)),
    )


def write_fields(model: Spec, context: int) -> dict[str, Any]:
    spec = base.expect(model, DecoderSpec, "the model")
    block = spec.blocks[0]
    attention = block.attention
    return {
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": spec.vocabulary,
        "n_positions": base.expect(spec.embedding.position, Learned, "embedding.position").length,
        "n_embd": spec.d_model,
        "n_layer": len(spec.blocks),
        "n_head": base.expect_heads(attention).count,
        "n_inner": base.expect(block.feed_forward, FeedForward, "feed_forward").d_ff,
        "activation_function": base.name_activation(block.feed_forward),
        "layer_norm_epsilon": base.expect(
            base.expect(block.arrangement, PreNorm, "arrangement").norm, LayerNorm, "norm"
        ).epsilon,
        "scale_attn_weights": not isinstance(attention.similarity, Dot),
        "tie_word_embeddings": base.expect(spec.output, NextToken, "output").tied,
        "embd_pdrop": spec.embedding.dropout,
        "resid_pdrop": block.dropout,
        "attn_pdrop": attention.dropout,
    }


def list_rows(config: Config) -> list[TensorRow]:
    block, theirs = "stack.blocks.{i}", "transformer.h.{i}"
    joint = tuple(f"{block}.attention.{name}.linear" for name in ("query", "key", "value"))
    blocks = [
        TensorRow(f"{theirs}.attn.c_attn.weight", tuple(f"{name}.weight" for name in joint), transposed=True),
        TensorRow(f"{theirs}.attn.c_attn.bias", tuple(f"{name}.bias" for name in joint)),
        *base.pairs(f"{block}.attention.output", f"{theirs}.attn.c_proj", transposed=True),
        *base.norm(f"{block}.around_attention.norm", f"{theirs}.ln_1"),
        *base.pairs(f"{block}.feed_forward.up", f"{theirs}.mlp.c_fc", transposed=True),
        *base.pairs(f"{block}.feed_forward.down", f"{theirs}.mlp.c_proj", transposed=True),
        *base.norm(f"{block}.around_feed_forward.norm", f"{theirs}.ln_2"),
    ]
    return [
        TensorRow("transformer.wte.weight", ("embedding.table",)),
        TensorRow("transformer.wpe.weight", ("embedding.position.table",)),
        *expand(blocks, config.layers("n_layer")),
        *base.norm("stack.norm", "transformer.ln_f"),
        *([] if is_tied(config) else [TensorRow("lm_head.weight", ("output.table",))]),
    ]


def is_tied(config: Config) -> bool:
    return config.flag("tie_word_embeddings", True)


GPT2 = base.Architecture(
    model_type="gpt2",
    classes={"GPT2LMHeadModel": "generate", "GPT2Model": "generate"},
    spec=read_spec,
    rows=list_rows,
    fields=write_fields,
    context=lambda config: config.count("n_positions"),
    prefix="transformer.",
    copies=lambda config: {"lm_head.weight": "transformer.wte.weight"} if is_tied(config) else {},
    aliases={
        "hidden_size": "n_embd",
        "max_position_embeddings": "n_positions",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    },
    ignored=(".attn.bias", ".attn.masked_bias"),
    computed=(".attn.bias", ".attn.masked_bias"),
)
