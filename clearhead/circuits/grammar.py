"""Programs by a seeded grammar: sequences made of sequences at random, for methods to be graded on.

A program is kept if its answer is not the same for all texts, if it computes what no earlier one computes, if its
graph has at least 40 edges, and if between a tenth and a half of the edges that could matter do.
"""

import random
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

from clearhead.calls import public
from clearhead.circuits.truth import BenchSample
from clearhead.errors import ProgramError
from clearhead.rasp import Program, run
from clearhead.rasp.language import (
    Selector,
    Sequence,
    aggregate,
    indices,
    map,
    select,
    selector_width,
    sequence_map,
    tokens,
)

VOCABULARY = (0, 1, 2)
LENGTH = 4
FEWEST_EDGES = 40
SHARES = (0.1, 0.5)
"""Smallest and largest share of true edges among those that could matter."""
PREDICATES: dict[str, Callable[[Any, Any], bool]] = {
    "is": lambda key, query: key == query,
    "is not": lambda key, query: key != query,
    "below": lambda key, query: key < query,
    "up to": lambda key, query: key <= query,
    "next to": lambda key, query: key == query + 1,
    "whatever": lambda key, query: True,
}
FUNCTIONS: dict[str, Callable[[int], int]] = {
    "is 0": lambda value: int(value == 0),
    "mod 2": lambda value: value % 2,
    "at most 1": lambda value: min(value, 1),
    "next": lambda value: value + 1,
    "above 1": lambda value: int(value > 1),
    "above 3": lambda value: int(value > 3),
}
PAIRS: dict[str, Callable[[int, int], int]] = {
    "plus": lambda a, b: min(a + b, 4),
    "same": lambda a, b: int(a == b),
    "and": lambda a, b: int(a > 0 and b > 0),
    "larger": max,
    "smaller": min,
    "first unless 9": lambda a, b: b if a == 9 else a,
    "first if second": lambda a, b: a if b > 0 else 0,
}


def draw_program(rng: random.Random) -> Sequence:
    """Return a random program over small numbers."""
    pool: list[Sequence] = [tokens, indices]
    for _ in range(rng.randint(4, 8)):
        pool.append(draw_step(rng, pool))
    return pool[-1]


def draw_step(rng: random.Random, pool: list[Sequence]) -> Sequence:
    kind = rng.choice(("width", "width", "copy", "map", "pair", "pair"))
    recent = pool[-3:]
    if kind == "map":
        name = rng.choice(list(FUNCTIONS))
        inner = rng.choice(recent)
        return map(FUNCTIONS[name], inner, name=f"{name} of {inner.name}"[:60])
    if kind == "pair":
        name, first, second = rng.choice(list(PAIRS)), rng.choice(recent), rng.choice(pool)
        return sequence_map(PAIRS[name], first, second, name=f"{name} ({first.name}, {second.name})"[:60])
    if kind == "copy":
        by, values = rng.choice((1, 2)), rng.choice(recent)
        back = select(indices, indices, lambda key, query: key == query - by)
        return aggregate(back, values, name=f"{by} back: {values.name}"[:60])
    return selector_width(draw_selector(rng, pool), name=f"width {len(pool)}")


def draw_selector(rng: random.Random, pool: list[Sequence]) -> Selector:
    name = rng.choice(list(PREDICATES))
    selector = select(rng.choice(pool), rng.choice(pool), PREDICATES[name])
    if rng.random() < 0.5:
        selector = selector & select(indices, indices, PREDICATES[rng.choice(("below", "up to"))])
    return selector


def meaning(program: Sequence) -> tuple[tuple[Any, ...], ...] | None:
    """Return what a program answers to all texts; None if it fails, or answers the longest ones all alike."""
    texts = [text for n in range(1, LENGTH + 1) for text in product(VOCABULARY, repeat=n)]
    try:
        answers = tuple(tuple(run(program, text)) for text in texts)
    except (ProgramError, TypeError):
        return None
    return answers if len(set(answers[-(len(VOCABULARY) ** LENGTH) :])) > 1 else None


@public
def generate_samples(count: int, seed: int = 0) -> Iterator[BenchSample]:
    """Yield random programs that fit, each with its truth.

    Args:
        count: How many.
        seed: Random seed.

    Returns:
        An iterator of samples.
    """
    rng, seen = random.Random(seed), set()
    found = 0
    while found < count:
        output = draw_program(rng)
        means = meaning(output)
        if means is None or means in seen:
            continue
        seen.add(means)
        name = f"generated {seed}.{found}"
        program = Program(name=name, about=output.name, output=output, vocabulary=VOCABULARY, plain=list, length=LENGTH)
        try:
            sample = BenchSample.of(program)
        except ProgramError:
            continue
        if len(sample.graph.edges) >= FEWEST_EDGES and SHARES[0] <= sample.share <= SHARES[1]:
            found += 1
            yield sample
