"""What `clearhead craft list` and `clearhead craft show` print: programs, and what one is compiled into, in words."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from clearhead.cli.craft_program import Ask, example_of, in_words
from clearhead.cli.screen import prose, rule
from clearhead.craft import PROGRAMS, Plan, Program
from clearhead.craft.compiling import counted
from clearhead.craft.operations import Choice, Head, Unit
from clearhead.craft.scheduling import Level
from clearhead.craft.spaces import HERE, ONE, SINK, Space

__all__ = ["as_list", "as_object", "list_page", "show_page"]

NAME, COST = 22, 8
MEANINGS = {
    ONE: "1 at every token",
    HERE: "1 at every token of the text",
    SINK: "1 at the token that is attended to where nothing is chosen",
}
RELATIONS: dict[str, Callable[[Any, Any], bool]] = {
    "any key": lambda key, query: True,
    "key = query": lambda key, query: key == query,
    "key < query": lambda key, query: key < query,
    "key ≤ query": lambda key, query: key <= query,
    "key > query": lambda key, query: key > query,
    "key ≥ query": lambda key, query: key >= query,
    "key ≠ query": lambda key, query: key != query,
    "key = query − 1": lambda key, query: key == query - 1,
    "key = query + 1": lambda key, query: key == query + 1,
}


def as_list() -> list[dict[str, Any]]:
    return [facts(program, program.plan()) for program in PROGRAMS.values()]


def facts(program: Program, plan: Plan) -> dict[str, Any]:
    """A program and its cost."""
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
    for one in as_list():
        numbers = "".join(f"{one[key]:>{COST}}" for key in ("layers", "heads", "width"))
        yield Text(f"  {one['name']:<{NAME}}{numbers}")
        yield Padding(Text(one["about"], style="quiet"), (0, 2, 0, 4))
    yield Text()
    yield prose("clearhead craft show PROGRAM tells how one works; run PROGRAM TEXT runs it.")


def show_page(ask: Ask, plan: Plan) -> Iterator[RenderableType]:
    program = ask.program
    yield rule(program.name)
    yield line(program.about)
    yield line(f"tokens: {' '.join(map(str, program.vocabulary))}")
    if program.source_vocabulary is not None:
        yield line(f"tokens of the source: {' '.join(map(str, program.source_vocabulary))}")
    answers = "a number" if plan.result.numeric else shortened(map(str, plan.answers), 12)
    yield line(f"length: 1 to {program.length}; answers: {answers}")
    yield line(f"for example: {in_words(example_of(program))}")
    yield line(f"cost: {plan}")
    yield Text()
    yield rule("The residual stream")
    yield line(f"{counted(plan.d_model, 'direction')}, each with a name:")
    for space in plan.directions.first:
        yield line(f"{space.name} ({space.size}): {MEANINGS.get(space) or values_of(space)}")
    for side, levels in plan.levels.items():
        for number, level in enumerate(levels):
            yield Text()
            yield rule(f"{name_of(side, plan)} {number}")
            for told in told_level(level):
                yield line(told)


def as_object(ask: Ask, plan: Plan) -> dict[str, Any]:
    layers = [
        {"layer": f"{name_of(side, plan)} {number}", "heads": heads_of(level), "writes": written_by(level.units)}
        | {"units": len(level.units)}
        for side, levels in plan.levels.items()
        for number, level in enumerate(levels)
    ]
    answers = list(map(str, plan.answers))
    return {
        **facts(ask.program, plan),
        "answers": answers,
        "example": list(map(str, example_of(ask.program))),
        "directions": plan.directions.names,
        "layer": layers,
    }


def name_of(side: str, plan: Plan) -> str:
    if plan.kind == "encoder-decoder":
        return "encoder layer" if side == "source" else "decoder layer"
    return "layer"


def line(text: str) -> RenderableType:
    """A line as it is, brackets and all; where it is too long, what follows is indented."""
    return Padding(Text(text), (0, 2))


def values_of(space: Space) -> str:
    return "a number" if space.numeric else shortened(map(str, space.values), 16)


def shortened(values: Iterable[str], most: int) -> str:
    every = list(values)
    return " ".join(every) if len(every) <= most else f"{' '.join(every[: most - 1])} … {every[-1]}"


def told_level(level: Level) -> Iterator[str]:
    for number, head in enumerate(heads_of(level)):
        cross = ", into the source" if head["cross"] else ""
        wanted = " and ".join(f"{one['key']} against {one['query']}, {one['where']}" for one in head["compares"])
        yield f"head {number}{cross}: {wanted}; {head['does']}"
    if not level.own and not level.cross:
        yield "attention: nothing"
    if level.units:
        yield f"network, {counted(len(level.units), 'unit')}: writes {', '.join(written_by(level.units))}"


def heads_of(level: Level) -> list[dict[str, Any]]:
    return [told_head(head) for head in (*level.own, *level.cross)]


def told_head(head: Head) -> dict[str, Any]:
    counts = head.values is None
    does = "counts what is chosen" if head.values is None else f"carries {head.values.name}"
    return {
        "cross": head.cross,
        "compares": [{"key": one.keys.name, "query": one.queries.name, "where": relation(one)} for one in head.choices],
        "carries": None if head.values is None else head.values.name,
        "counts": counts,
        "writes": head.out.name,
        "does": f"{does} into {head.out.name}",
    }


def written_by(units: Iterable[Unit]) -> list[str]:
    """The spaces that units write, each once."""
    return list(dict.fromkeys(space.name for unit in units for space, _ in unit.writes))


def relation(choice: Choice) -> str:
    """When a key is chosen, in words: a relation that has a name, keys whatever is asked, or some of the pairs."""
    pairs = {(k, q): bool(choice.predicate(k, q)) for k in choice.keys.values for q in choice.queries.values}
    for name, holds in RELATIONS.items():
        if all(same(holds, pair, fits) for pair, fits in pairs.items()):
            return name
    chosen = [k for k in choice.keys.values if any(pairs[k, q] for q in choice.queries.values)]
    if all(pairs[k, q] for k in chosen for q in choice.queries.values):
        return f"key is {shortened(map(str, chosen), 6)}" if chosen else "none"
    fit = [pair for pair, fits in pairs.items() if fits]
    key, query = fit[0]
    return f"{len(fit)} of {len(pairs)} pairs, such as key {key} for query {query}"


def same(holds: Callable[[Any, Any], bool], pair: tuple[Any, Any], fits: bool) -> bool:
    try:
        return holds(*pair) == fits
    except TypeError:
        return False
