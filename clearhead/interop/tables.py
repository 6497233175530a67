"""Tables from the names of one format to the names of another: the same table reads a model and writes it.

Read a model's configuration, every field checked: what is missing, of another kind or not supported is named.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from einops import rearrange
from torch import Tensor

from clearhead.errors import OptionError
from clearhead.serialization import shorten

LARGEST = 2**31
MOST_LAYERS = 10_000


class Config:
    """The fields of a config.json; errors begin with `where`, the file.

    >>> config = Config({"n_layer": 2, "layer_norm_epsilon": 1e-5}, "config.json")
    >>> config.count("n_layer"), config.number("layer_norm_epsilon"), config.flag("scale", default=True)
    (2, 1e-05, True)
    """

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values, self.where = values, where

    def get(self, name: str) -> Any:
        """Return a field as it is; None if it is missing or null."""
        return self.values.get(name)

    def count(self, name: str, default: int | None = None) -> int:
        """Return a whole number of 1 or more."""
        value = self.values.get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < LARGEST:
            raise self.error(name, f"expected a whole number from 1 to {LARGEST - 1:,}; came {shorten(value)}")
        return value

    def layers(self, name: str, default: int | None = None) -> int:
        """Return a number of blocks: more than any model has would fill the memory before a tensor is looked at."""
        count = self.count(name, default)
        if count > MOST_LAYERS:
            raise self.error(name, f"expected at most {MOST_LAYERS:,}; came {count:,}")
        return count

    def number(self, name: str, default: float | None = None) -> float:
        """Return a finite number above 0."""
        value = self.values.get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
            raise self.error(name, f"expected a number above 0; came {shorten(value)}")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """Return true or false."""
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(name, f"expected true or false; came {shorten(value)}")
        return value

    def tokens(self, name: str) -> tuple[int, ...]:
        """Return the token ids of a field: of one id, of a list, or none if it is missing."""
        value = self.values.get(name)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if not all(
            isinstance(token_id, int) and not isinstance(token_id, bool) and 0 <= token_id < LARGEST for token_id in ids
        ):
            raise self.error(name, f"expected a token id or a list of ids; came {shorten(value)}")
        return tuple(ids)

    def task(self, classes: Mapping[str, str]) -> str:
        """Return what the model is for by its class: `generate`, `fill`, `classify`, `translate` or `embed`."""
        named = self.values.get("architectures")
        if named is None:
            return next(iter(classes.values()))
        if not isinstance(named, list) or len(named) != 1 or named[0] not in list(classes):
            raise self.error("architectures", f"{shorten(named)} cannot be read; there are {', '.join(classes)}")
        return classes[named[0]]

    def count_labels(self) -> int:
        """Return the number of classes of a classifier: by default two."""
        names = self.values.get("id2label")
        return len(names) if isinstance(names, dict) and names else self.count("num_labels", 2)

    def choose(self, name: str, table: Mapping[str, Any], default: str | None = None) -> Any:
        """Return what a table has for the name in a field."""
        value = self.values.get(name)
        if value is None:
            value = default
        if not isinstance(value, str) or value not in table:
            raise self.error(name, f"{shorten(value)} is not supported; there are {', '.join(table)}")
        return table[value]

    def require(self, name: str, *allowed: Any) -> None:
        """Raise OptionError if a field that changes the model is there with a value that is not supported."""
        value = self.values.get(name)
        if value is not None and value not in allowed:
            raise self.error(
                name, f"{shorten(value)} is not supported yet; expected {' or '.join(map(repr, allowed)) or 'none'}"
            )

    def error(self, name: str, problem: str) -> OptionError:
        return OptionError(f"{self.where}: {name[:80]}: {problem[:500]}")


@dataclass(frozen=True)
class TensorRow:
    """A tensor of a Hugging Face model, and the tensor of ours that holds the same numbers, or several, concatenated.

    `{i}` in a name stands for the number of a block. `transposed`: their tensor has its inputs first (GPT-2's Conv1D).
    `leading`: their tensor has one more axis, of length 1, before ours. `optional`: if theirs is missing, ours is zero.
    `heads`: theirs has ours side by side within each of so many heads, and not one after another (GPT-NeoX).
    """

    theirs: str
    ours: tuple[str, ...]
    transposed: bool = False
    leading: bool = False
    optional: bool = False
    heads: int = 1

    def at(self, block: int) -> "TensorRow":
        """Return the row of one block."""
        names = tuple(name.format(i=block) for name in self.ours)
        return replace(self, theirs=self.theirs.format(i=block), ours=names)

    def split(self, tensor: Tensor, shapes: Sequence[torch.Size], where: str) -> list[Tensor]:
        """Return our tensors out of theirs; OptionError if their shape is not what the model has."""
        expected = torch.Size((sum(shape[0] for shape in shapes), *shapes[0][1:]))
        turned = tensor.T if self.transposed and tensor.ndim == 2 else tensor
        their_shape = tuple(reversed(expected)) if self.transposed and len(expected) == 2 else tuple(expected)
        their_shape = (1, *their_shape) if self.leading else their_shape
        if tuple(tensor.shape) != their_shape:
            raise OptionError(f"{where}: {self.theirs} is {tuple(tensor.shape)}, and in this model {their_shape}")
        turned = turned.squeeze(0) if self.leading else turned
        if self.heads > 1:
            turned = rearrange(turned, "(head part d) ... -> (part head d) ...", head=self.heads, part=len(shapes))
        return list(turned.split([shape[0] for shape in shapes]))

    def join(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return their tensor out of ours."""
        tensor = torch.cat(list(tensors)) if len(tensors) > 1 else tensors[0]
        if self.heads > 1:
            tensor = rearrange(tensor, "(part head d) ... -> (head part d) ...", head=self.heads, part=len(tensors))
        if self.leading:
            return tensor.unsqueeze(0).contiguous()
        return (tensor.T if self.transposed and tensor.ndim == 2 else tensor).contiguous()


def expand(rows: Iterable[TensorRow], n_blocks: int) -> Iterator[TensorRow]:
    """Yield the rows of a model with this many blocks; a row with `{i}` comes once for each block."""
    for row in rows:
        if "{i}" in row.theirs:
            yield from (row.at(block) for block in range(n_blocks))
        else:
            yield row


@torch.no_grad()
def fill(ours: Mapping[str, Tensor], rows: Iterable[TensorRow], theirs: Mapping[str, Tensor], where: str) -> set[str]:
    """Copy their tensors into ours; return the names of theirs that were used.

    OptionError if one of theirs is missing or has another shape, and if one of ours was not written.
    """
    unwritten, used = set(ours), set[str]()
    for row in rows:
        if row.theirs not in theirs and row.optional:
            unwritten.difference_update(row.ours)
            for name in row.ours:
                ours[name].zero_()
            continue
        if row.theirs not in theirs:
            raise OptionError(f"{where}: the tensor {row.theirs} is missing")
        used.add(row.theirs)
        tensor = theirs[row.theirs]
        if not tensor.is_floating_point():
            raise OptionError(f"{where}: {row.theirs} is {tensor.dtype}; weights are floating-point numbers")
        parts = row.split(tensor, [ours[name].shape for name in row.ours], where)
        for name, part in zip(row.ours, parts, strict=True):
            ours[name].copy_(part)
            unwritten.discard(name)
    if unwritten:
        raise OptionError(f"{where}: nothing in it is our {sorted(unwritten)[0]}")
    return used


def unplaced_error(unused: Sequence[str], where: str) -> OptionError:
    """Return the error for tensors that the model has no place for; their names are a stranger's, and may be long."""
    names = ", ".join(name[:80] for name in unused[:3])
    return OptionError(f"{where}: {len(unused)} tensors have no place in this model: {names}")


def gather(ours: Mapping[str, Tensor], rows: Iterable[TensorRow]) -> dict[str, Tensor]:
    """Return their tensors, made of ours: what `fill` would read. A bias that our model lacks becomes zeros."""
    return {row.theirs: row.join([find_or_zeros(ours, name).detach() for name in row.ours]) for row in rows}


def find_or_zeros(ours: Mapping[str, Tensor], name: str) -> Tensor:
    """Return a tensor of our model; for a bias that it lacks, zeros of the width of the weight beside it."""
    if name in ours:
        return ours[name]
    before, _, last = name.rpartition(".")
    tied = (f"{before.removesuffix('output')}embedding.table", "encoder.embedding.table")
    beside = {"bias": (f"{before}.weight", f"{before}.table", *tied), "beta": (f"{before}.gamma",)}.get(last, ())
    for neighbour in beside:
        if neighbour in ours:
            return ours[neighbour].new_zeros(len(ours[neighbour]))
    raise OptionError(f"this model has no {name}")
