"""ONNX: graphs for onnxruntime, with the keys and values so far as inputs and outputs, for any batch and length."""

import logging
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from clearhead.decoding.session import pad_right
from clearhead.extras import import_peer, peer_version
from clearhead.files import write_json
from clearhead.interop.export import graphs
from clearhead.interop.export.base import blocked_segments
from clearhead.interop.export.format import Format, Peer
from clearhead.interop.export.samples import OutputTokens, Samples, decoding_of, special_tokens
from clearhead.model.sizes import Spec
from clearhead.model.transformers import Decoder
from clearhead.training.run import Run

ENCODER, DECODER, NOTES = "encoder.onnx", "decoder.onnx", "clearhead.json"


class Onnx(Format):
    """encoder.onnx, decoder.onnx or both, and clearhead.json with the ids and shapes that a loop needs."""

    name = "onnx"
    about = "ONNX for onnxruntime: any model; decoders with their cache as inputs and outputs"
    packages = ("onnxscript", "onnxruntime")

    def blocks(self, spec: Spec, task: str, tokenizers: Sequence[str] = ()) -> list[str]:
        output = None if spec.decoder is None else spec.decoder.output
        if output is not None and not output.by_position:
            return [f"cache for a decoder whose output is {type(output).__name__}"]
        return blocked_segments(spec, task)

    def write(self, run: Run, folder: Path, quantization: str) -> None:
        import_peer("onnxscript")
        model = cast(Any, graphs.freeze_for_graph(run.model, run.task.context))
        if model.encoder is None:
            save_graph(graphs.DecoderStep(model), folder / DECODER, decoder_example(model))
        elif model.decoder is None:
            save_graph(graphs.EncoderForward(model), folder / ENCODER, source_example())
        else:
            save_graph(graphs.SourceForward(model), folder / ENCODER, source_example())
            save_graph(graphs.TargetStep(model), folder / DECODER, target_example(model.decoder))
        write_json(folder / NOTES, notes(run))

    def open(self, run: Run, folder: Path, quantization: str) -> Peer:
        return OnnxPeer(run, folder)


def source_example() -> tuple[Tensor, ...]:
    return torch.zeros(2, 5, dtype=torch.int64), torch.tensor([5, 4])


def decoder_example(decoder: Decoder) -> tuple[Tensor, ...]:
    """Return two new tokens on three cached ones. No axis is 0 or 1: torch would take it for a constant."""
    return torch.zeros(2, 2, dtype=torch.int64), *cache(decoder, "attention", batch=2, n=3)


def target_example(decoder: Decoder) -> tuple[Tensor, ...]:
    tokens, lengths = torch.zeros(2, 2, dtype=torch.int64), torch.tensor([6, 4])
    return tokens, lengths, *cache(decoder, "cross", batch=2, n=6), *cache(decoder, "attention", batch=2, n=3)


def cache(decoder: Decoder, slot: str, *, batch: int, n: int) -> list[Tensor]:
    """Return keys and values of a slot of every block, zeros, for n tokens."""
    tensors: list[Tensor] = []
    for block in decoder.stack.blocks:
        layer, like = getattr(block, slot), torch.zeros(1, 1, decoder.spec.d_model)
        for part in (layer.key, layer.value):
            _, heads, _, width = part(like).shape
            tensors.append(torch.zeros(batch, heads, n, width))
    return tensors


AXES = {"tokens": ("batch", "n"), "lengths": ("batch",), "source_lengths": ("batch",)}


def axes_of(name: str) -> Mapping[int, str]:
    """Return the axes of an input that may have any length, and what they are called in the graph."""
    if name in AXES:
        return dict(enumerate(AXES[name]))
    return {0: "batch", 2: "source" if name.startswith("source") else "past"}


@torch.no_grad()
def save_graph(graph: nn.Module, path: Path, example: tuple[Tensor, ...]) -> None:
    """Write a module as an ONNX file."""
    exported = cast(Any, graph)
    log = logging.getLogger("torch.onnx")
    level = log.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's exporter warns of its own functions, and logs what it does without
        log.setLevel(logging.ERROR)
        program = torch.onnx.export(
            graph,
            example,
            dynamo=True,
            verbose=False,
            input_names=list(exported.inputs),
            output_names=list(exported.outputs),
            dynamic_shapes=dynamic_shapes(exported.inputs),
        )
    log.setLevel(level)
    assert program is not None
    program.save(str(path), external_data=False)


def dynamic_shapes(names: Sequence[str]) -> tuple[Any, ...]:
    """Return which axes of the inputs may have any length; those after the first few are one tuple, as in forward."""
    named = [dict.fromkeys(axes_of(name), torch.export.Dim.DYNAMIC) for name in names]
    plain = sum(name in AXES for name in names)
    return (*named[:plain], tuple(named[plain:])) if plain < len(named) else tuple(named)


def notes(run: Run) -> dict[str, Any]:
    """Return what a loop must know: the task, the ids that begin and end texts, the labels, and empty caches."""
    special, decoding = special_tokens(run), decoding_of(run)
    settings = {
        "task": run.task.name,
        "context": run.task.context,
        "labels": list(run.task.labels),
        "start": special.start,
        "end": special.end,
        "mask": special.mask,
        "source_end": special.source_end,
    }
    if (decoder := run.model.decoder) is not None:
        settings |= {name: list(ids) for name, ids in decoding._asdict().items()}
        shapes = [list(tensor.shape) for tensor in cache(decoder, "attention", batch=0, n=0)]
        settings["past"] = [{"heads": shape[1], "width": shape[3]} for shape in shapes]
    return settings


class OnnxSession:
    """An ONNX file in onnxruntime, with numpy arrays by name."""

    def __init__(self, path: Path) -> None:
        runtime = import_peer("onnxruntime")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3
        self.session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.outputs = [value.name for value in self.session.get_outputs()]
        self.inputs = [value.name for value in self.session.get_inputs()]

    def __call__(self, values: Mapping[str, Any]) -> dict[str, np.ndarray]:
        inputs = {name: np.asarray(values[name]) for name in self.inputs}
        return dict(zip(self.outputs, self.session.run(self.outputs, inputs), strict=True))


class Loop:
    """The greedy loop of an exported decoder: numpy alone, one token of every row at a time."""

    def __init__(self, session: OnnxSession, past: Sequence[Mapping[str, int]]) -> None:
        self.session, self.past = session, past

    def empty(self, batch: int) -> dict[str, np.ndarray]:
        names = [name for name in self.session.inputs if name.startswith("past")]
        shapes = [(batch, cached["heads"], 0, cached["width"]) for cached in self.past]
        return {name: np.zeros(shape, np.float32) for name, shape in zip(names, shapes, strict=True)}

    def run(
        self, rows: Sequence[Sequence[int]], fixed: Mapping[str, Any], n_new: int, *, never: Sequence[int] = ()
    ) -> list[list[int]]:
        """Return n_new tokens after each row, none of them one of `never`.

        The rows have one length, so that all read the same positions.
        """
        tokens, past = np.array(rows, np.int64), self.empty(len(rows))
        written = np.zeros((len(rows), 0), np.int64)
        for _ in range(n_new):
            outputs = self.session({"tokens": tokens, **fixed, **past})
            outputs["logits"][:, -1, list(never)] = -np.inf
            tokens = outputs["logits"][:, -1:].argmax(-1)
            written = np.concatenate([written, tokens], 1)
            past = {name.replace("present", "past"): value for name, value in outputs.items() if name != "logits"}
        return written.tolist()


class OnnxPeer(Peer):
    """Graphs in onnxruntime; tokens that are written go through the cache one by one."""

    def __init__(self, run: Run, folder: Path) -> None:
        super().__init__(run)
        self.name, self.numbers = peer_version("onnxruntime"), "outputs" if run.model.decoder is None else "logits"
        self.encoder, self.decoder = (
            None if model is None else OnnxSession(folder / file)
            for model, file in ((run.model.encoder, ENCODER), (run.model.decoder, DECODER))
        )
        self.loop = None if self.decoder is None else Loop(self.decoder, notes(run)["past"])

    def encode(self, rows: Sequence[Sequence[int]]) -> dict[str, Any]:
        """Return what an encoder gives; for a decoder that reads it, with the lengths of its texts."""
        if self.encoder is None:
            return {}
        tokens, lengths = pad_right(rows, torch.device("cpu"))
        return {"source_lengths": lengths, **self.encoder({"tokens": tokens, "lengths": lengths})}

    def theirs(self, samples: Samples) -> list[Tensor]:
        given = self.encode(samples.encoder)
        if self.decoder is None or self.loop is None:
            return samples.split(torch.from_numpy(given["output"]))
        tokens, _ = samples.padded("decoder")
        outputs = self.decoder({"tokens": tokens, **given, **self.loop.empty(len(tokens))})
        return samples.split(torch.from_numpy(outputs["logits"]))

    def greedy(self, rows: Sequence[list[int]], written: OutputTokens, n_new: int) -> list[list[int]]:
        assert self.loop is not None
        if self.encoder is None:
            return [self.loop.run([row], {}, n_new, never=written.never)[0] for row in rows]
        return self.loop.run([written.before] * len(rows), self.encode(rows), n_new, never=written.never)
