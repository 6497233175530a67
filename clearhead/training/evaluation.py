"""How good a run is on the user's files, by the scores that others report.

Translations by BLEU, chrF and exact match; text by perplexity and bits per byte; blanks by accuracy; classes by
accuracy and F1. References are the text of the files, as it stands there.
"""

import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar, final, runtime_checkable

import torch
from torch import nn

from clearhead.decoding.generating import eval_mode
from clearhead.decoding.session import right_padded
from clearhead.devices import widest_float
from clearhead.errors import OptionError
from clearhead.files import write_text
from clearhead.text.encoding import Encoding, Layout, chunks, label, texts, usable
from clearhead.text.preparing import survey
from clearhead.text.problems import Problems
from clearhead.text.sources import Source
from clearhead.text.store import StoreWriter
from clearhead.training.answers import Class, in_batches, one_line
from clearhead.training.folder import RunFolder
from clearhead.training.losses import NOTHING
from clearhead.training.outputs import check_output
from clearhead.training.scores import TOKENIZERS, score_classes, score_text, score_translations
from clearhead.training.tasks import Classify, Fill, Generate, Task, Translate
from clearhead.training.validation import Held, loss_of

__all__ = ["Evaluating", "Window", "evaluate", "windows"]

Params = TypeVar("Params", bound=Task)
AT_ONCE = 8192
"""Tokens of a batch of records: the same anywhere, since which blanks are asked for goes by the batches."""
MANY_WINDOWS = 1024
"""How many are sorted by length together."""


@final
@dataclass(frozen=True, kw_only=True)
class Evaluating:
    """How to evaluate.

    Translations are made with a `beam` (1 is greedy) and its `length_penalty`; BLEU splits words by `tokenize`, and
    `lower` makes BLEU and chrF blind to case. Text is read in windows of the model's context, of which each after the
    first brings `stride` new tokens: the fewer, the more each of them sees. None is a whole context, the quickest.
    `skip_bad` leaves out lines that cannot be used.
    """

    beam: int = 5
    length_penalty: float = 1.0
    tokenize: str = "13a"
    lower: bool = False
    stride: int | None = None
    skip_bad: bool = False

    def __post_init__(self) -> None:
        if self.beam < 1:
            raise OptionError(f"beam must be 1 or more; came {self.beam}")
        if self.tokenize not in TOKENIZERS:
            raise OptionError(f"tokenize must be one of {', '.join(TOKENIZERS)}; came {self.tokenize!r}")


@runtime_checkable
class Evaluable(Protocol):
    """What of a `Run` is evaluated. A run offers `evaluate` itself, so that it cannot be imported here."""

    folder: RunFolder
    task: Task
    model: nn.Module
    step: int

    @property
    def opens(self) -> bool: ...

    def asked(self, task: type[Params]) -> Params: ...

    def translate(self, texts: Sequence[str], *, beam: int = 5, length_penalty: float = 1.0) -> list[str]: ...

    def classify(self, texts: Sequence[str]) -> list[Class]: ...


def evaluate(
    run: Evaluable, source: Source, how: Evaluating = Evaluating(), *, output: str | Path | None = None
) -> dict[str, Any]:
    """The scores of a run on a corpus, with what they were made of.

    `output`: a file for the translations, or the labels, a line for each record. What is wrong with the files is told
    before anything slow begins.
    """
    layout = type(run.task).layout(run.task.context)
    check_fields(run.task, layout, source)
    file = None if output is None else output_of(run.task, Path(output), source)
    found = survey(source, layout, Problems(skip=how.skip_bad), run.task.labels if layout.label else None)
    started = time.perf_counter()
    scores, outputs = EVALUATED[type(run.task)](run, source, how)
    if file is not None:
        write_text(file, "".join(f"{line}\n" for line in outputs))
    return {
        "run": str(run.folder.path),
        "task": run.task.name,
        "step": run.step,
        "parameters": sum(one.numel() for one in run.model.parameters()),
        "files": list(source.files),
        "n": found.records,
        "skipped": dict(found.skipped),
        **scores,
        "output": None if file is None else str(file),
        "seconds": round(time.perf_counter() - started, 3),
    }


def check_fields(task: Task, layout: Layout, source: Source) -> None:
    needed = (*layout.texts, *([layout.label] if layout.label else []))
    if not set(needed) <= set(source.fields):
        raise OptionError(
            f"a run that was trained to {task.name} is evaluated on records of {' and '.join(needed)}; "
            f"these have {' and '.join(source.fields)}"
        )


def output_of(task: Task, path: Path, source: Source) -> Path:
    """Return the path, if there is something to write and it can be written: told now, not when the work is done."""
    if not isinstance(task, Translate | Classify):
        raise OptionError(f"output: to {task.name} is scored without outputs, so there are none to write")
    return check_output(path, option="output", inputs=source.files)


def translated(run: Evaluable, source: Source, how: Evaluating) -> tuple[dict[str, Any], list[str]]:
    task = run.asked(Translate)
    layout = task.layout(task.context)
    outputs: list[str] = []
    references: list[str] = []
    started = time.perf_counter()
    for chunk in chunks(usable(source, layout, Problems(skip=True))):
        sources, targets = zip(*(texts(source, layout, record) for record in chunk), strict=True)
        found = run.translate(sources, beam=how.beam, length_penalty=how.length_penalty)
        outputs += map(one_line, found)
        references += targets
    speed = len(outputs) / (time.perf_counter() - started)
    scores = asdict(score_translations(outputs, references, tokenize=how.tokenize, lower=how.lower))
    loss = stored_loss(run, source, replace(layout, too_long="cut"))
    told = {"beam": how.beam, "length_penalty": how.length_penalty, "sentences_per_second": round(speed, 1)}
    return {**scores, "loss": loss.nats, "tokens": loss.places, "cut": loss.too_long, **told}, outputs


def blanks_filled(run: Evaluable, source: Source, how: Evaluating) -> tuple[dict[str, Any], list[str]]:
    """Which blanks are asked for is drawn with a fixed seed."""
    task = run.asked(Fill)
    started = time.perf_counter()
    loss = stored_loss(run, source, task.layout(task.context))
    speed = loss.tokens / (time.perf_counter() - started)
    return {
        "loss": loss.nats,
        "accuracy": loss.right / max(loss.places, 1),
        "blanks": loss.places,
        "tokens": loss.tokens,
        "tokens_per_second": round(speed, 1),
    }, []


class StoredLoss(NamedTuple):
    """The mean loss over the places that asked, how many those are, and at how many of them the likeliest was right."""

    nats: float
    places: int
    right: int
    tokens: int
    too_long: int


def stored_loss(run: Evaluable, source: Source, layout: Layout) -> StoredLoss:
    """By teacher forcing, from ids on disk as in training: a corpus of any size will do."""
    encoding = Encoding(layout, run.task.tokenizers, run.task.labels)
    with tempfile.TemporaryDirectory() as folder, StoreWriter(Path(folder) / "held", encoding.sizes) as writer:
        encoding.fill(source, lambda _: writer)
        store = writer.close({})
        held = Held(store=store, tokens=AT_ONCE, score_records=0, samples=0)
        total, places, right = loss_of(run.model, run.task, held)
    tokens = sum(store.sizes[name].tokens for name in layout.texts)
    return StoredLoss(total / max(places, 1), places, right, tokens, encoding.too_long)


def classified(run: Evaluable, source: Source, how: Evaluating) -> tuple[dict[str, Any], list[str]]:
    task = run.asked(Classify)
    layout = task.layout(task.context)
    outputs: list[str] = []
    truths: list[str] = []
    nats = 0.0
    started = time.perf_counter()
    for chunk in chunks(usable(source, layout, Problems(skip=True), task.labels)):
        found = run.classify([texts(source, layout, record)[0] for record in chunk])
        true = [label(source, layout, record) for record in chunk]
        outputs += [one.label for one in found]
        truths += true
        nats += sum(surprise(one.probabilities[name]) for one, name in zip(found, true, strict=True))
    speed = len(outputs) / (time.perf_counter() - started)
    scores = asdict(score_classes(outputs, truths, task.labels))
    told = {"loss": nats / len(outputs), "labels": list(task.labels), "sentences_per_second": round(speed, 1)}
    return {**scores, **told}, [one_line(output) for output in outputs]


def surprise(probability: float) -> float:
    return -math.log(max(probability, sys.float_info.min))


class Window(NamedTuple):
    """A stretch of ids, of which the model is asked for the last `new`, each from all before it."""

    ids: list[int]
    new: int


def foreseen(run: Evaluable, source: Source, how: Evaluating) -> tuple[dict[str, Any], list[str]]:
    """Every token of the text is asked for once; no end token is."""
    task = run.asked(Generate)
    stride = task.context if how.stride is None else how.stride
    if not 1 <= stride <= task.context:
        raise OptionError(f"stride: between 1 and the model's context, {task.context}, tokens; came {stride}")
    tokenizer = task.tokenizers["text"]
    encoded = EncodedText(task, source)
    made = windows(encoded, tokenizer.end, context=task.context, stride=stride, opened=run.opens)
    total = 0.0
    started = time.perf_counter()
    while some := list(islice(made, MANY_WINDOWS)):
        total += math.fsum(nats(run.model, some))
    speed = encoded.tokens / (time.perf_counter() - started)
    scores = asdict(score_text(total, encoded.tokens, encoded.n_bytes))
    told = {"stride": stride, "context": task.context, "unknown": encoded.unknown}
    return {**scores, **told, "tokens_per_second": round(speed, 1)}, []


class EncodedText:
    """The ids of a corpus, piece by piece as it is read in training, and what they come to: tokens, bytes of text."""

    def __init__(self, task: Task, source: Source) -> None:
        self.task, self.source = task, source
        self.tokens = self.unknown = self.n_bytes = 0

    def __iter__(self) -> Iterator[tuple[list[int], bool]]:
        """Pieces of documents; the second value says whether the document ends with it."""
        layout, tokenizer = self.task.layout(self.task.context), self.task.tokenizers["text"]
        for chunk in chunks(usable(self.source, layout, Problems(skip=True))):
            written = [texts(self.source, layout, record)[0] for record in chunk]
            for record, text, ids in zip(chunk, written, tokenizer.encode_batch(written), strict=True):
                self.n_bytes += len(text.encode())
                self.tokens += len(ids)
                self.unknown += ids.count(tokenizer.unknown)
                yield ids, record.ends


def windows(
    pieces: Iterable[tuple[list[int], bool]], end: int, *, context: int, stride: int, opened: bool
) -> Iterator[Window]:
    """Windows in which every id is new once. A document's first id is asked for from an end token.

    `opened`: the model has seen documents begin with one, so it stays in front of what follows too.
    """
    held: list[int] = []
    seen = 0
    for ids, ends in pieces:
        if not held and opened:
            held, seen = [end], 1
        elif not held and ids:
            yield Window([end, ids[0]], 1)
            seen = 1
        held += ids
        at = 0
        while len(held) - at > context:
            yield Window(held[at : at + context + 1], context + 1 - seen)
            at, seen = at + stride, context + 1 - stride
        held = held[at:]
        if ends:
            if len(held) > seen:
                yield Window(held, len(held) - seen)
            held, seen = [], 0


def nats(model: nn.Module, some: list[Window]) -> list[float]:
    """What the new ids of each window cost."""
    device = next(model.parameters()).device

    def answer(batch: list[int]) -> list[float]:
        rows = [some[i] for i in batch]
        tokens, lengths = right_padded([row.ids for row in rows], device)
        new = torch.tensor([row.new for row in rows], device=device)
        places = torch.arange(1, tokens.shape[1], device=device)
        asked = (places >= (lengths - new).unsqueeze(1)) & (places < lengths.unsqueeze(1))
        wanted = torch.where(asked, tokens[:, 1:], NOTHING)
        with eval_mode(model):
            logits = model(tokens[:, :-1]).float().transpose(1, 2)
            lost = nn.functional.cross_entropy(logits, wanted, ignore_index=NOTHING, reduction="none")
        return lost.to(widest_float(lost.device)).sum(1).tolist()

    return in_batches([len(window.ids) for window in some], model, answer)


Evaluated = Callable[[Evaluable, Source, Evaluating], tuple[dict[str, Any], list[str]]]
EVALUATED: dict[type[Task], Evaluated] = {
    Translate: translated,
    Generate: foreseen,
    Fill: blanks_filled,
    Classify: classified,
}
"""Scores by name, and outputs where there are any."""
