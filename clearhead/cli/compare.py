"""`clearhead compare`: attention kinds, positions or sizes with the same budget, data and seeds; a table and a plot."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar, final

import typer
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.text import Text

from clearhead.cli.choices import Choices, as_machine, as_recipe, overridden
from clearhead.cli.options import given, one_of, wrong
from clearhead.cli.screen import prose, rule, show, show_json
from clearhead.cli.texts import check_text, with_spooled
from clearhead.cli.train import row
from clearhead.errors import OptionError, RunError
from clearhead.model.sizes import parse_count
from clearhead.training.comparing import compare as comparison_of
from clearhead.training.comparing import grid
from clearhead.training.comparison import Comparison
from clearhead.training.defaults import ATTENTIONS, POSITIONS
from clearhead.training.probes import PROBES, probe_recipe
from clearhead.training.recipe import Recipe

__all__ = ["EXAMPLES", "compare"]

EXAMPLES = """\b
Examples:
  clearhead compare runs/recall --probe recall --steps 2000 \\
      --attention softmax,cosine,argmax,kernelized
  clearhead compare runs/order --task translate --source de.txt \\
      --target en.txt --position sinusoidal,learned,rotary --minutes 5
  clearhead compare runs/sizes --task generate --text poems/ \\
      --size 300k,1M --seeds 1,2 --steps 1000"""

WRITTEN = ("comparison.svg", "comparison.md", "comparison.json")
LISTS = ("attention", "position", "size")
"""The options that may be lists: each makes the grid larger."""


@final
@dataclass(frozen=True, kw_only=True)
class ComparingOptions:
    """What is compared, and on what."""

    title: ClassVar[str] = "Comparison (--attention, --position and --size are lists with commas)"

    probe: Annotated[
        str | None,
        typer.Option(metavar="NAME", help=f"A task that is made up, instead of --task and files: {', '.join(PROBES)}."),
    ] = None
    longest: Annotated[
        int | None, typer.Option(min=8, metavar="N", help="probe: its longest sequence, or farthest key, in tokens.")
    ] = None
    seeds: Annotated[str, typer.Option(metavar="1,2", help="A run of each arm for each.")] = "1,2,3"
    parallel: Annotated[int, typer.Option(min=1, metavar="N", help="Runs at a time.")] = 1
    as_json: Annotated[bool, typer.Option("--json", help="Print everything, every run, as one JSON object.")] = False


def compare(
    folder: Annotated[str, typer.Argument(help="Where the runs and the table go.", metavar="FOLDER")],
    comparing: ComparingOptions,
    choices: Choices,
) -> None:
    """Compare kinds of attention, positions or sizes: the same budget, data and seeds.

    Give one of --attention, --position and --size a list, or several: then every combination is an arm. Every run is an
    ordinary run folder in FOLDER, and the same command goes on where it was stopped.
    """
    home = Path(folder)
    seeds, lists = numbers(comparing.seeds), lists_of(choices)
    arms = grid(lists, maker(home, comparing, choices))
    found = comparison_of(home, arms, seeds=seeds, probe=comparing.probe, parallel=comparing.parallel, told=to_stderr)
    if not found.outcomes:
        raise RunError(f"{folder}: every run failed; {found.failures[0].run}: {found.failures[0].problem}")
    if comparing.as_json:
        show_json(found.to_json())
    else:
        show(*page(found))


def to_stderr(text: str) -> None:
    typer.echo(text, err=True)


def numbers(text: str) -> list[int]:
    parts = split(text)
    if not parts or not all(part.isdecimal() for part in parts):
        raise wrong("--seeds", f"whole numbers with commas between them, such as 1,2,3; came {text!r}")
    return list(dict.fromkeys(map(int, parts)))


def split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def lists_of(choices: Choices) -> dict[str, list[str]]:
    """What varies. A name that does not exist is told here."""
    if choices.machine.seed is not None:
        raise wrong("--seed", "a comparison has several: give --seeds")
    found = {name: list(dict.fromkeys(split(getattr(choices.model, name) or ""))) for name in LISTS}
    lists = {name: values for name, values in found.items() if values}
    if not lists:
        raise wrong("--attention", "is missing: give a list, or one to --position or --size, such as softmax,cosine")
    for name, known in (("attention", tuple(ATTENTIONS)), ("position", POSITIONS)):
        for value in lists.get(name, ()):
            one_of(f"--{name}", value, dict[str, None].fromkeys(known))
    for value in lists.get("size", ()):
        try:
            parse_count(value)
        except OptionError as error:
            raise wrong("--size", str(error)) from error
    return lists


def maker(home: Path, comparing: ComparingOptions, choices: Choices) -> Callable[[Mapping[str, str]], Recipe]:
    """Makes the recipe of an arm from what it varies. What is wrong with all of them is told here."""
    as_machine(choices.machine)
    make = as_recipe
    if comparing.probe is not None:
        make = probe_maker(home, comparing, choices)
    elif choices.task is None:
        raise wrong("--task", f"is missing: say what the models shall learn, or give --probe {', '.join(PROBES)}")
    elif comparing.longest is not None:
        raise wrong("--longest", "is for probes; the longest row of your text is --context")
    else:
        check_text(choices.task, choices.text)
        choices = replace(choices, text=with_spooled(choices.text, home / "data"))

    def made(choice: Mapping[str, str]) -> Recipe:
        try:
            return make(varied(choices, choice))
        except typer.BadParameter as error:
            # Where a model cannot be, the arm is not possible, and the others are.
            if isinstance(error.__cause__, OptionError):
                raise error.__cause__ from None
            raise

    return made


def varied(choices: Choices, choice: Mapping[str, str]) -> Choices:
    """The choices of one arm. Unless patience is asked for there is none: the budget is the same for all."""
    patience = choices.budget.patience or 0
    model = replace(choices.model, **{name: choice.get(name) for name in LISTS})
    return replace(choices, model=model, budget=replace(choices.budget, patience=patience))


def probe_maker(home: Path, comparing: ComparingOptions, choices: Choices) -> Callable[[Choices], Recipe]:
    probe = one_of("--probe", comparing.probe or "", PROBES)
    if others := given(Choices(task=choices.task, text=choices.text)):
        raise wrong("--probe", f"brings its own task and text: leave out {', '.join(others)}")
    amount = probe.amount(comparing.longest)
    context = choices.batches.context
    if context is not None and context < probe.width(amount.longest):
        raise wrong("--context", f"this probe has rows of {probe.width(amount.longest)} tokens; came {context}")
    default = probe_recipe(probe, home / "probe", amount, as_machine(choices.machine))
    return lambda chosen: overridden(chosen, default)


def page(found: Comparison) -> Iterator[RenderableType]:
    """The tables, what to know beside them, and where everything is."""
    yield rule(found.folder)
    yield aligned(*found.table())
    if found.distances:
        yield Text()
        yield aligned(*found.distance_table())
    yield Text()
    for note in found.notes():
        yield prose(escape(note), style="quiet")
    yield Text()
    yield Group(*(row(name.rpartition(".")[2], str(Path(found.folder) / name)) for name in WRITTEN))
    yield Text()


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]]) -> RenderableType:
    """A table: names to the left, numbers to the right; a row that is wider than the page is not wrapped."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = [Text(style="title"), *(Text() for _ in rows)]
    for line, cells in zip(lines, (head, *rows), strict=True):
        first, *rest = zip(cells, widths, strict=True)
        line.append("  ".join([f"  {first[0]:<{first[1]}}", *(f"{cell:>{width}}" for cell, width in rest)]))
        line.no_wrap, line.overflow = True, "ignore"
    # A group leaves its lines as they are; printed one by one they would be wrapped.
    return Group(*lines)
