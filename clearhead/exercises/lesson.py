"""A lesson for the live page: which chapters of Learn in which order, with own sentences, texts and tasks.

The file is Markdown. Its title is the lesson's; lines of `key: value` below it are facts: `language: de`, `sentence:
vierundzwanzig`. Each `## ` begins a step: the name of a chapter of Learn (`## softmax`), an exercise (`## exercise
slip-1`), or a title of your own. Under it may stand facts (`sentence:`, `answer:`, `choice:`), and paragraphs. A step
with `answer: five` is a task: change the model until it writes that. One with several `choice:` lines is a question,
whose right answers begin with `*`.
"""

import json
import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

from clearhead.errors import DataError, no_such
from clearhead.exercises.exercise import EXERCISES, LANGUAGES, Exercise, Language, split
from clearhead.files import read_bytes

CHAPTERS = (
    "tokens",
    "embedding",
    "position",
    "vectors",
    "score",
    "scale",
    "mask",
    "softmax",
    "sum",
    "roles",
    "heads",
    "cross",
    "residual",
    "feedforward",
    "layers",
    "output",
    "sampling",
    "film",
    "change",
    "summary",
)
"""The chapters of Learn (web/src/learn/links.ts)."""
FACTS = ("sentence", "answer", "choice")
EXERCISE = "exercise "
VIEWS = {"program": "exercises", "design": "design", "slip": "exercises", "mystery": "exercises"}
"""The view in which a page grades an exercise of a kind, without Python."""
EMPHASIS = re.compile(r"(?<!\*)\*([^*\s][^*]*)\*(?!\*)")
CODE, TOKEN = re.compile(r"`([^`]+)`"), "\ue0002{}\ue001"
"""Words in backticks are shown as tokens are (web/src/learn/markup.ts)."""
MOST = 64
"""Steps of a lesson."""

Lesson = dict[str, Any]


def find_lesson(name: str) -> Lesson:
    """Return a lesson that comes with Clearhead, by its name, or that of a file."""
    known = {file.name.removesuffix(".md"): file for file in (files("clearhead.exercises") / "lessons").iterdir()}
    if name in known:
        return read_lesson(known[name].read_text(encoding="utf-8"), where=name)
    path = Path(name)
    if not path.is_file():
        names = ", ".join(sorted(known))
        raise DataError(f"--lesson: there is no file {name}, and no lesson of that name; there are {names}")
    return read_lesson(read_bytes(path).decode("utf-8-sig", errors="replace"), where=name)


def read_lesson(text: str, *, where: str) -> Lesson:
    """Read a lesson; DataError, with what was expected, if it is none."""
    titles = [line.removeprefix("# ").strip() for line in text.splitlines() if line.startswith("# ")]
    if len(titles) != 1 or not titles[0]:
        raise DataError(f"{where}: expected one title of the lesson, a line `# Title`; came {len(titles)}")
    head = text.partition("\n## ")[0].partition("\n")[2]
    facts = dict(read_facts(head, ("language", "sentence"), where))
    language = facts.get("language", "en")
    if language not in LANGUAGES:
        raise DataError(f"{where}: language: expected {' or '.join(LANGUAGES)}; came {language!r:.40}")
    steps = [
        read_step(title.strip(), body, number, language, where)
        for number, (title, body) in enumerate(split(text, "## "), 1)
    ]
    if not 0 < len(steps) <= MOST:
        raise DataError(f"{where}: expected 1 to {MOST} steps, each begun by a line `## …`; came {len(steps)}")
    return {"title": titles[0], "language": language, "sentence": facts.get("sentence"), "steps": steps}


def read_facts(text: str, known: tuple[str, ...], where: str) -> Iterator[tuple[str, str]]:
    """Yield the facts that a part begins with; a line that only looks like one belongs to the text."""
    for line in text.strip().splitlines():
        name, colon, value = line.partition(": ")
        if not colon or name not in known:
            return
        if not value.strip():
            raise DataError(f"{where}: `{name}:` has nothing after it")
        yield name, value.strip()


def read_step(title: str, body: str, number: int, language: Language, where: str) -> dict[str, Any]:
    facts = list(read_facts(body, FACTS, where))
    said = paragraphs("\n".join(body.strip().splitlines()[len(facts) :]))
    named = {name: value for name, value in facts if name != "choice"}
    choices = [
        {"text": value.removeprefix("* ").replace("*", ""), "right": value.startswith("* ")}
        for name, value in facts
        if name == "choice"
    ]
    step = {"chapter": None, "name": f"own-{number}", "title": title.replace("*", ""), "said": said, "choices": choices}
    step |= {name: named.get(name) for name in ("sentence", "answer")} | {"exercise": None, "view": None, "code": None}
    if len(choices) == 1 or (choices and not any(choice["right"] for choice in choices)):
        raise DataError(f"{where}: {title!r:.60}: a question has two choices or more, and a right one begins with `*`")
    if title in CHAPTERS:
        if choices or named.get("answer"):
            raise DataError(f"{where}: {title}: this chapter has a task already; give yours another step, `## Title`")
        return step | {"chapter": title, "name": title, "title": None}
    if title.startswith(EXERCISE):
        return step | exercise_step(title.removeprefix(EXERCISE).strip(), said, language, where)
    if not said and not choices and not named.get("answer"):
        near = no_such(title, CHAPTERS, "; or write something under it, and it is a step of yours")
        raise DataError(f"{where}: ## {title:.60}: {near}")
    return step


def view_of(exercise: Exercise) -> str | None:
    """Return the view in which a page grades an exercise; None if that takes Python."""
    return VIEWS[exercise.kind] if exercise.kind in ("design", "slip") or exercise.menus else None


def exercise_step(name: str, said: list[str], language: Language, where: str) -> dict[str, Any]:
    """Return a step that gives an exercise: one that the page grades, or one for Python with its command."""
    if name not in EXERCISES:
        raise DataError(f"{where}: ## exercise {name:.60}: {no_such(name, list(EXERCISES))}")
    exercise = EXERCISES[name]
    task = exercise.tasks[language]
    if (view := view_of(exercise)) is not None:
        return {"name": name, "title": task.title, "exercise": name, "view": view}
    begun = f"def {exercise.fact('function')}:\n    ...\n\n" if exercise.kind == "write" else ""
    command = "write attention.py" if exercise.kind == "write" else f"solve {name}"
    code = f"{begun}$ clearhead learn {command}"
    return {"title": task.title, "said": [*said, *paragraphs(task.asked)], "code": code}


def paragraphs(text: str) -> list[str]:
    """Return paragraphs as lines, with `*words*` as the page marks them."""
    return [mark(" ".join(part.split())) for part in text.split("\n\n") if part.strip()]


def mark(text: str) -> str:
    """Return a line with emphasis and code as the page has them. Double brackets are the page's own marks, and not a
    teacher's.
    """
    said = EMPHASIS.sub(r"**\1**", text.replace("[[", "[").replace("]]", "]"))
    return CODE.sub(lambda found: TOKEN.format(found[1]), said)


def lesson_tags(lesson: Lesson) -> str:
    """Return what goes into the page: the lesson as JSON, and a line that opens it in its language, at its sentence."""
    content = json.dumps(lesson, ensure_ascii=False).replace("<", "\\u003c")
    words = {"source": lesson["sentence"], "learn": "", "lang": lesson["language"]}
    address = json.dumps({name: value for name, value in words.items() if value is not None}).replace("<", "\\u003c")
    return (
        f'<script type="application/json" id="clearhead-lesson">{content}</script>\n'
        f'<script>if (!location.hash) location.replace("#/?" + new URLSearchParams({address}))</script>\n'
    )
