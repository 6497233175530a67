"""What a question of the page is: a dataclass whose fields are what is asked, and which answers itself.

The other files of this folder have the questions, by subject: the types of what is asked and answered, the check of
the cost, and the answer. The table of routes, /openapi.json and the page's types (web/src/lib/messages.ts, written by
`python -m tests.serve.write_messages`) are made from them. In JSON a number that is not finite is null.
"""

import dataclasses
import types
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from jaxtyping import Float, UInt8
from torch import Tensor

from clearhead.serve.explorer import Explorer
from clearhead.serve.params import Params
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
    turn: ClassVar[Literal["model", "weights", "files"]] = "model"
    """What it needs: the model; weights of a trace, for seconds, which tiles do not wait for; or files alone."""

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


def bounded(default: Any = dataclasses.MISSING, **limits: Any) -> Any:
    """Return a field whose value is checked when a request is read, by these options of the method of `Params`."""
    return dataclasses.field(default=default, metadata={"limits": limits})


def read_question(kind: type[Question[Any]], params: Params) -> Question[Any]:
    """Return the question that a request asks."""
    fields, hints = dataclasses.fields(kind), get_type_hints(kind)  # pyright: ignore[reportArgumentType]
    if kind.sent:
        params.only(*(field.name for field in fields))
    required = {field.name for field in fields if field.default is field.default_factory is dataclasses.MISSING}
    return kind(
        **{
            field.name: field.metadata["read"](params)
            if "read" in field.metadata
            else read_value(params, field.name, hints[field.name], field.metadata.get("limits", {}))
            for field in fields
            if field.name in params or field.name in required
        }
    )


def read_value(params: Params, name: str, hint: Any, limits: dict[str, Any]) -> Any:
    """Return the value of a field, checked by its type."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        *others, kind = sorted((one for one in inner if one is not types.NoneType), key=lambda one: one is int)
        words = [word for other in others for word in get_args(other)]
        return params.values[name] if params.values.get(name) in words else read_value(params, name, kind, limits)
    if origin is Literal:
        return params.one_of(name, inner)
    if origin is list:
        return params.wholes(name, **limits) if inner == (int,) else params.texts(name, **limits)
    read = {int: params.integer, float: params.number, str: params.text}[hint]
    return read(name, **limits)
