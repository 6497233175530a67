"""The wide part of a classifier: fitted before training, kept once in the run's folder, and weighed at the end.

It is the line to beat as well: a linear support vector machine on the n-grams of the model's own tokens. Its weights
are found once by L-BFGS, in seconds, and then stay as they are in ngrams.safetensors; checkpoints hold the Transformer
alone. When training ends, the validation set chooses how much each of the two counts.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple, cast, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from clearhead.model.outputs import Classes
from clearhead.model.sizes import Spec
from clearhead.model.transformers import DecoderSpec, EncoderSpec
from clearhead.model.wide import ORDERS, SHARES, NgramLogits, ToNgramLogits, hash_ngrams
from clearhead.text.tokenizer import Tokenizer
from clearhead.training.baseline import Baseline
from clearhead.training.linear import DesignMatrix, Figures, Keys, LinearScore, Sparse, fit_linear, unique_pairs
from clearhead.training.scores import macro_f1

Values = NDArray[np.float64]
LETTERS = (2, 3, 4, 5)
"""How many letters of a token make a group; the sign for the start of a word counts as a letter."""
RARE_RECORDS = 20_000
"""From so many records on, pairs and triples of tokens that only one record has get no weights."""
MOST_WEIGHTS = 1 << 22
"""The most weights that a table of pairs or triples has: with many classes only frequent n-grams have rows."""
ROOM, MOST_BUCKETS = 8, 1 << 20
"""Buckets for each n-gram that has a row, so that few others fall on them; and the most that there are."""
HASHED = 1 << 30
"""Numbers that triples are hashed to when the different ones are counted."""
DEEP_SHARES = (0.0, *(2.0**power for power in range(-7, 2)))
SCALES = tuple(2.0 ** (power / 2) for power in range(-4, 11))
"""What is tried for the Transformer's logits, beside those of the n-grams times 1; and for the sum of both."""


class Letters(NamedTuple):
    """Groups of letters within each token: those of token i are `groups[starts[i]:starts[i + 1]]`."""

    starts: Keys
    groups: Keys
    n_groups: int

    def inside(self, tokens: "Occurrences") -> "Occurrences":
        """Return the groups of letters within these tokens, as occurrences in the same documents."""
        lengths = self.starts[tokens.keys + 1] - self.starts[tokens.keys]
        within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        groups = self.groups[np.repeat(self.starts[tokens.keys], lengths) + within]
        return Occurrences(
            np.repeat(tokens.documents, lengths),
            groups,
            np.repeat(tokens.shares, lengths),
            np.repeat(tokens.squares, lengths),
        )

    def add_up(self, values: Values) -> Values:
        """Return for each token the sum of its groups' values, `(groups, …)`."""
        summed = np.zeros((len(self.groups) + 1, *values.shape[1:]))
        np.cumsum(values[self.groups], 0, out=summed[1:])
        return summed[self.starts[1:]] - summed[self.starts[:-1]]


def letters_of(tokenizer: Tokenizer) -> Letters:
    """Return the groups of letters within each token of a vocabulary; the start of a word counts as a letter."""
    known: dict[str, int] = {}
    starts, groups = [0], list[int]()
    for place in range(tokenizer.vocabulary):
        token = tokenizer.token(place)
        for n in LETTERS:
            groups += [known.setdefault(token[i : i + n], len(known)) for i in range(len(token) - n + 1)]
        starts.append(len(groups))
    return Letters(np.array(starts), np.array(groups, np.int64), len(known))


class Occurrences(NamedTuple):
    """N-grams of one kind, one entry for each place where one occurs: its document, its key, and its share there.

    If an n-gram occurs c times in a document, its shares add up to 1 + log c, and its `squares` to the square of that.
    """

    documents: Keys
    keys: Keys
    shares: Values
    squares: Values


def find_ngrams(rows: Sequence[Sequence[int]], letters: Letters, buckets: int) -> dict[str, Occurrences]:
    """Return the n-grams of each kind that occur in rows of ids."""
    lengths = np.array([len(row) for row in rows])
    ids = np.concatenate([np.asarray(row, np.int64) for row in rows])
    documents = np.repeat(np.arange(len(rows)), lengths)
    positions = np.arange(len(ids)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    occurrences = {}
    for name, order in ORDERS.items():
        key = ids if order == 1 else hash_ngrams(torch.from_numpy(ids[None]), order, buckets)[0].numpy()
        complete = positions >= order - 1
        document, key = documents[complete], key[complete]
        count = repetitions(document, key)
        occurrences[name] = Occurrences(document, key, (1 + np.log(count)) / count, (1 + np.log(count)) ** 2 / count)
    occurrences["letters"] = letters.inside(occurrences["token"])
    return occurrences


def repetitions(documents: Keys, keys: Keys) -> Keys:
    """Return for each entry how many entries have the same document and key."""
    order = np.lexsort((keys, documents))
    count = unique_pairs(documents, keys)[2]
    counts = np.empty(len(keys), np.int64)
    counts[order] = np.repeat(count, count)
    return counts


@final
@dataclass(frozen=True)
class FittedLinear(Baseline):
    """A linear model that was fitted to the training records: its score on the dev records, the spec of the wide part
    that it makes, and that part.
    """

    score: LinearScore
    spec: NgramLogits
    part: ToNgramLogits

    def announce(self) -> str:
        return self.score.announce()

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self.score), SHARES: self.part.get_buffer(SHARES).tolist()}

    def wide_part(self) -> ToNgramLogits:
        return self.part

    def joined(self, spec: Spec) -> Spec:
        if not has_wide(spec):
            return spec
        classes = cast(EncoderSpec | DecoderSpec, spec)
        return replace(classes, output=replace(cast(Classes, classes.output), ngrams=self.spec))


def has_wide(spec: Spec) -> bool:
    """Return whether a model of this spec has a wide part."""
    return len(spec.stacks) == 1 and spec.output is not None and spec.output.reads_tokens


def count_buckets(rows: Sequence[Sequence[int]]) -> int:
    """Return a power of two: `ROOM` buckets for each different triple of tokens, unless there are too many."""
    ids = torch.tensor([[token for row in rows for token in row]])
    return min(MOST_BUCKETS, 1 << (ROOM * len(hash_ngrams(ids, 3, HASHED).unique())).bit_length())


def pick_buckets(occurrences: Occurrences, least: int, classes: int) -> Keys:
    """Return the buckets that get a row, in order: those of n-grams that `least` records have, or more if too many."""
    keys, df = np.unique(unique_pairs(occurrences.documents, occurrences.keys)[1], return_counts=True)
    while (df >= least).sum() > MOST_WEIGHTS // classes:
        least += 1
    return keys[df >= least]


def fit_wide(
    rows: Sequence[Sequence[int]],
    target: Tensor,
    tokenizer: Tokenizer,
    class_weight: Tensor | None = None,
    *,
    seconds: float = math.inf,
) -> tuple[NgramLogits, ToNgramLogits, int]:
    """Return the spec of a wide part, the part itself, and how many n-grams it has weights for.

    `target` has a row for each row of ids: 1 for its class, else 0. Without `class_weight` all classes weigh the same.
    Weights are looked for at most so many `seconds`.
    """
    class_weight = torch.ones(target.shape[1]) if class_weight is None else class_weight
    letters, classes, n, buckets = letters_of(tokenizer), target.shape[1], len(rows), count_buckets(rows)
    found, slots = find_ngrams(rows, letters, buckets), dict[str, Keys]()
    for name in ("pair", "triple"):
        picked = pick_buckets(found[name], 2 if n >= RARE_RECORDS else 1, classes)
        slots[name] = np.zeros(buckets, np.int64)
        slots[name][picked] = np.arange(1, len(picked) + 1)
    spec = NgramLogits(int(slots["pair"].max()), int(slots["triple"].max()), buckets)
    part = spec.build(tokenizer.vocabulary, classes)
    idf = dict[str, Values]()
    documents, columns, values, first = list[Keys](), list[Keys](), list[Values](), 0
    for name, occurrences in found.items():
        column = slots[name][occurrences.keys] if name in slots else occurrences.keys
        width = letters.n_groups if name == "letters" else len(part.get_buffer(f"table_{name}"))
        df = np.bincount(unique_pairs(occurrences.documents, column)[1], minlength=width).clip(min=1)
        if name in slots:
            df[0] = 1  # n-grams without a row are rare ones
        idf[name] = np.log((1 + n) / (1 + df)) + 1
        norm = np.sqrt(np.bincount(occurrences.documents, occurrences.squares * idf[name][column] ** 2, n))
        scale, stored = idf[name][column], occurrences
        if name == "letters":  # by token: the groups of each token, times their idf, are a matrix of their own
            scale, stored, column, width = 1.0, found["token"], found["token"].keys, tokenizer.vocabulary
        value = stored.shares * scale / np.maximum(norm, 1e-6)[stored.documents]
        weighs = column > 0 if name in slots else np.ones(len(column), bool)
        values.append(value[weighs])
        columns.append(column[weighs] + first)
        documents.append(stored.documents[weighs])
        first += width
    order = np.argsort(np.concatenate(documents), kind="stable")
    starts = np.searchsorted(np.concatenate(documents)[order], np.arange(n + 1))
    column = np.concatenate(columns)[order]
    value = torch.from_numpy(np.concatenate(values)[order].astype(np.float32))
    records = Sparse(torch.from_numpy(starts), torch.from_numpy(column), value, first)
    groups = torch.from_numpy(idf["letters"][letters.groups].astype(np.float32))
    inside = Sparse(torch.from_numpy(letters.starts), torch.from_numpy(letters.groups), groups, letters.n_groups)
    x = DesignMatrix(records, inside, first - tokenizer.vocabulary)
    fill_tables(part, fit_linear(x, target, class_weight, seconds=seconds), idf, letters)
    for name, slot in slots.items():
        part.get_buffer(f"slots_{name}").copy_(torch.from_numpy(slot))
    return spec, part, len(np.unique(column))


@torch.no_grad()
def fill_tables(part: ToNgramLogits, fitted: Tensor, idf: Mapping[str, Values], letters: Letters) -> None:
    """Copy weights, times their idf, into the tables; for letters, the sum over each token."""
    *weights, bias = fitted.split([*map(len, idf.values()), 1])
    part.get_buffer("bias").copy_(bias[0])
    for (name, idf_values), weight in zip(idf.items(), weights, strict=True):
        table, square = weight.numpy() * idf_values[:, None], idf_values**2
        if name == "letters":
            table, square = letters.add_up(table), letters.add_up(square)
        part.get_buffer(f"table_{name}").copy_(torch.from_numpy(table.astype(np.float32)))
        part.get_buffer(f"square_{name}").copy_(torch.from_numpy(square.astype(np.float32)))


def score_logits(logits: Tensor, labels: Tensor) -> Figures:
    """Return how often the largest logit is that of the label, and the macro F1."""
    answers = logits.argmax(-1)
    return Figures(
        (answers == labels).sum().item() / max(1, len(labels)),
        macro_f1(Counter(zip(labels.tolist(), answers.tolist(), strict=True))),
    )


def choose_shares(deep: Tensor, wide: Tensor, labels: Tensor) -> tuple[float, float]:
    """Return what to multiply the logits of a Transformer and of n-grams by, so that their sum fits the labels best.

    The shares are those with the least cross-entropy, so that probabilities are calibrated too; to count at all, the
    Transformer has to gain one nat (Akaike's criterion). Left out is what has less accuracy or macro F1 than the linear
    model alone on the same records, or less of both than the Transformer alone.
    """
    line, transformer = score_logits(wide, labels), score_logits(deep, labels)
    nats = dict[tuple[float, float], float]()
    for of_deep, of_wide in (*((share, 1.0) for share in DEEP_SHARES), (1.0, 0.0)):
        logits = (deep * of_deep + wide * of_wide).float()
        figures = score_logits(logits, labels)
        loses_to_line = figures.accuracy < line.accuracy or figures.macro_f1 < line.macro_f1
        if loses_to_line or (figures.accuracy < transformer.accuracy and figures.macro_f1 < transformer.macro_f1):
            continue
        for scale in SCALES:
            loss = F.cross_entropy(logits * scale, labels, reduction="sum").item()
            nats[of_deep * scale, of_wide * scale] = loss + (of_deep > 0)
    return min(nats, key=lambda shares: nats[shares])
