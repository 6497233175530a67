"""Design it: a head by hand, as functions that give each word its query, key and value, graded on every sentence.

A checker has `sentences`, and `targets(words, place)`: the places that the query there should look at, or None if it
may look anywhere. With `result(words, place)` the head's output is compared too. `causal` hides what comes later.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from clearhead.exercises.answers import Answer, unpack
from clearhead.exercises.exercise import Exercise

ENOUGH = 0.9
"""The weight that a query must put on its targets; and how near an output must be to what is asked."""
ROLES = ("query", "key", "value")

Sentence = Sequence[str]


@final
@dataclass(frozen=True, kw_only=True)
class Worst:
    """The query that does worst: in which sentence, at which place, and with how much weight on its targets."""

    sentence: Sentence
    place: int
    share: float
    output: list[float] | None = None
    wanted: list[float] | None = None


def design_roles(exercise: Exercise) -> tuple[str, ...]:
    """Return the functions that are asked for: values only if the head's output is graded."""
    return ROLES if "result" in exercise.checks else ROLES[:2]


def design_cases(exercise: Exercise) -> list[tuple[str, int]]:
    """Return every word with every place where it stands in some sentence."""
    found = {(word, place) for words in exercise.checks["sentences"]() for place, word in enumerate(words)}
    return sorted(found)


def read_vectors(exercise: Exercise, answers: Sequence[Answer]) -> dict[tuple[str, int], Tensor] | None:
    """Return the vector of each word and place; None if they are not all rows of as many numbers."""
    vectors = [unpack(answer.get("values")) for answer in answers]
    try:
        made = [torch.as_tensor(vector, dtype=torch.float64) for vector in vectors]
    except (TypeError, ValueError, RuntimeError):
        return None
    sizes = {tuple(vector.shape) for vector in made}
    if (
        len(sizes) != 1
        or len(size := next(iter(sizes))) != 1
        or size[0] == 0
        or not all(bool(vector.isfinite().all()) for vector in made)
    ):
        return None
    return dict(zip(design_cases(exercise), made, strict=True))


def weights_of(vectors: dict[str, Any], words: Sentence, *, causal: bool) -> Tensor:
    """Return softmax(q · k / √d) of a sentence."""
    query, key = (torch.stack([vectors[role][word, at] for at, word in enumerate(words)]) for role in ROLES[:2])
    scores = query @ key.T / math.sqrt(query.shape[1])
    if causal:
        scores = scores.masked_fill(~torch.ones(scores.shape, dtype=torch.bool).tril(), -math.inf)
    return torch.softmax(scores, -1).nan_to_num()  # numbers may be so large that their products are infinite


def grade_design(exercise: Exercise, vectors: dict[str, Any]) -> tuple[float, Worst]:
    """Return the credit, which is the mean weight on targets over all queries of all sentences; and the worst query."""
    rows = list(grade_queries(exercise, vectors))
    return sum(row.share for row in rows) / len(rows), min(rows, key=lambda row: round(row.share, 9))


def grade_queries(exercise: Exercise, vectors: dict[str, Any]) -> Iterator[Worst]:
    checks = exercise.checks
    for words in checks["sentences"]():
        weight = weights_of(vectors, words, causal=checks.get("causal", False))
        for place in range(len(words)):
            targets = checks["targets"](words, place)
            share = 1.0 if targets is None else float(weight[place, list(targets)].sum())
            if "result" not in checks:
                yield Worst(sentence=words, place=place, share=share)
                continue
            values = torch.stack([vectors["value"][word, at] for at, word in enumerate(words)])
            output, wanted = weight[place] @ values, checks["result"](words, place)
            fits = len(output) == len(wanted)
            off = float((output - torch.tensor(wanted, dtype=torch.float64)).abs().max()) if fits else 1.0
            share = min(share, max(0.0, 1 - off))
            yield Worst(sentence=words, place=place, share=share, output=output.tolist(), wanted=list(wanted))
