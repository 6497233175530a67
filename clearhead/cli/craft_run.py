"""Run a compiled RASP program beside its interpreter, and print both place by place, for `clearhead craft run`.

The pages of `clearhead craft list` and `clearhead craft show`: RASP programs, and what one is compiled into.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from clearhead.cli.craft_program import Ask, errors_with_line, in_words
from clearhead.cli.screen import number, prose, rule
from clearhead.decoding.generating import eval_mode
from clearhead.errors import OptionError
from clearhead.rasp import PROGRAMS, CompiledModel, Program, ProgramPlan, run
from clearhead.rasp.compiler import with_plural
from clearhead.rasp.description import describe_heads, join_shortened, name_written
from clearhead.rasp.scheduling import Level
from clearhead.rasp.spaces import HERE, ONE, SINK

NAME, COST = 22, 8
MEANINGS = {
    ONE: "1 at every token",
    HERE: "1 at every token of the text",
    SINK: "1 at the token that is attended to where nothing is chosen",
}


def as_list() -> list[dict[str, Any]]:
    return [facts(program, program.plan()) for program in PROGRAMS.values()]


def facts(program: Program, plan: ProgramPlan) -> dict[str, Any]:
    """Return a program and its cost."""
    return {
        "name": program.name,
        "about": program.about,
        "kind": plan.kind,
        "vocabulary": list(map(str, program.vocabulary)),
        "source_vocabulary": None if program.source_vocabulary is None else list(map(str, program.source_vocabulary)),
        "length": program.length,
        "layers": plan.layers,
        "heads": plan.heads,
        "width": plan.d_model,
        "units": plan.units,
    }


def list_page() -> Iterator[RenderableType]:
    yield rule("Programs that compile into attention")
    head = "".join(f"{title:>{COST}}" for title in ("layers", "heads", "width"))
    yield Text(f"  {'program':<{NAME}}{head}", style="title")
    for program in as_list():
        numbers = "".join(f"{program[key]:>{COST}}" for key in ("layers", "heads", "width"))
        yield Text(f"  {program['name']:<{NAME}}{numbers}")
        yield Padding(Text(program["about"], style="quiet"), (0, 2, 0, 4))
    yield Text()
    yield prose("clearhead craft show PROGRAM tells how one works; run PROGRAM TEXT runs it.")


def show_page(ask: Ask, plan: ProgramPlan) -> Iterator[RenderableType]:
    program = ask.program
    yield rule(program.name)
    yield line(program.about)
    yield line(f"tokens: {' '.join(map(str, program.vocabulary))}")
    if program.source_vocabulary is not None:
        yield line(f"tokens of the source: {' '.join(map(str, program.source_vocabulary))}")
    answers = "a number" if plan.result.numeric else join_shortened(map(str, plan.answers), 12)
    yield line(f"length: 1 to {program.length}; answers: {answers}")
    yield line(f"for example: {in_words(program.usable_example())}")
    yield line(f"cost: {plan}")
    yield Text()
    yield rule("The residual stream")
    yield line(f"{with_plural(plan.d_model, 'direction')}, each with a name:")
    for space in plan.directions.first:
        values = "a number" if space.numeric else join_shortened(map(str, space.values), 16)
        yield line(f"{space.name} ({space.size}): {MEANINGS.get(space) or values}")
    for name, level in layers_of(plan):
        yield Text()
        yield rule(name)
        yield from level_page(level)


def plan_object(ask: Ask, plan: ProgramPlan) -> dict[str, Any]:
    layers = [
        {"name": name, "heads": describe_heads(level), "units": len(level.units), "writes": name_written(level.units)}
        for name, level in layers_of(plan)
    ]
    answers = list(map(str, plan.answers))
    return {
        **facts(ask.program, plan),
        "answers": answers,
        "example": list(map(str, ask.program.usable_example())),
        "directions": plan.directions.names,
        "each_layer": layers,
    }


def layers_of(plan: ProgramPlan) -> Iterator[tuple[str, Level]]:
    """Return every layer with its name, in the order in which they run."""
    has_source = "source" in plan.levels
    for side, name in (("source", "encoder layer"), ("target", "decoder layer" if has_source else "layer")):
        yield from ((f"{name} {number}", level) for number, level in enumerate(plan.levels.get(side, ())))


def line(text: str, indent: int = 2) -> RenderableType:
    """Return a line as it is, brackets and all: none of it is markup."""
    return Padding(Text(text), (0, 2, 0, indent))


def level_page(level: Level) -> Iterator[RenderableType]:
    for index, head in enumerate(describe_heads(level)):
        yield line(f"head {index}" + (", which looks into the source" if head["cross"] else ""))
        for comparison in head["compares"]:
            yield line(
                f"keys are {comparison['keys']}, queries {comparison['queries']}: {comparison['where']}", indent=4
            )
        does = f"carries {head['carries']}" if head["carries"] else "counts what is chosen"
        yield line(f"{does} into {head['writes']}", indent=4)
    if not level.own and not level.cross:
        yield line("attention does nothing")
    if level.units:
        yield line(f"network of {with_plural(len(level.units), 'unit')}")
        yield line(f"writes {', '.join(name_written(level.units))}", indent=4)


CLOSE = 1e-5
"""How near a number must come to the interpreter's."""
NOTHING = "–"


@dataclass(frozen=True, kw_only=True)
class Compared:
    """The model's answers and the interpreter's; `error` is how far the numbers that answers are read from are off."""

    ask: Ask
    cost: str
    text: list[Any]
    source: list[Any] | None
    answers: list[Any]
    wanted: list[Any]
    error: float

    @property
    def differ(self) -> list[int]:
        """Return the places at which they are not the same."""
        pairs = enumerate(zip(self.answers, self.wanted, strict=True))
        return [index for index, (answer, expected) in pairs if not equal(answer, expected)]


def compare(ask: Ask, text: list[Any], source: list[Any] | None) -> Compared:
    """Compile the program, and give it and the interpreter the same text."""
    texts = [text] if source is None else [text, source]
    with errors_with_line(ask.file):
        if not ask.program.fits(*texts):
            raise OptionError(f"{ask.program.name} is not for {in_words(text)!r}: it is {ask.program.about}")
        plan = ask.plan()
        crafted = plan.build()
        inputs = crafted.tensors(text, source)
        expected = run(ask.program.output, *texts)
    with eval_mode(crafted.model):
        logits = crafted.model(*inputs)[0]
    logits = logits[crafted.layouts["target"].offset :][: len(text)]
    return Compared(
        ask=ask,
        cost=str(plan),
        text=text,
        source=source,
        answers=crafted.read(logits),
        wanted=expected,
        error=error_of(crafted, logits, expected),
    )


def error_of(crafted: CompiledModel, logits: torch.Tensor, expected: Sequence[Any]) -> float:
    """Return the largest error of the logits: from 1 for the right answer and 0 for the others, or from the number."""
    actual = logits[:, [crafted.ids[str(answer)] for answer in crafted.answers]].double()
    if crafted.numeric:
        right = torch.tensor(expected, dtype=torch.float64).unsqueeze(1)
    else:
        right = torch.tensor([[float(value == answer) for answer in crafted.answers] for value in expected]).double()
    return (actual - right.to(actual.device)).abs().max().item()


def equal(answer: Any, expected: Any) -> bool:
    if isinstance(answer, float) and isinstance(expected, int | float):
        return abs(answer - expected) <= CLOSE
    return answer == expected


def as_object(compared: Compared) -> dict[str, Any]:
    return {
        "program": compared.ask.program.name,
        "cost": compared.cost,
        "source": None if compared.source is None else list(map(str, compared.source)),
        "tokens": list(map(str, compared.text)),
        "answers": list(map(as_json_value, compared.answers)),
        "interpreter": list(map(as_json_value, compared.wanted)),
        "equal": not compared.differ,
        "largest_error": compared.error,
    }


def as_json_value(value: Any) -> Any:
    """Return a value that JSON can hold: one that it cannot is written out."""
    return value if value is None or isinstance(value, str | int | float) else str(value)


def run_page(compared: Compared) -> Iterator[RenderableType]:
    yield rule(compared.ask.program.name)
    yield line(compared.cost)
    if compared.source is not None:
        yield line(f"source: {in_words(compared.source)}")
    yield Text()
    columns = [[show_value(value) for value in column] for column in (compared.text, compared.answers, compared.wanted)]
    rows = [("token", "model", "interpreter"), *zip(*columns, strict=True)]
    widths = [max(map(len, column)) + 3 for column in zip(*rows, strict=True)]
    for index, row in enumerate(rows, -1):
        cells = "".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        yield Text(f"  {cells}" + ("differs" if index in compared.differ else ""), style="title" if index < 0 else "")
    yield Text()
    yield line(verdict_of(compared))


def show_value(value: Any) -> str:
    if value is None:
        return NOTHING
    return number(value, 4) if isinstance(value, float) else str(value)


def verdict_of(compared: Compared) -> str:
    places = with_plural(len(compared.text), "place")
    if compared.differ:
        verdict = f"They differ at {len(compared.differ)} of {places}."
    else:
        verdict = f"The model and the interpreter are equal at {'its' if len(compared.text) == 1 else 'all'} {places}."
    return verdict if compared.ask.exact else f"{verdict} The largest error is {compared.error:.2g}."
