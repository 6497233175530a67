"""Lines in, lines out: shared by the verbs that use a run.

Every line gets one line for an answer, in order, a blank one for a blank one. What was odd about a line is reported on
stderr, and is never a reason to stop.
"""

import json
import select
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from clearhead.cli.completion import RUNS, complete_names
from clearhead.cli.options import DEVICES
from clearhead.cli.screen import escape_controls, write_output
from clearhead.devices import choose_device
from clearhead.errors import OptionError
from clearhead.model.int8 import DTYPES, check_dtype
from clearhead.options import Option
from clearhead.text.lines import Place, Problems, open_text, read_lines
from clearhead.training.folder import RunFolder
from clearhead.training.run import Run, check_asked, load
from clearhead.training.tasks import Task
from clearhead.training.tasks.answering import one_line

STDIN = "-"
CHUNK = 256
"""Lines that are answered together; fewer where no more are waiting."""
SHOWN, SHOWN_UNSEEN = 10, 50
"""The most odd lines, and the most characters, that are listed."""

RunPath = Annotated[
    str,
    typer.Argument(
        help="A run folder, written by `clearhead train` or `import`.",
        metavar="RUN",
        autocompletion=complete_names([RUNS]),
    ),
]
File = Annotated[
    str,
    typer.Argument(
        help="A text file, also packed (gzip, bzip2, xz, zstd); without it, stdin.", metavar="FILE", show_default=False
    ),
]
Device = Annotated[
    str, Option("auto, cpu, cuda or cuda:1; auto takes a GPU if there is one.", takes="NAME", names=DEVICES)
]
Dtype = Annotated[
    str | None,
    Option(
        f"Weights as {', '.join(DTYPES)}; int8-dynamic is faster on a CPU.  [default: as they were saved]",
        takes="NAME",
        names=DTYPES,
    ),
]
AsJson = Annotated[bool, Option("Print one JSON object per line.", word="json")]

Fields = dict[str, Any]
"""The answer to a line: `output`, and what else JSON holds."""
Answer = Callable[[list[str], list[int]], list[Fields]]
"""A function from the lines that are not blank, and their numbers counted from 0, to answers."""


@dataclass(frozen=True, kw_only=True)
class Lines:
    """A verb's way to answer, print and check lines."""

    answer: Answer
    as_text: Callable[[Fields], str]
    as_json: bool
    check: Callable[[str], object] | None = None
    """Raises OptionError for a line that the verb cannot use, such as one that is no pair of texts."""
    reads: int | None = None
    """How many tokens of a line the model sees; None: as many as its task reads."""
    lengths: Callable[[Sequence[str]], list[int]] | None = None
    """Counts the tokens of lines; None: as its task does."""
    unread: str = "the rest"
    each: Callable[[Fields], object] | None = None
    """Called with the answer to every line in order, that of a blank line too."""


class InputLine(NamedTuple):
    """A line that came in, None for the text of one that cannot be read; `why`, if it has no answer."""

    text: str | None
    place: Place
    why: str = ""

    @property
    def is_asked(self) -> bool:
        """Return whether the line has an answer: it can be used, and is not blank."""
        return self.text is not None and not self.why and bool(self.text.strip())


def check_machine(device: str, dtype: str | None) -> None:
    """Raise OptionError for a device or a kind of weights that there is not."""
    check_dtype(dtype)
    choose_device(device)


def open_run(
    path: str, *, device: str, dtype: str | None = None, file: str = STDIN, task: type[Task] | None = None
) -> Run:
    """Load a run to answer lines; before its weights are read, raise if the file is not there or the task wrong."""
    check_machine(device, dtype)
    if file != STDIN:
        with open_text(file):
            pass
    folder = RunFolder(Path(path))
    folder.origin()
    if task is not None:
        check_asked(folder, folder.task_kind(), task)
    return load(path, device=device, dtype=dtype)


def answer_lines(run: Run, file: str, how: Lines) -> None:
    """Answer every line of the file, a chunk at a time: a file may be larger than memory, and a pipe may pause."""
    notes = StderrNotes(run, how)
    if file == STDIN and sys.stdin is not None and sys.stdin.isatty():
        print("Type a line and press Enter; Ctrl-D ends.", file=sys.stderr)
    first = 0
    for chunk in read_chunks(file, how.check):
        write_output("".join(f"{line}\n" for line in answers_to(chunk, first, how)))
        notes.look(chunk)
        first += len(chunk)
    notes.tell()


def answers_to(lines: Sequence[InputLine], first: int, how: Lines) -> Iterator[str]:
    asked = {i: str(line.text) for i, line in enumerate(lines) if line.is_asked}
    answers = dict(zip(asked, how.answer([*asked.values()], [first + i for i in asked]), strict=True)) if asked else {}
    for i, line in enumerate(lines):
        answered = answers.get(i, {"output": ""})
        if how.each is not None:
            how.each(answered)
        text = how.as_text(answered) if i in answers and not how.as_json else ""
        yield as_line({"input": line.text, **answered}) if how.as_json else text


def as_line(fields: Fields) -> str:
    """Return a JSON object on one line."""
    return json.dumps(fields, ensure_ascii=False, allow_nan=False)


def cell(text: str) -> str:
    """Return a text as one of several on a line."""
    return one_line(text).replace("\t", " ")


def cells(texts: Sequence[str]) -> str:
    """Return one text as it is, several with tabs between them."""
    return one_line(texts[0]) if len(texts) == 1 else "\t".join(map(cell, texts))


def read_chunks(file: str, check: Callable[[str], object] | None = None) -> Iterator[list[InputLine]]:
    """Yield lines, as many as are answered together; those that `check` raises OptionError for say why."""
    chunk: list[InputLine] = []
    for line in lines_of(file):
        chunk.append(line if check is None or not line.is_asked else checked_line(line, check))
        if len(chunk) == CHUNK or (file == STDIN and nothing_waits()):
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def checked_line(line: InputLine, check: Callable[[str], object]) -> InputLine:
    try:
        check(str(line.text))
    except OptionError as error:
        return line._replace(why=str(error))
    return line


def lines_of(file: str) -> Iterator[InputLine]:
    problems, before = Problems(skip=True), Counter[str]()
    for number, line in enumerate(read_lines(file, problems), start=1):
        if line is not None:
            yield InputLine(*line)
        else:
            yield InputLine(None, Place(file, number), ", ".join(Counter(problems.counts) - before))
            before = Counter(problems.counts)


def nothing_waits() -> bool:
    """Return whether whoever writes to stdin has paused, and may be waiting for answers."""
    try:
        return not select.select([sys.stdin.fileno()], [], [], 0)[0]
    except (OSError, ValueError):  # not a file of the system's, so nobody waits
        return False


@dataclass
class StderrNotes:
    """Notes on stderr: lines that cannot be read or were cut, as they come; characters never seen, at the end."""

    run: Run
    how: Lines
    odd: int = 0
    unseen: dict[str, None] = field(default_factory=dict)

    def look(self, lines: Sequence[InputLine]) -> None:
        """Report lines that cannot be read or are too long, and remember what the model has never seen."""
        for line in lines:
            if line.text is None or line.why:
                self.tell_of(line.place, f"the line cannot be read ({line.why}), so its answer is blank")
        asked = [(str(line.text), line.place) for line in lines if line.is_asked]
        self.remember([text for text, _ in asked])
        reads = self.run.task.reads if self.how.reads is None else self.how.reads
        lengths = (self.how.lengths or self.run.task.count_tokens)([text for text, _ in asked])
        for (_, place), length in zip(asked, lengths, strict=True):
            if length > reads:
                unread = f"{self.how.unread} was not read"
                self.tell_of(place, f"{length:,} tokens, and the model takes {reads:,} of them: {unread}")

    def remember(self, texts: Sequence[str]) -> None:
        tokenizer = self.run.tokenizer
        for text in texts if not tokenizer.lossless else ():
            unseen = self.run.unseen(text)
            self.unseen |= dict.fromkeys(unseen.split() if tokenizer.kind == "word" else unseen)

    def tell_of(self, place: Place, message: str) -> None:
        self.odd += 1
        if self.odd <= SHOWN:
            print(escape_controls(f"{place}: {message}"), file=sys.stderr)

    def tell(self) -> None:
        """Report the rest, once all lines are answered."""
        if self.odd > SHOWN:
            print(f"and {self.odd - SHOWN:,} more lines like these", file=sys.stderr)
        if self.unseen:
            kind = "word" if self.run.tokenizer.kind == "word" else "character"
            many = f"{len(self.unseen):,} {kind}s were" if len(self.unseen) > 1 else f"1 {kind} was"
            read = "were" if len(self.unseen) > 1 else "was"
            listed = " ".join(map(visible, list(self.unseen)[:SHOWN_UNSEEN]))
            more = " …" if len(self.unseen) > SHOWN_UNSEEN else ""
            print(f"{many} never seen in training and {read} read as unknown: {listed}{more}", file=sys.stderr)


def visible(text: str) -> str:
    """Return a text, escaped where it cannot be printed."""
    return "".join(
        character if character.isprintable() and character != " " else ascii(character)[1:-1] for character in text
    )
