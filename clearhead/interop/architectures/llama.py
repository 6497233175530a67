"""The Llama family: RMSNorm before each branch, rotary positions in halves, a gated feed-forward, shared key heads.

Mistral adds a sliding window, Qwen2 biases and windows in some layers, Qwen3 a norm on queries and keys, Gemma a scaled
embedding, norms counted from one and a gate of GELU. SmolLM is a Llama; SmolLM3 leaves positions out of some
layers. OLMo 2 normalises what a branch gives, and queries and keys of all heads together. Gemma 2 normalises before and
after each branch, and caps scores and logits; Gemma 3 normalises queries and keys instead of capping scores, and its
layers with a window have other positions than those without.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, final

from clearhead.attention import masks
from clearhead.attention.heads import Heads
from clearhead.attention.masks import Mask
from clearhead.attention.similarity import CappedDot, Similarity
from clearhead.interop.architectures.base import Architecture, attention, expect, expect_heads, norm, pairs
from clearhead.interop.architectures.layer_kinds import (
    gemma3_ropes,
    gemma_windows,
    mistral_windows,
    qwen_windows,
    read_gemma_similarity,
    read_same_rope,
    smollm_ropes,
    smollm_windows,
    write_first_rope,
    write_gemma,
    write_gemma3_ropes,
    write_gemma_similarity,
    write_mistral,
    write_qwen,
    write_smollm_ropes,
)
from clearhead.interop.architectures.rope import Rope
from clearhead.interop.config import Config
from clearhead.interop.tables import TensorRow, expand
from clearhead.model.arrangements import Arrangement, PreNorm, SandwichNorm
from clearhead.model.blocks import AttentionSpec, BlockSpec
from clearhead.model.embedding import Embedding
from clearhead.model.feedforward import FeedForward, GeGLU, SwiGLU
from clearhead.model.norms import RMSNorm
from clearhead.model.outputs import NextToken
from clearhead.model.sizes import Spec
from clearhead.model.transformers import DecoderSpec

SILU: Mapping[str, Callable[..., FeedForward]] = {"silu": SwiGLU, "swish": SwiGLU}
TANH = partial(GeGLU, form="tanh")
GELUS: Mapping[str, Callable[..., FeedForward]] = {"gelu_pytorch_tanh": TANH, "gelu": TANH, "gelu_new": TANH}
"""Gemma's first releases say gelu, and mean its approximation by tanh: transformers reads it so."""
TANHS: Mapping[str, Callable[..., FeedForward]] = {"gelu_pytorch_tanh": TANH, "gelu_new": TANH}
ATTENTION, NETWORK = "around_attention", "around_feed_forward"
FIRST = {f"{ATTENTION}.norm": "input_layernorm", f"{NETWORK}.norm": "post_attention_layernorm"}
AFTER = {f"{ATTENTION}.norm": "post_attention_layernorm", f"{NETWORK}.norm": "post_feedforward_layernorm"}
BOTH = {
    f"{ATTENTION}.norm": "input_layernorm",
    f"{ATTENTION}.norm_after": "post_attention_layernorm",
    f"{NETWORK}.norm": "pre_feedforward_layernorm",
    f"{NETWORK}.norm_after": "post_feedforward_layernorm",
}
"""The norms of a block, and what they are called there."""


@final
@dataclass(frozen=True, kw_only=True)
class LlamaMember:
    """What one model of the family has otherwise than Llama."""

    name: str
    model: str
    body: str = ""
    """Their class without an output, where it is not the model's name and Model."""
    bias: bool | None = None
    """Whether the query, key and value maps have a bias, W_O having none; None: `attention_bias` says it of all."""
    mlp_bias: bool = False
    """Whether there is a field `mlp_bias`."""
    qk_norm: bool = False
    joint: bool = False
    """Whether that norm is one of all heads together."""
    arrangement: Callable[[RMSNorm], Arrangement] = PreNorm
    norms: Mapping[str, str] = field(default_factory=lambda: FIRST)
    ropes: Callable[[Config], list[Rope]] = read_same_rope
    """The positions of each layer."""
    write_ropes: Callable[[list[AttentionSpec]], dict[str, Any]] = write_first_rope
    similarity: Callable[[Config], Similarity | None] = lambda config: None
    write_similarity: Callable[[AttentionSpec, int], dict[str, Any]] = lambda layer, d_head: {}
    windows: Callable[[Config], list[int | None]] = lambda config: [None] * config.layers("num_hidden_layers")
    """The window of each layer."""
    write_windows: Callable[[list[Mask | None]], dict[str, Any]] = lambda found: {}
    d_head: int | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """What their class has where config.json lacks a field."""
    gemma: bool = False
    """Whether the embedding is scaled, norms are counted from one, and the gate is GELU."""
    gates: Mapping[str, Callable[..., FeedForward]] = field(default_factory=lambda: SILU)
    gate: str = "hidden_act"
    """The field that names the gate."""
    tied: bool = False
    """Whether the output is tied where config.json lacks the field."""
    capped: bool = False
    """Whether there is a field for a cap on the logits."""

    def biases(self, config: Config) -> tuple[bool, bool]:
        """Return whether the maps to queries, keys and values have a bias, and whether W_O has."""
        bias = config.flag("attention_bias", False)
        return (bias, bias) if self.bias is None else (self.bias, False)

    def is_tied(self, config: Config) -> bool:
        return config.flag("tie_word_embeddings", self.tied)


def read_spec(member: LlamaMember, config: Config) -> DecoderSpec:
    config.require("use_bidirectional_attention", False)
    n_heads, d_head = config.count("num_attention_heads"), config.get("head_dim")
    epsilon = config.number("rms_norm_eps", 1e-6)
    bias, output_bias = member.biases(config)
    heads = Heads(
        n_heads,
        kv=config.count("num_key_value_heads", n_heads),
        d_head=member.d_head if d_head is None else config.count("head_dim"),
        bias=bias,
        output_bias=None if output_bias == bias else output_bias,
        qk_norm=RMSNorm(epsilon, from_one=member.gemma) if member.qk_norm else None,
        qk_norm_joint=member.joint,
    )
    similarity, ropes = member.similarity(config), member.ropes(config)
    if isinstance(similarity, CappedDot) and any(rope.weighting is not None for rope in ropes):
        raise config.error("rope_type", "yarn is not supported yet where scores are capped (attn_logit_softcapping)")
    feed_forward = config.choose(member.gate, member.gates, next(iter(member.gates)))
    if not member.mlp_bias:
        config.require("mlp_bias", False)
    blocks = (
        BlockSpec(
            attention=AttentionSpec(
                heads=heads,
                similarity=similarity,
                position=rope.position,
                weighting=rope.weighting,
                mask=mask_of(window),
            ),
            feed_forward=feed_forward(config.count("intermediate_size"), bias=config.flag("mlp_bias", False)),
            arrangement=member.arrangement(RMSNorm(epsilon, from_one=member.gemma)),
        )
        for window, rope in zip(member.windows(config), ropes, strict=True)
    )
    cap = config.get("final_logit_softcapping") if member.capped else None
    return DecoderSpec(
        vocabulary=config.count("vocab_size"),
        d_model=config.count("hidden_size"),
        blocks=tuple(blocks),
        embedding=Embedding(position=None, scaled=member.gemma),
        output=NextToken(
            tied=member.is_tied(config), cap=None if cap is None else config.number("final_logit_softcapping")
        ),
    )


def mask_of(window: int | None) -> Mask | None:
    return None if window is None else masks.window(window - 1)


def write_fields(member: LlamaMember, model: Spec, context: int) -> dict[str, Any]:
    spec = expect(model, DecoderSpec, "the model")
    block = spec.blocks[0]
    layer, heads = block.attention, expect_heads(block.attention)
    shape = heads.shape(spec.d_model)
    feed_forward = expect(block.feed_forward, GeGLU if member.gemma else SwiGLU, "feed_forward")
    arrangement = expect(block.arrangement, (PreNorm, SandwichNorm), "arrangement")
    output = expect(spec.output, NextToken, "output")
    return {
        "architectures": [f"{member.model}ForCausalLM"],
        "vocab_size": spec.vocabulary,
        "hidden_size": spec.d_model,
        "num_hidden_layers": len(spec.blocks),
        "num_attention_heads": shape.n_heads,
        "num_key_value_heads": shape.n_kv_heads,
        "head_dim": shape.d_head,
        "intermediate_size": feed_forward.d_ff,
        member.gate: next(iter(member.gates)),
        "rms_norm_eps": expect(arrangement.norm, RMSNorm, "norm").epsilon,
        "max_position_embeddings": context,
        **member.write_ropes([block.attention for block in spec.blocks]),
        **member.write_similarity(layer, shape.d_head),
        **({"final_logit_softcapping": output.cap} if member.capped else {}),
        **member.write_windows([block.attention.mask for block in spec.blocks]),
        **({"attention_bias": heads.bias} if member.bias is None else {}),
        **({"mlp_bias": feed_forward.bias} if member.mlp_bias else {}),
        "tie_word_embeddings": output.tied,
        "attention_dropout": layer.dropout,
    }


def list_rows(member: LlamaMember, config: Config) -> list[TensorRow]:
    block, theirs = "stack.blocks.{i}", "model.layers.{i}"
    bias, output_bias = member.biases(config)
    names = "q_proj k_proj v_proj o_proj"
    blocks = attention(f"{block}.attention", f"{theirs}.self_attn", names, bias=bias, output_bias=output_bias)
    for ours, name in member.norms.items():
        blocks += norm(f"{block}.{ours}", f"{theirs}.{name}", beta=False)
    for name in ("gate", "up", "down"):
        bias = config.flag("mlp_bias", False)
        blocks += pairs(f"{block}.feed_forward.{name}", f"{theirs}.mlp.{name}_proj", bias=bias)
    if member.qk_norm:
        blocks += norm(f"{block}.attention.query.norm", f"{theirs}.self_attn.q_norm", beta=False)
        blocks += norm(f"{block}.attention.key.norm", f"{theirs}.self_attn.k_norm", beta=False)
    return [
        TensorRow("model.embed_tokens.weight", ("embedding.table",)),
        *expand(blocks, config.layers("num_hidden_layers")),
        *norm("stack.norm", "model.norm", beta=False),
        *([] if member.is_tied(config) else [TensorRow("lm_head.weight", ("output.table",))]),
    ]


def make_architecture(member: LlamaMember) -> Architecture:
    return Architecture(
        model_type=member.name,
        classes={
            f"{member.model}ForCausalLM": "generate",
            member.body or f"{member.model}Model": "generate",
        },
        spec=partial(read_spec, member),
        rows=partial(list_rows, member),
        fields=partial(write_fields, member),
        context=lambda config: config.count("max_position_embeddings"),
        prefix="model.",
        copies=lambda config: {"lm_head.weight": "model.embed_tokens.weight"} if member.is_tied(config) else {},
        ignored=(".rotary_emb.inv_freq",),
        defaults=member.defaults,
    )


LATER_GEMMA: Mapping[str, Any] = {
    "d_head": 256,
    "gemma": True,
    "gates": TANHS,
    "gate": "hidden_activation",
    "tied": True,
    "capped": True,
    "arrangement": SandwichNorm,
    "norms": BOTH,
    "similarity": read_gemma_similarity,
    "write_similarity": write_gemma_similarity,
    "windows": gemma_windows,
    "write_windows": write_gemma,
}
GEMMA = {"num_key_value_heads": 4, "sliding_window": 4096, "query_pre_attn_scalar": 256}
GEMMA2 = {"final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0}
"""What Gemma 2 and 3 have where config.json lacks a field."""
MEMBERS = (
    LlamaMember(name="llama", model="Llama", mlp_bias=True),
    LlamaMember(
        name="mistral",
        model="Mistral",
        windows=mistral_windows,
        write_windows=write_mistral,
        bias=False,
        defaults={"sliding_window": 4096, "num_key_value_heads": 8},
    ),
    LlamaMember(
        name="qwen2",
        model="Qwen2",
        windows=qwen_windows,
        write_windows=write_qwen,
        bias=True,
        defaults={"sliding_window": 4096, "num_key_value_heads": 32},
    ),
    LlamaMember(
        name="qwen3",
        model="Qwen3",
        windows=qwen_windows,
        write_windows=write_qwen,
        qk_norm=True,
        d_head=128,
        defaults={"sliding_window": 4096, "num_key_value_heads": 32},
    ),
    LlamaMember(
        name="gemma",
        model="Gemma",
        d_head=256,
        gemma=True,
        gates=GELUS,
        tied=True,
        defaults={"num_key_value_heads": 16},
    ),
    LlamaMember(
        name="olmo2",
        model="Olmo2",
        qk_norm=True,
        joint=True,
        arrangement=partial(SandwichNorm, before=False),
        norms=AFTER,
        defaults={"rms_norm_eps": 1e-5},
    ),
    LlamaMember(
        name="smollm3",
        model="SmolLM3",
        mlp_bias=True,
        ropes=smollm_ropes,
        write_ropes=write_smollm_ropes,
        windows=smollm_windows,
        write_windows=write_qwen,
        tied=True,
        defaults={"num_key_value_heads": 4},
    ),
    LlamaMember(name="gemma2", model="Gemma2", defaults=GEMMA | GEMMA2, **LATER_GEMMA),
    LlamaMember(
        name="gemma3_text",
        model="Gemma3",
        body="Gemma3TextModel",
        qk_norm=True,
        ropes=gemma3_ropes,
        write_ropes=write_gemma3_ropes,
        defaults=GEMMA,
        **LATER_GEMMA,
    ),
)
LLAMA_FAMILY = tuple(make_architecture(member) for member in MEMBERS)
