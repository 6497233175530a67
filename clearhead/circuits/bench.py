"""The bench: every method on programs whose edges are known, graded, along axes of realism.

Methods see 32 pairs of texts, drawn with another seed than anything else, and never the enumeration. They are graded on
causal truth, among edges whose product of weights is not zero: among all edges the size of the weights would win by
definition.
"""

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, final

import torch
from torch import Tensor

from clearhead import files, system
from clearhead.calls import public
from clearhead.circuits import forward, grammar
from clearhead.circuits.grading import RANKINGS, Interval, average_precision, bootstrap, roc_area
from clearhead.circuits.methods import Contrast, Method, find_method, method_names, score_edges
from clearhead.circuits.metrics import AnswerLogProbability, Metric, Number
from clearhead.circuits.realism import AXES, MAIN
from clearhead.circuits.texts import Texts
from clearhead.circuits.truth import AnswerReader, BenchSample, every_input
from clearhead.errors import RunError
from clearhead.rasp.programs import PROGRAMS, Program

PAIRS = 32
SLOW = ("acdc", "edge-pruning")
"""Methods that are graded on some programs alone."""
SOME = 24
"""So many."""
SMALL = 200
"""Edges that those may have."""
MOST_INPUTS = 100
"""Most inputs of one length: programs that come with Clearhead are shortened to it."""


@dataclass(frozen=True, kw_only=True)
class Graded:
    """How a method did on one program: average precision of edges by each ranking, and more."""

    program: str
    axis: str
    method: str
    precision: Mapping[str, float]
    roc: Mapping[str, float]
    nodes: float
    forwards: int
    backwards: int
    seconds: float
    share: float
    """How many of the graded edges are true: what chance would have."""


@final
@public
@dataclass(frozen=True)
class BenchReport:
    """The results of a bench.

    Attributes:
        graded: A grade for each method, program and axis.

    >>> from clearhead.circuits import BenchReport
    >>> BenchReport([]).left_out
    {}
    """

    graded: list[Graded]
    left_out: Mapping[str, int] = field(default_factory=dict)
    """By axis, programs that lost an answer there."""
    truths: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """By program, how many edges of each kind there are in its exact compile."""

    def cell(self, axis: str, method: str, figure: Callable[[Graded], float]) -> Interval | None:
        """Return the mean of a figure over programs, with its interval."""
        values = [figure(row) for row in self.graded if (row.axis, row.method) == (axis, method)]
        return bootstrap(values) if values else None

    @property
    def axes(self) -> list[str]:
        return list(dict.fromkeys(row.axis for row in self.graded))

    @property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(row.method for row in self.graded))

    def as_json(self) -> dict[str, Any]:
        """Return every figure of every program, and the means."""
        means = []
        for axis in self.axes:
            for method in self.methods:
                rows = [row for row in self.graded if (row.axis, row.method) == (axis, method)]
                if rows:
                    means.append(
                        {
                            "axis": axis,
                            "method": method,
                            "programs": len(rows),
                            **{
                                f"average_precision_{name}": bootstrap([row.precision[name] for row in rows])._asdict()
                                for name in RANKINGS
                            },
                            **{
                                f"roc_{name}": bootstrap([row.roc[name] for row in rows])._asdict() for name in RANKINGS
                            },
                            "nodes": bootstrap([row.nodes for row in rows])._asdict(),
                            "forwards": sum(row.forwards for row in rows) / len(rows),
                            "backwards": sum(row.backwards for row in rows) / len(rows),
                            "seconds": sum(row.seconds for row in rows) / len(rows),
                            "share": sum(row.share for row in rows) / len(rows),
                        }
                    )
        return {
            "means": means,
            "left_out": dict(self.left_out),
            "truths": {name: dict(counts) for name, counts in self.truths.items()},
            "programs": [vars(row) for row in self.graded],
        }


def shipped_samples(programs: Sequence[Program] = ()) -> Iterator[BenchSample]:
    """Yield programs, those that come with Clearhead unless others are given, where there is something to rank."""
    for program in programs or PROGRAMS.values():
        length = program.length
        while length > 1 and len(program.vocabulary) ** length > MOST_INPUTS:
            length -= 1
        if program.name == "addition":
            length = 3  # one digit and one digit, and the sign
        sample = BenchSample.of(replace(program, length=length, example=()))
        if 0 < sample.share < 1:
            yield sample


@public
def make_contrast(sample: BenchSample, *, pairs: int = PAIRS, seed: int = 1) -> Contrast:
    """Return a random sample of pairs of the longest texts, and what is measured of their answers.

    Args:
        sample: The program.
        pairs: How many pairs.
        seed: Random seed.

    Returns:
        The contrast.
    """
    batch = every_input(sample.program, sample.compiled)[-1]
    generator = torch.Generator().manual_seed(seed)
    clean, other = torch.randint(len(batch), (2, pairs), generator=generator)
    texts, others = (batch.texts.map(lambda rows, index=index: rows[index]) for index in (clean, other))
    metric = metric_of(sample, batch.texts, clean, other)
    return Contrast(sample.graph, texts, others, metric, source=sample.source, only=sample.truth.ranked)


def metric_of(sample: BenchSample, texts: Texts, clean: Tensor, other: Tensor) -> Metric:
    """Return what is measured: the log-probability of the clean answers; of a number, the number itself."""
    read = AnswerReader.of(sample.compiled)
    logits = forward.run_graph(sample.graph, texts).logits[0]
    if sample.compiled.numeric:
        numbers = logits[:, read.first :, int(read.columns)]
        signs = torch.where(numbers[clean] >= numbers[other], 1.0, -1.0)
        return Number(column=int(read.columns), signs=signs.to(logits), first=read.first)
    answers = read(logits)[clean]
    answers = torch.where(answers < 0, len(read.columns), answers)
    return AnswerLogProbability(columns=read.columns, answers=answers, first=read.first)


def grade(sample: BenchSample, axis: str, name: str, method: Method, contrast: Contrast) -> Graded:
    """Return how a method does on a program."""
    contrast.forwards = contrast.backwards = 0
    began = time.process_time()
    scores = score_edges(method, contrast)
    seconds = time.process_time() - began
    ranked = sample.truth.ranked
    truth = sample.truth.alone[ranked]
    ranks = {kind: rank(scores) for kind, rank in RANKINGS.items()}
    return Graded(
        program=sample.program.name,
        axis=axis,
        method=name,
        precision={kind: average_precision(values[ranked], truth) for kind, values in ranks.items()},
        roc={kind: roc_area(values[ranked], truth) for kind, values in ranks.items()},
        nodes=grade_nodes(sample, ranks["size"]),
        forwards=contrast.forwards,
        backwards=contrast.backwards,
        seconds=seconds,
        share=float(truth.float().mean()),
    )


def grade_nodes(sample: BenchSample, scores: Tensor) -> float:
    """Return the average precision of senders: true if one of their edges is; each has the score of its best edge."""
    best: dict[str, float] = {}
    true: dict[str, bool] = {}
    for number in sample.truth.ranked.nonzero().flatten().tolist():
        sender = sample.graph.edges[number].sender
        best[sender] = max(best.get(sender, 0.0), float(scores[number]))
        true[sender] = true.get(sender, False) or bool(sample.truth.alone[number])
    return average_precision(torch.tensor(list(best.values())), torch.tensor(list(true.values())))


@public
def run_bench(
    samples: Sequence[BenchSample],
    *,
    methods: Sequence[str] = (),
    axes: Sequence[str] = (),
    some: int = SOME,
    seed: int = 1,
    log: "BenchLog | None" = None,
    progress: Callable[[str], None] | None = None,
) -> BenchReport:
    """Grade methods along axes. Slow methods, and axes other than the main ones, take the first `some` small samples.

    Args:
        samples: The programs.
        methods: Names of methods; all if empty.
        axes: Names of axes; all if empty.
        some: Samples for slow methods and other axes.
        seed: Random seed.
        log: Grades it has are not computed again, and every new grade is written to it at once.
        progress: Called with a line for each step.

    Returns:
        The report.
    """
    log = log or BenchLog()
    graded: list[Graded] = []
    left_out: dict[str, int] = {}
    small = [sample for sample in samples if len(sample.graph.edges) <= SMALL][:some]
    for axis in axes or AXES:
        chosen = samples if axis in MAIN else small
        for number, sample in enumerate(chosen):
            slow = sample in small and axis in ("argmax", "softmax 10")
            wanted = [name for name in methods or method_names() if name not in SLOW or slow]
            rows = grade_on_axis(sample, axis, wanted, seed + number, log)
            graded += rows
            left_out[axis] = left_out.get(axis, 0) + (not rows)
            if progress is not None:
                progress(f"{axis}: {number + 1} of {len(chosen)}")
    truths = {sample.program.name: sample.truth.counts() for sample in samples}
    return BenchReport(graded, {axis: count for axis, count in left_out.items() if count}, truths)


def grade_on_axis(sample: BenchSample, axis: str, methods: Sequence[str], seed: int, log: "BenchLog") -> list[Graded]:
    """Return how methods do on one program along an axis; nothing where the program lost an answer there."""
    known = [log.rows.get((sample.program.name, axis, name)) for name in methods]
    if all(known):
        return [row for row in known if row is not None]
    changed = AXES[axis](sample, torch.Generator().manual_seed(seed))
    if changed is None or not 0 < changed.share < 1:
        return []
    contrast = make_contrast(changed, seed=seed)
    _ = contrast.clean_value, contrast.other_value  # made once, and not by the method that comes first
    rows = []
    for name, row in zip(methods, known, strict=True):
        rows.append(row or log.add(grade(changed, axis, name, find_method(name), contrast)))
    return rows


class BenchLog:
    """What was graded so far: with a path, a file with a line for each grade, so that a bench that was cut goes on.

    The first line has the settings; a file with others is refused, and so is one that another bench writes to.
    """

    def __init__(self, path: Path | None = None, settings: Mapping[str, Any] | None = None) -> None:
        self.path, self.settings = path, dict(settings or {})
        self.rows: dict[tuple[str, str, str], Graded] = {}
        self.file: BinaryIO | None = None
        if path is not None:
            self.file = open_alone(path)
            try:
                self.read(path, self.file)
            except BaseException:
                self.close()
                raise

    def __enter__(self) -> "BenchLog":
        return self

    def __exit__(self, *failed: object) -> None:
        self.close()

    def close(self) -> None:
        if self.file is not None:
            self.file.close()

    def remove(self) -> None:
        """Remove the file: all is done."""
        if self.path is not None:
            try:
                self.path.unlink()
            except PermissionError:  # Windows removes no file that is open
                self.close()
                self.path.unlink()

    def read(self, path: Path, file: BinaryIO) -> None:
        data = files.read_bytes(path)
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):  # it was killed while it wrote the last line
            os.ftruncate(file.fileno(), len(whole))
        if not whole:  # it is new, or a power cut took all that was written
            self.write(self.settings)
            return
        first, *lines = whole.splitlines()
        try:
            settings, found = files.parse_json(first), [Graded(**files.parse_json(line)) for line in lines]
        except (ValueError, TypeError) as error:
            raise RunError(f"{path}: these are no rows of a bench ({error}); move it away") from None
        if settings != self.settings:
            raise RunError(
                f"{path} is of a bench with other settings ({first.decode():.200}): move it away, or ask for the same"
            )
        self.rows = {(row.program, row.axis, row.method): row for row in found}

    def add(self, row: Graded) -> Graded:
        self.rows[row.program, row.axis, row.method] = row
        self.write(vars(row))
        return row

    def write(self, line: Mapping[str, Any]) -> None:
        if self.file is not None:
            self.file.write(f"{json.dumps(line)}\n".encode())
            self.file.flush()


def open_alone(path: Path) -> BinaryIO:
    """Open a log that no other process has open; RunError if one has."""
    while True:
        file = files.open_log(path)
        try:
            if not system.try_lock(file.fileno()):
                file.close()
                raise RunError(f"{path}: another bench writes to it; wait for it, or choose another file")
        except OSError as error:
            if not system.has_no_locks(error):
                file.close()
                raise
        with contextlib.suppress(FileNotFoundError):  # the bench that had it has ended meanwhile
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        file.close()


def bench_samples(count: int, seed: int = 0, programs: Sequence[Program] = ()) -> list[BenchSample]:
    """Return so many generated programs and those that come with Clearhead, in a mixed order; or given programs."""
    if programs:
        return list(shipped_samples(programs))
    samples = [*grammar.generate_samples(count, seed), *shipped_samples()]
    order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(seed)).tolist()
    return [samples[number] for number in order]
