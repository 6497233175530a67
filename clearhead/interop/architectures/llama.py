"""The Llama family: RMSNorm before each branch, rotary positions in halves, a gated feed-forward, shared key heads.

Mistral adds a sliding window, Qwen2 biases and windows in some layers, Qwen3 a norm on queries and keys, Gemma a scaled
embedding, norms counted from one and a gate of GELU. SmolLM is a Llama.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, final

from clearhead.attention import masks
from clearhead.attention.heads import Heads
from clearhead.attention.masks import Mask, Window
from clearhead.interop.architectures.base import Architecture, attention, expect, expect_heads, norm, pairs
from clearhead.interop.architectures.rope import read_rope, write_rope
from clearhead.interop.config import Config
from clearhead.interop.tables import Row, expand
from clearhead.model.arrangements import PreNorm
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


@final
@dataclass(frozen=True, kw_only=True)
class Member:
    """What one model of the family has otherwise than Llama."""

    name: str
    model: str
    bias: bool | None = None
    """Whether the query, key and value maps have a bias, W_O having none; None: `attention_bias` says it of all."""
    mlp_bias: bool = False
    """Whether there is a field `mlp_bias`."""
    qk_norm: bool = False
    windows: Callable[[Config], list[int | None]] = lambda config: [None] * config.layers("num_hidden_layers")
    """The window of each layer."""
    write_windows: Callable[[list[Mask | None]], dict[str, Any]] = lambda found: {}
    d_head: int | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """What their class has where config.json lacks a field."""
    gemma: bool = False
    """Whether the embedding is scaled, norms are counted from one, the gate is GELU, and the output by default tied."""

    @property
    def gates(self) -> Mapping[str, Callable[..., FeedForward]]:
        return GELUS if self.gemma else SILU

    def biases(self, config: Config) -> tuple[bool, bool]:
        """Return whether the maps to queries, keys and values have a bias, and whether W_O has."""
        bias = config.flag("attention_bias", False)
        return (bias, bias) if self.bias is None else (self.bias, False)

    def is_tied(self, config: Config) -> bool:
        return config.flag("tie_word_embeddings", self.gemma)


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
    kinds = ("full_attention", "sliding_attention")
    if not isinstance(types, list) or len(types) != count or any(kind not in kinds for kind in types):
        raise config.error("layer_types", f"expected {count} of {' or '.join(kinds)}")
    if window is None and "sliding_attention" in types:
        raise config.error("layer_types", "has sliding_attention, and there is no sliding_window in use")
    return [window if kind == "sliding_attention" else None for kind in types]


def write_mistral(masks_of_layers: list[Mask | None]) -> dict[str, Any]:
    return {"sliding_window": masks_of_layers[0].left + 1 if isinstance(masks_of_layers[0], Window) else None}


def write_qwen(masks_of_layers: list[Mask | None]) -> dict[str, Any]:
    sizes = [mask.left + 1 if isinstance(mask, Window) else None for mask in masks_of_layers]
    return {
        "use_sliding_window": any(sizes),
        "sliding_window": next(filter(None, sizes), None),
        "layer_types": ["full_attention" if size is None else "sliding_attention" for size in sizes],
    }


def read_spec(member: Member, config: Config) -> DecoderSpec:
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
        qk_norm=RMSNorm(epsilon) if member.qk_norm else None,
    )
    rope = read_rope(config)
    feed_forward = config.choose("hidden_act", member.gates, next(iter(member.gates)))
    if not member.mlp_bias:
        config.require("mlp_bias", False)
    blocks = (
        BlockSpec(
            attention=AttentionSpec(
                heads=heads, position=rope.position, weighting=rope.weighting, mask=mask_of(window)
            ),
            feed_forward=feed_forward(config.count("intermediate_size"), bias=config.flag("mlp_bias", False)),
            arrangement=PreNorm(RMSNorm(epsilon, from_one=member.gemma)),
        )
        for window in member.windows(config)
    )
    return DecoderSpec(
        vocabulary=config.count("vocab_size"),
        d_model=config.count("hidden_size"),
        blocks=tuple(blocks),
        embedding=Embedding(position=None, scaled=member.gemma),
        output=NextToken(tied=member.is_tied(config)),
    )


def mask_of(window: int | None) -> Mask | None:
    return None if window is None else masks.window(window - 1)


def write_fields(member: Member, model: Spec, context: int) -> dict[str, Any]:
    spec = expect(model, DecoderSpec, "the model")
    block = spec.blocks[0]
    layer, heads = block.attention, expect_heads(block.attention)
    shape = heads.shape(spec.d_model)
    feed_forward = expect(block.feed_forward, GeGLU if member.gemma else SwiGLU, "feed_forward")
    return {
        "architectures": [f"{member.model}ForCausalLM"],
        "vocab_size": spec.vocabulary,
        "hidden_size": spec.d_model,
        "num_hidden_layers": len(spec.blocks),
        "num_attention_heads": shape.n_heads,
        "num_key_value_heads": shape.n_kv_heads,
        "head_dim": shape.d_head,
        "intermediate_size": feed_forward.d_ff,
        "hidden_act": next(iter(member.gates)),
        "rms_norm_eps": expect(expect(block.arrangement, PreNorm, "arrangement").norm, RMSNorm, "norm").epsilon,
        "max_position_embeddings": context,
        **write_rope(layer),
        **member.write_windows([block.attention.mask for block in spec.blocks]),
        **({"attention_bias": heads.bias} if member.bias is None else {}),
        **({"mlp_bias": feed_forward.bias} if member.mlp_bias else {}),
        "tie_word_embeddings": expect(spec.output, NextToken, "output").tied,
        "attention_dropout": layer.dropout,
    }


def list_rows(member: Member, config: Config) -> list[Row]:
    block, theirs = "stack.blocks.{i}", "model.layers.{i}"
    bias, output_bias = member.biases(config)
    names = "q_proj k_proj v_proj o_proj"
    blocks = attention(f"{block}.attention", f"{theirs}.self_attn", names, bias=bias, output_bias=output_bias)
    blocks += norm(f"{block}.around_attention.norm", f"{theirs}.input_layernorm", beta=False)
    blocks += norm(f"{block}.around_feed_forward.norm", f"{theirs}.post_attention_layernorm", beta=False)
    for name in ("gate", "up", "down"):
        bias = config.flag("mlp_bias", False)
        blocks += pairs(f"{block}.feed_forward.{name}", f"{theirs}.mlp.{name}_proj", bias=bias)
    if member.qk_norm:
        blocks += norm(f"{block}.attention.query.norm", f"{theirs}.self_attn.q_norm", beta=False)
        blocks += norm(f"{block}.attention.key.norm", f"{theirs}.self_attn.k_norm", beta=False)
    return [
        Row("model.embed_tokens.weight", ("embedding.table",)),
        *expand(blocks, config.layers("num_hidden_layers")),
        *norm("stack.norm", "model.norm", beta=False),
        *([] if member.is_tied(config) else [Row("lm_head.weight", ("output.table",))]),
    ]


def make_architecture(member: Member) -> Architecture:
    return Architecture(
        model_type=member.name,
        classes={f"{member.model}ForCausalLM": "generate", f"{member.model}Model": "generate"},
        spec=partial(read_spec, member),
        rows=partial(list_rows, member),
        fields=partial(write_fields, member),
        context=lambda config: config.count("max_position_embeddings"),
        prefix="model.",
        copies=lambda config: {"lm_head.weight": "model.embed_tokens.weight"} if member.is_tied(config) else {},
        ignored=(".rotary_emb.inv_freq",),
        defaults=member.defaults,
    )


MEMBERS = (
    Member(name="llama", model="Llama", mlp_bias=True),
    Member(
        name="mistral",
        model="Mistral",
        windows=mistral_windows,
        write_windows=write_mistral,
        bias=False,
        defaults={"sliding_window": 4096, "num_key_value_heads": 8},
    ),
    Member(
        name="qwen2",
        model="Qwen2",
        windows=qwen_windows,
        write_windows=write_qwen,
        bias=True,
        defaults={"sliding_window": 4096, "num_key_value_heads": 32},
    ),
    Member(
        name="qwen3",
        model="Qwen3",
        windows=qwen_windows,
        write_windows=write_qwen,
        qk_norm=True,
        d_head=128,
        defaults={"sliding_window": 4096, "num_key_value_heads": 32},
    ),
    Member(name="gemma", model="Gemma", d_head=256, gemma=True, defaults={"num_key_value_heads": 16}),
)
LLAMA_FAMILY = tuple(make_architecture(member) for member in MEMBERS)
