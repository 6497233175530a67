"""What a common error of Python, torch or numpy means in an exercise, in words of both languages.

A newcomer's function more often stops with an error than it gives wrong numbers, and the error speaks of sizes and
types. Each hint here belongs to a message that a newcomer met in the course of decision 0035, or to its sibling.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from clearhead.exercises.exercise import Language


@final
@dataclass(frozen=True, kw_only=True)
class ErrorHint:
    """What to say of errors that match a pattern; the pattern's groups fill the gaps."""

    pattern: re.Pattern[str]
    said: Mapping[Language, str]


def hint_for(pattern: str, en: str, de: str) -> ErrorHint:
    return ErrorHint(pattern=re.compile(pattern), said={"en": en, "de": de})


HINTS = (
    hint_for(
        r"TypeError: (sqrt|exp|log|sin|cos)\(\): argument 'input' .*must be Tensor, not (?:int|float)",
        "`torch.{0}` takes a tensor, and that is a plain number: use `math.{0}`.",
        "`torch.{0}` nimmt einen Tensor, und das ist eine einfache Zahl: Nimm `math.{0}`.",
    ),
    hint_for(
        r"Boolean value of Tensor with more than one value|truth value of an array with more than one element",
        "`not`, `and`, `or` and `if` take one truth value, not a matrix of them. For every cell: `~`, `&`, `|`.",
        "`not`, `and`, `or` und `if` nehmen einen Wahrheitswert, nicht eine Matrix davon. Zellenweise: `~`, `&`, `|`.",
    ),
    hint_for(
        r"torch\.return_types\.(max|min)",
        "Along an axis, `{0}` gives two things, the values and their places. For the values alone: "
        "`.a{0}(-1, keepdim=True)`.",
        "Entlang einer Achse gibt `{0}` zwei Dinge zurück, die Werte und ihre Stellen. Nur die Werte: "
        "`.a{0}(-1, keepdim=True)`.",
    ),
    hint_for(
        r"operator\.invert|ufunc 'invert' not supported",
        "`~` exchanges True and False, and those are numbers. Make truth values first: `torch.ones(n, m).bool()`.",
        "`~` vertauscht True und False, und das sind Zahlen. Mach erst Wahrheitswerte: `torch.ones(n, m).bool()`.",
    ),
    hint_for(
        r"missing 1 required positional argument: 'allowed'|bad operand type for unary ~: 'NoneType'",
        "A mask is needed there too. If nothing is hidden, it is True everywhere: "
        "`torch.ones(len(query), len(key)).bool()`.",
        "Auch da wird eine Maske gebraucht. Wenn nichts verborgen ist, ist sie überall True: "
        "`torch.ones(len(query), len(key)).bool()`.",
    ),
    hint_for(
        r"size of tensor a .* must match the size of tensor b|could not be broadcast together",
        "`*`, `+`, `-` and `/` work cell by cell, so the shapes must fit. The matrix product is `@`; a sum, mean or "
        "maximum of each row keeps its axis with `keepdim=True`.",
        "`*`, `+`, `-` und `/` rechnen Zelle für Zelle, also müssen die Formen passen. Das Matrixprodukt ist `@`; "
        "Summe, Mittel oder Maximum jeder Zeile behalten ihre Achse mit `keepdim=True`.",
    ),
    hint_for(
        r"shapes cannot be multiplied|matmul: Input operand 1 has a mismatch",
        "`@` needs as many columns on its left as rows on its right. `.T` exchanges rows and columns.",
        "`@` braucht links so viele Spalten wie rechts Zeilen. `.T` vertauscht Zeilen und Spalten.",
    ),
    hint_for(
        r"(cat|stack)\(\): argument 'tensors' .*must be tuple of Tensors, not Tensor",
        "`torch.{0}` takes a list: `torch.{0}([first, second])`. Of a tensor with an axis of heads: `[*heads]`.",
        "`torch.{0}` nimmt eine Liste: `torch.{0}([first, second])`. Bei einem Tensor mit einer Achse von "
        "Köpfen: `[*heads]`.",
    ),
    hint_for(
        r"Tensors must have same number of dimensions|must have same number of dimensions",
        "A vector is no row yet: `vector[None]` is a matrix of one row.",
        "Ein Vektor ist noch keine Zeile: `vector[None]` ist eine Matrix aus einer Zeile.",
    ),
    hint_for(
        r"IndexError: index (-?\d+) is out of bounds for (?:dimension|axis) (\d+) with size (\d+)",
        "Axis {1} has {2} places, counted from 0, and {0} is not one of them.",
        "Achse {1} hat {2} Stellen, von 0 an gezählt, und {0} ist keine davon.",
    ),
    hint_for(
        r"'(?:Tokens|Indices|Width|Map|SequenceMap|Aggregate|WeightedSum)' has no len\(\)",
        "A sequence has no length before a text is read. `selector_width` of a select that chooses all counts it.",
        "Eine Folge hat keine Länge, ehe ein Text gelesen ist. `selector_width` eines select, das alles wählt, zählt.",
    ),
    hint_for(
        r"'(?:Tokens|Indices|Width|Map|SequenceMap|Aggregate|WeightedSum)' object is not (?:subscriptable|iterable)",
        "A sequence has no places to index. `aggregate(select(…), sequence)` fetches values from other places.",
        "Eine Folge hat keine Stellen zum Indizieren. `aggregate(select(…), sequence)` holt Werte von anderen Stellen.",
    ),
    hint_for(
        r"(sequence_map|map): function must be",
        "The function comes first: `map(function, sequence)`, `sequence_map(function, first, second)`.",
        "Die Funktion kommt zuerst: `map(function, sequence)`, `sequence_map(function, first, second)`.",
    ),
    hint_for(
        r"(selector_width|aggregate): selector must be Selector",
        "`{0}` takes what `select` gives: `select(keys, queries, lambda key, query: …)`.",
        "`{0}` nimmt, was `select` gibt: `select(keys, queries, lambda key, query: …)`.",
    ),
    hint_for(
        r"`answer` is a sequence, .* came Selector",
        "A selector says which keys are chosen. `aggregate(selector, tokens)` fetches their values, "
        "`selector_width(selector)` counts them.",
        "Ein Selektor sagt, welche Keys gewählt sind. `aggregate(selector, tokens)` holt ihre Werte, "
        "`selector_width(selector)` zählt sie.",
    ),
    hint_for(
        r"`answer` is a sequence, .* came bool",
        "`==` between sequences compares the sequences, not their values. Values are compared in a function: "
        "`map(lambda n: n == 1, sequence)`, `sequence_map(lambda a, b: a == b, first, second)`.",
        "`==` zwischen Folgen vergleicht die Folgen, nicht ihre Werte. Werte vergleicht eine Funktion: "
        "`map(lambda n: n == 1, sequence)`, `sequence_map(lambda a, b: a == b, first, second)`.",
    ),
)


def explain_error(error: str, language: Language) -> tuple[str, ...]:
    """Return what a common error means, as the line to show below it; nothing if it is not a common one.

    >>> explain_error("line 3: TypeError: sqrt(): argument 'input' (position 1) must be Tensor, not int", "en")
    ('`torch.sqrt` takes a tensor, and that is a plain number: use `math.sqrt`.',)
    """
    for hint in HINTS:
        if found := hint.pattern.search(error):
            return (hint.said[language].format(*found.groups()),)
    return ()
