"""The wide part of a classifier: fitted before training, kept once in the run's folder, and weighed at the end.

It is the line to beat as well: a linear support vector machine on the n-grams of the model's own tokens. Its weights
are found once by Newton's method, in seconds, and then stay as they are in ngrams.safetensors; checkpoints hold the
Transformer alone. When training ends, the validation set chooses how much each of the two counts.
"""

import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from clearhead.decoding.session import pad_right
from clearhead.model import Classes, DecoderSpec, EncoderSpec
from clearhead.model.outputs import ORDERS, SHARES, NgramLogits, ToNgramLogits, hash_ngrams
from clearhead.model.sizes import Spec
from clearhead.text.tokenizer import Tokenizer
from clearhead.training.baseline import Baseline, DesignMatrix, Figures, Keys, LinearScore, Sparse, fit_linear
from clearhead.training.scores import macro_f1

Values = NDArray[np.float64]
LETTERS = (2, 3, 4, 5)
"""How many letters of a token make a group; the sign for the start of a word counts as a letter."""
RARE_RECORDS = 20_000
"""From so many records on, pairs, triples and groups of letters that only one record has get no weights. That leaves a
third of them, and a fit takes a third of the time; with 3,000 records it costs 0.3 to 0.7 points, with 15,000 0.5."""
MOST_WEIGHTS = 1 << 22
"""The most weights that a table of pairs or triples has: with many classes only frequent n-grams have rows."""
ROOM, MOST_BUCKETS = 8, 1 << 20
"""Buckets for each n-gram that has a row, so that few others fall on them; and the most that there are."""
FIRST_FIT = 0.6
"""The share of the time for weights in which those without class weights are looked for."""
HASH = np.uint64(0x9E3779B97F4A7C15)
"""An odd number to multiply by: 2⁶⁴ divided by the golden ratio."""
DEEP_SHARES = (0.0, *(2.0**power for power in range(-7, 2)))
SCALES = tuple(2.0 ** (power / 2) for power in range(-4, 11))
"""What is tried for the Transformer's logits, beside those of the n-grams times 1; and for the sum of both."""


class Letters(NamedTuple):
    """Groups of letters within each token: those of token i are `groups[starts[i]:starts[i + 1]]`."""

    starts: Keys
    groups: Keys
    n_groups: int

    def of(self, tokens: Keys) -> tuple[Keys, Keys]:
        """Return how many groups each of these tokens has, and all of them one after another."""
        lengths = self.starts[tokens + 1] - self.starts[tokens]
        within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return lengths, self.groups[np.repeat(self.starts[tokens], lengths) + within]

    def inside(self, tokens: "Occurrences") -> "Occurrences":
        """Return the groups of letters within these tokens, as occurrences in the same documents."""
        lengths, groups = self.of(tokens.keys)
        return Occurrences(
            np.repeat(tokens.documents, lengths),
            groups,
            np.repeat(tokens.shares, lengths),
            np.repeat(tokens.squares, lengths),
        )

    def matrix(self, tokens: Keys, idf: Values, picked: Keys) -> Sparse:
        """Return the idf of the picked groups of letters by token, a row for each of these tokens."""
        lengths, groups = self.of(tokens)
        column = np.full(self.n_groups, -1)
        column[picked] = np.arange(len(picked))
        kept = column[groups] >= 0
        starts = np.r_[0, np.cumsum(kept)][np.r_[0, np.cumsum(lengths)]]
        values = torch.from_numpy(idf[groups[kept]].astype(np.float32))
        return Sparse(torch.from_numpy(starts), torch.from_numpy(column[groups[kept]]), values, len(picked))


def letters_of(tokenizer: Tokenizer) -> Letters:
    """Return the groups of letters within each token of a vocabulary; the start of a word counts as a letter.

    A group is known by a hash of 64 bits, so that they are found for all tokens at once.
    """
    tokens = [tokenizer.token(place) for place in range(tokenizer.vocabulary)]
    lengths = np.array([len(token) for token in tokens])
    letters = np.frombuffer("".join(tokens).encode("utf-32-le", "surrogatepass"), np.uint32).astype(np.uint64)
    owner, place = np.repeat(np.arange(len(tokens)), lengths), np.arange(len(letters))
    place -= np.repeat(np.cumsum(lengths) - lengths, lengths)
    counts = [np.maximum(lengths - n + 1, 0) for n in LETTERS]
    starts = np.r_[0, np.cumsum(sum(counts))]
    keys, first = np.zeros(starts[-1], np.uint64), starts[:-1].copy()
    for n, count in zip(LETTERS, counts, strict=True):
        at = np.flatnonzero(place + n <= lengths[owner])
        key = np.full(len(at), n, np.uint64)
        for i in range(n):
            key = (key ^ letters[at + i]) * HASH
            key ^= key >> np.uint64(29)
        keys[first[owner[at]] + place[at]] = key
        first += count
    different, groups = np.unique(keys, return_inverse=True)
    return Letters(starts, groups, len(different))


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
    pairs = one_key(documents, keys)
    order = np.argsort(pairs)
    first = np.flatnonzero(np.diff(pairs[order], prepend=-1))
    count = np.diff(first, append=len(pairs))
    counts = np.empty(len(pairs), np.int64)
    counts[order] = np.repeat(count, count)
    return counts


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


def pick_keys(occurrences: Occurrences, least: int, classes: int) -> Keys:
    """Return the n-grams that get a row, in order: those that `least` records have, or more if they are too many."""
    df = np.bincount(unique_pairs(occurrences.documents, occurrences.keys)[1])
    while (df >= least).sum() > MOST_WEIGHTS // classes:
        least += 1
    return np.flatnonzero(df >= least)


@dataclass(frozen=True, kw_only=True)
class NgramFeatures:
    """The n-grams of some records as features: their `design`, and what makes a wide part of its weights.

    `rows` has the n-grams of each kind that have weights, by name, in the order of the design's columns.
    """

    design: DesignMatrix
    spec: NgramLogits
    rows: dict[str, Keys]
    idf: dict[str, Values]
    letters: Letters

    def to_part(self, weights: Tensor) -> ToNgramLogits:
        """Return the wide part with these weights, times their idf, in its tables; for letters, the sum over each
        token of the vocabulary, those that no record has as well.
        """
        vocabulary, classes = len(self.letters.starts) - 1, weights.shape[1]
        part = self.spec.build(vocabulary, classes)
        *by_kind, bias = weights.split([*map(len, self.rows.values()), 1])
        part.get_buffer("bias").copy_(bias[0])
        for (name, rows), weight in zip(self.rows.items(), by_kind, strict=True):
            table, square, idf = part.get_buffer(f"table_{name}"), self.idf[name] ** 2, self.idf[name]
            if name == "letters":
                table.copy_(self.letters.matrix(np.arange(vocabulary), idf, rows).times(weight))
                summed = np.r_[0, np.cumsum(square[self.letters.groups])]
                square = summed[self.letters.starts[1:]] - summed[self.letters.starts[:-1]]
            elif name == "token":
                table[torch.from_numpy(rows)] = weight * torch.from_numpy(idf[rows].astype(np.float32))[:, None]
            else:
                table[1:] = weight * torch.from_numpy(idf[1:].astype(np.float32))[:, None]
                part.get_buffer(f"slots_{name}")[torch.from_numpy(rows)] = torch.arange(1, len(rows) + 1).int()
            part.get_buffer(f"square_{name}").copy_(torch.from_numpy(square.astype(np.float32)))
        return part


def make_features(
    rows: Sequence[Sequence[int]], letters: Letters, classes: int, *, quick: bool = False
) -> NgramFeatures:
    """Return the n-grams of rows of ids as features for a linear model of so many classes; if it has to be `quick`,
    those that only one record has are left out, however few records there are.

    A pair or triple has a row of weights if it is frequent enough; all others share row 0, which has none. Only tokens
    that occur, and groups of letters in them, have weights.
    """
    n, n_tokens = len(rows), sum(map(len, rows))
    buckets = min(MOST_BUCKETS, 1 << (ROOM * n_tokens).bit_length())
    found = find_ngrams(rows, letters, buckets)
    least = 2 if quick or n >= RARE_RECORDS else 1
    picked = {name: pick_keys(found[name], least, classes) for name in ("pair", "triple", "letters")}
    tokens = np.flatnonzero(np.bincount(found["token"].keys))
    token = np.searchsorted(tokens, found["token"].keys)
    picked = {name: tokens if name == "token" else picked[name] for name in ORDERS}
    idf, documents, columns, values, first = dict[str, Values](), list[Keys](), list[Keys](), list[Values](), 0
    for name, occurrences in found.items():
        column, width = occurrences.keys, len(letters.starts) - 1 if name == "token" else letters.n_groups
        if ORDERS[name] > 1:  # by row: a key that is not picked has row 0
            slots = np.zeros(buckets, np.int64)
            slots[picked[name]] = np.arange(1, len(picked[name]) + 1)
            column, width = slots[column], len(picked[name]) + 1
        df = np.bincount(unique_pairs(occurrences.documents, column)[1], minlength=width).clip(min=1)
        if ORDERS[name] > 1:
            df[0] = 1  # n-grams without a row are rare ones
        idf[name] = np.log((1 + n) / (1 + df)) + 1
        norm = np.sqrt(np.bincount(occurrences.documents, occurrences.squares * idf[name][column] ** 2, n))
        scale, stored = idf[name][column], occurrences
        if name == "letters":  # by token: the groups of each token, times their idf, are a matrix of their own
            scale, stored, column = 1.0, found["token"], token
        elif name == "token":
            column = token
        else:
            column = column - 1
        value = stored.shares * scale / np.maximum(norm, 1e-6)[stored.documents]
        weighs = column >= 0
        values.append(value[weighs])
        columns.append(column[weighs] + first)
        documents.append(stored.documents[weighs])
        first += len(tokens) if name == "letters" else len(picked[name])
    order = np.argsort(np.concatenate(documents), kind="stable")
    starts = np.searchsorted(np.concatenate(documents)[order], np.arange(n + 1))
    value = torch.from_numpy(np.concatenate(values)[order].astype(np.float32))
    records = Sparse(torch.from_numpy(starts), torch.from_numpy(np.concatenate(columns)[order]), value, first)
    inside = letters.matrix(tokens, idf["letters"], picked["letters"])
    spec = NgramLogits(len(picked["pair"]), len(picked["triple"]), buckets)
    design = DesignMatrix(records, inside, first - len(tokens))
    return NgramFeatures(design=design, spec=spec, rows=picked, idf=idf, letters=letters)


def one_key(documents: Keys, keys: Keys) -> Keys:
    """Return a number for each pair of document and key, in the order of the pairs. Keys are below 2³¹."""
    return documents << 31 | keys


def unique_pairs(documents: Keys, keys: Keys) -> tuple[Keys, Keys]:
    """Return the different pairs of document and key, in order."""
    pairs = np.sort(one_key(documents, keys))  # numpy's own `unique` hashes whole numbers: such ones take minutes
    pairs = pairs[np.diff(pairs, prepend=-1) > 0]
    return pairs >> 31, pairs & ((1 << 31) - 1)


def class_weights(target: Tensor) -> Tensor:
    """Return a weight for each class: the root of its inverse frequency, scaled so that the mean over records is 1.

    >>> class_weights(torch.tensor([[1.0, 0.0]] * 4 + [[0.0, 1.0]])).tolist()
    [0.833..., 1.666...]
    """
    count = target.sum(0)
    weight = count.clamp(min=1).rsqrt()
    return weight * (len(target) / (weight * count).sum())


class LinearFit(NamedTuple):
    """A linear model of n-grams: its features, and its weights; then those in which rare classes weigh more."""

    features: NgramFeatures
    weights: Sequence[Tensor]
    records: int


def fit_ngrams(
    rows: Sequence[Sequence[int]],
    labels: Tensor,
    letters: Letters,
    classes: int,
    *,
    quick: bool = False,
    seconds: float = math.inf,
) -> LinearFit:
    """Fit a linear model to rows of ids with labels, first with the same weight for all classes, then from there with
    a weight by class; the second is left out if too few of the seconds are left for it.
    """
    end = time.perf_counter() + seconds
    features = make_features(rows, letters, classes, quick=quick)
    target = F.one_hot(labels, classes).float()
    x, left = features.design, max(0.0, end - time.perf_counter())
    fitted = [fit_linear(x, target, torch.ones(classes), seconds=FIRST_FIT * left)]
    left = end - time.perf_counter()
    if math.isinf(seconds) or left > (1 - FIRST_FIT) / 2 * seconds:
        fitted.append(fit_linear(x, target, class_weights(target), start=fitted[0], seconds=left))
    return LinearFit(features, fitted, len(rows))


def choose_fit(fit: LinearFit, held: Sequence[Sequence[int]], labels: Tensor, *, seconds: float) -> FittedLinear:
    """Return the linear model with the weights that held-out rows are better off with.

    Weights by class are for rare labels: they are kept if the macro F1 rises and no fewer rows are right. `seconds` is
    how long the fit took.
    """
    batches = [pad_right(held[i : i + 64], torch.device("cpu")) for i in range(0, len(held), 64)]
    parts = [fit.features.to_part(weights) for weights in fit.weights]
    logits = [torch.cat([part(*batch) for batch in batches]) for part in parts]
    figures = [score_logits(found, labels) for found in logits]
    rises = figures[-1].macro_f1 > figures[0].macro_f1 and figures[-1].accuracy >= figures[0].accuracy
    kept = -1 if rises else 0
    shares = choose_shares(torch.zeros_like(logits[kept]), logits[kept], labels)
    parts[kept].get_buffer(SHARES).copy_(torch.tensor(shares))
    n_features = fit.features.design.width
    score = LinearScore(**figures[kept]._asdict(), features=n_features, records=fit.records, seconds=seconds)
    return FittedLinear(score, fit.features.spec, parts[kept])


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
