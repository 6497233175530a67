"""What every part of attention has in common, and the numbers a part is built for."""

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, is_dataclass
from typing import ClassVar, Literal, Optional

from torch import nn

from clearhead.calls import CodeRepr, public
from clearhead.registry import kind


@public
@dataclass(frozen=True, kw_only=True)
class HeadShape:
    """Numbers and widths of a layer's heads, for which a part with parameters is built.

    Args:
        n_heads: Query heads.
        n_kv_heads: Key and value heads.
        d_head: Width of a query and a key.

    >>> import clearhead as ch
    >>> spec = ch.similarity.Additive()
    >>> sum(p.numel() for p in spec.build(ch.HeadShape(n_heads=2, n_kv_heads=2, d_head=4)).parameters()) > 0
    True
    """

    n_heads: int
    n_kv_heads: int
    d_head: int


@dataclass(frozen=True)
class MadeFor:
    """The numbers a built part is bound to; None if it serves any."""

    n_heads: int | None = None
    d_head: int | None = None


@kind("norm")
class Norm(CodeRepr, ABC):
    """Base class of norms, which bring vectors to a common size. The kinds are in `clearhead.model`."""

    @abstractmethod
    def build(self, d_model: int) -> nn.Module:
        """Return the norm with its learned values, for vectors of this width."""


def words_of(part: type) -> str:
    """Return the name of a part's class as words: TopK is "top k"."""
    name = part.__name__.removeprefix("Learned") or "Learned"
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name).lower()


def structure_of(part: object) -> tuple[object, ...]:
    """Return the class of a part and its fields that are plain values. What is compiled for a part has them in it."""
    values = [getattr(part, field.name) for field in fields(part)] if is_dataclass(part) else []
    return (type(part), *(value for value in values if isinstance(value, bool | int | float | str)))


Division = Literal["columns", "rows"]
"""Which axis of a linear map several processes divide: its outputs (columns of x W), or its inputs."""


class Part(CodeRepr):
    """An immutable spec. One with learned values is *built* by each layer, so that no two layers share them.

    A built part is a part too, and builds into itself: give a built one to several layers and they share it.
    """

    made_for: MadeFor = MadeFor()
    words: ClassVar[str] = ""
    """What a reader calls it, where the class name does not say it: "no positions", "scaled dot product"."""

    @property
    def called(self) -> str:
        """Name the part for a reader: its `words`, or its class name as words."""
        return self.words or words_of(type(self))

    def of_head(self, head: int) -> Optional["Part"]:
        """Return the part as one head has it; None where heads have values of their own that it cannot tell apart."""
        return self if self.made_for.n_heads is None else None
