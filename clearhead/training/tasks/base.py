"""What a task is: all that the rest of Clearhead asks of translating, generating, filling, classifying, or of your own.

A task has three parts: `Learning` is what trains, `Answering` what answers, `Showing` what shows. Each has a neutral
answer if there is one: a task overrides only what differs.
"""

import math
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clearhead.decoding.generating import eval_mode
from clearhead.errors import OptionError
from clearhead.model.transformers import Transformer
from clearhead.registry import kind
from clearhead.text.encoding import Encoding, Layout
from clearhead.text.sources import Source
from clearhead.text.store import Store, StoreWriter
from clearhead.text.validation_split import spread
from clearhead.tracing.trace import Trace
from clearhead.training.chunked_loss import logits_by_chunk
from clearhead.training.losses import NOTHING, cross_entropy
from clearhead.training.scores import ACCURACY, FEWEST_BATCHES, EvaluationOptions, ValidationSet, macro_f1
from clearhead.training.tasks.answering import Answering, Pair, Passage, token_names
from clearhead.training.tasks.learning import Learning
from clearhead.training.tasks.texts import AT_ONCE, TaskTexts


class TraceInputs(NamedTuple):
    """A text as a model is given it: the ids of each side, and how each piece is shown.

    `segments` has the segment of each token of a pair of texts, for a model that has segments.
    """

    ids: dict[str, list[int]]
    pieces: dict[str, list[str]]
    segments: list[int] | None = None


class Showing(TaskTexts):
    """How a run is looked into."""

    answered: ClassVar[str] = "at the last place"
    """Where the answer that a trace shows stands, in words."""
    place: ClassVar[Literal["first", "last", "blank"]] = "first"
    """The place of a text whose answer the explorer shows first."""

    def trace_inputs(self, source: str, target: str | Sequence[int] | None = None) -> TraceInputs:
        """Return a text as the model is given it; a target only where `target` says that there is one."""
        return encode_for_trace(self, "encoder", self.frame().around(self.tokenizer.encode(source)))

    def written_inputs(self, passage: Passage, tokens: Sequence[int]) -> TraceInputs:
        """Return a text and the tokens of its output as they are traced."""
        ids, tokenizers = {"decoder": passage.row(tokens)}, {"encoder": self.tokenizer, "decoder": passage.tokenizer}
        if passage.first.prefix is not None:
            ids = {"encoder": list(passage.first.inputs), "decoder": ids["decoder"][: self.context]}
        return TraceInputs(ids, {side: token_names(tokenizers[side], row) for side, row in ids.items()})

    def answer_names(self, ids: Sequence[int]) -> list[str]:
        """Return what the answers with these numbers are called."""
        if self.labels:
            return [self.labels[i] for i in ids]
        return token_names([*self.tokenizers.values()][-1], ids)

    def traced_answer(self, source: str, trace: Trace) -> str:
        """Return what the model says to a text that was traced."""
        return trace.candidates[-1][0].text

    def traced_target(self, target: str | Sequence[int] | None, trace: Trace) -> str | None:
        """Return the target of a trace as text, given as text or as ids."""
        return target if target is None or isinstance(target, str) else self.tokenizer.decode(target)

    def example_code(self, text: str) -> str:
        """Return a text as it is written in Python for a run to answer."""
        return repr(text)

    def example_text(self, ids: list[int]) -> str:
        """Return a text to look at, from the ids of a held-out one."""
        return self.tokenizer.decode(ids)

    def examples(self, store: Store, places: Iterable[int]) -> Iterator[dict[str, str]]:
        """Yield texts to look at from these records of a store: a source and, where it is known, its target."""
        first = self.layout(self.context).texts[0]
        for index in places:
            yield {"source": self.example_text(store[first][index].tolist())}


def encode_for_trace(task: TaskTexts, side: str, ids: list[int]) -> TraceInputs:
    """Return ids of a single text as they are traced; raise OptionError if they are more than the model reads."""
    if len(ids) > task.context:
        raise OptionError(
            f"the text has {len(ids)} tokens, and the model was trained to read {task.context}; shorten it"
        )
    return TraceInputs({side: ids}, {side: token_names(task.tokenizer, ids)})


def trace_pair(task: TaskTexts, pair: Pair) -> TraceInputs:
    """Return a pair of texts as it is traced; a pair that is too long is refused, not cut."""
    frame, (first, second) = task.frame(), task.tokenizer.encode_batch(list(pair))
    needed = len(first) + len(second) + frame.size + len(frame.between)
    ids, segments = frame.around_pair(first, second, needed)
    return encode_for_trace(task, "encoder", ids)._replace(segments=segments if frame.segment else None)


DEV_SEED = 0


@kind("task", saved=False)
class Task(Learning, Answering, Showing):
    """Base class of tasks: what a model is trained to do."""

    def exported(self) -> "Task":
        """Return the task as other programs know it."""
        return self

    def score(self, model: Transformer, held: ValidationSet) -> tuple[dict[str, float], list[dict[str, str]]]:
        """Return scores of held-out records other than loss and accuracy, and samples: input, output and reference."""
        indices = spread(len(held.store), held.samples)
        texts = [self.text_at(held.store, i) for i in indices]
        answers = self.answer(model, texts) if texts else []
        samples = [{"input": text, "output": answer["output"]} for text, answer in zip(texts, answers, strict=True)]
        for i, sample in zip(indices, samples, strict=True):
            if (reference := self.reference(held.store, i)) is not None:
                sample["reference"] = reference
        return {}, samples

    def evaluate(self, model: Transformer, source: Source, how: EvaluationOptions) -> tuple[dict[str, Any], list[str]]:
        """Return the scores on the user's files by name, and the outputs if there are any."""
        started = time.perf_counter()
        loss = stored_loss(self, model, source, self.usual_layout())
        speed = loss.tokens / (time.perf_counter() - started)
        n, scores = max(loss.places, 1), dict[str, float]()
        if ACCURACY in self.measures:
            scores = {"accuracy": loss.right / n, "commonest_answer": loss.commonest / n, **loss.classes}
        facts = {"places": loss.places, "tokens": loss.tokens, "tokens_per_second": round(speed, 1)}
        return {"loss": loss.nats, **scores, **facts}, []

    @classmethod
    def usage(cls) -> tuple[str, str]:
        """Return two commands to try with a run, `{run}` for its folder: one that answers, one that evaluates."""
        options = {"source": "--source TEST --target TEST", "table": "--table TEST", "text": "--text TEST"}[cls.ways[0]]
        return cls.trial.replace("VERB", cls.verb), f"clearhead evaluate {{run}} {options}"


class TotalLoss(NamedTuple):
    """The total loss in nats, the number of targets, and how many of them the likeliest answer got right."""

    nats: float
    places: int
    right: int
    commonest: int
    """How many targets are the commonest one: what a model would get right that always gives the same answer."""
    classes: dict[str, float]
    """Where answers are labels: macro F1, and how many different labels were asked for."""
    standard_error: float | None
    """How far the mean loss of other records like these would lie from this one: by the scatter between batches."""
    batches: int


def loss_of(model: Transformer, task: Task, held: ValidationSet) -> TotalLoss:
    """Return the loss over held-out records by teacher forcing."""
    device = next(model.parameters()).device
    random = np.random.default_rng(DEV_SEED)
    nll: list[Tensor] = []
    places: list[int] = []
    right = torch.zeros((), device=device)
    counts: Counter[int] = Counter()
    answers: Counter[tuple[int, int]] = Counter()
    has_classes = bool(task.labels) and ACCURACY in task.measures
    with eval_mode(model), torch.autocast(device.type, torch.bfloat16, enabled=held.bfloat16):
        planned = list(task.planner(held.store, held.tokens, DEV_SEED).in_order())
        if len(planned) > (held.sample or len(planned)) or held.deadline < math.inf:
            # In random order, so that a smaller sample is the beginning of a larger one, wherever it is cut off.
            order = np.random.default_rng(DEV_SEED).permutation(len(planned))
            planned = [planned[i] for i in order[: held.sample]]
        for rows in planned:
            if len(nll) >= FEWEST_BATCHES and time.perf_counter() > held.deadline:
                break
            read = task.read(held.store, rows, random, filled=False)
            batch = {name: tensor.to(device) for name, tensor in read.items()}
            found = [
                (cross_entropy(logits, targets).nll, logits.argmax(-1))
                for logits, targets in logits_by_chunk(model, task, batch)
            ]
            nll.append(torch.stack([chunk_nll for chunk_nll, _ in found]).sum())
            answered, truths = torch.cat([chunk for _, chunk in found]), read["wanted"].flatten().tolist()
            right += (answered == batch["wanted"].flatten()).sum()
            counts.update(truths)
            places.append(len(truths) - truths.count(NOTHING))
            if has_classes:
                answers.update(pair for pair in zip(truths, answered.tolist(), strict=True) if pair[0] != NOTHING)
    del counts[NOTHING]
    classes = {"macro_f1": macro_f1(answers), "labels_asked": len(counts)} if has_classes else {}
    losses = torch.stack(nll).cpu().numpy().astype(float) if nll else np.zeros(0)
    error = standard_error(losses, np.array(places, float))
    commonest = max(counts.values(), default=0)
    return TotalLoss(float(losses.sum()), counts.total(), int(right.item()), commonest, classes, error, len(nll))


def standard_error(totals: NDArray[np.float64], counts: NDArray[np.float64]) -> float | None:
    """Return the standard error of sum(totals) / sum(counts) over groups of places; None for fewer than two.

    >>> standard_error(np.array([2.0, 4.0, 6.0, 8.0]), np.array([2.0, 2.0, 2.0, 2.0]))
    0.645...
    """
    n = len(totals)
    if n < 2 or not counts.any():
        return None
    apart = totals - totals.sum() / counts.sum() * counts
    return math.sqrt(n / (n - 1) * float(apart @ apart)) / float(counts.sum())


class StoredLoss(NamedTuple):
    """The mean loss of a target in nats, and the counts of `TotalLoss`."""

    nats: float
    places: int
    right: int
    commonest: int
    classes: dict[str, float]
    tokens: int
    too_long: int


def stored_loss(task: Task, model: Transformer, source: Source, layout: Layout) -> StoredLoss:
    """Return the loss by teacher forcing, from ids on disk as in training: a corpus of any size will do."""
    encoding = Encoding(layout, task.tokenizers, task.labels)
    with tempfile.TemporaryDirectory() as folder, StoreWriter(Path(folder) / "held", encoding.sizes) as writer:
        encoding.fill(source, writer)
        store = writer.close({})
        held_out = ValidationSet(store=store, tokens=AT_ONCE, score_records=0, samples=0)
        total = loss_of(model, task, held_out)
    tokens = sum(store.sizes[name].tokens for name in layout.texts)
    return StoredLoss(total.nats / max(total.places, 1), *total[1:5], tokens, encoding.too_long)
