"""T5: an encoder-decoder with RMSNorm before each branch, a bias by distance that all layers share, and no others.

Scores are not scaled. The first release has ReLU, and a tied output of vectors divided by √d_model; T5 1.1 has a gated
GELU and an output of its own, or one that is tied and not scaled.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from clearhead.attention.heads import Heads
from clearhead.attention.positions import T5Bias
from clearhead.attention.similarity import Dot
from clearhead.errors import OptionError
from clearhead.interop.architectures.base import Architecture, attention, expect, expect_heads, norm, pairs
from clearhead.interop.tables import Config, TensorRow, expand
from clearhead.model import AttentionSpec, BlockSpec, Embedding, NextToken, PreNorm, RMSNorm
from clearhead.model.feedforward import GELU, FeedForward, GeGLU, ReLU, SiLU, SwiGLU
from clearhead.model.sizes import Spec
from clearhead.model.transformers import DecoderSpec, EncoderDecoderSpec, EncoderSpec

NETWORKS: Mapping[str, Callable[[int], FeedForward]] = {
    "relu": partial(ReLU, bias=False),
    "gated-gelu": partial(GeGLU, bias=False, form="tanh"),
    "gated-silu": partial(SwiGLU, bias=False),
    "gelu": partial(GELU, bias=False),
    "gelu_new": partial(GELU, bias=False, form="tanh"),
    "silu": partial(SiLU, bias=False),
}
"""By `feed_forward_proj`. What is called gated-gelu has GELU's approximation by tanh."""
COUNTS = {"encoder": "num_layers", "decoder": "num_decoder_layers"}


def read_spec(config: Config) -> EncoderDecoderSpec:
    vocabulary, d_model = config.count("vocab_size"), config.count("d_model")
    encoder = EncoderSpec(
        vocabulary=vocabulary,
        d_model=d_model,
        blocks=(read_block(config, "encoder"),) * count_layers(config, "encoder"),
        embedding=Embedding(position=None, scaled=False),
        output=None,
    )
    decoder = DecoderSpec(
        vocabulary=vocabulary,
        d_model=d_model,
        blocks=(read_block(config, "decoder"),) * count_layers(config, "decoder"),
        embedding=Embedding(position=None, scaled=False),
        output=NextToken(tied=is_tied(config), scaled=is_scaled(config)),
    )
    return EncoderDecoderSpec(encoder=encoder, decoder=decoder, tied="three" if is_tied(config) else "embeddings")


def read_block(config: Config, side: str) -> BlockSpec:
    feed_forward = config.choose("feed_forward_proj", NETWORKS, "relu")(config.count("d_ff"))
    check_network(config)
    heads = Heads(config.count("num_heads"), d_head=config.count("d_kv"))
    buckets, reach = (
        config.count("relative_attention_num_buckets", 32),
        config.count("relative_attention_max_distance", 128),
    )
    position = T5Bias(buckets, reach, two_sided=side == "encoder", shared=True)
    return BlockSpec(
        attention=AttentionSpec(heads=heads, similarity=Dot(), position=position),
        cross=AttentionSpec(heads=heads, similarity=Dot()) if side == "decoder" else None,
        feed_forward=feed_forward,
        arrangement=PreNorm(RMSNorm(config.number("layer_norm_epsilon", 1e-6))),
    )


def count_layers(config: Config, side: str) -> int:
    return config.layers(COUNTS[side], config.layers("num_layers"))


def is_tied(config: Config) -> bool:
    return config.flag("tie_word_embeddings", True)


def is_scaled(config: Config) -> bool:
    """Return whether vectors are divided by √d_model before the output; null is no, and a field that lacks is tied."""
    said = "scale_decoder_outputs" in config.values
    return config.flag("scale_decoder_outputs", False) if said else is_tied(config)


def check_network(config: Config) -> None:
    """Raise OptionError if the two fields that `transformers` derives from `feed_forward_proj` say another."""
    said = config.get("feed_forward_proj") or "relu"
    gated, activation = str(said).startswith("gated-"), str(said).removeprefix("gated-")
    config.require("is_gated_act", gated)
    config.require("dense_act_fn", "gelu_new" if said == "gated-gelu" else activation)


def write_fields(model: Spec, context: int) -> dict[str, Any]:
    spec = expect(model, EncoderDecoderSpec, "the model")
    depths = len(spec.encoder.blocks), len(spec.decoder.blocks)
    if depths[1] > depths[0]:  # its cache has as many layers as the encoder
        raise OptionError(
            f"the decoder has {depths[1]} blocks and the encoder {depths[0]}, and transformers cannot generate with a "
            "T5 whose decoder is the deeper of the two (IndexError)"
        )
    block = spec.decoder.blocks[0]
    heads, position = expect_heads(block.attention), expect(block.attention.position, T5Bias, "attention.position")
    feed_forward = expect(block.feed_forward, FeedForward, "feed_forward")
    names = [name for name, make in NETWORKS.items() if make(feed_forward.d_ff) == feed_forward]
    return {
        "architectures": ["T5ForConditionalGeneration"],
        "is_encoder_decoder": True,
        "vocab_size": spec.decoder.vocabulary,
        "d_model": spec.decoder.d_model,
        "d_kv": heads.shape(spec.decoder.d_model).d_head,
        "d_ff": feed_forward.d_ff,
        "num_heads": heads.count,
        "num_layers": len(spec.encoder.blocks),
        "num_decoder_layers": len(spec.decoder.blocks),
        "relative_attention_num_buckets": position.buckets,
        "relative_attention_max_distance": position.reach,
        "feed_forward_proj": next(iter(names), "relu"),
        "layer_norm_epsilon": expect(expect(block.arrangement, PreNorm, "arrangement").norm, RMSNorm, "norm").epsilon,
        "tie_word_embeddings": spec.tied == "three",
        "scale_decoder_outputs": expect(spec.decoder.output, NextToken, "output").scaled,
        "dropout_rate": block.dropout,
        "n_positions": context,
    }


def list_rows(config: Config) -> list[TensorRow]:
    gated = isinstance(read_block(config, "encoder").feed_forward, GeGLU | SwiGLU)
    rows = [TensorRow("shared.weight", ("encoder.embedding.table",))]
    for side in COUNTS:
        bias = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        rows.append(TensorRow(bias, (f"{side}.stack.blocks.0.attention.position.table",)))
        rows += expand(block_rows(side, gated=gated), count_layers(config, side))
        rows += norm(f"{side}.stack.norm", f"{side}.final_layer_norm", beta=False)
    return rows if is_tied(config) else [*rows, TensorRow("lm_head.weight", ("decoder.output.table",))]


def block_rows(side: str, *, gated: bool) -> Iterator[TensorRow]:
    ours, theirs = f"{side}.stack.blocks.{{i}}", f"{side}.block.{{i}}.layer"
    yield from attention(f"{ours}.attention", f"{theirs}.0.SelfAttention", "q k v o", bias=False)
    yield from norm(f"{ours}.around_attention.norm", f"{theirs}.0.layer_norm", beta=False)
    if side == "decoder":
        yield from attention(f"{ours}.cross", f"{theirs}.1.EncDecAttention", "q k v o", bias=False)
        yield from norm(f"{ours}.around_cross.norm", f"{theirs}.1.layer_norm", beta=False)
    last = f"{theirs}.{2 if side == 'decoder' else 1}"
    maps = {"gate": "wi_0", "up": "wi_1", "down": "wo"} if gated else {"up": "wi", "down": "wo"}
    for our_name, name in maps.items():
        yield from pairs(f"{ours}.feed_forward.{our_name}", f"{last}.DenseReluDense.{name}", bias=False)
    yield from norm(f"{ours}.around_feed_forward.norm", f"{last}.layer_norm", beta=False)


def list_copies(config: Config) -> dict[str, str]:
    names = ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight"]
    return dict.fromkeys([*names, "lm_head.weight"] if is_tied(config) else names, "shared.weight")


T5 = Architecture(
    model_type="t5",
    classes={"T5ForConditionalGeneration": "translate"},
    spec=read_spec,
    rows=list_rows,
    fields=write_fields,
    context=lambda config: config.count("n_positions", 512),
    copies=list_copies,
    aliases={
        "hidden_size": "d_model",
        "num_attention_heads": "num_heads",
        "num_hidden_layers": "num_layers",
        "head_dim": "d_kv",
    },
    # The first release has a table in the cross-attention that nothing reads.
    ignored=("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",),
    computed=("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",),
)
