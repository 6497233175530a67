"""All-pairs testing: from the product of a test's parameters, choose few cases in which every pair of values occurs.

Most mistakes are in one part or between two. `@pytest.mark.pairs` on a test leaves the chosen cases to `make test`, and
marks the others `thorough`, for `make test-all`; `@pytest.mark.pairs(1)` asks for every value once and for no pairs.
"""

import os
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

import pytest

Case = Mapping[str, Hashable]


def covering(cases: Sequence[Case], strength: int = 2) -> set[int]:
    """Return the places of a few cases in which every `strength` values occur together that do so in any case.

    The same cases give the same choice: each time the first of those that show most that was not shown so far.

    >>> product = [{"mask": mask, "heads": heads, "kernel": one} for mask in "abc" for heads in "abc" for one in "ab"]
    >>> len(product), len(covering(product)), len(covering(product, 1))
    (18, 9, 3)
    """
    shown = [{*combinations(sorted(case.items()), min(strength, len(case)))} for case in cases]
    left, chosen = set().union(*shown), set()
    while left:
        best = max(range(len(cases)), key=lambda place: len(shown[place] & left))
        chosen.add(best)
        left -= shown[best]
    return chosen


def few(values: Iterable[Any], count: int, mark: pytest.MarkDecorator = pytest.mark.thorough) -> list[Any]:
    """Return parameters of a test, all but the first so many of them marked `thorough`, or as is said.

    >>> [getattr(one, "values", one) for one in few("abcd", 2)]
    ['a', 'b', ('c',), ('d',)]
    """
    return [one if place < count else pytest.param(one, marks=mark) for place, one in enumerate(values)]


def share_of(count: int) -> int:
    """Return how many of so many random examples to try: a quarter in `make test`, all of them in `make test-all`."""
    return count if os.environ.get("HYPOTHESIS_PROFILE") == "thorough" else max(1, count // 4)


def mark_thorough(items: Sequence[pytest.Item]) -> None:
    """Mark `thorough` those cases of tests marked `pairs` that the others do not need to show every pair."""
    tests = defaultdict(list)
    for item in items:
        marked = item.get_closest_marker("pairs") and not item.get_closest_marker("thorough")
        if marked and getattr(item, "callspec", None):
            tests[item.parent, item.originalname].append(item)  # pyright: ignore[reportAttributeAccessIssue]
    for cases in tests.values():
        asked = cases[0].get_closest_marker("pairs").args
        # By identity: a parameter need not be hashable, and pytest's own `indices` number the cases, not the values.
        axes = [{name: id(value) for name, value in case.callspec.params.items()} for case in cases]
        chosen = covering(axes, *asked)
        for place, case in enumerate(cases):
            if place not in chosen:
                case.add_marker(pytest.mark.thorough)


def mark_quick(items: Sequence[pytest.Item], of_shapes: tuple[str, ...], but: tuple[str, ...] = ()) -> None:
    """Mark `brief` up to three cases of every test that is neither slow nor thorough: `make test-fast` runs them.

    They are the first, the middle and the last. The first is marked `shapes` too where its name, from below `tests` or
    `clearhead`, begins with one of `of_shapes` and with none of `but`.
    """
    tests = defaultdict(list)
    for item in items:
        if not item.get_closest_marker("slow") and not item.get_closest_marker("thorough"):
            tests[item.parent, getattr(item, "originalname", None) or item.name].append(item)
    for cases in tests.values():
        for place in {0, len(cases) // 2, len(cases) - 1}:
            cases[place].add_marker(pytest.mark.brief)
        name = cases[0].nodeid.partition("/")[-1]
        if name.startswith(of_shapes) and not name.startswith(but):
            cases[0].add_marker(pytest.mark.shapes)
