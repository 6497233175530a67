"""A run's loss and scores, step by step, also while it is trained."""

from dataclasses import dataclass
from typing import ClassVar, NotRequired, TypedDict, cast, final

from clearhead.serve.curves import is_training
from clearhead.serve.explorer import Explorer
from clearhead.serve.questions.question import Question, bounded


class CurveLine(TypedDict):
    """A line of the log. It holds more than is said here: the scores of its task."""

    kind: str
    step: int
    loss: NotRequired[float | None]


class CurvesMessage(TypedDict):
    lines: list[CurveLine]
    training: bool
    last: int | None


@final
@dataclass(frozen=True, kw_only=True)
class AskCurves(Question[CurvesMessage]):
    """The lines of the log after a step."""

    turn: ClassVar = "files"
    after: int = bounded(-1, least=-1)

    def answer(self, explorer: "Explorer") -> CurvesMessage:
        lines = explorer.metrics.after(self.after)
        last = max((line["step"] for line in lines), default=None)
        return {"lines": cast(list[CurveLine], lines), "training": is_training(explorer.run.folder), "last": last}

    def python(self, explorer: "Explorer") -> list[str]:
        found = f"Path({str(explorer.run.folder.path)!r}).glob({explorer.run.folder.metrics.name!r})"
        lines = "for line in path.read_text(encoding='utf-8').splitlines()"
        return ["import json", "from pathlib import Path", "", f"[json.loads(line) for path in {found} {lines}]"]
