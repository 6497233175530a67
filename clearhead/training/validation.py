"""How good a model is on held-out records: the loss of all of them, scores and samples of some."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import final

import numpy as np
import torch
from torch import nn

from clearhead.decoding import Sample
from clearhead.decoding.generating import eval_mode
from clearhead.devices import widest_float
from clearhead.text.store import Store
from clearhead.text.tokenizer import Tokenizer
from clearhead.training import answers
from clearhead.training.losses import NOTHING, cross_entropy
from clearhead.training.scores import score_translations
from clearhead.training.tasks import Classify, Fill, Generate, Task, Translate
from clearhead.training.train_step import moved

__all__ = ["Assessment", "assess", "goal"]

DEV_SEED = 0
SAMPLE_TOKENS = 100


@final
@dataclass(frozen=True, kw_only=True)
class Assessment:
    """Mean loss in nats a place, scores by name, and samples with input, output and (where there is one) reference."""

    loss: float
    places: int
    scores: Mapping[str, float]
    samples: list[dict[str, str]] = field(default_factory=list)


@final
@dataclass(frozen=True, kw_only=True)
class Held:
    """What is assessed on: a store of held-out records, in batches of so many tokens."""

    store: Store
    tokens: int
    score_records: int
    samples: int
    bfloat16: bool = False


def assess(model: nn.Module, task: Task, held: Held) -> Assessment:
    """The loss of every held-out record, and the task's own scores."""
    loss, places, right = loss_of(model, task, held)
    scores, samples = SCORED[type(task)](model, task, held)
    if isinstance(task, Classify | Fill):
        scores = {"accuracy": right / max(places, 1), **scores}
    return Assessment(loss=loss / max(places, 1), places=places, scores=scores, samples=samples)


def loss_of(model: nn.Module, task: Task, held: Held) -> tuple[float, int, int]:
    """Nats in all, places that asked, and how many of them the likeliest answer was right at."""
    device = next(model.parameters()).device
    random = np.random.default_rng(DEV_SEED)
    nll, right, places = torch.zeros((), dtype=widest_float(device), device=device), torch.zeros((), device=device), 0
    with eval_mode(model), torch.autocast(device.type, torch.bfloat16, enabled=held.bfloat16):
        for rows in task.planner(held.store, held.tokens, DEV_SEED).in_order():
            batch = moved(task.read(held.store, rows, random, filled=False), device)
            logits, wanted = task.logits(model, batch).flatten(0, -2), batch["wanted"].flatten()
            nll += cross_entropy(logits, wanted).nll
            right += (logits.argmax(-1) == wanted).sum()
            places += int((wanted != NOTHING).sum())
    return nll.item(), places, int(right.item())


def scored_translations(model: nn.Module, task: Task, held: Held) -> tuple[dict[str, float], list[dict[str, str]]]:
    """BLEU, chrF and exact match of greedy translations of records spread over the store."""
    assert isinstance(task, Translate)
    which = spread(len(held.store), held.score_records)
    if not which:
        return {}, []
    rows = [held.store["source"][i].tolist() for i in which]
    found = answers.translate(model, task, rows)
    target = task.tokenizers["target"]
    outputs = [target.decode(hypotheses[0].tokens) for hypotheses in found]
    references = [target.decode(held.store["target"][i].tolist()) for i in which]
    scores = score_translations(outputs, references)
    inputs = [task.tokenizers["source"].decode(row) for row in rows[: held.samples]]
    return {"bleu": scores.bleu, "chrf": scores.chrf, "exact_match": scores.exact_match}, [
        {"input": one, "output": output, "reference": reference}
        for one, output, reference in zip(inputs, outputs, references, strict=False)
    ]


def sampled_texts(model: nn.Module, task: Task, held: Held) -> tuple[dict[str, float], list[dict[str, str]]]:
    """No score beside the loss; a continuation of the beginnings of a few stretches, drawn with a fixed seed."""
    assert isinstance(task, Generate)
    tokenizer, text = task.tokenizers["text"], held.store["text"].ids
    length = min(16, task.context // 4, len(text))
    starts = spread(len(text) - length + 1, held.samples)
    rows = [[int(token) for token in text[start : start + length]] for start in starts]
    new = min(SAMPLE_TOKENS, max(1, task.context - length))
    method = Sample(temperature=0.8, seeds=tuple(range(len(rows))))
    found = answers.continue_texts(model, task, rows, method, max_new=new, opened=False) if rows else []
    return {}, [
        {"input": tokenizer.decode(row), "output": answers.continued(tokenizer, row, one[0].tokens)}
        for row, one in zip(rows, found, strict=True)
    ]


def sampled_classes(model: nn.Module, task: Task, held: Held) -> tuple[dict[str, float], list[dict[str, str]]]:
    assert isinstance(task, Classify)
    which = spread(len(held.store), held.samples)
    rows = [held.store["text"][i].tolist() for i in which]
    found = answers.classify(model, task, rows) if rows else []
    return {}, [
        {
            "input": task.tokenizers["text"].decode(row),
            "output": one.label,
            "reference": task.labels[int(held.store["label"][i][0])],
        }
        for i, row, one in zip(which, rows, found, strict=True)
    ]


def sampled_fillings(model: nn.Module, task: Task, held: Held) -> tuple[dict[str, float], list[dict[str, str]]]:
    """The middle token of a few records blanked, and filled."""
    assert isinstance(task, Fill)
    tokenizer = task.tokenizers["text"]
    rows = [held.store["text"][i].tolist() for i in spread(len(held.store), held.samples)]
    texts = [with_blank(tokenizer, row) for row in rows]
    return {}, [
        {"input": text, "output": found.text, "reference": tokenizer.decode(row)}
        for row, text, found in zip(rows, texts, answers.fill(model, task, texts), strict=True)
    ]


def with_blank(tokenizer: Tokenizer, row: list[int]) -> str:
    """The text of a row with a blank for its middle token. A token with a space in front leaves the space."""
    at = len(row) // 2
    piece = answers.continued(tokenizer, row[:at], row[at : at + 1])
    space = " " if at and piece.startswith(" ") and piece != " " else ""
    after = answers.continued(tokenizer, row[: at + 1], row[at + 1 :])
    return f"{tokenizer.decode(row[:at])}{space}{answers.BLANK}{after}"


def spread(n: int, count: int) -> list[int]:
    """At most so many of n things, evenly from the first to the last.

    >>> spread(100, 3), spread(2, 5), spread(9, 0)
    ([0, 49, 99], [0, 1], [])
    """
    return [int(i) for i in np.linspace(0, n - 1, min(count, n))]


Scored = Callable[[nn.Module, Task, Held], tuple[dict[str, float], list[dict[str, str]]]]
SCORED: dict[type[Task], Scored] = {
    Translate: scored_translations,
    Generate: sampled_texts,
    Fill: sampled_fillings,
    Classify: sampled_classes,
}


def goal(scores: Mapping[str, float], loss: float) -> float:
    """The one number that the best checkpoint has most of: accuracy, else chrF, else the loss, negated."""
    return next((scores[name] for name in ("accuracy", "chrf") if name in scores), -loss)
