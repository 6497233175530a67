"""CTranslate2: OpenNMT's engine for translators, decoders and encoders on CPUs and GPUs.

Its layers are fixed: softmax of dot products, norms before or after, two or three maps in a feed-forward. What a spec
has beyond them is refused by name. Positions are always written as a table, since its own sinusoids are others.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from safetensors.torch import save_file
from torch import Tensor

from clearhead import extras, files
from clearhead.attention.heads import Heads
from clearhead.attention.positions import ALiBi, Learned, NoPosition, Rotary, Sinusoidal
from clearhead.attention.similarity import Dot, ScaledDot, Similarity
from clearhead.attention.weighting import Softmax
from clearhead.errors import OptionError
from clearhead.interop.export import base
from clearhead.interop.export.ctranslate2_peer import EncoderPeer, GeneratorPeer, TranslatorPeer
from clearhead.interop.export.format import Format, Peer
from clearhead.interop.export.samples import decoding_of, special_tokens, token_names
from clearhead.model import AttentionSpec, BlockSpec, DecoderSpec, Embedding, EncoderSpec, NextToken, PostNorm, PreNorm
from clearhead.model.feedforward import GELU, FeedForward, ReLU, SiLU, SwiGLU
from clearhead.model.norms import LayerNorm, Norm, RMSNorm
from clearhead.model.sizes import Spec
from clearhead.training.run import Run

ACTIVATIONS = {"ReLU": "RELU", "SiLU": "SWISH", "SwiGLU": "SWISH"}
HEAD = "output.safetensors"
"""The output of an encoder, which CTranslate2 has no place for."""
OPTIONS = "clearhead.json"
"""What the program that decodes must be given beside config.json: see `decoding_options`."""
LEAST_POSITIONS = 1024
"""Positions that a sinusoidal table has at least."""


class CTranslate2(Format):
    """A folder that `ctranslate2.Translator`, `Generator` or `Encoder` opens."""

    name = "ctranslate2"
    about = "CTranslate2: translators, decoders and encoders; float32 or int8"
    quantizations = ("float32", "int8")
    packages = ("ctranslate2",)

    def blocks(self, spec: Spec, task: str, tokenizers: Sequence[str] = ()) -> list[str]:
        return list(dict.fromkeys([*blocked(spec), *base.blocked_segments(spec, task)]))

    def write(self, run: Run, folder: Path, quantization: str) -> None:
        peer = extras.import_peer("ctranslate2")
        spec, model, weights = base.spec_of(run), cast(Any, run.model), base.ModelTensors(run.model)
        check_positions_counted(run)
        writer = Writer(peer, weights, run.task.context)
        if spec.encoder is not None and spec.decoder is not None:
            theirs = peer.specs.TransformerSpec(
                writer.stack(spec.encoder, model.encoder, "encoder."),
                writer.stack(spec.decoder, model.decoder, "decoder."),
            )
            theirs.register_source_vocabulary(token_names(run.task.tokenizers["source"]))
            theirs.register_target_vocabulary(token_names(run.task.tokenizers["target"]))
            write_special_tokens(theirs.config, run)
            theirs.config.decoder_start_token = theirs.config.bos_token
            theirs.config.add_source_eos = shares_end(run)
        else:
            [stack] = spec.stacks
            name = "TransformerEncoderModelSpec" if spec.decoder is None else "TransformerDecoderModelSpec"
            theirs = getattr(peer.specs, name)(writer.stack(stack, model, ""))
            theirs.register_vocabulary(token_names(run.task.tokenizer))
            write_special_tokens(theirs.config, run)
            if spec.decoder is None:
                write_head(weights, folder)
        theirs.config.layer_norm_epsilon = epsilons(spec)[0]
        weights.check_all_taken(self.name)
        theirs.validate()
        theirs.optimize(quantization=None if quantization == "float32" else quantization)
        theirs.save(str(folder))
        if options := decoding_options(run):
            files.write_json(folder / OPTIONS, options)

    def open(self, run: Run, folder: Path, quantization: str) -> Peer:
        model = run.model
        kind = GeneratorPeer if model.encoder is None else EncoderPeer if model.decoder is None else TranslatorPeer
        return kind(run, folder, quantization)


def check_positions_counted(run: Run) -> None:
    """Raise OptionError if a token that takes no position stands in every text: CTranslate2 counts all of them."""
    skips, frame = base.skipped_token(base.spec_of(run)), run.task.frame(next(iter(run.task.tokenizers)))
    if skips is not None and skips in (*frame.before, *frame.between, *frame.after):
        raise OptionError(
            f"ctranslate2 gives every token a position, and in this model {token_names(run.tokenizer)[skips]!r} takes "
            "none, which stands in every text; onnx and hf keep that"
        )


def blocked(spec: Spec) -> Iterator[str]:
    """Yield what CTranslate2 cannot express."""
    for stack in spec.stacks:
        yield from stack_blocked(stack)
    if len(set(epsilons(spec))) > 1:
        yield f"norms with several epsilons ({', '.join(f'{epsilon:g}' for epsilon in sorted(set(epsilons(spec))))})"


def stack_blocked(spec: EncoderSpec | DecoderSpec) -> Iterator[str]:
    first = spec.blocks[0]
    if any(shape_of(block) != shape_of(first) for block in spec.blocks):
        yield "blocks that differ from each other"
    yield from embedding_blocked(spec.embedding, first.attention)
    for block in spec.blocks:
        yield from block_blocked(block, decoder=spec.decoder is not None)
    if spec.decoder is not None:
        if type(spec.output) is not NextToken:
            yield f"output {spec.output!r} of a decoder"
        else:
            yield from base.unknown_fields(spec.output, ("tied", "bias"))
    elif spec.output is not None and spec.output.reads_tokens:
        yield "logits of n-grams beside those of the vectors, as this classifier has them (onnx and torch have)"


def shape_of(block: BlockSpec) -> BlockSpec:
    """Return the block without what matters in training alone, and without the width of its feed-forward."""
    calm = replace(block.attention, dropout=0.0, kernel="auto")
    cross = None if block.cross is None else replace(block.cross, dropout=0.0, kernel="auto")
    narrow = None if block.feed_forward is None else replace(block.feed_forward, d_ff=1)
    return replace(block, attention=calm, cross=cross, feed_forward=narrow, dropout=0.0)


def embedding_blocked(embedding: Embedding, attention: AttentionSpec) -> Iterator[str]:
    position = embedding.position
    if position is not None and type(position) not in (Sinusoidal, Learned):
        yield f"position {position!r}"
    if position is None and type(attention.position) not in (Rotary, ALiBi):
        yield "models without positions"
    if position is not None and type(attention.position) is Rotary:
        yield "rotary positions beside positions that are added to the embeddings"
    if embedding.norm is not None:
        yield from norm_blocked(embedding.norm)
    if embedding.segments is not None and position is None:
        yield "segments without positions, into whose table the first one's vector goes"
    yield from base.unknown_fields(embedding, ("position", "scaled", "frozen", "norm", "dropout", "segments"))


def block_blocked(block: BlockSpec, *, decoder: bool) -> Iterator[str]:
    arrangement = block.arrangement
    if isinstance(arrangement, PreNorm | PostNorm):
        yield from norm_blocked(arrangement.norm)
        yield from base.unknown_fields(arrangement, ("norm",))
    else:
        yield f"arrangement {arrangement!r}"
    yield from attention_blocked(block.attention, decoder=decoder and block.cross is None)
    if block.cross is not None:
        yield from attention_blocked(block.cross, decoder=False)
        if type(block.cross.position) is Rotary:
            yield "rotary positions in cross-attention"
        if block.cross.head_layout != block.attention.head_layout:
            yield "cross-attention with other heads than self-attention"
    if block.feed_forward is None:
        yield "blocks without feed-forward"
    elif type(block.feed_forward) not in (ReLU, GELU, SiLU, SwiGLU):
        yield f"feed-forward {block.feed_forward!r}"
    else:
        yield from base.unknown_fields(block.feed_forward, ("d_ff", "bias", "form"))
    yield from base.unknown_fields(block, ("attention", "cross", "feed_forward", "arrangement", "dropout"))


def attention_blocked(spec: AttentionSpec, *, decoder: bool) -> Iterator[str]:
    weighting = spec.weighting or Softmax()
    similarity = spec.similarity or weighting.similarity
    if type(weighting) is not Softmax:
        yield f"{weighting!r} attention"
    elif type(similarity) not in (Dot, ScaledDot):
        yield f"similarity {similarity!r}"
    yield from heads_blocked(spec)
    position = spec.position or NoPosition()
    if type(position) is ALiBi and not decoder:
        yield "ALiBi outside a decoder"
    elif type(position) is ALiBi and getattr(spec.head_layout, "kv", None) not in (None, 1):
        yield "ALiBi where several heads share keys"
    elif type(position) is ALiBi and isinstance(weighting, Softmax) and weighting.temperature != 1:
        yield "a temperature beside ALiBi, whose bias it divides too"
    elif type(position) not in (NoPosition, Rotary, ALiBi):
        yield f"position {position!r}"
    elif type(position) is Rotary:
        yield from base.unknown_fields(position, ("pairing", "base", "width"))
    if spec.mask is not None:
        yield f"mask {spec.mask!r} of a block"
    yield from base.unknown_fields(spec, ("heads", "similarity", "weighting", "position", "mask", "dropout", "kernel"))


def heads_blocked(spec: AttentionSpec) -> Iterator[str]:
    heads = spec.head_layout
    if not isinstance(heads, Heads):
        yield f"heads {heads!r}"
        return
    if heads.value_rank is not None or not heads.output or heads.d_value not in (None, heads.d_head):
        yield f"heads {heads!r}"
    yield from base.unknown_fields(
        heads, ("count", "kv", "d_head", "d_value", "value_rank", "bias", "output", "output_bias")
    )


def norm_blocked(norm: Norm) -> Iterator[str]:
    if type(norm) not in (LayerNorm, RMSNorm):
        yield f"norm {norm!r}"
    else:
        yield from base.unknown_fields(norm, ("epsilon", "bias"))


def epsilons(spec: Spec) -> list[float]:
    """Return the epsilon of every norm in the stacks: CTranslate2 has one for all."""
    values: list[float] = []
    for stack in spec.stacks:
        norms = [stack.embedding.norm, *(getattr(block.arrangement, "norm", None) for block in stack.blocks)]
        values += [float(getattr(norm, "epsilon", 0)) for norm in norms if norm is not None] or [1e-5]
    return values


class Writer(NamedTuple):
    """Fills CTranslate2's specs with the tensors of a model."""

    peer: Any
    weights: base.ModelTensors
    context: int

    def stack(self, spec: EncoderSpec | DecoderSpec, model: Any, prefix: str) -> Any:
        """Return the encoder or decoder; `prefix` is what stands before the names of its tensors."""
        target = self.empty_stack(spec)
        table = target.embeddings if spec.encoder is None else target.embeddings[0]
        table.weight = self.weights[f"{prefix}embedding.table"]
        target.scale_embeddings = spec.embedding.scaled
        if spec.embedding.position is None:
            target.__dict__.pop("position_encodings", None)
        else:
            target.position_encodings.encodings = self.positions(spec, model, prefix)
        if spec.embedding.norm is not None:
            self.norm(target.layernorm_embedding, f"{prefix}embedding.norm")
        for i, block in enumerate(spec.blocks):
            self.block(target.layer[i], block, spec.d_model, f"{prefix}stack.blocks.{i}")
        if isinstance(spec.blocks[0].arrangement, PreNorm):
            self.norm(target.layer_norm, f"{prefix}stack.norm")
        if spec.decoder is not None:
            self.linear(target.projection, f"{prefix}output", weight="table")
        return target

    def empty_stack(self, spec: EncoderSpec | DecoderSpec) -> Any:
        """Return their spec of the same shape, with no tensors yet."""
        block = spec.blocks[0]
        heads = cast(Heads, block.attention.head_layout)  # `blocked` refuses any other layout
        shape = heads.shape(spec.d_model)
        norm, position = cast(PreNorm | PostNorm, block.arrangement).norm, block.attention.position
        options: dict[str, Any] = {
            "pre_norm": isinstance(block.arrangement, PreNorm),
            "activation": self.activation(block.feed_forward),
            "layernorm_embedding": spec.embedding.norm is not None,
            "ffn_glu": isinstance(block.feed_forward, SwiGLU),
            "rms_norm": isinstance(norm, RMSNorm),
            "num_heads_kv": None if shape.n_kv_heads == shape.n_heads else shape.n_kv_heads,
            "head_dim": heads.d_head,
        }
        if isinstance(position, Rotary):
            options |= {
                "rotary_dim": position.width or 0,
                "rotary_interleave": position.pairing == "interleaved",
                "rotary_base": position.base,
            }
        specs = self.peer.specs.transformer_spec
        if spec.decoder is None:
            return specs.TransformerEncoderSpec(len(spec.blocks), shape.n_heads, **options)
        return specs.TransformerDecoderSpec(
            len(spec.blocks),
            shape.n_heads,
            with_encoder_attention=block.cross is not None,
            alibi=isinstance(position, ALiBi),
            **options,
        )

    def activation(self, feed_forward: FeedForward | None) -> Any:
        name = ACTIVATIONS.get(type(feed_forward).__name__)
        if isinstance(feed_forward, GELU):
            name = "GELUTanh" if feed_forward.form == "tanh" else "GELU"
        return getattr(self.peer.specs.Activation, str(name))

    def positions(self, spec: EncoderSpec | DecoderSpec, model: Any, prefix: str) -> Tensor:
        """Return the table of positions; a text has one segment, whose vector is added to each of them."""
        position = spec.embedding.position
        if isinstance(position, Learned):  # a text of BART or RoBERTa begins at a later row; theirs at the first
            table = self.weights[f"{prefix}embedding.position.table"][position.first :]
        else:
            with torch.no_grad():
                table = model.embedding.position(max(self.context, LEAST_POSITIONS)).float()
        return table if spec.embedding.segments is None else table + self.weights[f"{prefix}embedding.segment"][0]

    def block(self, target: Any, spec: BlockSpec, d_model: int, name: str) -> None:
        self.attention(target.self_attention, spec.attention, d_model, f"{name}.attention", crossed=False)
        self.norm(target.self_attention.layer_norm, f"{name}.around_attention.norm")
        if spec.cross is not None:
            self.attention(target.attention, spec.cross, d_model, f"{name}.cross", crossed=True)
            self.norm(target.attention.layer_norm, f"{name}.around_cross.norm")
        gated = isinstance(spec.feed_forward, SwiGLU)
        self.linear(target.ffn.linear_0, f"{name}.feed_forward.{'gate' if gated else 'up'}")
        if gated:
            self.linear(target.ffn.linear_0_noact, f"{name}.feed_forward.up")
        self.linear(target.ffn.linear_1, f"{name}.feed_forward.down")
        self.norm(target.ffn.layer_norm, f"{name}.around_feed_forward.norm")

    def attention(self, target: Any, spec: AttentionSpec, d_model: int, name: str, *, crossed: bool) -> None:
        """Fill an attention. Theirs maps by one matrix to queries, keys and values; to keys and values if crossed."""
        maps = [f"{name}.{part}.linear" for part in ("query", "key", "value")]
        if crossed:
            self.linear(target.linear[0], maps[0])
            self.linear(target.linear[1], *maps[1:])
        else:
            self.linear(target.linear[0], *maps)
        self.linear(target.linear[-1], f"{name}.output")
        usual, scale = spec.head_layout.shape(d_model).d_head ** -0.5, queries_scale(spec, d_model)
        if scale != usual:
            target.queries_scale = torch.tensor(scale).numpy()

    def linear(self, target: Any, *names: str, weight: str = "weight") -> None:
        """Fill a map with one of ours, or with several below each other."""
        target.weight = torch.cat([self.weights[f"{name}.{weight}"] for name in names])
        if f"{names[0]}.bias" in self.weights:
            target.bias = torch.cat([self.weights[f"{name}.bias"] for name in names])

    def norm(self, target: Any, name: str) -> None:
        target.gamma = self.weights[f"{name}.gamma"]
        if hasattr(target, "beta"):  # RMSNorm has none, and a LayerNorm without bias has zeros
            target.beta = (
                self.weights[f"{name}.beta"] if f"{name}.beta" in self.weights else torch.zeros_like(target.gamma)
            )


def queries_scale(spec: AttentionSpec, d_model: int) -> float:
    """Return the factor of the scores, the softmax's temperature in it."""
    weighting = spec.weighting or Softmax()
    similarity: Similarity = spec.similarity or weighting.similarity
    scale = similarity.scale(spec.head_layout.shape(d_model).d_head)
    assert isinstance(scale, float)
    return scale / weighting.temperature


def write_special_tokens(config: Any, run: Run) -> None:
    """Name the tokens that CTranslate2 asks for; the end stands for one that the run has not, and is never read."""
    special, names = special_tokens(run), token_names([*run.task.tokenizers.values()][-1])
    if special.end is None:
        raise OptionError("ctranslate2 ends an output with a token, and this model's tokeniser has none for that")
    config.eos_token = names[special.end]
    config.bos_token = names[special.end if special.start is None else special.start]
    config.unk_token = names[special.end if special.unknown is None else special.unknown]


def decoding_options(run: Run) -> dict[str, Any]:
    """Return what `translate_batch` or `generate_batch` must be given, since config.json has no key for it.

    Empty for most runs: those with one end, that may write every token, and whose outputs begin with no other token
    than the start.
    """
    if run.model.decoder is None:
        return {}
    decoding, names = decoding_of(run), token_names([*run.task.tokenizers.values()][-1])
    forced = decoding.before[1:] if run.model.encoder is not None else ()
    return {
        **({"target_prefix": [names[place] for place in forced]} if forced else {}),
        **({"end_token": [names[place] for place in decoding.ends]} if len(decoding.ends) > 1 else {}),
        **({"suppress_sequences": [[names[place]] for place in decoding.never]} if decoding.never else {}),
    }


def shares_end(run: Run) -> bool:
    """Return True, so that CTranslate2 closes each source itself; OptionError if it would do so with another token.

    It has one end token for both sides.
    """
    source, target = run.task.tokenizers["source"], run.task.tokenizers["target"]
    special = special_tokens(run)
    if special.source_end is None or special.end is None:
        raise OptionError("ctranslate2 closes source and target with an end token, and this model does not")
    if token_names(source)[special.source_end] != token_names(target)[special.end]:
        raise OptionError("ctranslate2 has one name for the end of source and target, and these tokenisers have two")
    return True


def write_head(weights: base.ModelTensors, folder: Path) -> None:
    """Write the output of an encoder beside the model, in safetensors: CTranslate2 gives the vectors before it."""
    table = weights.tensors["embedding.table"]
    head = {
        name: weights[name].contiguous()
        for name, tensor in weights.tensors.items()
        if name.startswith("output.") and tensor is not table
    }
    if head:
        save_file(head, folder / HEAD)
