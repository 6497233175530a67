"""The interpreter: what a RASP program means, in plain Python. Compiled models must give the same."""

from collections.abc import Callable
from collections.abc import Sequence as Row
from typing import Any

from clearhead.calls import public
from clearhead.errors import ProgramError
from clearhead.rasp import language

Values = list[Any]


@public
def run(program: language.Sequence, tokens: Row[Any], source: Row[Any] = ()) -> Values:
    """Run a program by its definition, without a model.

    Args:
        program: The program.
        tokens: The text.
        source: The source, if the program reads one.

    Returns:
        A value for each token.

    >>> from clearhead import rasp
    >>> rasp.run(rasp.PROGRAMS["reverse"].output, "abc")
    ['c', 'b', 'a']
    """
    return Interpreter(tokens, source).of(program)


class Interpreter:
    """Computes every sequence of a program for one input, each once."""

    def __init__(self, tokens: Row[Any], source: Row[Any]) -> None:
        self.texts = {"target": list(tokens), "source": list(source)}
        self.known: dict[int, Values] = {}

    def of(self, sequence: language.Sequence) -> Values:
        if id(sequence) not in self.known:
            self.known[id(sequence)] = self.compute(sequence)
        return self.known[id(sequence)]

    def compute(self, sequence: language.Sequence) -> Values:
        text = self.texts[sequence.side]
        match sequence:
            case language.Tokens():
                return text
            case language.Indices():
                return list(range(len(text)))
            case language.ConstantSequence(value=value):
                return [value] * len(text)
            case language.Map(function=function, inner=inner):
                return [apply_function(sequence, function, value) for value in self.of(inner)]
            case language.SequenceMap(function=function, first=first, second=second):
                pairs = zip(self.of(first), self.of(second), strict=True)
                return [apply_function(sequence, function, *pair) for pair in pairs]
            case language.WeightedSum(terms=terms):
                rows = [[factor * value for value in self.of(inner)] for inner, factor in terms]
                return [sum(column) for column in zip(*rows, strict=True)]
            case language.Aggregate(selector=selector, values=values):
                inner_values = self.of(values)
                return [
                    aggregate_values(sequence, [inner_values[key] for key in selected])
                    for selected in self.selected_keys(selector)
                ]
            case language.Width(selector=selector):
                return [len(selected) for selected in self.selected_keys(selector)]
        raise AssertionError(f"no meaning for {sequence!r}")

    def selected_keys(self, selector: language.Selector) -> list[list[int]]:
        """Return the keys each query chooses; a value that is None is never chosen, and chooses nothing."""
        every = [(self.of(term.keys), self.of(term.queries), term.predicate) for term in selector.terms]
        n_key, n_query = len(self.texts[selector.key_side]), len(self.texts[selector.query_side])

        return [[key for key in range(n_key) if all_hold(every, key, query)] for query in range(n_query)]


def all_hold(every: list[tuple[Values, Values, Callable[[Any, Any], bool]]], key: int, query: int) -> bool:
    return all(
        keys[key] is not None and queries[query] is not None and predicate(keys[key], queries[query])
        for keys, queries, predicate in every
    )


def apply_function(sequence: language.Sequence, function: Callable[..., Any], *values: Any) -> Any:
    """Apply the function; return None, or 0 for numbers, where a value is missing or the function returns None."""
    missing = any(value is None for value in values)
    result = None if missing else function(*values)
    return empty(sequence) if result is None else result


def empty(sequence: language.Sequence) -> Any:
    return 0.0 if sequence.numeric else None


def aggregate_values(sequence: language.Sequence, values: Values) -> Any:
    """Return the mean of numbers, or the value that all chosen keys share."""
    if not values:
        return empty(sequence)
    if sequence.numeric:
        return sum(values) / len(values)
    if any(value != values[0] for value in values):
        raise ProgramError(
            f"{sequence.name}: several keys are chosen whose values differ ({', '.join(map(str, values[:5]))}): of "
            "categories there is no mean; choose one key, or aggregate numbers"
        )
    return values[0]
