"""An exercise: what is asked, hints, what is right, a solution, and slips with what to say of them, in one small file.

The file is Markdown. After lines of `key: value` come sections: the English text, the German text (a title, what is
asked, and `## Hint` or `## Hinweis` below), `# Checker` and `# Solution` with a block of code each, `# Menus` with the
lines of a puzzle's solution by menus, and a `# Slip` for each wrong answer that is known: a line `en:`, a line `de:`,
and its code.
"""

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, Literal, final

from clearhead.calls import public
from clearhead.errors import DataError

Language = Literal["en", "de"]
LANGUAGES: tuple[Language, ...] = ("en", "de")
FENCE = "```"
KINDS = ("write", "program", "design", "slip", "mystery")
"""The folders, in the order in which exercises are listed."""
FILE_NAME = re.compile(r"\d\d-([a-z0-9-]+)\.md")


@dataclass(frozen=True, kw_only=True)
class Statement:
    """What is asked, in one language."""

    title: str
    asked: str
    hints: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Slip:
    """A wrong answer that is known, and what to say to whoever gives it."""

    said: Mapping[Language, str]
    code: str


@final
@public
@dataclass(frozen=True, kw_only=True)
class Exercise:
    """One exercise, as its file has it.

    Attributes:
        name: Its name.
        kind: The folder it is in.
        facts: The lines at its top.
        tasks: By language, what is asked.
        checker: What checks an answer.
        solution: Code of a solution.
        slips: Known mistakes and what is said about them.

    >>> from clearhead.exercises import EXERCISES
    >>> EXERCISES["scale"].kind
    'write'
    """

    name: str
    kind: str
    facts: Mapping[str, str]
    tasks: Mapping[Language, Statement]
    checker: str
    solution: str
    menus: tuple[str, ...]
    """The lines of a solution by menus; none where menus do not have what it needs."""
    slips: tuple[Slip, ...]

    def fact(self, name: str) -> str:
        """Return a line of the top; DataError if the file lacks it."""
        if name not in self.facts:
            raise DataError(f"{self.name}.md: has no line `{name}: …` at its top")
        return self.facts[name]

    @functools.cached_property
    def checks(self) -> dict[str, Any]:
        """Return what the checker's code defines."""
        return run_code(self.checker, f"{self.name}.md")


def run_code(code: str, name: str) -> dict[str, Any]:
    """Run code that comes with an exercise, and return the names that it defines."""
    defined: dict[str, Any] = {}
    exec(compile(code, name, "exec"), defined)
    return defined


def read_exercise(text: str, *, name: str, kind: str) -> Exercise:
    """Read the file of an exercise."""
    facts = dict(line.split(": ", 1) for line in text.partition("\n# ")[0].splitlines() if ": " in line)
    sections = list(split(text, "# "))
    if len(sections) < 4 or [title for title, _ in sections[2:4]] != ["Checker", "Solution"]:
        raise DataError(
            f"{name}.md: expected an English section, a German one, # Checker and # Solution, in this order"
        )
    english, german, checker, solution, *rest = sections
    menus = [body for title, body in rest if title == "Menus"]
    return Exercise(
        name=name,
        kind=kind,
        facts=facts,
        tasks={"en": read_task(*english), "de": read_task(*german)},
        checker=code_in(checker[1]),
        solution=code_in(solution[1]),
        menus=tuple(line for body in menus for line in body.splitlines() if not line.startswith(FENCE)),
        slips=tuple(read_slip(body) for title, body in rest if title == "Slip"),
    )


def split(text: str, mark: str) -> Iterator[tuple[str, str]]:
    """Yield the title and the body of each part that begins with a line of this mark; code blocks are left whole."""
    title, body, in_code = None, [], False
    for line in text.splitlines():
        in_code ^= line.startswith(FENCE)
        if line.startswith(mark) and not in_code:
            if title is not None:
                yield title, "\n".join(body).strip()
            title, body = line.removeprefix(mark), []
        elif title is not None:
            body.append(line)
    if title is not None:
        yield title, "\n".join(body).strip()


def read_task(title: str, body: str) -> Statement:
    asked = body.partition("\n## ")[0].strip()
    return Statement(title=title, asked=asked, hints=tuple(hint for _, hint in split(body, "## ")))


def read_slip(body: str) -> Slip:
    said = dict(line.split(": ", 1) for line in body.partition(FENCE)[0].splitlines() if ": " in line)
    return Slip(said={language: said[language] for language in LANGUAGES}, code=code_in(body))


def code_in(body: str) -> str:
    """Return the first block of code."""
    return body.partition(FENCE + "python\n")[2].partition("\n" + FENCE)[0] + "\n"


def read_folder(folder: Traversable) -> Iterator[Exercise]:
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        if named := FILE_NAME.fullmatch(file.name):
            yield read_exercise(file.read_text(encoding="utf-8"), name=named[1], kind=folder.name)


class Exercises(Mapping[str, Exercise]):
    """Every exercise by name, in the order of its folder. The files are read when one is first asked for."""

    @functools.cached_property
    def table(self) -> dict[str, Exercise]:
        home = files("clearhead.exercises")
        return {each.name: each for kind in KINDS for each in read_folder(home / kind)}

    def __getitem__(self, name: str) -> Exercise:
        return self.table[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.table)

    def __len__(self) -> int:
        return len(self.table)

    def of_kind(self, kind: str) -> list[Exercise]:
        return [each for each in self.values() if each.kind == kind]


EXERCISES = Exercises()
