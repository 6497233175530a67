"""What a task is: all that the rest of Clearhead asks of translating, generating, filling, classifying, or of your own.

A task has three parts: `Learning` is what trains, `Answering` what answers, `Showing` what shows. Each has a neutral
answer where there is one: a task overrides only what differs.
"""

import math
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clearhead.decoding.generating import eval_mode
from clearhead.model.transformers import Transformer
from clearhead.registry import kind
from clearhead.text.drawing import spread
from clearhead.text.encoding import Encoding, Layout
from clearhead.text.sources import Source
from clearhead.text.store import StoreWriter
from clearhead.training.chunked_loss import logits_by_chunk
from clearhead.training.losses import NOTHING, cross_entropy
from clearhead.training.scores import macro_f1
from clearhead.training.tasks.answering import Answering
from clearhead.training.tasks.learning import Learning
from clearhead.training.tasks.measures import ACCURACY, FEWEST_BATCHES, EvaluationOptions, ValidationSet
from clearhead.training.tasks.showing import Showing
from clearhead.training.tasks.texts import AT_ONCE

DEV_SEED = 0


@kind("task", saved=False)
class Task(Learning, Answering, Showing):
    """What a model is trained to do."""

    def exported(self) -> "Task":
        """Return the task as other programs know it."""
        return self

    def score(self, model: Transformer, held: ValidationSet) -> tuple[dict[str, float], list[dict[str, str]]]:
        """Return scores of held-out records beside loss and accuracy, and samples: input, output and reference."""
        indices = spread(len(held.store), held.samples)
        texts = [self.text_at(held.store, i) for i in indices]
        answers = self.answer(model, texts) if texts else []
        samples = [{"input": text, "output": answer["output"]} for text, answer in zip(texts, answers, strict=True)]
        for i, sample in zip(indices, samples, strict=True):
            if (reference := self.reference(held.store, i)) is not None:
                sample["reference"] = reference
        return {}, samples

    def evaluate(self, model: Transformer, source: Source, how: EvaluationOptions) -> tuple[dict[str, Any], list[str]]:
        """Return the scores on the user's files by name, and the outputs where there are any."""
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
