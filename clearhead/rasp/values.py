"""The values a sequence can have, place by place: what a compiler must know before it gives each a direction."""

import math
from collections.abc import Callable, Hashable, Iterable
from fractions import Fraction
from itertools import product
from typing import Any

from clearhead.errors import ProgramError
from clearhead.rasp import language

MOST_VALUES = 4096
"""That a sequence may have: each takes a direction of the model, or a step of a network."""
MOST_PAIRS = 50 * MOST_VALUES
"""Of values that are looked through together."""
Places = tuple[frozenset[Any], ...]


class Possible:
    """The possible values of every sequence of a program, for texts up to a length over a vocabulary."""

    def __init__(self, vocabulary: Iterable[Any], length: int, source: Iterable[Any] = ()) -> None:
        self.vocabulary = {"target": frozenset(vocabulary), "source": frozenset(source)}
        self.length = length
        self.known: dict[int, Places] = {}
        self.kept: list[language.Sequence] = []
        self.empty: set[int] = set()

    def at(self, sequence: language.Sequence) -> Places:
        """Return the values of each place; None is left out: it has no direction."""
        if id(sequence) not in self.known:
            values_at = self.compute(sequence)
            most = max(len(values) for values in values_at)
            if most > MOST_VALUES:
                raise ProgramError(
                    f"{sequence.name} may have {most:,} values, and {MOST_VALUES:,} are the most; shorten the length, "
                    "or make it of fewer"
                )
            if not most:
                raise ProgramError(f"{sequence.name} is None wherever it stands, so it has no values; leave it out")
            self.known[id(sequence)] = values_at
            self.kept.append(sequence)
        return self.known[id(sequence)]

    def of(self, sequence: language.Sequence) -> list[Any]:
        """Return the values of all places, in order."""
        return sort_values(frozenset().union(*self.at(sequence)))

    def compute(self, sequence: language.Sequence) -> Places:
        match sequence:
            case language.Tokens(side=side):
                return (self.vocabulary[side],) * self.length
            case language.Indices():
                return tuple(frozenset([i]) for i in range(self.length))
            case language.ConstantSequence(value=value):
                values_of_constant = {number(value, sequence) if sequence.numeric else value}
                return (frozenset(values_of_constant - {None}),) * self.length
            case language.Map(function=function, inner=inner):
                every = self.at(inner)
                return tuple(self.images(sequence, function, [(value,) for value in possible]) for possible in every)
            case language.SequenceMap(function=function, first=first, second=second):
                if first is second:
                    every = self.at(first)
                    return tuple(
                        self.images(sequence, function, [(value, value) for value in possible]) for possible in every
                    )
                pairs = list(zip(self.at(first), self.at(second), strict=True))
                self.check_few(sequence, pairs)
                return tuple(self.images(sequence, function, list(product(*pair))) for pair in pairs)
            case language.WeightedSum(terms=terms):
                every = zip(*(self.at(inner) for inner, _ in terms), strict=True)
                return tuple(self.sums(sequence, sets, [factor for _, factor in terms]) for sets in every)
            case language.Aggregate(values=values):
                every = frozenset().union(*self.at(values))
                return ((self.means(sequence, every) if sequence.numeric else every),) * self.length
            case language.Width():
                return (frozenset(range(self.length + 1)),) * self.length
        raise AssertionError(f"no values for {sequence!r}")

    def images(
        self, sequence: language.Sequence, function: Callable[..., Any], arguments: list[tuple[Any, ...]]
    ) -> frozenset[Any]:
        """Return all values of the function over its possible arguments; also 0 for a number that may be missing."""
        images = {value_or_error(sequence, function, row) for row in arguments}
        empty = None in images or any(self.may_be_empty(inner) for inner in sequence.inputs())
        if empty:
            self.empty.add(id(sequence))
        images.discard(None)
        return frozenset({*images, Fraction(0)} if empty and sequence.numeric else images)

    def may_be_empty(self, sequence: language.Sequence) -> bool:
        """Return whether there may be nothing at some place."""
        self.at(sequence)
        by_selector = isinstance(sequence, language.Aggregate) and not sequence.numeric
        return by_selector or (id(sequence) in self.empty and not sequence.numeric)

    def sums(
        self, sequence: language.Sequence, sets: tuple[frozenset[Any], ...], factors: list[float]
    ) -> frozenset[Any]:
        self.check_few(sequence, [sets])
        every = product(*sets)
        return frozenset(sum(number(f) * v for f, v in zip(factors, row, strict=True)) for row in every)

    def check_few(self, sequence: language.Sequence, every: Iterable[tuple[frozenset[Any], ...]]) -> None:
        """Raise ProgramError for more combinations of values than can be tried in seconds."""
        most = max(math.prod(len(values) for values in sets) for sets in every)
        if most > MOST_PAIRS:
            raise ProgramError(
                f"{sequence.name} is made of {most:,} combinations of values, and {MOST_PAIRS:,} are the most; shorten "
                "the length, or make it of sequences that have fewer values"
            )

    def means(self, sequence: language.Sequence, values: frozenset[Any]) -> frozenset[Any]:
        """Return the means of up to `length` of these values, and 0, the mean where no key is selected."""
        sums: list[set[Any]] = [{Fraction(0)}]
        for _ in range(self.length):
            sums.append({total + value for total in sums[-1] for value in values})
            if len(sums[-1]) > MOST_VALUES:
                raise ProgramError(
                    f"{sequence.name} is a mean of numbers that may come to more than {MOST_VALUES:,} values; shorten "
                    "the length, or take numbers that are fewer"
                )
        return frozenset(total / max(1, count) for count, row in enumerate(sums) for total in row)

    def looks_ahead(self, selector: language.Selector) -> tuple[int, int] | None:
        """Return a query and a later key that it may choose; None if it never does."""
        for query in range(self.length):
            for key in range(query + 1, self.length):
                if self.may_choose(selector, query, key):
                    return query, key
        return None

    def chooses(self, selector: language.Selector, *, causal: bool) -> tuple[int, int] | None:
        """Return a query and a key that it may choose; None if it never chooses any."""
        for query in range(self.length):
            for key in range(query + 1 if causal else self.length):
                if self.may_choose(selector, query, key):
                    return query, key
        return None

    def may_choose_several(self, selector: language.Selector, *, causal: bool) -> tuple[int, int, int] | None:
        """Return a query and two keys that it may both choose; None if it never chooses more than one."""
        for query in range(self.length):
            keys = [key for key in range(query + 1 if causal else self.length) if self.may_choose(selector, query, key)]
            if len(keys) > 1:
                return query, keys[0], keys[1]
        return None

    def may_choose(self, selector: language.Selector, query: int, key: int) -> bool:
        return all(
            any(holds(term, k, q) for k in self.at(term.keys)[key] for q in self.at(term.queries)[query])
            for term in selector.terms
        )


def holds(term: language.Select, key: Any, query: Any) -> bool:
    """Return whether the predicate holds of two values that can meet."""
    arguments = plain(key), plain(query)
    try:
        return bool(term.predicate(*arguments))
    except Exception as error:
        raise ProgramError(
            f"select({term.keys.name}, {term.queries.name}): its predicate fails for the key {arguments[0]!r} and the "
            f"query {arguments[1]!r}, which can meet ({type(error).__name__}: {error}); let it answer for all that can"
        ) from None


def value_or_error(sequence: language.Sequence, function: Callable[..., Any], row: tuple[Any, ...]) -> Any:
    """Return the function of possible arguments, numbers as exact fractions; ProgramError if it fails."""
    arguments = [plain(value) for value in row]
    try:
        value = function(*arguments)
    except Exception as error:
        raise ProgramError(
            f"{sequence.name}: its function fails for {', '.join(map(repr, arguments))}, which can come to it "
            f"({type(error).__name__}: {error}); let it answer for everything that can"
        ) from None
    if sequence.numeric:
        return None if value is None else number(value, sequence)
    if not isinstance(value, Hashable):
        raise ProgramError(
            f"{sequence.name}: its function gives {value!r}, and a category must be something that can be hashed: a "
            "word, a number, a tuple of them"
        )
    return value


def plain(value: Any) -> Any:
    """Return a number as the user's functions know it."""
    return float(value) if isinstance(value, Fraction) else value


def number(value: Any, sequence: language.Sequence | None = None) -> Fraction:
    """Return an exact fraction, so that equal numbers are one value."""
    try:
        return Fraction(value).limit_denominator(10**9)
    except (TypeError, ValueError, OverflowError):
        name = "" if sequence is None else f"{sequence.name}: "
        raise ProgramError(f"{name}a numeric sequence holds numbers, and there is {value!r}") from None


def sort_values(values: Iterable[Any]) -> list[Any]:
    """Return values in one order, whatever their kinds."""
    return sorted(values, key=lambda value: (type(value).__name__ not in ("int", "bool", "Fraction"), *keyed(value)))


def keyed(value: Any) -> tuple[str, Any]:
    number_like = isinstance(value, int | float | Fraction)
    return ("", value) if number_like else (type(value).__name__, repr(value))
