"""Fit the wide part of a classifier before training: logistic regression on the n-grams of the model's own tokens.

It is the linear model of clearhead/training/linear.py with tokens for words. Its weights are found once by L-BFGS, in
seconds, and then stay as they are.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clearhead.model.wide import ORDERS, ToNgramLogits, hash_ngrams
from clearhead.text.tokenizer import Tokenizer
from clearhead.training.linear import LETTERS, RARE_RECORDS, Keys, Sparse, fit_logistic, unique_pairs

Values = NDArray[np.float64]


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


def fit_wide(part: ToNgramLogits, rows: Sequence[Sequence[int]], target: Tensor, tokenizer: Tokenizer) -> None:
    """Fill the tables of a wide part. `target` has the probability of each class for each row of ids."""
    letters = letters_of(tokenizer)
    idf = dict[str, Values]()
    documents, columns, values, first = list[Keys](), list[Keys](), list[Values](), 0
    for name, occurrences in find_ngrams(rows, letters, part.buckets).items():
        width = letters.n_groups if name == "letters" else len(part.get_buffer(f"table_{name}"))
        df = np.bincount(unique_pairs(occurrences.documents, occurrences.keys)[1], minlength=width)
        least = 2 if name != "token" and len(rows) >= RARE_RECORDS else 1
        idf[name] = np.where(df >= least, np.log((1 + len(rows)) / (1 + df)) + 1, 0)
        norm = np.sqrt(
            np.bincount(occurrences.documents, occurrences.squares * idf[name][occurrences.keys] ** 2, len(rows))
        )
        values.append(occurrences.shares * idf[name][occurrences.keys] / np.maximum(norm, 1e-6)[occurrences.documents])
        columns.append(occurrences.keys + first)
        documents.append(occurrences.documents)
        first += width
    order = np.argsort(np.concatenate(documents), kind="stable")
    starts = np.searchsorted(np.concatenate(documents)[order], np.arange(len(rows) + 1))
    value = torch.from_numpy(np.concatenate(values)[order].astype(np.float32))
    x = Sparse(torch.from_numpy(starts), torch.from_numpy(np.concatenate(columns)[order]), value, first)
    fill_tables(part, fit_logistic(x, target), idf, letters)


@torch.no_grad()
def fill_tables(part: ToNgramLogits, fitted: Tensor, idf: Mapping[str, Values], letters: Letters) -> None:
    """Copy weights, times their idf, into the tables; for letters, the sum over each token."""
    *weights, bias = fitted.split([*map(len, idf.values()), 1])
    part.get_buffer("bias").copy_(bias[0])
    for (name, idf_values), weight in zip(idf.items(), weights, strict=True):
        table, square = weight.numpy() * idf_values[:, None], idf_values**2
        if name == "letters":
            table, square = letters.add_up(table), letters.add_up(square)
        part.get_buffer(f"table_{name}").copy_(torch.from_numpy(table))
        part.get_buffer(f"square_{name}").copy_(torch.from_numpy(square))
