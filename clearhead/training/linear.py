"""A linear classifier on n-grams: the line that a Transformer has to beat, trained in seconds.

Words, pairs of neighbouring words and, where there is little text, groups of letters within words are counted; counts
become tf-idf, and logistic regression with an L2 penalty is fitted by L-BFGS. Nothing of it goes into the Transformer.
"""

import math
import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from clearhead.training.scores import macro_f1

Keys = NDArray[np.int64]
UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
"""Letters of scripts that put no spaces between words: Thai, Lao, Burmese, Khmer, kana and Han. Each is a word here."""
WORDS = re.compile(rf"[{UNSPACED}]|[^\W{UNSPACED}]+|[^\w\s]")
"""A word, a letter of a script without spaces, or a sign."""
LETTERS = (3, 4, 5)
"""How many letters of a word make a group; the word's ends count as letters."""
MOST_RECORDS, MOST_BYTES, MOST_CHARACTERS = 200_000, 20_000_000, 4_000_000
"""Records and bytes of text that are learned from; characters up to which groups of letters are counted too."""
PENALTY = 0.2
"""The weight of half the squared norm of the weights beside the summed loss. From 0.1 to 1 accuracy hardly changes."""
RARE_RECORDS = 5_000
"""From so many records on, pairs of words and groups of letters that only one record has are left out."""
ITERATIONS = 40
TRY_PRETRAINED = "fine-tune a pretrained model (--from)"


@final
@dataclass(frozen=True, kw_only=True)
class LinearScore:
    """How well a linear model does on the dev records: `accuracy` and `macro_f1`, the `features` it has, how many
    `records` it learned from, the `seconds` it took.
    """

    accuracy: float
    macro_f1: float
    features: int
    records: int
    seconds: float

    def announce(self) -> str:
        """Return the line that is printed before a Transformer is trained."""
        return (
            f"the line to beat: a linear model on {self.features:,} n-grams of {self.records:,} records is right on "
            f"{self.accuracy:.1%} of the dev records, macro F1 {self.macro_f1:.1%} ({self.seconds:.1f} s)"
        )

    def verdict(self, accuracy: float, macro_f1: float, *, tuned: bool = False) -> str:
        """Return the line that compares a Transformer's accuracy on the same records with this one.

        `tuned`: the Transformer was already fine-tuned from another run.
        """
        ours, theirs = (
            f"{right:.1%} (macro F1 {f1:.1%})" for right, f1 in ((accuracy, macro_f1), (self.accuracy, self.macro_f1))
        )
        if accuracy >= self.accuracy:
            return f"dev accuracy {ours}; the linear model on n-grams has {theirs}"
        advice = "train longer, or start from a model that has seen more text" if tuned else TRY_PRETRAINED
        return (
            f"the linear model on n-grams is better: {theirs} of the dev records, and this model {ours}. For these "
            f"texts take a linear model, give more of them, or {advice}"
        )


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

    def logits(self, weights: Tensor) -> Tensor:
        """Return the product with all rows of the weights but the last, plus the last."""
        return self.times(weights[:-1]) + weights[-1]

    def transposed(self) -> "Sparse":
        """Return it by columns."""
        rows = torch.repeat_interleave(torch.arange(len(self.starts) - 1), self.starts.diff())
        order = torch.argsort(self.columns, stable=True)
        starts = torch.searchsorted(self.columns[order], torch.arange(self.width + 1))
        return Sparse(starts, rows[order], self.values[order], len(self.starts) - 1)


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
        self.known: list[Keys] = []
        self.weight: list[NDArray[np.float32]] = []
        for order, (documents, keys) in enumerate(self.keys(texts, learn=True)):
            vocabulary, df = np.unique(unique_pairs(documents, keys)[1], return_counts=True)
            if order > 0 and len(texts) >= RARE_RECORDS:
                vocabulary, df = vocabulary[df > 1], df[df > 1]
            self.known.append(vocabulary)
            self.weight.append((np.log((1 + len(texts)) / (1 + df)) + 1).astype(np.float32))

    @property
    def features(self) -> int:
        return sum(map(len, self.known))

    def keys(self, texts: Sequence[str], *, learn: bool = False) -> list[tuple[Keys, Keys]]:
        """Return, for each kind of n-gram, the documents and the keys of all that occur."""
        tokens: list[int] = []
        lengths = np.zeros(len(texts), np.int64)
        words = self.words
        for row, text in enumerate(texts):
            text_words = split_words(text)
            lengths[row] = len(text_words)
            tokens += (
                [words.setdefault(w, len(words) + 1) for w in text_words]
                if learn
                else [words.get(w, 0) for w in text_words]
            )
        ids, document = np.array(tokens, np.int64), np.repeat(np.arange(len(texts)), lengths)
        inside = (ids[:-1] > 0) & (ids[1:] > 0) & (document[:-1] == document[1:])
        parts = [(document[ids > 0], ids[ids > 0])]
        parts.append((document[:-1][inside], (ids[:-1] << 32 | ids[1:])[inside]))
        return [*parts, letter_keys(texts)] if self.letters else parts

    def vectors(self, texts: Sequence[str]) -> Sparse:
        """Return the texts as rows."""
        rows, columns, values, first = list[Keys](), list[Keys](), list[NDArray[np.float32]](), 0
        for (documents, keys), vocabulary, weight in zip(self.keys(texts), self.known, self.weight, strict=True):
            column_of_key = np.searchsorted(vocabulary, keys).clip(max=max(len(vocabulary) - 1, 0))
            is_known = vocabulary[column_of_key] == keys if len(vocabulary) else np.zeros(len(keys), bool)
            document, column, count = unique_pairs(documents[is_known], column_of_key[is_known])
            value = (1 + np.log(count)).astype(np.float32) * weight[column]
            norm = np.sqrt(np.bincount(document, value * value, len(texts)))[document]
            rows.append(document)
            columns.append(column + first)
            values.append((value / norm).astype(np.float32))
            first += len(vocabulary)
        document = np.concatenate(rows)
        order = np.argsort(document, kind="stable")
        starts = np.searchsorted(document[order], np.arange(len(texts) + 1))
        return Sparse(
            torch.from_numpy(starts),
            torch.from_numpy(np.concatenate(columns)[order]),
            torch.from_numpy(np.concatenate(values)[order]),
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
    documents, keys = list[Keys](), list[Keys]()
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


def fit_logistic(x: Sparse, target: Tensor, penalty: float = PENALTY) -> Tensor:
    """Return the weights `(width + 1, classes)` of logistic regression, the bias in the last row.

    `target` has a row for each record: the probability of each class, which sum to 1. The weights minimise the mean
    cross-entropy plus penalty / (2 n) times the squared norm of all weights but the bias.
    """
    across, n = x.transposed(), len(target)
    weights = torch.zeros(x.width + 1, target.shape[1])
    solver = torch.optim.LBFGS(
        [weights], max_iter=ITERATIONS, history_size=8, tolerance_change=1e-6, line_search_fn="strong_wolfe"
    )

    def objective() -> Tensor:
        log_probs = x.logits(weights).log_softmax(-1)
        difference = (log_probs.exp() - target) / n
        decayed = weights[:-1] * (penalty / n)
        weights.grad = torch.cat([across.times(difference) + decayed, difference.sum(0, keepdim=True)])
        return -(log_probs * target).sum() / n + (decayed * weights[:-1]).sum() / 2

    with torch.no_grad():
        solver.step(objective)  # pyright: ignore[reportArgumentType] - a closure that returns a tensor is what it takes
    return weights


def records_apart(records: int, n_bytes: int) -> int:
    """Return n where one record in n of a corpus is enough for a linear model: all of a small one.

    >>> records_apart(60_000, 4_000_000), records_apart(500_000, 40_000_000)
    (1, 3)
    """
    return max(1, math.ceil(records / MOST_RECORDS), math.ceil(n_bytes / MOST_BYTES))


def linear_baseline(
    texts: Sequence[str], labels: Sequence[int], dev_texts: Sequence[str], dev_labels: Sequence[int], *, classes: int
) -> LinearScore:
    """Train a linear model on the texts, and return its score on the dev texts. Labels are numbers below `classes`."""
    started = time.perf_counter()
    counts = NgramCounts(texts, letters=sum(map(len, texts)) <= MOST_CHARACTERS)
    weights = fit_logistic(counts.vectors(texts), F.one_hot(torch.tensor(labels), classes).float())
    predicted = counts.vectors(dev_texts).logits(weights).argmax(-1)
    return LinearScore(
        accuracy=(predicted == torch.tensor(dev_labels)).float().mean().item(),
        macro_f1=macro_f1(Counter(zip(dev_labels, predicted.tolist(), strict=True))),
        features=counts.features,
        records=len(texts),
        seconds=time.perf_counter() - started,
    )
