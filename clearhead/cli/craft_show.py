"""The pages of `clearhead craft list` and `clearhead craft show`: RASP programs, and what one is compiled into."""

from collections.abc import Iterator
from typing import Any

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from clearhead.cli.craft_program import Ask, in_words
from clearhead.cli.screen import prose, rule
from clearhead.rasp import PROGRAMS, Program, ProgramPlan
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


def as_object(ask: Ask, plan: ProgramPlan) -> dict[str, Any]:
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
    for number, head in enumerate(describe_heads(level)):
        yield line(f"head {number}" + (", which looks into the source" if head["cross"] else ""))
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
