"""The architectures that can be read: for each, its configuration as a spec of ours, and the names of its tensors."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import final

from clearhead.attention import masks
from clearhead.attention.heads import Heads
from clearhead.attention.positions import Learned, Rotary
from clearhead.attention.similarity import Dot
from clearhead.errors import OptionError
from clearhead.interop.config import Config
from clearhead.interop.tables import Row
from clearhead.model.arrangements import PreNorm
from clearhead.model.blocks import AttentionSpec, BlockSpec
from clearhead.model.embedding import Embedding
from clearhead.model.feedforward import GELU, FeedForward, ReLU, SiLU, SwiGLU
from clearhead.model.norms import LayerNorm, RMSNorm
from clearhead.model.outputs import NextToken
from clearhead.model.transformers import DecoderSpec

__all__ = ["ARCHITECTURES", "Architecture"]

Activation = Callable[[int], FeedForward]
ACTIVATIONS: Mapping[str, Activation] = {
    "gelu": GELU,
    "gelu_new": partial(GELU, form="tanh"),
    "gelu_pytorch_tanh": partial(GELU, form="tanh"),
    "relu": ReLU,
    "silu": SiLU,
    "swish": SiLU,
}
BLOCK = "stack.blocks.{i}"


@final
@dataclass(frozen=True)
class Architecture:
    """How one architecture's configuration and tensors are read."""

    spec: Callable[[Config], DecoderSpec]
    rows: Callable[[Config], list[Row]]
    prefix: str
    """What stands before the names of the model's body where it has an output; a bare body lacks it."""
    tied: Callable[[Config], bool]
    """Whether the output is the embedding's table."""
    context: str
    """Name of the field with the number of tokens of the longest text."""
    ignored: tuple[str, ...] = ()
    """How the names of tensors end that hold no weights."""


def pairs(ours: str, theirs: str, *, bias: bool, transposed: bool = False) -> list[Row]:
    """Return the rows of a linear map."""
    weight = Row(f"{theirs}.weight", (f"{ours}.weight",), transposed)
    return [weight, Row(f"{theirs}.bias", (f"{ours}.bias",))] if bias else [weight]


def norm(ours: str, theirs: str, *, beta: bool) -> list[Row]:
    """Return the rows of a norm: gamma and, for LayerNorm, beta."""
    gamma = Row(f"{theirs}.weight", (f"{ours}.gamma",))
    return [gamma, Row(f"{theirs}.bias", (f"{ours}.beta",))] if beta else [gamma]


def gpt2_spec(config: Config) -> DecoderSpec:
    config.require("scale_attn_by_inverse_layer_idx", False)
    config.require("add_cross_attention", False)
    d_model, d_ff = config.count("n_embd"), config.get("n_inner")
    feed_forward = config.choose("activation_function", ACTIVATIONS, "gelu_new")
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
        blocks=(block,) * config.count("n_layer"),
        embedding=Embedding(position=Learned(config.count("n_positions")), scaled=False),
        output=NextToken(tied=is_tied(config)),
    )


def gpt2_rows(config: Config) -> list[Row]:
    attention = f"{BLOCK}.attention"
    joint = tuple(f"{attention}.{name}.linear" for name in ("query", "key", "value"))
    return [
        Row("wte.weight", ("embedding.table",)),
        Row("wpe.weight", ("embedding.position.table",)),
        *norm("stack.norm", "ln_f", beta=True),
        Row("h.{i}.attn.c_attn.weight", tuple(f"{name}.weight" for name in joint), transposed=True),
        Row("h.{i}.attn.c_attn.bias", tuple(f"{name}.bias" for name in joint)),
        *pairs(f"{attention}.output", "h.{i}.attn.c_proj", bias=True, transposed=True),
        *norm(f"{BLOCK}.around_attention.norm", "h.{i}.ln_1", beta=True),
        *pairs(f"{BLOCK}.feed_forward.up", "h.{i}.mlp.c_fc", bias=True, transposed=True),
        *pairs(f"{BLOCK}.feed_forward.down", "h.{i}.mlp.c_proj", bias=True, transposed=True),
        *norm(f"{BLOCK}.around_feed_forward.norm", "h.{i}.ln_2", beta=True),
    ]


def llama_spec(config: Config) -> DecoderSpec:
    """Return the spec of a Llama, or of a Mistral with its sliding window."""
    config.require("hidden_act", "silu", "swish")
    config.require("mlp_bias", False)
    n_heads, d_model = config.count("num_attention_heads"), config.count("hidden_size")
    d_head = config.get("head_dim")
    window = config.get("sliding_window")
    block = BlockSpec(
        attention=AttentionSpec(
            heads=Heads(
                n_heads,
                kv=config.count("num_key_value_heads", n_heads),
                d_head=None if d_head is None else config.count("head_dim"),
                bias=config.flag("attention_bias", False),
            ),
            position=Rotary(pairing="halves", base=rotary_base(config)),
            mask=None if window is None else masks.window(config.count("sliding_window") - 1),
        ),
        feed_forward=SwiGLU(config.count("intermediate_size")),
        arrangement=PreNorm(RMSNorm(config.number("rms_norm_eps", 1e-6))),
    )
    return DecoderSpec(
        vocabulary=config.count("vocab_size"),
        d_model=d_model,
        blocks=(block,) * config.count("num_hidden_layers"),
        embedding=Embedding(position=None, scaled=False),
        output=NextToken(tied=is_tied(config, default=False)),
    )


def rotary_base(config: Config) -> float:
    """Return the base of the angles; OptionError where they are scaled for longer texts."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise config.error("rope_parameters", f"expected an object; came {rope!r}")
    inner = Config({"rope_theta": config.get("rope_theta"), **rope}, f"{config.where}: rope_parameters")
    for name in ("rope_type", "type"):
        inner.require(name, "default")
    return inner.number("rope_theta", 10_000.0)


def llama_rows(config: Config) -> list[Row]:
    attention, bias = f"{BLOCK}.attention", config.flag("attention_bias", False)
    maps = {"query.linear": "q_proj", "key.linear": "k_proj", "value.linear": "v_proj", "output": "o_proj"}
    return [
        Row("embed_tokens.weight", ("embedding.table",)),
        *norm("stack.norm", "norm", beta=False),
        *(
            row
            for ours, theirs in maps.items()
            for row in pairs(f"{attention}.{ours}", f"layers.{{i}}.self_attn.{theirs}", bias=bias)
        ),
        *norm(f"{BLOCK}.around_attention.norm", "layers.{i}.input_layernorm", beta=False),
        *(
            row
            for name in ("gate", "up", "down")
            for row in pairs(f"{BLOCK}.feed_forward.{name}", f"layers.{{i}}.mlp.{name}_proj", bias=False)
        ),
        *norm(f"{BLOCK}.around_feed_forward.norm", "layers.{i}.post_attention_layernorm", beta=False),
    ]


def is_tied(config: Config, default: bool = True) -> bool:
    return config.flag("tie_word_embeddings", default)


GPT2 = Architecture(
    gpt2_spec, gpt2_rows, "transformer.", is_tied, "n_positions", ignored=(".attn.bias", ".attn.masked_bias")
)
LLAMA = Architecture(
    llama_spec,
    llama_rows,
    "model.",
    partial(is_tied, default=False),
    "max_position_embeddings",
    ignored=(".rotary_emb.inv_freq",),
)
ARCHITECTURES: Mapping[str, Architecture] = {"gpt2": GPT2, "llama": LLAMA, "mistral": LLAMA}
"""By the `model_type` of config.json."""


def find_architecture(config: Config) -> Architecture:
    """Return the architecture that a configuration names; OptionError where it is none of these."""
    name = config.get("model_type")
    if name not in ARCHITECTURES:
        raise OptionError(f"{config.where}: model_type {name!r} cannot be read; there are {', '.join(ARCHITECTURES)}")
    return ARCHITECTURES[name]
