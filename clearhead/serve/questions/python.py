"""The few lines of Python that give the numbers of another question."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, TypedDict

from clearhead.errors import OptionError
from clearhead.serve.explorer import Explorer
from clearhead.serve.params import Params
from clearhead.serve.questions.question import Question, TraceQuestion, name_of, read_question
from clearhead.tracing.names import list_near


class PythonLines(TypedDict):
    python: str


def read_asked(params: Params) -> dict[str, Any]:
    """Return what is asked of the other question, lists as an address has them."""
    asked = params.values.get("asked", {})
    if not isinstance(asked, dict):
        raise params.value_error("asked", "expected the fields of the question", asked)
    return asked


@dataclass(frozen=True, kw_only=True)
class AskPython(Question[PythonLines]):
    """Lines of Python that give the numbers of `question`, asked with the fields `asked`; the last is an expression."""

    sent: ClassVar = True
    question: str
    asked: dict[str, Any] = field(default_factory=dict, metadata={"read": read_asked})

    def answer(self, explorer: "Explorer") -> PythonLines:
        return {"python": "\n".join(self.python(explorer)) + "\n"}

    def python(self, explorer: "Explorer") -> list[str]:
        kinds = {name_of(kind): kind for kind in (*Question.__subclasses__(), *TraceQuestion.__subclasses__())}
        if self.question not in kinds:
            raise OptionError(f"there is no question {self.question!r:.60}; {list_near(self.question, list(kinds))}")
        kind = kinds[self.question]
        asked = {
            name: ",".join(map(str, value)) if isinstance(value, list) and not kind.sent else value
            for name, value in self.asked.items()
        }
        return read_question(kind, Params(asked, "asked", typed=kind.sent)).python(explorer)
