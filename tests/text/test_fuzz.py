"""Random bytes as every kind of file, through all of `prepare`: a clear error, or text that can be trained on."""

import gzip
import itertools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from clearhead.errors import ClearheadError
from clearhead.text.encoding import Corpus
from clearhead.text.preparing import Tokenizing, prepare
from clearhead.text.sources import Aligned, Documents, Source, Table
from clearhead.training.tasks import TASKS

BROKEN = [b"\0", b"\xff", b"\xc3", b"\xef\xbb\xbf", b"\n", b"\r\n", b"\r", b" ", b"a", b"<s>", b"</s>", b"<mask>"]
ROWS = [b"a\tb\n", b"a,b\n", b"\t", b",", b'"', b'"",""\n', b"{", b'"a":', b'"\\ud800"', b"NaN", b"null", b"\x1f\x8b"]
NOISE = st.one_of(st.sampled_from(BROKEN + ROWS), st.binary(max_size=6))
LINES = [b"ein Haus\n", b"<s> the house\r\n", "größer\n".encode(), "家\n".encode(), b"one two three four five six\n"]
PAIRS = [b"x\ty\n", b"ein Haus\ta house\n", "größer\tlarger\n".encode(), b"one two three four five six\t1\n"]
OBJECTS = [b'{"a": "x", "b": 1}\n', b'{"b": 2, "a": "\\ud83d\\ude00"}\n', b'{"a": "one two three", "b": "two"}\n']
TABLE = {"columns": ("a", "b"), "fields": ("source", "target")}
LABELLED = {"columns": ("a", "b"), "fields": ("text", "label")}
NUMBERS = {"columns": ("1", "2")}


class Kind(NamedTuple):
    """A kind of corpus: the task it is for, what is made of two files, how they begin, and lines that are right."""

    task: str
    source: Callable[[str, str], Source]
    head: bytes
    good: list[bytes]


KINDS = {
    "aligned": Kind("translate", lambda one, two: Aligned(source=(one,), target=(two,)), b"", LINES),
    "pairs.tsv": Kind("translate", lambda one, _: Table(paths=(one,), **TABLE, form="tsv"), b"a\tb\n", PAIRS),
    "pairs.csv": Kind(
        "translate",
        lambda one, two: Table(paths=(one, two), **TABLE | NUMBERS, form="csv"),
        b"",
        [line.replace(b"\t", b",") for line in PAIRS],
    ),
    "pairs.jsonl": Kind("translate", lambda one, _: Table(paths=(one,), **TABLE, form="jsonl"), b"", OBJECTS),
    "labels.tsv": Kind("classify", lambda one, _: Table(paths=(one,), **LABELLED | NUMBERS, form="tsv"), b"", PAIRS),
    "labels.jsonl": Kind("classify", lambda one, two: Table(paths=(one, two), **LABELLED, form="jsonl"), b"", OBJECTS),
    "lines": Kind("fill", lambda one, _: Documents(paths=(one,), unit="line"), b"", LINES),
    "files": Kind("fill", lambda one, two: Documents(paths=(one, two), unit="file"), b"", LINES),
    "stream of lines": Kind("generate", lambda one, _: Documents(paths=(one,), unit="line"), b"", LINES),
    "stream of files": Kind("generate", lambda one, two: Documents(paths=(one, two), unit="file"), b"", LINES),
}


class Case(NamedTuple):
    """What is fed to it, and how it shall be taken."""

    files: tuple[bytes, bytes]
    tokenizing: Tokenizing
    with_dev: bool
    skip_bad: bool


@st.composite
def cases(draw, kind):
    """Lines that are right with noise among them, or noise alone."""
    lines = st.lists(st.sampled_from(kind.good), min_size=1, max_size=40)
    first = draw(lines)
    second = draw(st.permutations(first) | lines)
    for file in (first, second):
        for noise in draw(st.lists(NOISE, max_size=3)):
            file.insert(draw(st.integers(0, len(file))), noise)
    right = tuple(kind.head + b"".join(file) for file in (first, second))
    files = draw(st.just(right) | st.tuples(*(st.lists(NOISE, max_size=30).map(b"".join) for _ in range(2))))
    names = st.sampled_from(["bpe", "metaspace", "unigram", "word", "char", "byte"])
    tokenizing = draw(st.builds(Tokenizing, kind=names, lower=st.booleans(), shared=st.booleans()))
    return Case(files, tokenizing, draw(st.booleans()), draw(st.booleans()))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One for all examples: what was made of other bytes lies under another key."""
    return tmp_path_factory.mktemp("fuzz")


def check(folder, kind, case):
    """Prepares the bytes as this kind of corpus; reads every batch of what comes of it."""
    names = [folder / f"{i}.bytes" for i in range(2)]
    for name, content in zip(names, case.files, strict=True):
        name.write_bytes(content)
    source = kind.source(*map(str, names))
    corpus = Corpus(train=source, dev=source if case.with_dev else None, skip_bad=case.skip_bad)
    task = TASKS[kind.task]
    try:
        prepared = prepare(corpus, task.layout(8), case.tokenizing, folder / "data", lambda _: None)
    except ClearheadError as error:
        event(f"{kind.task}: {type(error).__name__}")
        return
    event(f"{kind.task}: prepared")
    read_all(task(tokenizers=prepared.tokenizers, context=8, labels=prepared.labels), prepared)


def read_all(task, prepared):
    for store, filled in itertools.product((prepared.train, prepared.dev), (False, True)):
        for name, tokenizer in prepared.tokenizers.items():
            assert int(store[name].ids.max()) < tokenizer.vocabulary
            assert all(len(store[name][i]) for i in range(len(store)))
        for rows in task.planner(store, 64, seed=1).epoch(0):
            batch = task.read(store, rows, np.random.default_rng(0), filled=filled)
            assert len(batch["tokens"]) == (rows.full if filled else len(rows.which))
            assert 1 <= batch["tokens"].shape[1] <= 8
            assert int(batch["tokens"].min()) >= 0
            assert int(batch["wanted"].max()) >= 0, "something is asked for"


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
@given(draw=st.data())
@settings(max_examples=10)
def test_any_bytes_give_a_clear_error_or_batches(folder, kind, draw):
    check(folder, kind, draw.draw(cases(kind)))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
@given(draw=st.data(), packed=st.booleans(), cut=st.integers(0, 9))
@settings(max_examples=500)
def test_thousands_of_cases(folder, kind, draw, packed, cut):
    """The same, packed with gzip too, and cut short."""
    case = draw.draw(cases(kind))
    if packed:
        case = case._replace(files=tuple(gzip.compress(content)[: -cut or None] for content in case.files))
    check(folder, kind, case)
