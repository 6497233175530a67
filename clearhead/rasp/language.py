"""The RASP language: sequences made from sequences, each in one of the few ways a Transformer has.

A program is what it gives, a sequence made of others; `tokens` and `indices` are the ones it starts from. Values are
*categorical* (one of finitely many) or *numeric* (a number on a line).

>>> from clearhead.rasp import aggregate, indices, run, select, selector_width, tokens
>>> length = selector_width(select(tokens, tokens, lambda key, query: True))
>>> reverse = aggregate(select(indices, length - indices - 1, lambda key, query: key == query), tokens)
>>> run(reverse, "abc")
['c', 'b', 'a']

Nothing selected gives None (a number: 0), and whatever is made of None is None again.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from clearhead.calls import public
from clearhead.errors import ProgramError

Side = Literal["source", "target"]
Value = Any
"""What a sequence holds: anything that can be hashed, or a number."""


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Sequence:
    """One value for each place of a text. `side` says of which: the target, which is the answer, or the source."""

    side: Side = "target"
    numeric: bool = False
    name: str = ""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def __add__(self, other: "Sequence | int | float") -> "Sequence":
        return combined(self, other, 1, lambda a, b: a + b, "+")

    def __radd__(self, other: int | float) -> "Sequence":
        return self + other

    def __sub__(self, other: "Sequence | int | float") -> "Sequence":
        return combined(self, other, -1, lambda a, b: a - b, "-")

    def __rsub__(self, other: int | float) -> "Sequence":
        return map(lambda value: other - value, self, numeric=self.numeric, name=f"{other} - {self.name}")

    def __mul__(self, factor: "Sequence | int | float") -> "Sequence":
        if isinstance(factor, Sequence):
            numeric, name = self.numeric and factor.numeric, f"{self.name} x {factor.name}"
            return sequence_map(lambda a, b: a * b, self, factor, numeric=numeric, name=name)
        if self.numeric:
            return WeightedSum(
                terms=((self, float(factor)),), side=self.side, numeric=True, name=f"{factor} {self.name}"
            )
        return map(lambda value: value * factor, self, name=f"{factor} {self.name}")

    def __rmul__(self, factor: int | float) -> "Sequence":
        return self * factor

    def inputs(self) -> "Iterator[Sequence]":
        """Return the sequences it is made of."""
        return iter(())


def combined(
    first: Sequence, second: "Sequence | int | float", sign: int, function: Callable[..., Value], sign_name: str
) -> Sequence:
    if not isinstance(second, Sequence):
        return map(
            lambda value: function(value, second),
            first,
            numeric=first.numeric,
            name=f"{first.name} {sign_name} {second}",
        )
    name = f"{first.name} {sign_name} {second.name}"
    if first.numeric and second.numeric:
        same_side("a sum", first, second)
        return WeightedSum(terms=((first, 1.0), (second, float(sign))), side=first.side, numeric=True, name=name)
    return sequence_map(function, first, second, name=name)


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Tokens(Sequence):
    """What is read."""


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Indices(Sequence):
    """0, 1, 2, …"""


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class ConstantSequence(Sequence):
    """The same everywhere."""

    value: Value = None


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Map(Sequence):
    """A function of each value."""

    function: Callable[[Value], Value]
    inner: Sequence

    def inputs(self) -> Iterator[Sequence]:
        yield self.inner


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class SequenceMap(Sequence):
    """A function of two values at the same place."""

    function: Callable[[Value, Value], Value]
    first: Sequence
    second: Sequence

    def inputs(self) -> Iterator[Sequence]:
        yield from (self.first, self.second)


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class WeightedSum(Sequence):
    """A sum of numbers, each times a factor."""

    terms: tuple[tuple[Sequence, float], ...]

    def inputs(self) -> Iterator[Sequence]:
        yield from (inner for inner, _ in self.terms)


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Select:
    """Which keys a query chooses: those for which the predicate holds of both values."""

    keys: Sequence
    queries: Sequence
    predicate: Callable[[Value, Value], bool]


@dataclass(frozen=True, eq=False, repr=False)
class Selector:
    """A choice of keys for each query: where all of its terms hold. Combine two with `&`; `~` turns one round."""

    terms: list[Select]
    name: str = field(default="", kw_only=True)

    @property
    def key_side(self) -> Side:
        return self.terms[0].keys.side

    @property
    def query_side(self) -> Side:
        return self.terms[0].queries.side

    def __and__(self, other: "Selector") -> "Selector":
        if (self.key_side, self.query_side) != (other.key_side, other.query_side):
            raise ProgramError("two selectors are joined by `&` only where both choose from one text for the other")
        return Selector([*self.terms, *other.terms])

    def __invert__(self) -> "Selector":
        if len(self.terms) > 1:
            raise ProgramError(
                "`~` turns one select round, and this is several joined by `&`: their opposite is no sum of scores; "
                "write it as one select over a sequence_map"
            )
        term = self.terms[0]
        return Selector([Select(keys=term.keys, queries=term.queries, predicate=lambda k, q: not term.predicate(k, q))])

    def inputs(self) -> Iterator[Sequence]:
        for term in self.terms:
            yield from (term.keys, term.queries)


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Aggregate(Sequence):
    """The value at the chosen keys: of numbers their mean, of categories the one they have in common."""

    selector: Selector
    values: Sequence

    def inputs(self) -> Iterator[Sequence]:
        yield from self.selector.inputs()
        yield self.values


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Width(Sequence):
    """How many keys are chosen."""

    selector: Selector

    def inputs(self) -> Iterator[Sequence]:
        yield from self.selector.inputs()


tokens = Tokens(name="tokens")
indices = Indices(name="indices")
source_tokens = Tokens(side="source", name="source tokens")
source_indices = Indices(side="source", name="source indices")


@public
def constant(value: Value, *, numeric: bool = False) -> ConstantSequence:
    """Return a sequence of the same value everywhere.

    Args:
        value: The value.
        numeric: Whether it is a number instead of a category.

    Returns:
        A sequence.

    >>> from clearhead import rasp
    >>> rasp.run(rasp.constant("x"), "ab")
    ['x', 'x']
    """
    return ConstantSequence(value=value, numeric=numeric, name=str(value))


@public
def map(function: Callable[[Value], Value], inner: Sequence, *, numeric: bool = False, name: str = "") -> Map:
    """Apply a function to each value.

    Args:
        function: The function.
        inner: A sequence.
        numeric: Whether the results are numbers instead of categories.
        name: A name for messages and pictures.

    Returns:
        A sequence.

    >>> from clearhead import rasp
    >>> rasp.run(rasp.map(str.upper, rasp.tokens), "ab")
    ['A', 'B']
    """
    return Map(function=function, inner=inner, side=inner.side, numeric=numeric, name=name or f"map({inner.name})")


@public
def sequence_map(
    function: Callable[[Value, Value], Value],
    first: Sequence,
    second: Sequence,
    *,
    numeric: bool = False,
    name: str = "",
) -> SequenceMap:
    """Apply a function to two sequences, place by place.

    Args:
        function: The function.
        first: Its first argument.
        second: Its second argument.
        numeric: Whether the results are numbers instead of categories.
        name: A name for messages and pictures.

    Returns:
        A sequence.

    >>> from clearhead import rasp
    >>> rasp.run(rasp.sequence_map(lambda token, place: token * place, rasp.tokens, rasp.indices), "abc")
    ['', 'b', 'cc']
    """
    same_side("sequence_map", first, second)
    name = name or f"map({first.name}, {second.name})"
    return SequenceMap(function=function, first=first, second=second, side=first.side, numeric=numeric, name=name)


@public
def numeric(inner: Sequence) -> Sequence:
    """Return the same values as numbers.

    Args:
        inner: A sequence.

    Returns:
        A sequence.

    >>> from clearhead import rasp
    >>> rasp.run(rasp.numeric(rasp.indices), "ab")
    [0.0, 1.0]
    """
    return inner if inner.numeric else map(float, inner, numeric=True, name=inner.name)


@public
def categorical(inner: Sequence) -> Sequence:
    """Return the same values as categories.

    Args:
        inner: A sequence.

    Returns:
        A sequence.

    >>> from clearhead import rasp
    >>> rasp.run(rasp.categorical(rasp.indices), "ab")
    [0, 1]
    """
    return map(lambda value: value, inner, name=inner.name) if inner.numeric else inner


@public
def select(keys: Sequence, queries: Sequence, predicate: Callable[[Value, Value], bool], *, name: str = "") -> Selector:
    """Return, for each query, the keys for which `predicate(key, query)` holds.

    With keys of the source and queries of the target it is cross-attention.

    Args:
        keys: Values of the keys.
        queries: Values of the queries.
        predicate: Whether a query selects a key.
        name: A name for messages and pictures.

    Returns:
        A selector.

    Raises:
        ProgramError: If queries of the source would read the target.

    >>> from clearhead import rasp
    >>> same = rasp.select(rasp.tokens, rasp.tokens, lambda key, query: key == query)
    >>> rasp.run(rasp.selector_width(same), "aba")
    [2, 1, 2]
    """
    if keys.side == "target" and queries.side == "source":
        raise ProgramError(
            f"select: the source is read before the target is there, so its queries ({queries.name}) cannot choose "
            f"keys of the target ({keys.name}); turn it round"
        )
    return Selector([Select(keys=keys, queries=queries, predicate=predicate)], name=name)


@public
def past(selector: Selector | None = None, *, side: Side = "target") -> Selector:
    """Select the keys that are not after the query.

    Args:
        selector: Select only among its keys; all if None.
        side: The text, if there is no selector.

    Returns:
        A selector.

    >>> from clearhead import rasp
    >>> rasp.run(rasp.selector_width(rasp.past()), "abc")
    [1, 2, 3]
    """
    positions = Indices(side=side, name="indices") if side == "source" else indices
    before = select(positions, positions, lambda key, query: key <= query, name="past")
    return before if selector is None else selector & before


@public
def aggregate(selector: Selector, values: Sequence, *, name: str = "") -> Aggregate:
    """Return, at each query, the mean of the selected keys' numbers, or the category that the selected keys share.

    Args:
        selector: Which keys each query selects.
        values: The keys' values.
        name: A name for messages and pictures.

    Returns:
        A sequence.

    Raises:
        ProgramError: If the values run along another text than the keys.

    >>> from clearhead import rasp
    >>> first = rasp.select(rasp.indices, rasp.constant(0), lambda key, query: key == query)
    >>> rasp.run(rasp.aggregate(first, rasp.tokens), "abc")
    ['a', 'a', 'a']
    """
    if values.side != selector.key_side:
        raise ProgramError(
            f"aggregate: the keys are of the {selector.key_side} and the values ({values.name}) of the {values.side}; "
            "take values that run along the keys"
        )
    name = name or f"aggregate({values.name})"
    return Aggregate(selector=selector, values=values, side=selector.query_side, numeric=values.numeric, name=name)


@public
def selector_width(selector: Selector, *, name: str = "") -> Width:
    """Return, at each query, how many keys it selects.

    Args:
        selector: The selector.
        name: A name for messages and pictures.

    Returns:
        A sequence of numbers.

    >>> from clearhead import rasp
    >>> rasp.run(rasp.selector_width(rasp.past()), "abc")
    [1, 2, 3]
    """
    return Width(selector=selector, side=selector.query_side, name=name or "width")


def same_side(operation: str, first: Sequence, second: Sequence) -> None:
    if first.side != second.side:
        raise ProgramError(
            f"{operation}: {first.name} runs along the {first.side} and {second.name} along the {second.side}; "
            "bring one over with a select and an aggregate"
        )
