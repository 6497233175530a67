"""Fit the wide part of a classifier before training: logistic regression on the n-grams of the model's own tokens.

It is the linear model of clearhead/training/linear.py with tokens for words. Its weights are found once by L-BFGS, in
seconds, and then stay as they are.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clearhead.model.wide import ToNgramLogits, hash_pairs
from clearhead.text.tokenizer import Tokenizer
from clearhead.training.linear import LETTERS, RARE_RECORDS, Keys, Sparse, fit_logistic, unique_pairs

__all__ = ["fit_wide"]


class Letters(NamedTuple):
    """Groups of letters within each token: those of token i are `groups[starts[i]:starts[i + 1]]`."""

    starts: Keys
    groups: Keys
    n_groups: int

    def inside(self, documents: Keys, ids: Keys) -> tuple[Keys, Keys]:
        """Return the groups within tokens, and the documents they are in."""
        lengths = self.starts[ids + 1] - self.starts[ids]
        within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return np.repeat(documents, lengths), self.groups[np.repeat(self.starts[ids], lengths) + within]

    def add_up(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return for each token the sum of its groups' values, `(groups, …)`."""
        summed = np.zeros((len(self.groups) + 1, *values.shape[1:]), np.float64)
        np.cumsum(values[self.groups], 0, out=summed[1:])
        return (summed[self.starts[1:]] - summed[self.starts[:-1]]).astype(np.float32)


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


def count_ngrams(rows: Sequence[Sequence[int]], letters: Letters, buckets: int) -> list[tuple[Keys, Keys]]:
    """Return, for tokens, pairs and letters, the documents and the keys of all that occur."""
    ids = np.concatenate([np.asarray(row, np.int64) for row in rows])
    documents = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
    together = documents[:-1] == documents[1:]
    pairs = hash_pairs(torch.from_numpy(ids[:-1]), torch.from_numpy(ids[1:]), buckets).numpy()
    return [(documents, ids), (documents[:-1][together], pairs[together]), letters.inside(documents, ids)]


def fit_wide(part: ToNgramLogits, rows: Sequence[Sequence[int]], target: Tensor, tokenizer: Tokenizer) -> None:
    """Fill the tables of a wide part. `target` has the probability of each class for each row of ids."""
    letters = letters_of(tokenizer)
    widths = (tokenizer.vocabulary, part.buckets, letters.n_groups)
    weights, columns, values, documents = list[NDArray[np.float32]](), list[Keys](), list[Tensor](), list[Keys]()
    for place, found in enumerate(count_ngrams(rows, letters, part.buckets)):
        document, key, count = unique_pairs(*found)
        df = np.bincount(key, minlength=widths[place])
        least = 2 if place > 0 and len(rows) >= RARE_RECORDS else 1
        weight = np.where(df >= least, np.log((1 + len(rows)) / (1 + df)) + 1, 0).astype(np.float32)
        norm = np.sqrt(np.bincount(document, count * weight[key] ** 2, len(rows)))[document]
        values.append(torch.from_numpy((count * weight[key] / np.maximum(norm, 1e-6)).astype(np.float32)))
        columns.append(key + sum(widths[:place]))
        documents.append(document)
        weights.append(weight)
    order = np.argsort(np.concatenate(documents), kind="stable")
    starts = np.searchsorted(np.concatenate(documents)[order], np.arange(len(rows) + 1))
    column = torch.from_numpy(np.concatenate(columns)[order])
    x = Sparse(torch.from_numpy(starts), column, torch.cat(values)[torch.from_numpy(order)], sum(widths))
    fill_tables(part, fit_logistic(x, target), weights, letters)


@torch.no_grad()
def fill_tables(part: ToNgramLogits, fitted: Tensor, weights: list[NDArray[np.float32]], letters: Letters) -> None:
    """Copy weights, times their idf, into the tables; of letters the sums over each token."""
    token, pair, group = (weight[:, None] for weight in weights)
    of_token, of_pair, of_group, bias = fitted.split([len(token), len(pair), len(group), 1])
    part.get_buffer("bias").copy_(bias[0])
    tables = {"token": of_token.numpy() * token, "pair": of_pair.numpy() * pair}
    tables["letters"] = letters.add_up(of_group.numpy() * group)
    squares = {"token": weights[0] ** 2, "pair": weights[1] ** 2, "letters": letters.add_up(weights[2] ** 2)}
    for name, table in tables.items():
        part.get_buffer(f"table_{name}").copy_(torch.from_numpy(table))
        part.get_buffer(f"square_{name}").copy_(torch.from_numpy(squares[name]))
