"""The Llama family: RMSNorm before each branch, rotary positions in halves, a gated feed-forward, shared key heads.

Mistral adds a sliding window, Qwen2 biases and windows in some layers, Qwen3 a norm on queries and keys, Gemma a scaled
embedding, norms counted from one and a gate of GELU. SmolLM is a Llama; SmolLM3 leaves positions out of some
layers. OLMo 2 normalises what a branch gives, and queries and keys of all heads together. Gemma 2 normalises before and
after each branch, and caps scores and logits; Gemma 3 normalises queries and keys instead of capping scores, and its
layers with a window have other positions than those without. How layers of one model differ (windows, positions, the
scale and cap of scores) is read first, below.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from clearhead.attention import masks
from clearhead.attention.heads import Heads
from clearhead.attention.mask_rules import Mask, Window
from clearhead.attention.positions import NoPosition, Rotary
from clearhead.attention.similarity import CappedDot, ScaledDot, Similarity
from clearhead.errors import OptionError
from clearhead.interop.architectures.base import (
    Architecture,
    Rope,
    attention,
    expect,
    expect_heads,
    norm,
    pairs,
    read_rope,
    write_rope,
)
from clearhead.interop.tables import Config, TensorRow, expand
from clearhead.model import AttentionSpec, BlockSpec, DecoderSpec, Embedding, NextToken, RMSNorm
from clearhead.model.arrangements import Arrangement, PreNorm, SandwichNorm
from clearhead.model.feedforward import FeedForward, GeGLU, SwiGLU
from clearhead.model.sizes import Spec

FULL, SLIDING = "full_attention", "sliding_attention"


def read_same_rope(config: Config) -> list[Rope]:
    return [read_rope(config)] * config.layers("num_hidden_layers")


def write_first_rope(layers: list[AttentionSpec]) -> dict[str, Any]:
    return write_rope(layers[0])


def mistral_windows(config: Config) -> list[int | None]:
    window = None if config.get("sliding_window") is None else config.count("sliding_window")
    return [window] * config.layers("num_hidden_layers")


def qwen_windows(config: Config) -> list[int | None]:
    """Return the window of the layers that have one: those in `layer_types`, or all from `max_window_layers` on."""
    count, types = config.layers("num_hidden_layers"), config.get("layer_types")
    on = config.flag("use_sliding_window", False) and config.get("sliding_window") is not None
    window = config.count("sliding_window") if on else None
    if types is None:
        first = config.get("max_window_layers")
        first = 28 if first is None else config.count("max_window_layers") if first else 0
        return [window if i >= first else None for i in range(count)]
    kinds = read_types(config, [])
    if window is None and SLIDING in kinds:
        raise config.error("layer_types", "has sliding_attention, and there is no sliding_window in use")
    return [window if kind == SLIDING else None for kind in kinds]


def read_types(config: Config, default: list[str]) -> list[str]:
    """Return whether each layer has a window, by `layer_types`."""
    count, types = config.layers("num_hidden_layers"), config.get("layer_types")
    types = default if types is None else types
    if not isinstance(types, list) or len(types) != count or any(kind not in (FULL, SLIDING) for kind in types):
        raise config.error("layer_types", f"expected {count} of {FULL} or {SLIDING}")
    return types


def gemma_types(config: Config) -> list[str]:
    """Return whether each layer of a Gemma 2 or 3 has a window: all but every second, or every sixth."""
    count, every = config.layers("num_hidden_layers"), config.count("sliding_window_pattern", 6)
    if config.get("model_type") == "gemma2":
        every = 2
    return read_types(config, [SLIDING if (i + 1) % every else FULL for i in range(count)])


def gemma_windows(config: Config) -> list[int | None]:
    return [config.count("sliding_window") if kind == SLIDING else None for kind in gemma_types(config)]


def write_gemma(masks_of_layers: list[Mask | None]) -> dict[str, Any]:
    fields = write_qwen(masks_of_layers)
    return {"sliding_window": fields["sliding_window"] or 4096, "layer_types": fields["layer_types"]}


def read_gemma_similarity(config: Config) -> Similarity:
    """Return the dot product by `query_pre_attn_scalar`, below a cap if there is one."""
    factor = config.number("query_pre_attn_scalar") ** -0.5
    if config.get("model_type") == "gemma3_text":
        config.require("attn_logit_softcapping")  # which transformers does not read in it
    if config.get("attn_logit_softcapping") is None:
        return ScaledDot(factor)
    return CappedDot(config.number("attn_logit_softcapping"), factor)


def write_gemma_similarity(layer: AttentionSpec, d_head: int) -> dict[str, Any]:
    part = expect(layer.similarity or ScaledDot(), (ScaledDot, CappedDot), "attention.similarity")
    factor = d_head**-0.5 if part.factor is None else part.factor
    scalar = factor**-2
    whole = round(scalar)
    return {
        "query_pre_attn_scalar": whole if math.isclose(whole, scalar, rel_tol=1e-9) else scalar,
        "attn_logit_softcapping": part.cap if isinstance(part, CappedDot) else None,
    }


def smollm_ropes(config: Config) -> list[Rope]:
    """Return the positions of each layer: by default every fourth has none."""
    count, said = config.layers("num_hidden_layers"), config.get("no_rope_layers")
    if said is None:
        every = config.count("no_rope_layer_interval", 4)
        said = [int((i + 1) % every != 0) for i in range(count)]
    if not isinstance(said, list) or len(said) != count or any(one not in (0, 1) for one in said):
        raise config.error("no_rope_layers", f"expected {count} of 0 (without positions) or 1")
    rope = read_rope(config, base=2_000_000.0)
    return [rope if turned else Rope(NoPosition()) for turned in said]


def write_smollm_ropes(layers: list[AttentionSpec]) -> dict[str, Any]:
    turned = [isinstance(layer.position, Rotary) for layer in layers]
    first = next((layer for layer, turns in zip(layers, turned, strict=True) if turns), None)
    if first is None:
        raise OptionError("attention.position is none in every layer, and its models have Rotary in some")
    return {**write_rope(first), "no_rope_layers": [int(turns) for turns in turned]}


def smollm_windows(config: Config) -> list[int | None]:
    """Return the window of each layer: by default those without positions have it."""
    on = config.flag("use_sliding_window", False) and config.get("sliding_window") is not None
    window = config.count("sliding_window") if on else None
    plain = [isinstance(rope.position, NoPosition) for rope in smollm_ropes(config)]
    types = read_types(config, [SLIDING if on and not_turned else FULL for not_turned in plain])
    if window is None and SLIDING in types:
        raise config.error("layer_types", "has sliding_attention, and there is no sliding_window in use")
    return [window if kind == SLIDING else None for kind in types]


def gemma3_ropes(config: Config) -> list[Rope]:
    """Return the positions of each layer: those with a window have their own."""
    said = config.get("rope_parameters") or {}
    if not isinstance(said, dict) or any(not isinstance(said.get(kind) or {}, dict) for kind in (FULL, SLIDING)):
        raise config.error("rope_parameters", f"expected an object with {FULL} and {SLIDING}; came {said!r:.80}")
    scaling = config.get("rope_scaling") or {}
    if not isinstance(scaling, dict):
        raise config.error("rope_scaling", f"expected an object; came {scaling!r:.80}")
    values = {name: value for name, value in config.values.items() if name not in ("rope_scaling", "rope_theta")}
    bases = {FULL: config.get("rope_theta") or 1_000_000.0, SLIDING: config.get("rope_local_base_freq") or 10_000.0}

    def read_kind(kind: str) -> Rope:
        scaled = scaling if kind == FULL else {}
        parameters = {"rope_theta": bases[kind], **(said.get(kind) or {}), **scaled}
        return read_rope(Config({**values, "rope_parameters": parameters}, f"{config.where}: {kind}"))

    ropes = {kind: read_kind(kind) for kind in (FULL, SLIDING)}
    return [ropes[kind] for kind in gemma_types(config)]


def write_gemma3_ropes(layers: list[AttentionSpec]) -> dict[str, Any]:
    kinds = {SLIDING if isinstance(layer.mask, Window) else FULL: layer for layer in layers}
    return {"rope_parameters": {kind: write_rope(layer)["rope_parameters"] for kind, layer in kinds.items()}}


def write_mistral(masks_of_layers: list[Mask | None]) -> dict[str, Any]:
    return {"sliding_window": masks_of_layers[0].left + 1 if isinstance(masks_of_layers[0], Window) else None}


def write_qwen(masks_of_layers: list[Mask | None]) -> dict[str, Any]:
    sizes = [mask.left + 1 if isinstance(mask, Window) else None for mask in masks_of_layers]
    return {
        "use_sliding_window": any(sizes),
        "sliding_window": next(filter(None, sizes), None),
        "layer_types": ["full_attention" if size is None else "sliding_attention" for size in sizes],
    }


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
                mask=(None if window is None else masks.window(window - 1)),
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
