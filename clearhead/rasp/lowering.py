"""Lowering: each sequence of a RASP program becomes a space, and the heads or networks that write it.

All of it is exact. A category is 0 or 1; a network of categories is a table; a number becomes a category by two
networks, the first of which rises past each threshold and the second of which settles at exactly 0 or 1.
"""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Row
from fractions import Fraction
from typing import Any

from clearhead.errors import ProgramError
from clearhead.rasp import language
from clearhead.rasp.operations import Direction, HeadCondition, HeadOperation, HiddenUnit, HiddenUnits, Operation
from clearhead.rasp.spaces import HERE, ONE, Space
from clearhead.rasp.values import Possible, holds, plain

NEAR = 1e-5
"""Numbers that lie closer, beside their size, are one number to a model in float32."""


class Lowered:
    """The operations of each side, the spaces that are there from the start, and where the result lies."""

    def __init__(self, possible: Possible, gated: Mapping[str, bool]) -> None:
        self.possible, self.gated = possible, gated
        self.operations: dict[str, list[Operation]] = {"source": [], "target": []}
        self.inputs: dict[tuple[str, str], Space] = {}
        """By side and kind, `tokens` or `places`."""
        self.known: dict[int, Space] = {}
        self.categories: dict[Space, Space] = {}
        self.values: dict[Space, list[Any]] = {}
        """The numbers that a numeric space may hold, in order."""

    def of(self, sequence: language.Sequence) -> Space:
        if id(sequence) not in self.known:
            self.known[id(sequence)] = self.compute(sequence)
        return self.known[id(sequence)]

    def space(self, sequence: language.Sequence) -> Space:
        """Return a fresh space for the sequence's values."""
        values = self.possible.of(sequence)
        space = Space(name=sequence.name, numeric=sequence.numeric, values=() if sequence.numeric else tuple(values))
        if sequence.numeric:
            self.values[space] = values
        return space

    def compute(self, sequence: language.Sequence) -> Space:
        match sequence:
            case language.Tokens(side=side):
                return self.input(side, "tokens", sequence)
            case language.Indices(side=side):
                return self.indices(side, sequence)
            case language.ConstantSequence(side=side, value=value):
                out = self.space(sequence)
                return self.add_network(side, out, [HiddenUnit(reads=here(1.0), writes=writes_for(out, value))])
            case language.Map(side=side, function=function, inner=inner):
                return self.add_map(side, self.of(inner), plainly(function), self.space(sequence))
            case language.SequenceMap(side=side, function=function, first=first, second=second):
                pair = self.category(side, self.of(first)), self.category(side, self.of(second))
                return self.add_pairs(side, pair, plainly(function), self.space(sequence))
            case language.WeightedSum(side=side, terms=terms):
                return self.add_sum(side, [(self.of(inner), factor) for inner, factor in terms], self.space(sequence))
            case language.Aggregate(selector=selector, values=values):
                return self.add_head(selector, self.of(values), self.space(sequence))
            case language.Width(selector=selector):
                return self.add_width(selector, self.space(sequence))
        raise AssertionError(f"cannot lower {sequence!r}")

    def input(self, side: str, kind: str, sequence: language.Sequence) -> Space:
        if (side, kind) not in self.inputs:
            name = sequence.name if kind == "tokens" else f"{sequence.name} of all"
            self.inputs[side, kind] = Space(name=name, values=tuple(self.possible.of(sequence)))
        return self.inputs[side, kind]

    def indices(self, side: str, sequence: language.Sequence) -> Space:
        """Return the places from the position table; where tokens stand beside the text, those of the text alone."""
        positions = self.input(side, "places", sequence)
        if not self.gated[side]:
            return positions
        out = Space(name=sequence.name, values=positions.values)
        units = [
            HiddenUnit(reads={(positions, i): 1.0, **here(1.0), **one(-1.0)}, writes={(out, i): 1.0})
            for i in positions.values
        ]
        return self.add_network(side, out, units)

    def add_network(self, side: str, out: Space, units: Row[HiddenUnit]) -> Space:
        self.operations[side].append(HiddenUnits(units=tuple(units), out=out))
        return out

    def add_map(self, side: str, inner: Space, function: Callable[[Any], Any], out: Space) -> Space:
        if inner.numeric:
            return self.add_thresholds(side, inner, function, out)
        units = [HiddenUnit(reads={(inner, v): 1.0}, writes=writes_for(out, function(v))) for v in inner.values]
        return self.add_network(side, out, [unit for unit in units if unit.writes])

    def add_pairs(self, side: str, pair: tuple[Space, Space], function: Callable[[Any, Any], Any], out: Space) -> Space:
        first, second = pair
        units = []
        for a in first.values:
            for b in second.values:
                reads: dict[Direction, float] = dict(here(-1.0))
                for direction in ((first, a), (second, b)):
                    reads[direction] = reads.get(direction, 0.0) + 1.0
                writes = self.pair_writes(function, a, b, out)
                if writes:
                    units.append(HiddenUnit(reads=reads, writes=writes))
        return self.add_network(side, out, units)

    def pair_writes(self, function: Callable[[Any, Any], Any], a: Any, b: Any, out: Space) -> dict[Direction, float]:
        """Return the function of a pair of values. A pair that never occurs may be one that it fails for."""
        try:
            value = function(a, b)
        except Exception:
            return {}
        return writes_for(out, value) if out.numeric or value in out.values else {}

    def add_thresholds(self, side: str, inner: Space, function: Callable[[Any], Any], out: Space) -> Space:
        """Apply a function to a number: find the thresholds that it is past, and write the value for that range."""
        values = self.values.get(inner)
        if values is None:
            raise ProgramError(f"{inner.name} may be any number, so no table can be made of it")
        answers = [writes_for(out, function(value)) for value in values]
        rising = Space(name=f"{inner.name} past", values=tuple(range(1, len(values))))
        rises = []
        for i in rising.values:
            low, high = float(values[i - 1]), float(values[i])
            if high - low < NEAR * max(1.0, abs(low), abs(high)):
                raise ProgramError(
                    f"{inner.name} may be {low} or {high}: too close to be told apart in float32; take numbers that "
                    "differ more"
                )
            slope = 4 / (high - low)
            reads = {(inner, None): slope, **here(-slope * (low + high) / 2)}
            rises.append(HiddenUnit(reads=reads, writes={(rising, i): 1.0}))
        if rises:
            self.add_network(side, rising, rises)
        last = HiddenUnit(reads=here(1.0), writes=answers[-1])
        below = [
            HiddenUnit(reads={**here(1.0), (rising, i): -1.0}, writes=difference(answers[i - 1], answers[i]))
            for i in rising.values
        ]
        return self.add_network(side, out, [*below, last])

    def category(self, side: str, space: Space) -> Space:
        """Return the same as a category, each made once."""
        if not space.numeric:
            return space
        if space not in self.categories:
            out = Space(name=f"{space.name} as a category", values=tuple(plain(v) for v in self.values[space]))
            self.categories[space] = self.add_thresholds(side, space, plain, out)
        return self.categories[space]

    def add_sum(self, side: str, terms: Row[tuple[Space, float]], out: Space) -> Space:
        units = []
        for space, factor in terms:
            for sign in (1.0, -1.0):
                units.append(HiddenUnit(reads={(space, None): sign}, writes={(out, None): sign * factor}))
        return self.add_network(side, out, units)

    def add_head(self, selector: language.Selector, values: Space | None, out: Space) -> Space:
        cross = selector.key_side != selector.query_side
        choices = tuple(self.choice(selector, term) for term in selector.terms)
        self.operations[selector.query_side].append(HeadOperation(choices=choices, values=values, out=out, cross=cross))
        return out

    def choice(self, selector: language.Selector, term: language.Select) -> HeadCondition:
        """Make one condition. Its predicate is called for every possible pair here, before anything is built."""
        keys = self.category(selector.key_side, self.of(term.keys))
        queries = self.category(selector.query_side, self.of(term.queries))
        fits = {(key, query) for key in keys.values for query in queries.values if holds(term, key, query)}
        return HeadCondition(keys=keys, queries=queries, predicate=lambda key, query: (key, query) in fits)

    def add_width(self, selector: language.Selector, out: Space) -> Space:
        """Count the chosen keys, from the weight that is left on the sink."""
        sink_weight = Space(name=f"1 / (1 + {out.name})", numeric=True)
        self.values[sink_weight] = [Fraction(1, 1 + count) for count in reversed(range(self.possible.length + 1))]
        self.add_head(selector, None, sink_weight)
        return self.add_map(selector.query_side, sink_weight, lambda share: round(1 / share) - 1, out)


def lower(program: language.Sequence, possible: Possible, gated: Mapping[str, bool]) -> tuple[Lowered, Space]:
    """Return the operations that make the program's result, and the space it lies in."""
    lowered = Lowered(possible, gated)
    return lowered, lowered.of(program)


def here(factor: float) -> dict[Direction, float]:
    return {(HERE, None): float(factor)}


def one(factor: float) -> dict[Direction, float]:
    return {(ONE, None): float(factor)}


def writes_for(out: Space, value: Any) -> dict[Direction, float]:
    """Return what writes a value: nothing for None."""
    if value is None:
        return {}
    return {(out, None): float(value)} if out.numeric else {(out, value): 1.0}


def difference(minuend: Mapping[Direction, float], subtrahend: Mapping[Direction, float]) -> dict[Direction, float]:
    terms = dict(minuend)
    for direction, amount in subtrahend.items():
        terms[direction] = terms.get(direction, 0.0) - amount
    return {direction: amount for direction, amount in terms.items() if amount}


def plainly(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *values: function(*(plain(value) for value in values))
