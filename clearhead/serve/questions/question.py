"""What a question of the page is: a dataclass whose fields are what is asked, and which answers itself.

The other files of this folder have the questions, by subject: the types of what is asked and answered, the check of
the cost, and the answer. The table of routes, /openapi.json and the page's types (web/src/lib/messages.ts, written by
`python -m tests.serve.write_messages`) are made from them. In JSON a number that is not finite is null.
"""

import dataclasses
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, TypeVar, get_args

from jaxtyping import Float, UInt8
from torch import Tensor

from clearhead.serve.explorer import Explorer
from clearhead.serve.params import Params, read_fields
from clearhead.serve.traced import Traced

Answer = TypeVar("Answer")
Matrix = Float[Tensor, "row column"]
"""An answer that is sent as float32, and not as JSON."""
Thumbs = UInt8[Tensor, "head row column"]
"""An answer that is sent as one byte a cell."""


class Question(ABC, Generic[Answer]):
    """A question about a run. Its name on the page and in the address is that of its class, without `Ask`."""

    sent: ClassVar[bool] = False
    """Whether it is asked with a body, and not by the address alone."""
    turn: ClassVar[Literal["model", "weights", "part", "files"]] = "model"
    """What it needs: the model; weights of a trace, for seconds; a part of them, for a moment; or files alone.

    Each but the last has a queue of its own, so that a tile waits neither for a text that is written nor for readings.
    Whatever calls a module of the model is of the first: a trace notes and replaces values there, whoever makes them.
    """

    @abstractmethod
    def answer(self, explorer: "Explorer") -> Answer:
        """Check the cost and return the answer; raise a ClearheadError where there is none."""

    @abstractmethod
    def python(self, explorer: "Explorer") -> list[str]:
        """Return lines of Python that give the same numbers; the last is an expression."""


@dataclass(frozen=True, kw_only=True)
class TraceQuestion(Question[Answer]):
    """A question about a trace, which is named by its id."""

    trace: str

    def answer(self, explorer: "Explorer") -> Answer:
        return self.answer_of(explorer.find_trace(self.trace))

    def python(self, explorer: "Explorer") -> list[str]:
        traced = explorer.find_trace(self.trace)
        return [*traced.python, *self.python_of(traced)]

    @abstractmethod
    def answer_of(self, traced: "Traced") -> Answer:
        """Check the cost and return the answer about this trace."""

    @abstractmethod
    def python_of(self, traced: "Traced") -> list[str]:
        """Return lines that follow on `run` and `trace`; the last is an expression."""


def name_of(kind: type[Question[Any]]) -> str:
    return kind.__name__.removeprefix("Ask").lower()


def answer_type(kind: type[Question[Any]]) -> Any:
    """Return the type of a question's answer."""
    [base] = kind.__orig_bases__  # pyright: ignore[reportAttributeAccessIssue] - of a class that names it
    [found] = get_args(base)
    return found


def read_question(kind: type[Question[Any]], params: Params) -> Question[Any]:
    """Return the question that a request asks."""
    if kind.sent:
        params.only(*(field.name for field in dataclasses.fields(kind)))  # pyright: ignore[reportArgumentType]
    return read_fields(kind, params)
