"""Programs made at random: whatever is compiled gives what the interpreter gives, wherever that gives anything."""

import itertools
import random

import pytest
import torch

from clearhead.errors import ProgramError
from clearhead.rasp import (
    TextLayout,
    aggregate,
    categorical,
    constant,
    indices,
    numeric,
    past,
    plan,
    run,
    select,
    selector_width,
    sequence_map,
    source_indices,
    source_tokens,
    tokens,
)
from clearhead.rasp import map as mapped
from tests.covering import share_of

pytestmark = pytest.mark.plain

VOCABULARY, LENGTH = (0, 1, 2), 3
OF_TWO = (
    lambda a, b: (a + b) % 3,
    lambda a, b: a * b % 2,
    lambda a, b: None if a == b else abs(a - b),
    max,
)
PREDICATES = (
    lambda key, query: key == query,
    lambda key, query: key < query,
    lambda key, query: key <= query,
    lambda key, query: True,
    lambda key, query: key == query - 1,
    lambda key, query: key != query,
    lambda key, query: (key + query) % 2 == 0,
)


class Author:
    """Writes programs of categories and numbers, each of some of the last's depth less one."""

    def __init__(self, seed, *, both=False, causal=False):
        self.draw, self.both, self.causal = random.Random(seed), both, causal or both

    def program(self):
        depth = self.draw.choice((1, 2, 3))
        return self.category(depth) if self.draw.random() < 0.6 else self.number(depth)

    def likely(self, share):
        return self.draw.random() < share

    def given(self, side):
        ours = [tokens, indices] if side == "target" else [source_tokens, source_indices]
        return self.draw.choice(ours)

    def category(self, depth, side="target"):
        if depth == 0:
            return constant(1) if side == "target" and self.likely(0.2) else self.given(side)
        less = depth - 1
        kinds = (self.looked_up, self.of_two, self.counted, self.brought, self.above, self.told)
        return self.draw.choice(kinds)(less, side)

    def looked_up(self, depth, side):
        table = [self.draw.choice((0, 1, 2, None)) for _ in range(40)]
        return mapped(lambda value: table[round(value) % 40], self.category(depth, side))

    def of_two(self, depth, side):
        other = self.category(depth, side) if self.likely(0.7) else self.number(depth, side)
        return sequence_map(self.draw.choice(OF_TWO), self.category(depth, side), other)

    def counted(self, depth, side):
        return selector_width(self.selector(depth, side)[0])

    def brought(self, depth, side):
        selector, keys = self.selector(depth, side)
        return aggregate(selector, self.category(depth, keys))

    def above(self, depth, side):
        least = self.draw.choice((0, 0.5, 1))
        return mapped(lambda value: int(value > least), self.number(depth, side))

    def told(self, depth, side):
        return categorical(self.number(depth, side))

    def number(self, depth, side="target"):
        if depth == 0:
            return numeric(self.given(side))
        less, kind = depth - 1, self.draw.randrange(5)
        if kind < 2:
            selector, keys = self.selector(less, side)
            return aggregate(selector, self.number(less, keys))
        if kind == 2:
            return self.number(less, side) + self.number(less, side) * self.draw.choice((-1, 2, 0.5))
        if kind == 3:
            return 1 - self.number(less, side)
        return mapped(lambda value: None if value == 1 else value / 2, self.category(less, side), numeric=True)

    def selector(self, depth, side):
        """A choice of keys, and the text they are of."""
        keys = "source" if self.both and (side == "source" or self.likely(0.7)) else "target"
        chosen = self.term(depth, keys, side)
        if self.likely(0.25):
            chosen = ~chosen
        if self.likely(0.3):
            chosen = chosen & self.term(depth, keys, side)
        needed = self.causal and side == "target"
        return (past(chosen, side=side) if keys == side and (needed or self.likely(0.2)) else chosen), keys

    def term(self, depth, keys, queries):
        key, query = (
            self.category(depth, side) if self.likely(0.8) else self.number(depth, side) for side in (keys, queries)
        )
        return select(key, query, self.draw.choice(PREDICATES))


def same(got, wanted):
    pairs = zip(got, wanted, strict=True)
    return all(abs(a - b) <= 1e-5 if isinstance(b, float) else a == b for a, b in pairs)


def meaning(program, given):
    try:
        return run(program, *given)
    except ProgramError:
        return None


def every_input(both):
    """Texts up to the length; beside a source, a few of each."""
    draw = random.Random(0)
    for length in range(1, LENGTH + 1):
        texts = list(itertools.product(VOCABULARY, repeat=length))
        if not both:
            yield [(text,) for text in texts]
        for n_source in range(1, LENGTH + 1) if both else ():
            sources = list(itertools.product(VOCABULARY, repeat=n_source))
            yield [(draw.choice(texts), draw.choice(sources)) for _ in range(8)]


def wrong(program, crafted, after=()):
    """Inputs for which the model gives something else; `after` are ids that stand behind the text."""
    found, both = [], crafted.model.__class__.__name__ == "EncoderDecoder"
    for every in every_input(both):
        rows = [crafted.tensors(*given) for given in every]
        *sources, texts = (torch.cat(column) for column in zip(*rows, strict=True))
        texts = torch.cat([texts, texts.new_tensor(after).expand(len(texts), -1)], 1) if after else texts
        with torch.no_grad():
            logits = crafted.model(*sources, texts)[:, 1 : 1 + len(every[0][0])]
        for given, row in zip(every, logits, strict=True):
            wanted = meaning(program, given)
            if wanted is not None and not same(crafted.read(row), wanted):
                found.append((given, crafted.read(row), wanted))
    return found


def planned(program, **options):
    """None where it is refused, for a reason that random programs have."""
    try:
        return plan(program, VOCABULARY, length=LENGTH, **options)
    except ProgramError as error:
        if "is None wherever" in str(error):
            return None
        raise


def check(seeds, *, both=False, causal=False):
    done = 0
    for seed in seeds:
        program = Author(seed, both=both, causal=causal).program()
        made = planned(program, source_vocabulary=VOCABULARY if both else None, causal=causal)
        if made is not None:
            assert wrong(program, made.build()) == [], f"seed {seed}"
            done += 1
    return done


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.slow
def test_random_programs(causal):
    count = share_of(150)
    assert check(range(count), causal=causal) > count * 2 // 3


@pytest.mark.slow
def test_random_programs_that_read_a_source():
    count = share_of(100)
    assert check(range(count), both=True) > count * 7 // 10


@pytest.mark.slow
def test_random_programs_whose_source_ends_with_its_sink():
    layouts = {"target": TextLayout(), "source": TextLayout(sink="</s>", offset=0, beside=1)}
    done, count = 0, share_of(50)
    for seed in range(100, 100 + count):
        program = Author(seed, both=True).program()
        made = planned(program, source_vocabulary=VOCABULARY, layouts=layouts)
        if made is not None:
            assert wrong(program, made.build(with_end(made))) == [], f"seed {seed}"
            done += 1
    assert done > count * 7 // 10


@pytest.mark.slow
def test_random_programs_with_a_token_behind_the_text():
    done, count = 0, share_of(70)
    for seed in range(200, 200 + count):
        program = Author(seed).program()
        made = planned(program, layouts={side: TextLayout(beside=1) for side in ("target", "source")})
        if made is not None:
            ids = with_end(made)
            assert wrong(program, made.build(ids), after=[ids["</s>"]]) == [], f"seed {seed}"
            done += 1
    assert done > count * 5 // 7


def with_end(made):
    ids = made.default_ids()
    return {**ids, "</s>": len(ids)}
