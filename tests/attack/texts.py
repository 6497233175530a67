"""Bad texts: bytes that are no text, through the sources, the tokenisers and the verbs, all in one process.

Each gives records, answers or an error of the family; nothing else, and never an answer for another line.
"""

import gzip
import io
import random
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from clearhead import cli
from clearhead.errors import ClearheadError
from clearhead.text.lines import Problems
from clearhead.text.preparing import Tokenizing
from clearhead.text.tokenizer import Tokenizer
from tests.attack.forking import UNCLEAR
from tests.attack.small import TASKS, make, recipe_of
from tests.attack.table import Row, Tries, attack
from tests.text.corpora import KINDS, Case, prepare_case

TOKENIZERS = ("bpe", "metaspace", "unigram", "word", "char", "byte")
PIECES = (
    *(b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"\xe2\x80\xa8", b"\xc2\x85", b"\r", b"\r\n", b"\n\r", b"\x0b\x0c\x1c"),
    *(b"\xed\xa0\x80", b"\xc0\xaf", b"\xf4\x90\x80\x80"),  # half a surrogate pair, an overlong slash, beyond Unicode
    *(b"\x1b[2J", b"\t\t\t", b'"', b'"a","b\n', b"a,b,c,d\n", b'{"a": 1, "a": 2}\n', b'{"a": "x"', b"[" * 3000),
    *(b'{"a": "\\ud800", "b": NaN}\n', b"<mask>" * 20, b"<s></s><pad>\xef\xbf\xbd", "e\u0301\u200d\u202e🙂".encode()),
)


def texts(home: Path, tries: Tries, way: Callable[[Path, random.Random], str], full: int) -> Row:
    """Try bad texts in one way: an error of the family is right, any other is not."""
    (home / "files").mkdir(exist_ok=True)

    def case(i: int, draw: random.Random) -> str:
        try:
            return way(home / "files", draw)
        except ClearheadError:
            return ""
        except BaseException as error:
            return f"{type(error).__name__}: {error!s:.200}"

    return tries.batches(case, full=full, short=20)


@attack("texts-sources", "bad texts through the sources: the records that are right, or an error")
def in_sources(home: Path, tries: Tries) -> Row:
    return texts(home, tries, through_sources, 2500)


@attack("texts-tokenizers", "bad texts through the tokenizers")
def in_tokenizers(home: Path, tries: Tries) -> Row:
    tokenizers = [Tokenizer.train(["the cat eats", "größer", "eins zwei"], kind) for kind in TOKENIZERS]
    return texts(home, tries, lambda _, draw: through_tokenizer(tokenizers, draw), 2000)


@attack("texts-preparing", "bad texts prepared for training")
def in_preparing(home: Path, tries: Tries) -> Row:
    return texts(home, tries, through_preparing, 1000)


@attack("texts-verbs", "bad texts through the verbs: one answer for each line, or an error")
def in_verbs(home: Path, tries: Tries) -> Row:
    runs = {task: make(home / "runs" / task, recipe_of(home, task)) for task in TASKS}
    return texts(home, tries, lambda folder, draw: through_verbs(runs, folder, draw), 1000)


def bad_bytes(draw: random.Random, good: list[bytes]) -> bytes:
    """Return right lines with something wrong among them, or only that; sometimes packed, cut off or very long."""
    lines = draw.choices(good, k=draw.randint(0, 30))
    for _ in range(draw.randint(1, 4)):
        lines.insert(draw.randint(0, len(lines)), draw.choice((*PIECES, draw.randbytes(draw.randint(1, 60)))))
    data = b"".join(lines)
    match draw.randrange(12):
        case 0:
            return draw.randbytes(draw.randint(0, 400))
        case 1:
            return gzip.compress(data)[: -draw.randint(1, 12)]
        case 2:
            return gzip.compress(data) + draw.choice((b"", b"rest", gzip.compress(b"more\n")))
        case 3:
            return data.decode(errors="replace").encode(draw.choice(("utf-16", "utf-32", "utf-16-be")))
        case 4:
            return data.replace(b"\n", draw.choice((b"\r", b"\r\n", b"\r\r\n", b"")))
        case 5:
            return b"\xef\xbb\xbf" + data
        case 6:
            return data[: draw.randrange(len(data) + 1)]
        case 7 if draw.random() < 0.3:
            return data + b"long " * draw.choice((1_000, 40_000, 900_000)) + b"\n" + data
        case _:
            return data


def through_sources(folder: Path, draw: random.Random) -> str:
    """Read every record, with bad lines left out or told."""
    kind = draw.choice([*KINDS.values()])
    names = [folder / f"source-{i}" for i in range(2)]
    for name in names:
        name.write_bytes(bad_bytes(draw, kind.good))
    source, problems = kind.source(*map(str, names)), Problems(skip=draw.random() < 0.5)
    for record in source.records(problems):
        if not all(isinstance(one, str) and one.encode() is not None for one in record.fields):
            return f"a record that is no text: {record!r:.100}"
    problems.settle()
    return ""


def through_tokenizer(tokenizers: list[Tokenizer], draw: random.Random) -> str:
    """Encode and decode a text, which may hold halves of surrogate pairs."""
    data = bad_bytes(draw, [b"the cat eats ", b"eins "])[:3000]
    text = data.decode(errors=draw.choice(("replace", "surrogateescape", "ignore")))
    if draw.random() < 0.2:
        text += chr(draw.randrange(0xD800, 0xE000))
    tokenizer = draw.choice(tokenizers)
    ids = tokenizer.encode(text)
    if any(not 0 <= one < tokenizer.vocabulary for one in ids):
        return "an id outside of the vocabulary"
    tokenizer.decode(ids).encode()
    tokenizer.unseen(text)
    return ""


def through_preparing(folder: Path, draw: random.Random) -> str:
    """Prepare two files as a corpus, and read every batch."""
    kind = draw.choice([*KINDS.values()])
    files = (bad_bytes(draw, kind.good), bad_bytes(draw, kind.good))
    how = Tokenizing(kind=draw.choice(TOKENIZERS), lower=draw.random() < 0.5, shared=draw.random() < 0.5)
    skip_bad = draw.random() < 0.7
    prepare_case(folder, kind, Case(files, how, draw.random() < 0.5, skip_bad))
    return ""


def through_verbs(runs: dict[str, Path], folder: Path, draw: random.Random) -> str:
    """Answer the lines of a file by the command: an exit code, one line for each line, or a clear error."""
    task, run = draw.choice([*runs.items()])
    file = folder / "lines"
    file.write_bytes(bad_bytes(draw, [b"the <mask> eats\n", b"eins zwei\n", b"red plum\n"]))
    extra = {"translate": ["--beam", "1"], "generate": ["--max-tokens", "2", "--greedy"]}.get(task, [])
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = cli.run([task, str(run), str(file), *extra, *draw.choice(([], ["--json"]))])
        sys.stdout.flush()
    said = err.getvalue()
    if found := [word for word in UNCLEAR if word in said]:
        return f"{task}: unclear error ({found[0]}): {said[-300:]}"
    if code not in (0, 1) or (code and not said.strip()):
        return f"{task}: exit code {code}: {said[-200:]}"
    if code:
        return ""
    lines, answers = lines_in(file.read_bytes()), out.buffer.getvalue().count(b"\n")  # type: ignore[attr-defined]
    return f"{task}: {answers} answers to {lines} lines" if answers != lines else ""


def lines_in(data: bytes) -> int:
    """Return how many lines a file has, gzipped or not.

    >>> lines_in(b"one\\ntwo"), lines_in(gzip.compress(b"one\\n"))
    (2, 1)
    """
    text = gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
    text = text.removeprefix(b"\xef\xbb\xbf")
    return text.count(b"\n") + bool(text and not text.endswith(b"\n"))
