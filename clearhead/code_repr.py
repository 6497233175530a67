"""Specs print as the Python expression that makes them, with the defaults left out.

>>> import clearhead as ch
>>> ch.positions.Rotary(), ch.Heads(8, kv=2), ch.masks.causal() & ch.masks.padding([3, 5])
(Rotary(), Heads(8, kv=2), causal() & padding([3, 5]))

`repr` is that expression on one line. `print` breaks a long one into indented lines, which are the same expression:

>>> print(ch.presets.gpt2("small"))
DecoderSpec(
    vocabulary=50257,
    d_model=768,
    blocks=(
        BlockSpec(
            attention=AttentionSpec(heads=Heads(12, kv=12, bias=True), dropout=0.1),
            feed_forward=GELU(3072, form='tanh'),
            dropout=0.1,
        ),
    ) * 12,
    embedding=Embedding(position=Learned(1024), scaled=False, dropout=0.1),
)
"""

import sys
import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from itertools import groupby
from typing import Any, ClassVar, NamedTuple, final

from torch import Tensor

WIDTH = 88
"""The most characters in a line of a printed spec, if it can be broken."""


class CodeRepr:
    """Base class of specs: frozen dataclasses whose `repr` is the expression that makes them.

    A first field without a default is given by position, the others by name. Code that evaluates such an expression
    needs the names of `clearhead.masks`, `.positions`, … that occur in it.
    """

    made_by: ClassVar[str] = ""
    """The function that makes it, where that is not the class: `causal()` makes a `Causal`."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # `@dataclass` writes a `__repr__` unless the class has one in its own namespace. So each class is given the one
        # it inherits: this one, or that of nn.Module for a built part.
        cls.__repr__ = cls.__repr__

    def __repr__(self) -> str:
        return render(self, sys.maxsize) if is_dataclass(self) else super().__repr__()

    def __str__(self) -> str:
        return render(self, WIDTH)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Show a notebook and IPython what `print` shows."""
        printer.text(repr(self) if cycle else str(self))


@final
class Repeated(NamedTuple):
    """Equal specs that follow each other in a tuple."""

    item: object
    times: int


class Bracket(NamedTuple):
    """An expression with others inside it, each after a prefix: `name=` or `*`."""

    opening: str
    inner: list[tuple[str, object]]
    closing: str


def render(value: object, room: int, before: str = "") -> str:
    """Return the expression of a value after what stands `before` it, in lines of no more characters than `room`."""
    if isinstance(value, Tensor):
        return f"{before}torch.{' '.join(repr(value).split())}"
    bracket = find_bracket(value)
    if bracket is None:
        return f"{before}{value!r}"
    inner = ", ".join(render(item, sys.maxsize, prefix) for prefix, item in bracket.inner)
    comma = "," if bracket.opening == "(" and len(bracket.inner) == 1 else ""
    line = f"{before}{bracket.opening}{inner}{comma}{bracket.closing}"
    if len(line) <= room or not bracket.inner:
        return line
    # Inside, four characters go to the indent and one to the comma.
    lines = [f"{render(item, room - 5, prefix)},\n" for prefix, item in bracket.inner]
    return f"{before}{bracket.opening}\n{textwrap.indent(''.join(lines), ' ' * 4)}{bracket.closing}"


def find_bracket(value: object) -> Bracket | None:
    """Return what an expression can be broken into; None for one that stays on its line."""
    if isinstance(value, Repeated):
        return Bracket("(", [("", value.item)], f") * {value.times}")
    if type(value) is tuple:
        specs = all(isinstance(item, CodeRepr) for item in value)
        runs = [Repeated(item, len(list(run))) for item, run in groupby(value)] if specs else []
        if len(runs) == 1 and runs[0].times > 1:
            return find_bracket(runs[0])
        folded = [("*", run) if run.times > 1 else ("", run.item) for run in runs]
        return Bracket("(", folded or [("", item) for item in value], ")")
    if isinstance(value, CodeRepr) and type(value).__repr__ is CodeRepr.__repr__ and is_dataclass(value):
        return Bracket(f"{type(value).made_by or type(value).__name__}(", list(find_arguments(value)), ")")
    return None


def find_arguments(spec: Any) -> Iterator[tuple[str, object]]:
    """Yield the fields of a spec that are not at their default, each after its name where it is given by name."""
    made_from = [field for field in fields(spec) if field.init]
    for field in made_from:
        by_position = field is made_from[0] and not field.kw_only and not has_default(field)
        if field.repr and not is_default(spec, field):
            yield "" if by_position else f"{field.name}=", getattr(spec, field.name)


def has_default(field: "Field[Any]") -> bool:
    return field.default is not MISSING or field.default_factory is not MISSING


def is_default(spec: object, field: "Field[Any]") -> bool:
    """Return whether a field of a dataclass has its default value."""
    default = field.default if field.default_factory is MISSING else field.default_factory()
    # `is True`: a comparison of tensors is a tensor, and says nothing here.
    return default is not MISSING and (getattr(spec, field.name) == default) is True
