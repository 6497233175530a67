"""A linear classifier on n-grams: the line that a Transformer has to beat, trained in seconds.

Words, pairs of neighbouring words and, where there is little text, groups of letters within words are counted; counts
become tf-idf, and logistic regression with an L2 penalty is fitted by L-BFGS. The penalty is chosen by cross-validation
on the training records alone. Nothing of it goes into the Transformer.
"""

import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

__all__ = ["LinearScore", "NgramCounts", "fit_logistic", "linear_baseline", "split_words"]

Keys = NDArray[np.int64]
UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
"""Letters of scripts that put no spaces between words: Thai, Lao, Burmese, Khmer, kana and Han. Each is a word here."""
WORDS = re.compile(rf"[{UNSPACED}]|[^\W{UNSPACED}]+|[^\w\s]")
"""A word, a letter of a script without spaces, or a sign."""
LETTERS = (3, 4, 5)
"""How many letters of a word make a group; the word's ends count as letters."""
MOST_RECORDS, MOST_CHARACTERS = 200_000, 4_000_000
"""Records that are learned from, evenly over the corpus; characters up to which groups of letters are counted too."""
PENALTIES = (10.0, 3.0, 1.0, 0.3, 0.1)
"""What is tried: the weight of a record's loss beside half the squared norm of the weights is 1 / penalty."""
FOLDS, FOLD_RECORDS = 4, 5_000
"""The penalty is chosen by cross-validation with so many folds, of at most so many records."""
ITERATIONS = 60


@final
@dataclass(frozen=True, kw_only=True)
class LinearScore:
    """How well a linear model does on the dev records: `accuracy`, the `features` it has, the `seconds` it took."""

    accuracy: float
    features: int
    penalty: float
    seconds: float


class Sparse(NamedTuple):
    """A sparse matrix by rows: `columns` and `values` of row i lie from `starts[i]` to `starts[i + 1]`."""

    starts: Tensor
    columns: Tensor
    values: Tensor
    width: int

    def times(self, weights: Tensor) -> Tensor:
        """Return the product with a dense matrix."""
        return F.embedding_bag(
            self.columns, weights, self.starts, mode="sum", per_sample_weights=self.values, include_last_offset=True
        )

    def transposed(self) -> "Sparse":
        """Return it by columns."""
        rows = torch.repeat_interleave(torch.arange(len(self.starts) - 1), self.starts.diff())
        order = torch.argsort(self.columns, stable=True)
        starts = torch.searchsorted(self.columns[order], torch.arange(self.width + 1))
        return Sparse(starts, rows[order], self.values[order], len(self.starts) - 1)

    def rows(self, which: Tensor) -> "Sparse":
        """Return these rows, in this order."""
        counts = self.starts.diff()[which]
        starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        inside = torch.arange(int(starts[-1])) - torch.repeat_interleave(starts[:-1], counts)
        picked = torch.repeat_interleave(self.starts[:-1][which], counts) + inside
        return Sparse(starts, self.columns[picked], self.values[picked], self.width)


def split_words(text: str) -> list[str]:
    """Return the lower-case words and signs of a text; of scripts without spaces, every letter.

    >>> split_words("It's 3 o'clock, 東京")
    ['it', "'", 's', '3', 'o', "'", 'clock', ',', '東', '京']
    """
    return WORDS.findall(text.lower())


@final
class NgramCounts:
    """Texts as tf-idf vectors over the n-grams that the training texts have.

    Counts c become 1 + log c, times log((1 + n) / (1 + df)) + 1, and each kind of n-gram is scaled to length 1 apart,
    so that the many groups of letters do not outweigh the words.
    """

    def __init__(self, texts: Sequence[str], *, letters: bool) -> None:
        self.letters = letters
        self.words: dict[str, int] = {}
        parts = [part for part in self.keys(texts, learn=True)]
        self.known: list[Keys] = []
        self.weight: list[NDArray[np.float32]] = []
        for documents, keys in parts:
            pairs = unique_pairs(documents, keys)
            known, df = np.unique(pairs[1], return_counts=True)
            self.known.append(known)
            self.weight.append((np.log((1 + len(texts)) / (1 + df)) + 1).astype(np.float32))

    @property
    def features(self) -> int:
        return sum(map(len, self.known))

    def keys(self, texts: Sequence[str], *, learn: bool = False) -> list[tuple[Keys, Keys]]:
        """Return, for each kind of n-gram, the documents and the keys of all that occur."""
        tokens: list[int] = []
        lengths = np.zeros(len(texts), np.int64)
        words = self.words
        for place, text in enumerate(texts):
            found = split_words(text)
            lengths[place] = len(found)
            tokens += [words.setdefault(w, len(words) + 1) for w in found] if learn else [words.get(w, 0) for w in found]
        ids, document = np.array(tokens, np.int64), np.repeat(np.arange(len(texts)), lengths)
        inside = (ids[:-1] > 0) & (ids[1:] > 0) & (document[:-1] == document[1:])
        parts = [(document[ids > 0], ids[ids > 0])]
        parts.append((document[:-1][inside], (ids[:-1] << 32 | ids[1:])[inside]))
        return [*parts, letter_keys(texts)] if self.letters else parts

    def vectors(self, texts: Sequence[str]) -> Sparse:
        """Return the texts as rows."""
        rows, columns, values, first = [], [], [], 0
        for (documents, keys), known, weight in zip(self.keys(texts), self.known, self.weight, strict=True):
            place = np.searchsorted(known, keys).clip(max=max(len(known) - 1, 0))
            there = known[place] == keys if len(known) else np.zeros(len(keys), bool)
            document, column, count = unique_pairs(documents[there], place[there])
            value = (1 + np.log(count)).astype(np.float32) * weight[column]
            norm = np.sqrt(np.bincount(document, value * value, len(texts)))[document]
            rows.append(document)
            columns.append(column + first)
            values.append(value / norm)
            first += len(known)
        document = np.concatenate(rows)
        order = np.argsort(document, kind="stable")
        starts = np.searchsorted(document[order], np.arange(len(texts) + 1))
        return Sparse(
            torch.from_numpy(starts),
            torch.from_numpy(np.concatenate(columns)[order]),
            torch.from_numpy(np.concatenate(values)[order].astype(np.float32)),
            first,
        )


def unique_pairs(documents: Keys, keys: Keys) -> tuple[Keys, Keys, Keys]:
    """Return the different pairs of document and key, and how often each occurs."""
    if not len(keys):
        return documents, keys, keys
    order = np.lexsort((keys, documents))
    documents, keys = documents[order], keys[order]
    new = np.flatnonzero(np.r_[True, (documents[1:] != documents[:-1]) | (keys[1:] != keys[:-1])])
    return documents[new], keys[new], np.diff(np.r_[new, len(keys)])


def letter_keys(texts: Sequence[str]) -> tuple[Keys, Keys]:
    """Return the groups of 3 to 5 letters within words as 64-bit hashes, with the documents they are in."""
    spaced = [f" {' '.join(text.lower().split())} " for text in texts]
    lengths = np.array([len(text) for text in spaced])
    signs = np.frombuffer("".join(spaced).encode("utf-32-le", "surrogatepass"), np.uint32).astype(np.uint64)
    document = np.repeat(np.arange(len(texts)), lengths)
    documents, keys = [], []
    space = signs == ord(" ")
    for n in LETTERS:
        last = len(signs) - n + 1
        if last < 1:
            continue
        hashed = np.full(last, n, np.uint64)
        crosses = np.zeros(last, bool)
        for k in range(n):
            hashed = hashed * np.uint64(0x9E3779B97F4A7C15) + signs[k : k + last]
            hashed ^= hashed >> np.uint64(29)
            if 0 < k < n - 1:
                crosses |= space[k : k + last]
        keep = ~crosses & (document[:last] == document[n - 1 :])
        documents.append(document[:last][keep])
        keys.append(hashed[keep].view(np.int64))
    nothing = np.zeros(0, np.int64)
    return np.concatenate([nothing, *documents]), np.concatenate([nothing, *keys])


def fit_logistic(x: Sparse, wanted: Tensor, count: int, penalty: float, *, start: Tensor | None = None) -> Tensor:
    """Return the weights `(width + 1, count)` of multinomial logistic regression, the bias in the last row.

    They minimise the mean cross-entropy plus penalty / (2 n) times the squared norm of all weights but the bias.
    """
    across, n = x.transposed(), len(wanted)
    weights = torch.zeros(x.width + 1, count) if start is None else start.clone()
    target = F.one_hot(wanted, count).float()
    solver = torch.optim.LBFGS([weights], max_iter=ITERATIONS, history_size=8, line_search_fn="strong_wolfe")
    solver.param_groups[0]["tolerance_change"] = 1e-7

    def objective() -> Tensor:
        log_probs = (x.times(weights[:-1]) + weights[-1]).log_softmax(-1)
        difference = (log_probs.exp() - target) / n
        decayed = weights[:-1] * (penalty / n)
        weights.grad = torch.cat([across.times(difference) + decayed, difference.sum(0, keepdim=True)])
        return -(log_probs * target).sum() / n + (decayed * weights[:-1]).sum() / 2

    with torch.no_grad():
        solver.step(objective)  # pyright: ignore[reportArgumentType] - the gradient is known, so nothing is recorded
    return weights


def count_right(x: Sparse, weights: Tensor, wanted: Tensor) -> int:
    return int(((x.times(weights[:-1]) + weights[-1]).argmax(-1) == wanted).sum())


def choose_penalty(x: Sparse, wanted: Tensor, count: int) -> float:
    """Return the penalty that is right most often in cross-validation."""
    which = torch.linspace(0, len(wanted) - 1, min(len(wanted), FOLD_RECORDS)).long()
    fold = torch.randperm(len(which), generator=torch.Generator().manual_seed(0)) % FOLDS
    right = dict.fromkeys(PENALTIES, 0)
    for k in range(FOLDS):
        learn, check = which[fold != k], which[fold == k]
        part, rest, weights = x.rows(learn), x.rows(check), None
        for penalty in PENALTIES:
            weights = fit_logistic(part, wanted[learn], count, penalty, start=weights)
            right[penalty] += count_right(rest, weights, wanted[check])
    return max(PENALTIES, key=lambda penalty: right[penalty])


def linear_baseline(
    texts: Sequence[str], labels: Sequence[int], dev_texts: Sequence[str], dev_labels: Sequence[int]
) -> LinearScore:
    """Train a linear model on the texts, and return its score on the dev texts."""
    started = time.perf_counter()
    every = -(-len(texts) // MOST_RECORDS)
    texts, wanted = texts[::every], torch.tensor(labels[::every])
    counts = NgramCounts(texts, letters=sum(map(len, texts)) <= MOST_CHARACTERS)
    x, count = counts.vectors(texts), int(wanted.max()) + 1
    penalty = choose_penalty(x, wanted, count)
    weights = fit_logistic(x, wanted, count, penalty)
    right = count_right(counts.vectors(dev_texts), weights, torch.tensor(dev_labels))
    return LinearScore(
        accuracy=right / max(len(dev_labels), 1),
        features=counts.features,
        penalty=penalty,
        seconds=time.perf_counter() - started,
    )
