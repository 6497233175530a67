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
ALIKE = 0.01
"""How near two heads' weights, and their outputs, are if the heads make the same mistake."""
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
    made = [read_vector(answer) for answer in answers]
    rows = [vector for vector in made if vector is not None]
    if len(rows) != len(made) or len({len(row) for row in rows}) != 1:
        return None
    return dict(zip(design_cases(exercise), rows, strict=True))


def read_vector(answer: Answer) -> Tensor | None:
    """Return a vector of finite numbers; None if the answer is none."""
    try:
        vector = torch.as_tensor(unpack(answer.get("values")), dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        return None
    return vector if vector.ndim == 1 and len(vector) and bool(vector.isfinite().all()) else None


def odd_vector(exercise: Exercise, answers: Sequence[Answer]) -> tuple[tuple[str, int], Any]:
    """Return the first word and place whose answer is no vector, or a longer or shorter one; and that answer."""
    first = read_vector(answers[0])
    for case, answer in zip(design_cases(exercise), answers, strict=True):
        vector, came = read_vector(answer), unpack(answer["values"])
        if first is None or vector is None or len(vector) != len(first):
            return case, came.tolist() if isinstance(came, Tensor) else came
    raise AssertionError("every answer is a vector as long as the first")


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


def same_head(exercise: Exercise, one: dict[str, Any], other: dict[str, Any], *, by_places: bool) -> bool:
    """Check whether two heads give the same weights and outputs in every sentence; or, `by_places`, whether each query
    looks most at the same places, however flat its weights are.
    """
    causal = exercise.checks.get("causal", False)
    for words in exercise.checks["sentences"]():
        weights = [weights_of(vectors, words, causal=causal) for vectors in (one, other)]
        if by_places:
            ours, theirs = (weight > weight.amax(-1, keepdim=True) - ALIKE for weight in weights)
            if not torch.equal(ours, theirs):
                return False
        elif not torch.allclose(*weights, atol=ALIKE, rtol=0):
            return False
        if "value" in one:
            first, second = (
                weight @ torch.stack([vectors["value"][word, at] for at, word in enumerate(words)])
                for weight, vectors in zip(weights, (one, other), strict=True)
            )
            if first.shape != second.shape or (not by_places and not torch.allclose(first, second, atol=ALIKE, rtol=0)):
                return False
    return True
