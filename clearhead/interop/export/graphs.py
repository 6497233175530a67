"""Models as graphs: modules of plain tensors in and out, which torch.export can follow for any batch and length;
and the export to torch itself, a program (.pt2) that runs without code of ours.

A graph reads no numbers on its way. So its attention is the reference, whose operations are the same for every shape,
and its positions are tables, since sines are neither grown on the way nor known to every engine in float64.
"""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from clearhead.attention.kernels import run as run_kernel
from clearhead.attention.layer import Attention
from clearhead.attention.masks import padding
from clearhead.attention.positions import Learned, Position, Sinusoidal
from clearhead.attention.score_index import Positions
from clearhead.decoding.caches import call_of
from clearhead.extras import peer_version
from clearhead.interop.export.base import blocked_segments
from clearhead.interop.export.format import Format, Peer
from clearhead.interop.export.samples import Samples
from clearhead.model.blocks import FromSelf, KVSource, KVSources
from clearhead.model.sizes import Spec
from clearhead.model.transformers import Decoder, Encoder, EncoderDecoder, apply_output
from clearhead.training.run import Run

LEAST_POSITIONS = 1024
"""Positions that a sinusoidal table has at least."""


def freeze_for_graph(model: nn.Module, context: int) -> nn.Module:
    """Return a copy of a model that computes the same by operations a graph can hold, for texts up to `context`."""
    frozen = copy.deepcopy(model).eval().requires_grad_(False)
    for module in frozen.modules():
        if isinstance(module, Attention):
            module.kernel = "reference"
        position = getattr(getattr(module, "position", None), "spec", None)
        if isinstance(position, Sinusoidal):
            cast(Any, module).position = as_table(cast(Any, module).position, max(context, LEAST_POSITIONS))
    return frozen


def as_table(position: Any, length: int) -> nn.Module:
    """Return sinusoidal positions as a table of their vectors, after zeros for a token that takes none."""
    vectors = position(length).clone()
    table = Learned(length, first=1, skips=position.skips).embed(vectors.shape[1])
    vectors = torch.cat([torch.zeros_like(vectors[:1]), vectors])
    cast(Any, table).table = nn.Parameter(vectors, requires_grad=False)
    return table.to(vectors.device)


def turned(position: Position, vectors: Tensor, positions: Tensor) -> Tensor:
    return position.turn(vectors, positions) if position.turns else vectors


class WithPast(KVSource):
    """Self-attention on the keys and values so far; `key` and `value` are then those with the new ones."""

    def __init__(self, key: Tensor, value: Tensor, positions: Tensor) -> None:
        self.key, self.value, self.positions = key, value, positions

    def __call__(self, layer: Attention, x: Tensor) -> Tensor:
        query, key, value = layer.project(x, x, x)
        query, key = (turned(layer.position, vectors, self.positions) for vectors in (query, key))
        self.key, self.value = torch.cat([self.key, key], 2), torch.cat([self.value, value], 2)
        every = torch.arange(self.key.shape[2])
        positions = Positions(self.positions, every)
        return layer.finish(
            run_kernel("reference", call_of(layer, (query, self.key, self.value), layer.mask, positions))
        )


class OnSource(KVSource):
    """Cross-attention on keys and values that were made of the source before."""

    def __init__(self, key: Tensor, value: Tensor, lengths: Tensor, positions: Tensor) -> None:
        self.key, self.value, self.lengths, self.positions = key, value, lengths, positions

    def __call__(self, layer: Attention, x: Tensor) -> Tensor:
        query = turned(layer.position, layer.query(x), self.positions)
        positions = Positions(self.positions, torch.arange(self.key.shape[2]))
        mask = layer.mask & padding(self.lengths)
        return layer.finish(run_kernel("reference", call_of(layer, (query, self.key, self.value), mask, positions)))


class EncoderForward(nn.Module):
    """An encoder: tokens and their lengths in, what its output gives out."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.inputs, self.outputs = ("tokens", "lengths"), ("output",)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        return encode(self.encoder, tokens, lengths, output=True)


class SourceForward(nn.Module):
    """The encoder of a translator: tokens and lengths in, the keys and values of every cross-attention out."""

    def __init__(self, model: EncoderDecoder) -> None:
        super().__init__()
        self.model = model
        self.inputs = ("tokens", "lengths")
        self.outputs = tuple(pair_names("source", len(model.decoder.stack.blocks)))

    def forward(self, tokens: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
        memory = encode(self.model.encoder, tokens, lengths, output=False)
        keys_and_values: list[Tensor] = []
        positions = torch.arange(tokens.shape[1])
        for block in self.model.decoder.stack.blocks:
            layer = cast(Attention, block.cross)
            keys_and_values += [turned(layer.position, layer.key(memory), positions), layer.value(memory)]
        return tuple(keys_and_values)


class DecoderStep(nn.Module):
    """A decoder: new tokens and the keys and values so far in, logits and all keys and values out."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self.decoder = decoder
        n_blocks = len(decoder.stack.blocks)
        self.inputs = ("tokens", *pair_names("past", n_blocks))
        self.outputs = ("logits", *pair_names("present", n_blocks))

    def forward(self, tokens: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        positions = torch.arange(tokens.shape[1]) + past[0].shape[2]
        attention_sources = [WithPast(*pair, positions) for pair in pairs_of(past)]
        return step(self.decoder, tokens, positions, attention_sources, [None] * len(attention_sources))


class TargetStep(nn.Module):
    """The decoder of a translator: as `DecoderStep`, with the source's keys and values between."""

    def __init__(self, model: EncoderDecoder) -> None:
        super().__init__()
        self.decoder = model.decoder
        self.n_blocks = len(model.decoder.stack.blocks)
        source, past = (tuple(pair_names(name, self.n_blocks)) for name in ("source", "past"))
        self.inputs = ("tokens", "source_lengths", *source, *past)
        self.outputs = ("logits", *pair_names("present", self.n_blocks))

    def forward(self, tokens: Tensor, source_lengths: Tensor, *caches: Tensor) -> tuple[Tensor, ...]:
        source, past = caches[: 2 * self.n_blocks], caches[2 * self.n_blocks :]
        positions = torch.arange(tokens.shape[1]) + past[0].shape[2]
        attention_sources = [WithPast(*pair, positions) for pair in pairs_of(past)]
        cross = [OnSource(*pair, source_lengths, positions) for pair in pairs_of(source)]
        return step(self.decoder, tokens, positions, attention_sources, cross)


class Forward(nn.Module):
    """The forward pass of a whole model, by the names its tensors have in training."""

    def __init__(self, model: Encoder | Decoder | EncoderDecoder) -> None:
        super().__init__()
        self.model = model
        alone = ("tokens",) if model.encoder is None else ("tokens", "lengths")
        self.inputs = alone if len(model.stacks) == 1 else ("source", "target", "source_lengths")
        self.outputs = ("output",)

    def forward(self, first: Tensor, *others: Tensor) -> Tensor:
        model = self.model
        if model.encoder is None:
            assert model.decoder is not None
            return decode(model.decoder, first)
        if model.decoder is None:
            return encode(model.encoder, first, others[0], output=True)
        memory = encode(model.encoder, first, others[1], output=False)
        return decode(model.decoder, others[0], memory, others[1])


def encode(encoder: Encoder, tokens: Tensor, lengths: Tensor, *, output: bool) -> Tensor:
    """Return an encoder's output, or its vectors, with every position looked up in its table."""
    positions = torch.arange(tokens.shape[1])
    sources = KVSources(FromSelf(padding(lengths), positions))
    states = encoder.stack(encoder.embedding(tokens, positions=positions), [sources] * len(encoder.stack.blocks))
    return states if encoder.output is None or not output else apply_output(encoder, states, lengths, tokens)


def decode(decoder: Decoder, tokens: Tensor, memory: Tensor | None = None, lengths: Tensor | None = None) -> Tensor:
    positions = torch.arange(tokens.shape[1])
    return decoder(tokens, positions=positions, memory=memory, memory_lengths=lengths)


def step(
    decoder: Decoder,
    tokens: Tensor,
    positions: Tensor,
    attention_sources: Sequence[WithPast],
    cross: Sequence[OnSource | None],
) -> tuple[Tensor, ...]:
    """Return logits of new tokens, and all keys and values of each block."""
    kv_sources = [KVSources(*pair) for pair in zip(attention_sources, cross, strict=True)]
    logits = decoder.output(decoder.states(tokens, kv_sources, positions=positions))
    return logits, *(cached for source in attention_sources for cached in (source.key, source.value))


def pair_names(name: str, count: int) -> list[str]:
    """Return the names of keys and values of so many blocks."""
    return [f"{name}_{part}_{i}" for i in range(count) for part in ("key", "value")]


def pairs_of(tensors: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    return list(zip(tensors[::2], tensors[1::2], strict=True))


PROGRAM = "model.pt2"
DYNAMIC = torch.export.Dim.DYNAMIC
SHAPES = {"tokens": (2, 5), "source": (2, 5), "target": (2, 4), "lengths": (2,), "source_lengths": (2,)}
"""Of the example that is followed. No axis is 0 or 1: torch would take it for a constant."""


class TorchProgram(Format):
    """model.pt2: tokens in, logits out, for any batch and length."""

    name = "torch"
    about = "torch.export: the forward pass of any model as one program"

    def blocks(self, spec: Spec, task: str, tokenizers: Sequence[str] = ()) -> list[str]:
        return blocked_segments(spec, task)

    @torch.no_grad()
    def write(self, run: Run, folder: Path, quantization: str) -> None:
        graph = Forward(cast(Any, freeze_for_graph(run.model, run.task.context)))
        example = tuple(torch.full(SHAPES[name], 4 if "lengths" in name else 0) for name in graph.inputs)
        axes = [dict.fromkeys(range(len(SHAPES[name])), DYNAMIC) for name in graph.inputs]
        program = torch.export.export(
            graph, example, dynamic_shapes=(axes[0], *([tuple(axes[1:])] if axes[1:] else []))
        )
        torch.export.save(program, folder / PROGRAM)

    def open(self, run: Run, folder: Path, quantization: str) -> Peer:
        return ProgramPeer(run, folder)


class ProgramPeer(Peer):
    """The program as torch runs it."""

    numbers = "outputs"
    tolerance = 1e-4

    def __init__(self, run: Run, folder: Path) -> None:
        super().__init__(run)
        self.name, self.program = peer_version("torch"), torch.export.load(folder / PROGRAM).module()

    def theirs(self, samples: Samples) -> list[Tensor]:
        sides = [samples.padded(side) for side in ("encoder", "decoder") if getattr(samples, side)]
        (first, lengths), *others = sides
        # As `Forward` takes them: a decoder needs no lengths, and of two sides those of the source come last.
        inputs = (first, *(target for target, _ in others), *(() if self.run.model.encoder is None else (lengths,)))
        return samples.split(self.program(*inputs))
