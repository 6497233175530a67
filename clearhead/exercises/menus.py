"""Answers made by menus, for a page where no code of a reader may run: programs line by line, and repairs of a step.

A line of a program is what was chosen, with ` | ` between: `select | indices | line 2 | key == query`. Lines are turned
into the code of a RASP program, whose last line is the answer; no word of it comes from the reader.

>>> from clearhead.exercises import EXERCISES
>>> print(write_program(["select | tokens | tokens | True", "width | line 1"], EXERCISES["length"]))
from clearhead.rasp import aggregate, indices, map, select, selector_width, sequence_map, tokens
<BLANKLINE>
line_1 = select(tokens, tokens, lambda key, query: True)
answer = selector_width(line_1)
<BLANKLINE>
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from clearhead.errors import OptionError, ProgramError
from clearhead.exercises.comparing import SAID
from clearhead.exercises.exercise import Exercise, Language

MOST_LINES = 20
MOST_PARTS = 500
"""How large the values of a program may become, counted as if each line were written out: pairs of pairs double. The
largest solution has 67.
"""
Slot = Literal["sequence", "selector", "predicate", "function", "joining"]
OPERATIONS: dict[str, tuple[tuple[Slot, ...], str]] = {
    "select": (("sequence", "sequence", "predicate"), "select({}, {}, lambda key, query: {})"),
    "both": (("selector", "selector"), "{} & {}"),
    "width": (("selector",), "selector_width({})"),
    "aggregate": (("selector", "sequence"), "aggregate({}, {})"),
    "map": (("function", "sequence"), "map(lambda value: {}, {}{})"),
    "combine": (("joining", "sequence", "sequence"), "sequence_map(lambda a, b: {}, {}, {})"),
}
"""What each operation takes, in this order, and its code. `select` and `both` give selectors, the others sequences."""
PREDICATES = (
    "True",
    *("key == query", "key < query", "key <= query", "key > query", "key == query - 1", "key == query + 1"),
    *("key == 0", "key < 0", "key"),
)
FUNCTIONS = (
    *("value + 1", "value - 1", "value * 2", "value // 2", "value % 2"),
    *("value == 0", "value > 0", "value > 0.5", "not value", "float(value)"),
)
JOINING = ("a + b", "a - b", "a % max(b, 1)", "a == b", "a != b", "a and b", "(a, b)")
WORDS: dict[Slot, tuple[str, ...]] = {
    "function": ('"many" if value > 1 else "few"',),
    "joining": ('"x" if a == b else "-"', 'a if b > 1 else "-"'),
}
"""What the programs of mysteries answer with: any of them has all of these."""
NUMERIC = "float(value)"
"""The function whose result is a number, so that aggregate takes its mean."""
BEGINNINGS = ("tokens", "indices")
HEAD = ("from clearhead.rasp import aggregate, indices, map, select, selector_width, sequence_map, tokens", "")
"""The lines of a program's code before its own."""
FAILING = re.compile(r"line (\d+): ")


def menu_of(slot: Slot, exercise: Exercise) -> tuple[str, ...]:
    """Return the predicates or functions that may be chosen, those of the exercise's letters among them."""
    letters = {"predicate": "key", "function": "value"}.get(slot)
    fixed = {"predicate": PREDICATES, "function": FUNCTIONS, "joining": JOINING}.get(slot, ())
    words = WORDS.get(slot, ()) if exercise.kind == "mystery" else ()
    return (*fixed, *words, *(f'{letters} == "{letter}"' for letter in exercise.fact("alphabet") if letters))


def write_program(lines: Sequence[str], exercise: Exercise) -> str:
    """Return the code of a program; ProgramError, which names the line, where a choice is none of its menu."""
    if not 0 < len(lines) <= MOST_LINES:
        raise ProgramError(f"a program by menus has 1 to {MOST_LINES} lines; came {len(lines)}")
    known: dict[str, Slot] = dict.fromkeys(BEGINNINGS, "sequence")
    sizes: dict[str, int] = dict.fromkeys(BEGINNINGS, 1)
    written = [*HEAD]
    for number, line in enumerate(lines, 1):
        operation, code = write_line(line, f"line {number}", known, exercise)
        sizes[f"line {number}"] = size = 1 + sum(sizes.get(part, 0) for part in line.split(" | "))
        if size > MOST_PARTS:
            raise ProgramError(
                f"line {number}: uses lines before it in more than {MOST_PARTS:,} ways; use them less often"
            )
        written.append(f"{'answer' if number == len(lines) else f'line_{number}'} = {code}")
        known[f"line {number}"] = "selector" if operation in ("select", "both") else "sequence"
    return "\n".join(written) + "\n"


def write_line(line: str, name: str, known: dict[str, Slot], exercise: Exercise) -> tuple[str, str]:
    """Return the operation of a line, and its code."""
    operation, *chosen = line.split(" | ")
    if operation not in OPERATIONS:
        raise ProgramError(f"{name}: {operation!r:.40} is no operation; choose one of {', '.join(OPERATIONS)}")
    slots, code = OPERATIONS[operation]
    if len(chosen) != len(slots):
        raise ProgramError(f"{name}: {operation} takes {len(slots)} choices; came {len(chosen)}")
    parts = [write_choice(*pair, name, known, exercise) for pair in zip(slots, chosen, strict=True)]
    if operation == "map":
        parts.append(", numeric=True" if parts[0] == NUMERIC else "")
    return operation, code.format(*parts)


def write_choice(slot: Slot, chosen: str, name: str, known: dict[str, Slot], exercise: Exercise) -> str:
    """Return the code of one choice."""
    if slot in ("sequence", "selector"):
        if known.get(chosen) != slot:
            there = ", ".join(one for one, kind in known.items() if kind == slot) or "none yet"
            raise ProgramError(f"{name}: {chosen!r:.40} is no {slot} of a line before; there is {there}")
        return chosen.replace(" ", "_")
    if chosen not in (menu := menu_of(slot, exercise)):
        raise ProgramError(f"{name}: {chosen!r:.40} is not in the menu: {', '.join(menu)}")
    return chosen


def explain_menus(error: str, language: Language) -> str:
    """Return an error of a program's code in the words of its menus: the line that fails, and why."""
    if found := FAILING.match(error):
        return SAID[language]["unfit"].format(line=int(found[1]) - len(HEAD))
    return SAID[language]["several"] if error.startswith("ProgramError") else error


REPAIRS: dict[str, tuple[str, ...]] = {
    "token": ("token", "position", "token + position"),
    "position": ("sines_and_cosines(n, d)", "position", "0 * token", "token"),
    "stream": ("stream",),
    "normed": ("normed", "stream"),
    "query": ("query", "key", "value", "normed"),
    "key": ("key", "query", "value", "normed"),
    "value": ("value", "query", "key", "normed"),
    "score": ("query @ key.mT", "key @ query.mT", "key @ key.mT", "query @ query.mT", "query @ value.mT"),
    "scaled": ("score", "score / d", "score / d**0.5", "score * d**0.5"),
    "allowed": ("keys >= 0", "keys < queries", "keys <= queries", "keys <= queries + 1", "no_padding"),
    "masked": ("scaled", "where(allowed, scaled, 0)", "where(allowed, scaled, -inf)"),
    "weight": ("softmax(masked, -1)", "softmax(masked, -2)", "softmax(scaled, -1)"),
    "context": ("weight @ value", "weight.mT @ value", "weight @ key"),
    "concat": ("cat([*context], -1)", "context.reshape(n, -1)", "context.sum(0)"),
    "out": ("out", "concat", "token", "position", "token + position"),
    "residual": ("out", "stream + out", "normed + out", "stream"),
}
"""By step, the formulas that may be put in its place. A step that takes weights of the model has itself among them."""
METHODS = {"mT", "reshape", "sum"}


def list_repairs(step: str, steps: Mapping[str, Any]) -> list[str]:
    """Return the formulas for a step that can be computed from the steps of its place."""
    known = {*steps, *repair_names(steps)}
    return [formula for formula in REPAIRS[step] if {*compile(formula, "menu", "eval").co_names} - METHODS <= known]


def write_repair(step: str, formula: str) -> Callable[[Mapping[str, Any]], Tensor]:
    """Return what computes a step by a formula of its menu from the steps of its place."""
    if formula not in REPAIRS.get(step, ()):
        there = ", ".join(REPAIRS.get(step, ())) or f"none; steps are {', '.join(REPAIRS)}"
        raise OptionError(f"{step}: {formula!r:.40} is not in its menu: {there}")
    code = compile(formula, "menu", "eval")

    def repair(steps: Mapping[str, Any]) -> Tensor:
        return eval(code, {"__builtins__": {}}, {**steps, **repair_names(steps)})

    return repair


def repair_names(steps: Mapping[str, Any]) -> dict[str, Any]:
    """Return what formulas may name beside the steps of their place: sizes, places of keys and queries, functions."""
    n, d = len(steps["tokens"]), steps["query" if "query" in steps else "token"].shape[-1]
    places, words = torch.arange(n), torch.tensor([word != "<pad>" for word in steps["tokens"]])
    functions = {"softmax": torch.softmax, "where": torch.where, "cat": torch.cat}
    matrices = {"keys": places.expand(n, n), "queries": places[:, None], "no_padding": words.expand(n, n)}
    return {"n": n, "d": d, "inf": math.inf, "sines_and_cosines": sines_and_cosines, **functions, **matrices}


def sines_and_cosines(n: int, d: int) -> Tensor:
    """Return the sinusoidal positions: a sine and a cosine of the same angle take turns."""
    angles = torch.arange(n).double()[:, None] / 10000 ** (torch.arange(0, d, 2).double() / d)
    return torch.stack([angles.sin(), angles.cos()], -1).reshape(n, d)
