"""Masks: who may attend to whom. True means *may attend*, always and everywhere.

A mask is made from absolute positions, so it is right with a KV cache and in a ragged batch without more arguments:

>>> import clearhead as ch
>>> mask = ch.masks.causal() & ch.masks.padding([2, 5])
>>> ch.masks.show(mask, batch=2, n_query=2, n_key=5)[1].int()      # two new queries on five cached keys
tensor([[1, 1, 1, 1, 0],
        [1, 1, 1, 1, 1]], dtype=torch.int32)

Combine with `&`, `|`, `~`. A query that may attend nothing gets a context of zeros.
"""

import operator
from collections.abc import Callable, Sequence
from typing import SupportsIndex

import torch
from torch import Tensor

from clearhead.attention.mask_numbers import Extent, Ids, read_runs, row_numbers
from clearhead.attention.mask_rules import (
    Causal,
    CrossDocument,
    Document,
    Everything,
    Function,
    Mask,
    Padding,
    Prefix,
    TensorMask,
    Window,
)
from clearhead.attention.score_index import Positions, box
from clearhead.calls import public
from clearhead.errors import OptionError

__all__ = [
    "Mask",
    "causal",
    "document",
    "everything",
    "function",
    "padding",
    "prefix",
    "show",
    "tensor",
    "window",
]


@public
def everything() -> Mask:
    """Return a mask under which every query attends to every key.

    Returns:
        The mask.

    >>> import clearhead as ch
    >>> ch.masks.show(ch.masks.everything(), n_query=1, n_key=2).all().item()
    True
    """
    return Everything()


@public
def causal() -> Mask:
    """Return a causal mask: it hides keys after the query, by absolute position.

    Returns:
        The mask.

    >>> import clearhead as ch
    >>> ch.masks.show(ch.masks.causal(), n_query=2, n_key=3)[0].int().tolist()
    [[1, 1, 0], [1, 1, 1]]
    """
    return Causal()


@public
def window(left: int, right: int = 0) -> Mask:
    """Return a mask under which a query sees itself, `left` positions before it and `right` after it.

    Args:
        left: Positions before the query.
        right: Positions after it.

    Returns:
        The mask.

    Raises:
        OptionError: If a number is negative.

    >>> import clearhead as ch
    >>> ch.masks.show(ch.masks.window(0, right=1), n_query=2, n_key=2)[0].int().tolist()
    [[1, 1], [0, 1]]
    """
    if not (is_count(left) and is_count(right)):
        raise OptionError(
            f"window: left and right count positions, 0 or more; came left={left!r}, right={right!r}. "
            "Give whole numbers"
        )
    return Window(left if isinstance(left, int) else int(left), right if isinstance(right, int) else int(right))


@public
def padding(lengths: Tensor | Sequence[int]) -> Mask:
    """Return a mask that hides padding: each batch row has keys at positions 0 to length - 1, and no others.

    Args:
        lengths: One for each row. A list follows the query to its device, here and in the masks below; a tensor must be
            there already.

    Returns:
        The mask.

    >>> import clearhead as ch
    >>> ch.masks.show(ch.masks.padding([1, 2]), batch=2, n_query=1, n_key=2).int().tolist()
    [[[1, 0]], [[1, 1]]]
    """
    return Padding(row_numbers("padding lengths", lengths))


@public
def prefix(lengths: Tensor | Sequence[int] | int) -> Mask:
    """Return a causal mask with a prefix: every query also sees the first `lengths` keys of its row.

    Args:
        lengths: One for each row, or one for all.

    Returns:
        The mask.

    >>> import clearhead as ch
    >>> ch.masks.show(ch.masks.prefix(2), n_query=3, n_key=3)[0].int().tolist()
    [[1, 1, 0], [1, 1, 0], [1, 1, 1]]
    """
    return Prefix(row_numbers("prefix lengths", [lengths] if isinstance(lengths, int | float) else lengths))


@public
def document(ids: Ids, key_ids: Ids | None = None) -> Mask:
    """Return a mask under which a query sees the keys of its own document. A negative id belongs to no document.

    If each document is one unbroken run of positions, kernelized attention takes linear time, and softmax attends to
    each document separately. `document` reads the ids to find that out, which is impossible inside a function that is
    being compiled: make the mask outside.

    Args:
        ids: `(n,)` or `(batch, n)`, read by position.
        key_ids: Ids of the keys, if queries and keys belong to two sequences; each in the order of its own sequence.

    Returns:
        The mask.

    >>> import clearhead as ch
    >>> ch.masks.show(ch.masks.document([0, 0, 1]), n_query=3, n_key=3)[0].int().tolist()
    [[1, 1, 0], [1, 1, 0], [0, 0, 1]]
    """
    query = row_numbers("document ids", ids, axes=(1, 2), rows=True)
    if key_ids is None:
        runs = read_runs(query)
        return Document(query, packed=runs is not None and runs.packed, runs=runs)
    return CrossDocument(query, row_numbers("document key ids", key_ids, axes=(1, 2), rows=True))


@public
def function(rule: Callable[[Tensor, Tensor], Tensor]) -> Mask:
    """Return a mask from a rule over positions.

    Args:
        rule: Takes positions of queries and keys, and returns True where a query may attend.

    Returns:
        The mask.

    >>> import clearhead as ch
    >>> even = ch.masks.function(lambda query, key: (query - key) % 2 == 0)
    >>> ch.masks.show(even, n_query=2, n_key=3)[0].int().tolist()
    [[0, 1, 0], [1, 0, 1]]
    """
    return Function(rule)


@public
def tensor(table: Tensor) -> Mask:
    """Return a mask from a bool tensor that broadcasts to (batch, head, query, key).

    Args:
        table: True where a query may attend.

    Returns:
        The mask.

    Raises:
        DtypeError: If it is not bool.
        ShapeError: If it has more than four axes, or none.

    >>> import torch, clearhead as ch
    >>> ch.masks.show(ch.masks.tensor(torch.eye(2, dtype=torch.bool)), n_query=2, n_key=2)[0].int().tolist()
    [[1, 0], [0, 1]]
    """
    return TensorMask.of(table)


@public
def show(mask: Mask, *, batch: int = 1, n_query: int, n_key: int) -> Tensor:
    """Return the mask of one head as a bool tensor `(batch, query, key)`, at the default positions.

    Args:
        mask: The mask.
        batch: Rows.
        n_query: Queries.
        n_key: Keys.

    Returns:
        True where a query may attend.

    Raises:
        OptionError: If the mask differs between heads.

    >>> import clearhead as ch
    >>> ch.masks.show(ch.masks.window(1), n_query=3, n_key=3)[0].int().tolist()
    [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    """
    if not all(is_count(number) and number > 0 for number in (batch, n_query, n_key)):
        raise OptionError(f"show: batch, n_query and n_key are 1 or more; came {batch!r}, {n_query!r} and {n_key!r}")
    positions = Positions.aligned(n_query, n_key, torch.device("cpu"))
    mask.check(Extent(batch, 1, n_query, n_key, torch.device("cpu")))
    return mask.allowed(box(positions, batch=batch, n_heads=1)).expand(batch, 1, n_query, n_key)[:, 0]


TABLE: dict[str, Callable[[Extent], Mask]] = {
    "none": lambda box: everything(),
    "causal": lambda box: causal(),
    "padding": lambda box: padding(box.lengths()),
    "window": lambda box: window(2),
    "window both": lambda box: window(1, 2),
    "prefix": lambda box: prefix(box.lengths()),
    "document": lambda box: document(box.runs()),
    "document scattered": lambda box: document(box.places(box.n_key + 3) % 2),
    "document cross": lambda box: document(box.places(box.n_query) % 3, box.places(box.n_key) % 2),
    "function": lambda box: function(lambda query, key: (query - key) % 2 == 0),
    "tensor": lambda box: tensor((box.places(box.n_query)[:, None] * 5 + box.places(box.n_key)) % 3 > 0),
    "tensor a head": lambda box: tensor(box.places(box.n_heads)[:, None, None] != box.places(box.n_key)),
    "union": lambda box: causal() | padding(box.lengths()),
    "negation": lambda box: ~causal(),
    "nothing": lambda box: ~everything(),
    "causal padding": lambda box: causal() & padding(box.lengths()),
    "causal document": lambda box: causal() & document(box.runs()),
    "causal window padding": lambda box: causal() & window(3) & padding(box.lengths()),
}
"""An example of every mask, and of combinations, for a box of any size: the test grid reads it."""


def is_count(number: object) -> bool:
    """Check for a whole number, 0 or more, of any type that counts (numpy's too); bool is none."""
    if isinstance(number, int):  # asked first: a compiler keeps such a number free, and `index` would fix it
        return not isinstance(number, bool) and number >= 0
    return isinstance(number, SupportsIndex) and operator.index(number) >= 0
