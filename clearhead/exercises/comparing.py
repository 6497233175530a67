"""Comparing numbers, cell by cell, with the first that differs in words of both languages."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from clearhead.exercises.exercise import Language

MOST, SHOWN = 1e300, 80
"""Numbers beyond are compared as they are: an integer of Python may be larger than any float. Characters of a word."""
NEAR = 1e-6
"""How far a number may be off: enough for float32, far too little for another formula."""
SAID: dict[Language, dict[str, str]] = {
    "en": {
        "cell": "Given {given}, at {place}: expected {expected}, came {came}.",
        "shape": "Given {given}: expected the shape {expected}, came {came}.",
        "number": "Given {given}: expected {expected}, came {came}.",
        "called": "It was called with {arguments}.",
        "text": "For {given}: expected {expected}, came {came}.",
        "stops": "For {given}: expected {expected}, but it cannot be computed: {came}",
        "read": "A function there reads `{name}`, which is a sequence and has no value inside a function. Give it to "
        "`select` as keys or queries, or to `map` or `sequence_map`.",
        "line": "{name} = {values}",
        "unfit": "line {line} does not fit its values",
        "several": "the chosen keys have different values",
        "cost": "It compiles into {cost}; the best known: {best}.",
        "best": "It compiles into {cost}. No better one is known.",
        "better": "It compiles into {cost}. That is better than the best known: {best}.",
        "uncompiled": "It is right, and does not compile: {why}",
        "no place": "`where` gives a place and one of its steps, as ('decoder.0.attention', 'query'); came "
        "{came}. Places: {places}.",
        "sound": "In {at}, `{step}` is what the steps before it make: the slip is not there.",
        "repaired": "With your `{step}` the model gives the output of the sound one, for all {count} texts.",
        "no vectors": "`{role}` should return a list of numbers, such as [1, 0], and one of the same length for every "
        "word. For *{word}* at place {place} came {came}.",
        "widths": "A query and a key need as many numbers; came {query} and {key}.",
        "designed": "{credit} of all weight is where it should be, over every sentence.",
        "credit": "{credit} of the weight is right. The worst: *{word}* in “{text}” puts {share} on what is asked.",
        "output": "{credit} of it is right. The worst: *{word}* in “{text}” gets {output}, and should get {wanted}.",
        "no edges": "`edges` is a list of edges, as 'encoder.embedding.token -> encoder.output'.",
        "unknown edge": "There is no edge {edge!r}; {near}.",
        "edges": "Edges: {right} of {true} found, {extra} too many.",
        "extra edge": "{edge} never changes an answer by itself.",
        "program": "The program is right.",
        "no program": "There is no program yet: `answer` is empty.",
    },
    "de": {
        "cell": "Mit {given}, bei {place}: erwartet {expected}, gekommen {came}.",
        "shape": "Mit {given}: erwartet die Form {expected}, gekommen {came}.",
        "number": "Mit {given}: erwartet {expected}, gekommen {came}.",
        "called": "Aufgerufen wurde sie mit {arguments}.",
        "text": "Bei {given}: erwartet {expected}, gekommen {came}.",
        "stops": "Bei {given}: erwartet {expected}, aber es lässt sich nicht berechnen: {came}",
        "read": "Eine Funktion liest da `{name}`. Das ist eine Folge und hat in einer Funktion keinen Wert. Gib sie "
        "`select` als Keys oder Queries, oder `map` oder `sequence_map`.",
        "line": "{name} = {values}",
        "unfit": "Zeile {line} passt nicht zu ihren Werten",
        "several": "die gewählten Keys haben verschiedene Werte",
        "cost": "Daraus werden {cost}; am besten bisher: {best}.",
        "best": "Daraus werden {cost}. Besser ist bisher keine Lösung.",
        "better": "Daraus werden {cost}. Das ist besser als das bisher Beste: {best}.",
        "uncompiled": "Es ist richtig, lässt sich aber nicht kompilieren: {why}",
        "no place": "`where` gibt einen Ort und einen seiner Schritte zurück, wie ('decoder.0.attention', 'query'); "
        "gekommen {came}. Orte: {places}.",
        "sound": "In {at} ist `{step}`, was die Schritte davor ergeben: Dort ist der Fehler nicht.",
        "repaired": "Mit deinem `{step}` gibt das Modell bei allen {count} Texten die Ausgabe des richtigen.",
        "no vectors": "`{role}` soll eine Liste von Zahlen zurückgeben, etwa [1, 0], für jedes Wort eine gleich lange. "
        "Bei *{word}* an Stelle {place} kam {came}.",
        "widths": "Query und Key brauchen gleich viele Zahlen; gekommen sind {query} und {key}.",
        "designed": "{credit} allen Gewichts liegt richtig, über alle Sätze.",
        "credit": "{credit} des Gewichts liegt richtig. Am schlechtesten: *{word}* in „{text}“ legt {share} darauf.",
        "output": "{credit} davon stimmt. Am schlechtesten: *{word}* in „{text}“ bekommt {output}, nicht {wanted}.",
        "no edges": "`edges` ist eine Liste von Kanten, wie 'encoder.embedding.token -> encoder.output'.",
        "unknown edge": "Es gibt keine Kante {edge!r}; {near}.",
        "edges": "Kanten: {right} von {true} gefunden, {extra} zu viel.",
        "extra edge": "{edge} ändert für sich allein nie eine Antwort.",
        "program": "Das Programm ist richtig.",
        "no program": "Ein Programm fehlt noch: `answer` ist leer.",
    },
}
COUNTED: dict[Language, dict[str, tuple[str, str]]] = {
    "en": {"layers": ("layer", "layers"), "heads": ("head", "heads"), "operations": ("operation", "operations")},
    "de": {"layers": ("Schicht", "Schichten"), "heads": ("Kopf", "Köpfe"), "operations": ("Operation", "Operationen")},
}
"""What a program's cost counts: one of them, and several."""
PLACES: dict[Language, tuple[str, str, str]] = {
    "en": ("place {}", "row {}, column {}", "result {} of {}"),
    "de": ("Stelle {}", "Zeile {}, Spalte {}", "Ergebnis {} von {}"),
}


def first_difference(expected: Any, came: Any, given: str, language: Language) -> str | None:
    """Say where two packed results differ first; None if they do not."""
    said, (place, cell, output) = SAID[language], PLACES[language]
    if isinstance(expected, list):
        if not isinstance(came, list) or len(came) != len(expected):
            return said["number"].format(given=given, expected=f"{len(expected)} results", came=describe(came))
        several = (
            first_difference(one, other, f"{given}, {output.format(i, len(expected))}", language)
            for i, (one, other) in enumerate(zip(expected, came, strict=True), 1)
        )
        return next((problem for problem in several if problem is not None), None)
    shape, theirs = shape_of(expected), shape_of(came)
    if theirs is None or shape is None:
        return said["number"].format(given=given, expected=describe(expected), came=describe(came))
    if shape != theirs:
        return said["shape"].format(given=given, expected=describe_shape(shape), came=describe_shape(theirs))
    for at, (one, other) in enumerate(itertools.zip_longest(numbers_of(expected), numbers_of(came))):
        if not same_number(one, other):
            where = np.unravel_index(at, shape) if shape else ()
            named = (cell if len(where) == 2 else place).format(*map(int, where)) if where else ""
            numbers = {"expected": describe(one), "came": describe(other)}
            return said["cell" if where else "number"].format(given=given, place=named, **numbers)
    return None


def shape_of(packed: Any) -> tuple[int, ...] | None:
    """Return the shape of a packed result; a number has none of its own, and what is no number is None."""
    if isinstance(packed, dict) and "shape" in packed:
        return tuple(packed["shape"])
    return () if isinstance(packed, int | float) else None


def numbers_of(packed: Any) -> list[Any]:
    return packed["numbers"] if isinstance(packed, dict) else [packed]


def same_number(one: int | float, other: Any) -> bool:
    """Check whether an answer's number is the one expected; what an answer gives may be no number at all."""
    if not isinstance(other, int | float):
        return False
    if not -MOST < other < MOST or not math.isfinite(one):
        return one == other or (math.isnan(one) and isinstance(other, float) and math.isnan(other))
    return abs(one - other) <= NEAR * max(1.0, abs(one))


def describe(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, dict):
        return f"numbers of the shape {describe_shape(tuple(value['shape']))}" if "numbers" in value else "a dict"
    if isinstance(value, list) and not (value and all(isinstance(each, str) for each in value)):
        return f"{len(value)} results"
    return repr(value)[:SHOWN]


def describe_shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "1"


def same_row(expected: Sequence[Any], came: Any) -> bool:
    if not isinstance(came, list) or len(came) != len(expected):
        return False
    return all(same_value(one, other) for one, other in zip(expected, came, strict=True))


def same_value(one: Any, other: Any) -> bool:
    if isinstance(one, int | float) and isinstance(other, int | float):
        return same_number(float(one), float(other))
    return one == other


def show_row(values: Iterable[Any]) -> str:
    return " ".join(
        "–" if value is None else value[:SHOWN] if isinstance(value, str) else describe(value) for value in values
    )


def describe_costs(cost: Mapping[str, int], language: Language) -> str:
    """Return what a program compiles into: `1 layer, 2 heads, 3 operations`."""
    return ", ".join(f"{cost[name]} {words[cost[name] != 1]}" for name, words in COUNTED[language].items())
