"""GPT-NeoX (Pythia) and Phi: decoders whose attention and feed-forward read the same input, side by side.

Both have LayerNorm, biases, and rotary positions that turn the first entries of each head. GPT-NeoX has a norm for each
of the two, and may have them one after the other; Phi has one norm for both, and a bias on the logits.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from clearhead.attention.heads import Heads
from clearhead.attention.positions import Rotary
from clearhead.interop.architectures import base
from clearhead.interop.architectures.base import read_rope, write_rope, write_width
from clearhead.interop.tables import Config, TensorRow, expand
from clearhead.model import AttentionSpec, BlockSpec, DecoderSpec, Embedding, FeedForward, LayerNorm, NextToken
from clearhead.model.arrangements import Arrangement, ParallelNorm, PreNorm
from clearhead.model.sizes import Spec

BLOCK = "stack.blocks.{i}"


@dataclass(frozen=True, kw_only=True)
class ParallelMember:
    """One of the two."""

    name: str
    model: str
    phi: bool
    """Whether there is one norm for both branches, key heads may be shared and normalised, and logits have a bias."""
    activation: str
    """What `hidden_act` is where config.json lacks it."""
    rope: Mapping[str, str]
    """Second names of the fields of rotary positions."""
    turned: float
    """The share of each head that turns where config.json does not say it."""
    output: str
    """Their output's name."""

    def arrangement(self, config: Config) -> Arrangement:
        layer_norm = LayerNorm(config.number("layer_norm_eps", 1e-5))
        if self.phi:
            return ParallelNorm(layer_norm, shared=True)
        return ParallelNorm(layer_norm) if config.flag("use_parallel_residual", True) else PreNorm(layer_norm)

    def has_bias(self, config: Config) -> bool:
        """Return whether the maps of attention have a bias."""
        return self.phi or config.flag("attention_bias", True)

    def is_normed(self, config: Config) -> bool:
        """Return whether queries and keys are normalised."""
        return self.phi and config.flag("qk_layernorm", False)

    def is_tied(self, config: Config) -> bool:
        return config.flag("tie_word_embeddings", False)

    def d_head(self, config: Config) -> int:
        d_model, n_heads = config.count("hidden_size"), config.count("num_attention_heads")
        if d_model % n_heads:
            raise config.error("num_attention_heads", f"expected a number that divides {d_model}; came {n_heads}")
        config.require("head_dim", d_model // n_heads)
        return d_model // n_heads


def read_spec(member: ParallelMember, config: Config) -> DecoderSpec:
    n_heads = config.count("num_attention_heads")
    heads = Heads(
        n_heads,
        kv=config.count("num_key_value_heads", n_heads) if member.phi else n_heads,
        bias=member.has_bias(config),
        qk_norm=LayerNorm(config.number("layer_norm_eps", 1e-5)) if member.is_normed(config) else None,
    )
    named = {field: config.get(other) for other, field in member.rope.items() if config.get(other) is not None}
    rope = Config({"partial_rotary_factor": member.turned, **config.values, **named}, config.where)
    position = read_rope(rope, d_head=member.d_head(config))
    feed_forward = config.choose("hidden_act", base.ACTIVATIONS, member.activation)
    block = BlockSpec(
        attention=AttentionSpec(heads=heads, position=position.position, weighting=position.weighting),
        feed_forward=feed_forward(config.count("intermediate_size")),
        arrangement=member.arrangement(config),
    )
    return DecoderSpec(
        vocabulary=config.count("vocab_size"),
        d_model=config.count("hidden_size"),
        blocks=(block,) * config.layers("num_hidden_layers"),
        embedding=Embedding(position=None, scaled=False),
        output=NextToken(tied=member.is_tied(config), bias=member.phi),
    )


def write_fields(member: ParallelMember, model: Spec, context: int) -> dict[str, Any]:
    spec = base.expect(model, DecoderSpec, "the model")
    block = spec.blocks[0]
    layer, heads, shape = (
        block.attention,
        base.expect_heads(block.attention),
        base.expect_heads(block.attention).shape(spec.d_model),
    )
    arrangement = base.expect(block.arrangement, (ParallelNorm, PreNorm), "arrangement")
    rope = write_rope(layer)["rope_parameters"]
    turned = write_width(base.expect(layer.position, Rotary, "attention.position"), shape.d_head)
    phi_fields = {"num_key_value_heads": shape.n_kv_heads, "qk_layernorm": heads.qk_norm is not None}
    neox_fields = {"attention_bias": heads.bias, "use_parallel_residual": isinstance(arrangement, ParallelNorm)}
    dropouts = ("resid_pdrop", "embd_pdrop") if member.phi else ("hidden_dropout",)
    return {
        "architectures": [f"{member.model}ForCausalLM"],
        "vocab_size": spec.vocabulary,
        "hidden_size": spec.d_model,
        "num_hidden_layers": len(spec.blocks),
        "num_attention_heads": shape.n_heads,
        "intermediate_size": base.expect(block.feed_forward, FeedForward, "feed_forward").d_ff,
        "hidden_act": base.name_activation(block.feed_forward),
        "layer_norm_eps": base.expect(arrangement.norm, LayerNorm, "norm").epsilon,
        "max_position_embeddings": context,
        "rope_parameters": {**rope, "partial_rotary_factor": turned},
        **(phi_fields if member.phi else neox_fields),
        "tie_word_embeddings": base.expect(spec.output, NextToken, "output").tied,
        "attention_dropout": layer.dropout,
        **dict.fromkeys(dropouts, block.dropout),
    }


def neox_rows(config: Config, *, bias: bool) -> list[TensorRow]:
    theirs, n_heads = "gpt_neox.layers.{i}", config.count("num_attention_heads")
    joint = [f"{BLOCK}.attention.{name}.linear" for name in ("query", "key", "value")]
    return [
        *(
            TensorRow(
                f"{theirs}.attention.query_key_value.{kind}", tuple(f"{name}.{kind}" for name in joint), heads=n_heads
            )
            for kind in (("weight", "bias") if bias else ("weight",))
        ),
        *base.pairs(f"{BLOCK}.attention.output", f"{theirs}.attention.dense", bias=bias),
        *base.norm(f"{BLOCK}.around_attention.norm", f"{theirs}.input_layernorm"),
        *base.norm(f"{BLOCK}.around_feed_forward.norm", f"{theirs}.post_attention_layernorm"),
        *base.pairs(f"{BLOCK}.feed_forward.up", f"{theirs}.mlp.dense_h_to_4h"),
        *base.pairs(f"{BLOCK}.feed_forward.down", f"{theirs}.mlp.dense_4h_to_h"),
    ]


def phi_rows(*, normed: bool) -> list[TensorRow]:
    theirs = "model.layers.{i}"
    norms = [(f"{BLOCK}.attention.{role}.norm", f"{theirs}.self_attn.{role[0]}_layernorm") for role in ("query", "key")]
    return [
        *base.attention(f"{BLOCK}.attention", f"{theirs}.self_attn", "q_proj k_proj v_proj dense"),
        *(row for ours, name in norms if normed for row in base.norm(ours, name)),
        *base.norm(f"{BLOCK}.around_attention.norm", f"{theirs}.input_layernorm"),
        *base.pairs(f"{BLOCK}.feed_forward.up", f"{theirs}.mlp.fc1"),
        *base.pairs(f"{BLOCK}.feed_forward.down", f"{theirs}.mlp.fc2"),
    ]


def list_rows(member: ParallelMember, config: Config) -> list[TensorRow]:
    if member.phi:
        table, last, blocks = "model.embed_tokens", "model.final_layernorm", phi_rows(normed=member.is_normed(config))
    else:
        table, last = "gpt_neox.embed_in", "gpt_neox.final_layer_norm"
        blocks = neox_rows(config, bias=member.has_bias(config))
    return [
        TensorRow(f"{table}.weight", ("embedding.table",)),
        *expand(blocks, config.layers("num_hidden_layers")),
        *base.norm("stack.norm", last),
        *([] if member.is_tied(config) else [TensorRow(f"{member.output}.weight", ("output.table",))]),
        *([TensorRow(f"{member.output}.bias", ("output.bias",))] if member.phi else []),
    ]


def make_architecture(member: ParallelMember) -> base.Architecture:
    table = "model.embed_tokens.weight" if member.phi else "gpt_neox.embed_in.weight"
    return base.Architecture(
        model_type=member.name,
        classes={f"{member.model}ForCausalLM": "generate", f"{member.model}Model": "generate"},
        spec=partial(read_spec, member),
        rows=partial(list_rows, member),
        fields=partial(write_fields, member),
        context=lambda config: config.count("max_position_embeddings"),
        prefix=table.partition(".")[0] + ".",
        copies=lambda config: {f"{member.output}.weight": table} if member.is_tied(config) else {},
        # Files of older releases hold masks and frequencies.
        ignored=(".attention.bias", ".attention.masked_bias", ".rotary_emb.inv_freq"),
        computed=(".attention.bias", ".attention.masked_bias", ".rotary_emb.inv_freq"),
    )


MEMBERS = (
    ParallelMember(
        name="gpt_neox",
        model="GPTNeoX",
        phi=False,
        activation="gelu",
        rope={"rotary_emb_base": "rope_theta", "rotary_pct": "partial_rotary_factor"},
        turned=0.25,
        output="embed_out",
    ),
    ParallelMember(name="phi", model="Phi", phi=True, activation="gelu_new", rope={}, turned=0.5, output="lm_head"),
)
PARALLEL_FAMILY = tuple(make_architecture(member) for member in MEMBERS)
