"""Running what a pupil wrote: in a process with bounds, which gives back numbers and is ended afterwards.

What is right is computed, and compared, in the process that asks. So an answer can spoil its own process, and not the
grading. On Linux it can start no process, signal none, change no file and reach no network (`sandbox`); it may read
what its user may read.
"""

import contextlib
import inspect
import math
import traceback
import types
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from clearhead.bounds import FileBounds, call_bounded, forbid_writing, stream_bounded
from clearhead.errors import ClearheadError, DataError
from clearhead.exercises.sandbox import confine
from clearhead.files import read_bytes
from clearhead.rasp import language
from clearhead.rasp.checks import parts_of
from clearhead.rasp.compiler import plan
from clearhead.rasp.interpreter import Interpreter
from clearhead.rasp.language import Aggregate, Map, Selector, SequenceMap, Width
from clearhead.rasp.language import Sequence as Program

BOUNDS = FileBounds(seconds=20, memory=2_000_000_000, output=20_000_000)
"""For all calls of one exercise. Most solutions take far less than a second, thousands of texts through a RASP program
two.
"""

ANSWER = "answer"
"""The name of the module that an answer is, in its process."""
COSTS = ("layers", "heads", "operations")
Answer = dict[str, Any]
"""What one run gives: `values`, or why there are none: `missing` or `error`."""


def run_functions(path: Path, asked: Mapping[str, Sequence[Sequence[Any]]]) -> Generator[list[Answer]]:
    """Yield, for each of these functions of a file, its answers to these calls. The process is ended by `close`.

    Where the process passes a bound, every answer from there on says so.
    """
    calls = {name: [pack(list(call)) for call in calls] for name, calls in asked.items()}
    arguments = {"source": read_source(path), "asked": calls}
    given = stream_bounded(function_answers, arguments, BOUNDS, where=str(path), error=DataError, reuse=False)
    with contextlib.closing(given):
        problem: Answer | None = None
        for each in calls.values():
            try:
                answers = [problem] * len(each) if problem else next(given, None)
            except ClearheadError as error:
                problem = {"error": str(error)}
                answers = [problem] * len(each)
            yield read_answers(answers, len(each))


@final
@dataclass(frozen=True, kw_only=True)
class ProgramCode:
    """The code of a program, its `answer`. A process that ran a stranger's is ended; one that ran ours is kept."""

    source: str
    where: str
    """Where it is from, for messages."""
    is_ours: bool = False
    explain: Callable[[str], str] = str
    """What is said of an error."""

    def run(self, texts: Sequence[str], *, alphabet: str, length: int) -> Answer:
        """Run the program on each of these texts, and say what it compiles into."""
        try:
            answer = self.call(program_answers, {"texts": list(texts), "alphabet": alphabet, "length": length})
        except ClearheadError as error:
            return {"error": str(error)}
        found = read_program_answer(answer, len(texts))
        rows = [self.explained(row) if isinstance(row, dict) else row for row in found.get("values", ())]
        return found | ({"values": rows} if rows else {})

    def explained(self, row: dict[str, str]) -> dict[str, str]:
        return {"error": self.explain(row["error"])}

    def lines(self, text: str) -> list[tuple[str, Any]]:
        """Return what each named sequence computes for a text; nothing if it passes a bound."""
        try:
            found = self.call(program_lines, {"text": text})
        except ClearheadError:
            return []
        pairs = [each for each in found if isinstance(each, list) and len(each) == 2] if isinstance(found, list) else []
        known = [(name, values) for name, values in pairs if isinstance(name, str) and isinstance(values, str | list)]
        return [(name, self.explain(values) if isinstance(values, str) else values) for name, values in known]

    def call(self, function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        given = {"source": self.source, "confined": not self.is_ours, **arguments}
        return call_bounded(function, given, BOUNDS, where=self.where, error=DataError, reuse=self.is_ours)


def read_source(path: Path) -> str:
    """Read a file that somebody hands in; DataError if it is no text, or far too long for one."""
    try:
        return read_bytes(path, most=1_000_000).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from None


# What a bounded process sends may be anything, since an answer can write to the pipe itself.

NO_ANSWER: Answer = {"error": "what came back is no answer as Clearhead sends it"}


def read_answers(answers: Any, count: int) -> list[Answer]:
    """Return as many answers as were asked for, each `missing`, an `error`, or `values` of numbers, lists and words."""
    if not isinstance(answers, list) or len(answers) != count:
        return [NO_ANSWER] * count
    return [read_answer(answer) for answer in answers]


def read_answer(answer: Any) -> Answer:
    if not isinstance(answer, dict):
        return NO_ANSWER
    if "missing" in answer or isinstance(answer.get("error"), str):
        return {name: answer[name] for name in ("missing", "error") if name in answer}
    return {"values": answer["values"]} if "values" in answer and is_packed(answer["values"]) else NO_ANSWER


def is_packed(value: Any) -> bool:
    """Check whether a value is as `pack` makes them."""
    if isinstance(value, list):
        return all(is_packed(each) for each in value)
    if isinstance(value, dict) and "named" in value:
        return isinstance(value["named"], dict) and all(is_packed(each) for each in value["named"].values())
    if isinstance(value, dict):
        shape, numbers = value.get("shape"), value.get("numbers")
        if not isinstance(shape, list) or not isinstance(numbers, list) or not all(map(is_number, [*shape, *numbers])):
            return False
        return all(type(size) is int and size >= 0 for size in shape) and len(numbers) == math.prod(shape)
    return value is None or isinstance(value, str) or is_number(value)


def is_number(value: Any) -> bool:
    """Check whether a value is a number that a float can be; Python's integers have no bound."""
    return isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**63)


def read_program_answer(answer: Any, count: int) -> Answer:
    """Return the answer of a program to so many texts: for each its values, or an error; its cost, and its edges."""
    if isinstance(answer, dict) and "missing" in answer:
        return {"missing": True, "edges": answer.get("edges")}
    if not isinstance(answer, dict) or "error" in answer:
        return read_answer(answer)
    values, cost = answer.get("values"), answer.get("cost")
    rows = values if isinstance(values, list) and len(values) == count else [None]
    if not all(is_packed(row) or (isinstance(row, dict) and isinstance(row.get("error"), str)) for row in rows):
        return NO_ANSWER
    if not all(isinstance(row, list | dict) for row in rows):
        return NO_ANSWER
    counted = isinstance(cost, dict) and {*cost} == {*COSTS} and all(is_number(each) for each in cost.values())
    return {
        "values": values,
        "cost": cost if counted or isinstance(cost, str) else None,
        "edges": answer.get("edges"),
        "read": answer.get("read"),
    }


# The rest runs in the bounded process.


def function_answers(*, source: str, asked: dict[str, list[Any]]) -> Iterator[list[Answer]]:
    forbid_writing()
    confine()
    try:
        defined, problem = define(source), None
    except BaseException as error:
        defined, problem = {}, explain(error)
    for name, calls in asked.items():
        function = defined.get(name)
        if problem is not None or not callable(function):
            yield [{"missing": True} if problem is None else {"error": problem}] * len(calls)
        else:
            yield [call_answer(function, unpack(call, as_numpy=uses_numpy(defined))) for call in calls]


def define(source: str) -> dict[str, Any]:
    defined: dict[str, Any] = {"__name__": ANSWER}
    exec(compile(source, ANSWER, "exec"), defined)
    return defined


def uses_numpy(defined: dict[str, Any]) -> bool:
    """Check whether an answer imports numpy and not torch: then it gets arrays."""
    modules = {each.__name__ for each in defined.values() if isinstance(each, types.ModuleType)}
    return "numpy" in modules and "torch" not in modules


def call_answer(function: Any, arguments: list[Any]) -> Answer:
    try:
        value = function(*arguments)
        return {"missing": True} if value is None or value is Ellipsis else {"values": pack(value)}
    except NotImplementedError:
        return {"missing": True}
    except BaseException as error:
        return {"error": explain(error)}


def explain(error: BaseException) -> str:
    """Return an error in a line, with the last line of the answer that led to it."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == ANSWER]
    number = error.lineno if isinstance(error, SyntaxError) else next(reversed(lines), None)
    where = f"line {number}: " if number else ""
    return f"{where}{type(error).__name__}: {next(iter(str(error).splitlines()), '')[:200]}"


def program_answers(*, source: str, confined: bool, texts: list[str], alphabet: str, length: int) -> Answer:
    try:
        defined = define_program(source, confined=confined)
        program = defined.get("answer")
        if program is None or program is Ellipsis:
            return {"missing": True, "edges": pack(defined.get("edges"))}
        if not isinstance(program, Program):
            return {"error": f"`answer` is a sequence, as aggregate gives it; came {type(program).__name__}"}
        return {
            "values": [text_answer(program, text) for text in texts],
            "cost": cost(program, alphabet, length),
            "edges": pack(defined.get("edges")),
            "read": read_in_functions(program),
        }
    except BaseException as error:
        return {"error": explain(error)}


def text_answer(program: Program, text: str) -> Any:
    try:
        return pack(Interpreter(text, "").of(program))
    except Exception as error:  # a lambda of the pupil's own, or a category that has no mean
        return {"error": explain(error)}


def define_program(source: str, *, confined: bool) -> dict[str, Any]:
    """Run a program's code. From then on, what is confined reaches nothing outside its process."""
    if confined:
        forbid_writing()
        confine()
    return define(source)


def program_lines(*, source: str, confined: bool, text: str) -> list[list[Any]]:
    """Return what each named sequence of an answer computes for a text; of a selector, the keys of each query."""
    interpreter, found = Interpreter(text, ""), []
    for name, each in define_program(source, confined=confined).items():
        try:
            if isinstance(each, Selector):
                found.append([name, interpreter.selected_keys(each)])
            elif isinstance(each, Program) and name not in ("tokens", "indices", "source_tokens", "source_indices"):
                found.append([name, pack(interpreter.of(each))])
        except Exception as error:
            found.append([name, explain(error)])
    return found


def read_in_functions(program: Program) -> str | None:
    """Return the name of a sequence that some function of a program reads as if it were a value; None if none does.

    `lambda key, query: key == length` with a sequence `length` raises nothing, and is never true.
    """
    for function in functions_of(program):
        if isinstance(function, types.FunctionType) and function.__module__ != language.__name__:
            read = inspect.getclosurevars(function)
            named = {**read.globals, **read.nonlocals}.items()
            if found := next((name for name, value in named if isinstance(value, Program)), None):
                return found
    return None


def functions_of(program: Program) -> Iterator[Any]:
    for part in parts_of(program):
        if isinstance(part, Map | SequenceMap):
            yield part.function
        elif isinstance(part, Aggregate | Width):
            yield from (term.predicate for term in part.selector.terms)


def cost(program: Program, alphabet: str, length: int) -> dict[str, int] | str:
    """Return the layers, heads and operations that a program compiles into, or why it does not compile."""
    try:
        planned = plan(program, alphabet, length=length)
    except ClearheadError as error:
        return str(error)
    return dict(zip(COSTS, (planned.layers, planned.heads, len(parts_of(program))), strict=True))


def pack(value: Any) -> Any:
    """Return numbers, arrays, tensors and lists of them as JSON has them."""
    if isinstance(value, Tensor | np.ndarray | np.generic):
        array = value.detach().cpu().resolve_conj().numpy() if isinstance(value, Tensor) else np.asarray(value)
        if array.dtype.kind not in "biuf":
            raise TypeError(f"expected real numbers; came {array.dtype}")
        return {"shape": list(array.shape), "truth": array.dtype == bool, "numbers": array.ravel().tolist()}
    if isinstance(value, dict):
        return {"named": {name: pack(each) for name, each in value.items()}}
    if isinstance(value, list | tuple):
        return [pack(each) for each in value]
    if not is_packed(value):
        raise TypeError(f"expected numbers, a tensor or an array; came {describe_kind(value)}")
    return value


def describe_kind(value: Any) -> str:
    """Say what a value is; of a function, that it was not called."""
    if callable(value):
        return f"{getattr(value, '__name__', type(value).__name__)}, which is called by ()"
    return f"a number of {value.bit_length()} bits" if isinstance(value, int) else f"a {type(value).__name__}"


def unpack(value: Any, *, as_numpy: bool = False) -> Any:
    """Return what was packed: tensors of float64, or arrays."""
    if isinstance(value, list):
        return [unpack(each, as_numpy=as_numpy) for each in value]
    if isinstance(value, dict) and "named" in value:
        return {name: unpack(each, as_numpy=as_numpy) for name, each in value["named"].items()}
    if isinstance(value, dict) and "numbers" in value:
        array = np.array(value["numbers"], dtype=bool if value["truth"] else np.float64).reshape(value["shape"])
        return array if as_numpy else torch.from_numpy(array)
    return value
