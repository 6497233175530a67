"""Every program: interpreted, it is a plain Python function; compiled, it is the interpreter."""

import functools
import itertools
import random

import pytest

from clearhead.rasp import PROGRAMS, run
from tests.covering import few, share_of

pytestmark = pytest.mark.plain

EXHAUSTIVE, MOST = 6, (250, 10_000)
RANDOM = share_of(300)
NAMES = list(PROGRAMS)


def texts(program, length, draw, most):
    """Every text of a length, or so many at random where there are more; those it is for."""
    every = itertools.product(program.vocabulary, repeat=length)
    if len(program.vocabulary) ** length > most:
        every = (tuple(draw.choices(program.vocabulary, k=length)) for _ in range(most))
    return [text for text in every if program.fits(text)]


def sums(draw, length, count):
    """Additions of a length, which random symbols would hardly ever be."""
    digits = (length - 1) // 2
    if 100**digits <= count:
        return [tuple(f"{a:0{digits}}+{b:0{digits}}") for a in range(10**digits) for b in range(10**digits)]
    numbers = ["".join(draw.choices("0123456789", k=digits)) for _ in range(2 * count)]
    return [tuple(f"{a}+{b}") for a, b in zip(numbers[::2], numbers[1::2], strict=True)]


def unique(program, draw, length, count):
    return [tuple(draw.sample(program.vocabulary, length)) for _ in range(count)]


def inputs(program, length, draw, count=None, most=MOST[0]):
    """Texts of a length with their sources, if the program reads one."""
    if program.name == "addition":
        found = sums(draw, length, count or most) if length % 2 and length > 2 else []
    elif program.name == "sort-unique":
        found = unique(program, draw, length, count) if count else texts(program, length, draw, most)
    elif count:
        found = [tuple(draw.choices(program.vocabulary, k=length)) for _ in range(count)]
    else:
        found = texts(program, length, draw, most)
    if program.source_vocabulary is None:
        return [(text,) for text in found]
    return [(text, tuple(draw.choices(program.source_vocabulary, k=length))) for text in found]


@functools.cache
def compiled(name):
    return PROGRAMS[name].compile()


def same(got, wanted):
    pairs = zip(got, wanted, strict=True)
    return all(abs(a - b) <= 1e-5 if isinstance(b, float) else a == b for a, b in pairs)


@pytest.mark.parametrize("name", NAMES)
def test_the_interpreter_is_the_plain_function(name):
    program, draw = PROGRAMS[name], random.Random(0)
    for length in range(1, 6):
        for one in inputs(program, length, draw)[:2000]:
            assert same(run(program.output, *one), program.plain(*one)), one


@pytest.mark.parametrize("most", few(MOST, 1))
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.slow
def test_the_compiled_model_is_the_interpreter_on_every_short_input(name, most):
    program, draw = PROGRAMS[name], random.Random(1)
    crafted = compiled(name)
    for length in range(1, min(EXHAUSTIVE, program.length) + 1):
        check(program, crafted, inputs(program, length, draw, most=most))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_compiled_model_is_the_interpreter_up_to_its_length(name):
    program, draw = PROGRAMS[name], random.Random(2)
    crafted = compiled(name)
    for length in range(EXHAUSTIVE + 1, program.length + 1):
        check(program, crafted, inputs(program, length, draw, RANDOM))


def check(program, crafted, every):
    for start in range(0, len(every), 512):
        some = every[start : start + 512]
        columns = list(zip(*some, strict=True))
        found = crafted.run_batch(*columns)
        for one, got in zip(some, found, strict=True):
            wanted = run(program.output, *one)
            assert same(got, wanted), (one, got, wanted)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_its_example_is_one_it_is_for(name):
    program = PROGRAMS[name]
    given = [tuple(program.example)] + ([] if program.source_example is None else [tuple(program.source_example)])
    assert program.fits(given[0])
    assert same(compiled(name).run(*given), program.plain(*given))
