"""Every kind of corpus, and bad bytes given to it: what tests/text/test_fuzz.py and tests/attack/texts.py share."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from clearhead.errors import ClearheadError
from clearhead.text.encoding import Corpus
from clearhead.text.preparing import Tokenizing, prepare
from clearhead.text.sources import Aligned, Documents, Source, Table
from clearhead.training.tasks import TASKS

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


def prepare_case(folder: Path, kind: Kind, case: Case) -> str:
    """Prepare the bytes as this kind of corpus, and read every batch; return "prepared" or the error's name."""
    names = [folder / f"{i}.bytes" for i in range(2)]
    for name, content in zip(names, case.files, strict=True):
        name.write_bytes(content)
    source = kind.source(*map(str, names))
    corpus = Corpus(train=source, dev=source if case.with_dev else None, skip_bad=case.skip_bad)
    task = TASKS[kind.task]
    try:
        prepared = prepare(corpus, task.layout(8), case.tokenizing, folder / "data", lambda _: None)
    except ClearheadError as error:
        return type(error).__name__
    read_all(task(tokenizers=prepared.tokenizers, context=8, labels=prepared.labels), prepared)
    return "prepared"


def read_all(task, prepared):
    """Read every batch of the two stores, and check what is in it."""
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
