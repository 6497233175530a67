"""What a format of export is: what it cannot express, how it is written, and how its peer is held to our numbers.

There is one check for all: a format opens its folder as a `Peer`, and `compare` puts the same texts into both. Numbers
are compared row by row, and greedy outputs as a whole.
"""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, cast, final

import torch
from torch import Tensor, nn

from clearhead.decoding import Greedy, Rules, generate
from clearhead.decoding.request import Model
from clearhead.interop.export.samples import OutputTokens, Samples, decoding_of, draw_samples
from clearhead.model.sizes import Spec
from clearhead.training.run import Run


@final
@dataclass(frozen=True, kw_only=True)
class ExportFigures:
    """What a check has measured: the largest difference between the peer's numbers and ours, and equal outputs."""

    peer: str
    """The package that loaded the export, with its version."""
    texts: str
    """What was put in: so many texts of the run, or drawn."""
    numbers: str
    """What was compared."""
    difference: float
    tolerance: float
    same: int = 0
    outputs: int = 0
    """How many outputs were compared as a whole, and how many of them were the same."""
    must_agree: bool = True
    """False if the numbers are quantised: then outputs may differ."""

    @property
    def passed(self) -> bool:
        # `not >`, so that NaN does not pass.
        return self.difference <= self.tolerance and (not self.must_agree or self.same == self.outputs)

    def __str__(self) -> str:
        summary = f"{self.peer} on {self.texts}: {self.numbers} differ by {self.difference:.1e} at most"
        outputs = f"; {self.same} of {self.outputs} outputs are the same" if self.outputs else ""
        return f"{summary} (tolerance {self.tolerance:g}){outputs}"


class Format(ABC):
    """A format that runs are written in for other programs."""

    name: ClassVar[str]
    about: ClassVar[str]
    quantizations: ClassVar[tuple[str, ...]] = ("float32",)
    """The kinds of number that weights can be written in, the usual one first."""
    packages: ClassVar[tuple[str, ...]] = ()
    """What writing and checking it imports, beside what Clearhead needs anyway."""

    @abstractmethod
    def blocks(self, spec: Spec, task: str, tokenizers: Sequence[str] = ()) -> list[str]:
        """Return what this model has that the format cannot express, by name; empty if it can express all.

        `tokenizers` are their kinds, where they are known.
        """

    @abstractmethod
    def write(self, run: Run, folder: Path, quantization: str) -> None:
        """Write the run into this folder, which is empty. The model is on the CPU, in float32."""

    @abstractmethod
    def open(self, run: Run, folder: Path, quantization: str) -> "Peer":
        """Load the folder with the program that reads it, to be compared with the run."""


class Peer(ABC):
    """An export as the program that reads it computes it."""

    name: str
    """The package, with its version."""
    numbers: str = "logits"
    """What is compared."""
    tolerance: float = 1e-3
    exact: bool = True
    """False where weights are quantised: then outputs may differ."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.model: Any = run.model
        """What numbers are held to: the run's model, or one with its weights rounded as they are written."""

    def samples(self) -> Samples:
        """Return the texts that are put in."""
        return draw_samples(self.run)

    def ours(self, samples: Samples) -> list[Tensor]:
        """Return the numbers of each text by our model."""
        return samples.split(forward(self.model, samples))

    @abstractmethod
    def theirs(self, samples: Samples) -> list[Tensor]:
        """Return the same numbers by the peer."""

    def greedy(self, rows: Sequence[list[int]], written: OutputTokens, n_new: int) -> list[list[int]] | None:
        """Return what the peer writes greedily after each row; None if it writes nothing."""
        return None


@torch.inference_mode()
def compare(peer: Peer) -> ExportFigures:
    """Compare numbers of the same texts, and greedy outputs if there are any."""
    run, samples = peer.run, peer.samples()
    ours, theirs = peer.ours(samples), peer.theirs(samples)
    rows, same, outputs = samples.decoder or samples.encoder, 0, 0
    unit = "tokens" if len(ours) == len(rows) else "texts"
    if run.model.decoder is not None:
        written, n_new = decoding_of(run), count_new(run)
        translates = run.model.encoder is not None
        rows = samples.encoder if translates else [row[: run.task.context - n_new] for row in samples.decoder]
        found = peer.greedy(rows, written, n_new)
        if found is not None:
            rules = Rules(max_new=n_new, end=written.ends, never=written.never)
            own = greedy_tokens(run.model, rows, rules, start=written.before if translates else None)
            pair = cut(own, written.ends), cut(found, written.ends)
            start = written.before if translates else ()
            same, outputs = count_same(run, *pair, peer.tolerance, sources=rows, start=start), len(rows)
    return ExportFigures(
        peer=peer.name,
        texts=str(samples),
        numbers=f"{peer.numbers} of {sum(map(len, ours))} {unit}",
        difference=largest(ours, theirs),
        tolerance=peer.tolerance,
        same=same,
        outputs=outputs,
        must_agree=peer.exact,
    )


def forward(model: Any, samples: Samples) -> Tensor:
    """Return the outputs for the samples by a model of ours."""
    if not samples.encoder:
        return model(samples.padded("decoder")[0])
    source, lengths = samples.padded("encoder")
    if not samples.decoder:
        return model(source, lengths=lengths)
    return model(source, samples.padded("decoder")[0], source_lengths=lengths)


def cut(rows: Sequence[Sequence[int]], ends: Sequence[int]) -> list[list[int]]:
    """Return each row up to the first token that ends it."""
    return [list(itertools.takewhile(lambda token: token not in ends, row)) for row in rows]


def count_new(run: Run) -> int:
    """Return how many tokens are written greedily in a check: half of the context, 24 at most."""
    return max(1, min(24, run.task.context // 2))


def largest(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> float:
    """Return the largest difference; infinity if there are not as many numbers."""
    if [tensor.shape for tensor in ours] != [tensor.shape for tensor in theirs]:
        return float("inf")
    return max(float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True))


def greedy_tokens(
    model: nn.Module, rows: Sequence[Sequence[int]], rules: Rules, *, start: Sequence[int] | None = None
) -> list[list[int]]:
    """Return the tokens that a model writes greedily after each row; `start` is what an encoder-decoder begins with."""
    prefix = None if start is None else [list(start)]
    outputs = generate(cast(Model, model), rows, Greedy(), rules=rules, prefix=prefix)
    return [list(best.tokens) for [best] in outputs]


def count_same(
    run: Run,
    ours: Sequence[list[int]],
    theirs: Sequence[list[int]],
    tolerance: float,
    *,
    sources: Sequence[list[int]],
    start: Sequence[int] = (),
) -> int:
    """Count the greedy outputs that are the same.

    One that differs counts too where the two likeliest tokens are closer to each other, at the first difference, than
    the tolerance of a number: then either may come first. `start` is what an encoder-decoder begins with.
    """
    n_same = 0
    for our_row, their_row, source in zip(ours, theirs, sources, strict=True):
        if our_row == their_row:
            n_same += 1
            continue
        pairs = enumerate(zip(our_row, their_row, strict=False))
        index = next((i for i, (a, b) in pairs if a != b), min(len(our_row), len(their_row)))
        before = [*start, *our_row[:index]]
        inputs = [source], [before] if start else [[*source, *before]]
        logits = run.model(*map(torch.tensor, inputs if start else inputs[1:]))[0, -1]
        first, second = logits.topk(2).values.tolist()
        n_same += first - second <= tolerance
    return n_same
