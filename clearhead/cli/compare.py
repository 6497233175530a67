"""`clearhead compare`: models that differ in a part, with the same budget, data and seeds; a table and a plot."""

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar, final

import typer
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.text import Text

from clearhead.cli.completion import complete_names
from clearhead.cli.options import Parts, flag, given_flags, import_named, missing, new_folder, one_of, wrong
from clearhead.cli.recipe_options import Choices, as_machine, as_recipe, find_task, override_recipe
from clearhead.cli.screen import prose, rule, show, show_json
from clearhead.cli.texts import as_corpus, check_text, with_spooled
from clearhead.cli.train import render_row
from clearhead.errors import OptionError, RunError
from clearhead.experiments.comparing import BASE, grid, one_by_one
from clearhead.experiments.comparing import compare as comparison_of
from clearhead.experiments.comparison import Comparison
from clearhead.experiments.probes import PROBES, probe_recipe
from clearhead.extras import has_package, how_to_install
from clearhead.model.sizes import parse_count
from clearhead.training.defaults import ABSENT, KINDS, choose
from clearhead.training.holding import hold_folder
from clearhead.training.recipe import Recipe
from clearhead.training.tasks import TASKS
from clearhead.training.variants import HEADS, PARTS, parse_scale, parse_whole

EXAMPLES = """\b
Examples:
  clearhead compare runs/recall --probe recall --steps 2000 \\
      --attention softmax,cosine,argmax,kernelized
  clearhead compare runs/order --task translate --source de.txt \\
      --target en.txt --position sinusoidal,learned,rotary --minutes 5
  clearhead compare runs/parts --task translate --source de.txt \\
      --target en.txt --steps 1000 --variant base --variant heads=sliced \\
      --variant block=note --variant value-rank=32,d-value=128
  clearhead compare runs/sizes --task generate --text poems/ \\
      --size 300k,1M --seeds 1,2 --steps 1000"""

WRITTEN = ("comparison.svg", "comparison.md", "comparison.json")
LISTS = (*PARTS, "size")
"""The options that may be lists: each makes the grid larger."""


def dashed(name: str) -> str:
    return name.replace("_", "-")


@final
@dataclass(frozen=True, kw_only=True)
class ComparingOptions:
    """What is compared, and on what."""

    title: ClassVar[str] = "Comparison (--attention, --position, --size, --heads, … take lists: a,b,c)"

    variant: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PART=VALUE",
            callback=import_named("--variant"),
            help="One model, by its differences from the base; repeat it, instead of lists: "
            f"{', '.join(map(dashed, LISTS))}; or {BASE}.",
        ),
    ] = None
    probe: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            autocompletion=complete_names(PROBES),
            help=f"Train on a synthetic task, instead of --task and files: {', '.join(PROBES)}.",
        ),
    ] = None
    longest: Annotated[
        int | None, typer.Option(min=8, metavar="N", help="probe: longest sequence, or farthest key, in tokens.")
    ] = None
    seeds: Annotated[str, typer.Option(metavar="1,2", help="Train each model once with each seed.")] = "1,2,3"
    parallel: Annotated[int, typer.Option(min=1, metavar="N", help="How many runs to train at once.")] = 1
    as_json: Annotated[bool, typer.Option("--json", help="Print all results as one JSON object.")] = False


def compare(
    folder: Annotated[str, typer.Argument(help="Folder for the runs, the table and the plot.", metavar="FOLDER")],
    comparing: ComparingOptions,
    choices: Choices,
    *,
    parts: Parts = None,
) -> None:
    """Train models that differ in one part or more, and compare them in one table and one plot.

    All have the same budget, data and seeds. Give --attention, --position, --size, --heads, … a list: every combination
    is a row of the table. Or give --variant several times: every variant is a row. Each run is an ordinary run folder
    in FOLDER. If the command is stopped, run it again: it continues.
    """
    home = new_folder("FOLDER", folder)
    if not has_package("matplotlib"):
        to_stderr(f"There will be no picture: that needs matplotlib ({how_to_install('plots')}).")
    seeds = numbers(comparing.seeds)
    with hold_folder(home, to_stderr):  # the text of a probe, or of a pipe, is written there before the runs begin
        if comparing.variant is None:
            arms = grid(parse_lists(choices), make_recipe_maker(home, comparing, choices))
        else:
            arms = one_by_one(parse_variants(comparing.variant, choices), make_recipe_maker(home, comparing, choices))
        comparison = comparison_of(
            home, arms, seeds=seeds, probe=comparing.probe, parallel=comparing.parallel, log=to_stderr
        )
    if not comparison.outcomes:
        raise RunError(f"{folder}: every run failed; {comparison.failures[0].run}: {comparison.failures[0].problem}")
    if comparing.as_json:
        show_json(comparison.to_json())
    else:
        show(*render_page(comparison))


def to_stderr(text: str) -> None:
    typer.echo(text, err=True)


def numbers(text: str) -> list[int]:
    parts = split(text)
    if not parts or not all(part.isdecimal() for part in parts):
        raise wrong("--seeds", f"whole numbers with commas between them, such as 1,2,3; came {text!r}")
    return list(dict.fromkeys(map(int, parts)))


def split(text: str) -> list[str]:
    """Return the items of a list with commas; those inside parentheses belong to an item, as in mine:TopK(a=1,b=2)."""
    parts = re.split(r",(?![^(]*\))", text)
    return [part.strip() for part in parts if part.strip()]


def parse_variants(texts: Sequence[str], choices: Choices) -> list[dict[str, str]]:
    """Return what each `--variant` changes: `heads=sliced` one part, `scale=none,block=post` two, `base` nothing."""
    for name in LISTS:
        if len(split(getattr(choices.model, name) or "")) > 1:
            raise wrong(
                "--variant", f"is given instead of lists: give {flag(name)} one value, which all variants share"
            )
    variants = [parse_variant(text) for text in texts]
    for number, variant in enumerate(variants):
        if variant in variants[:number]:
            raise wrong("--variant", f"{texts[number]!r} is there twice")
    check_values({name: [variant[name] for variant in variants if name in variant] for name in LISTS})
    return variants


def parse_variant(text: str) -> dict[str, str]:
    if text == BASE:
        return {}
    parts: dict[str, str] = {}
    for part in split(text) or [text]:
        name, equals, value = (word.strip() for word in part.partition("="))
        option = name.replace("-", "_")
        if option not in LISTS or not equals or not value or option in parts:
            raise wrong(
                "--variant",
                f"expected {BASE}, or PART=VALUE with commas between several, each part once; came {text!r}. The parts "
                f"are: {', '.join(map(dashed, LISTS))}",
            )
        parts[option] = value
    return parts


def parse_lists(choices: Choices) -> dict[str, list[str]]:
    """Return what varies. BadParameter for a name that does not exist."""
    values_of = {name: list(dict.fromkeys(split(getattr(choices.model, name) or ""))) for name in LISTS}
    lists = {name: values for name, values in values_of.items() if values}
    if not lists:
        raise missing(
            "--attention",
            "give a list, or one to --position, --size, --heads, …, such as softmax,cosine; or give "
            "--variant several times",
        )
    check_values(lists)
    return lists


def check_values(lists: Mapping[str, Sequence[str]]) -> None:
    """Raise for a value that no model could have; one that only this model cannot have makes its arm impossible."""
    for value in lists.get("heads", ()):
        one_of("--heads", value, dict.fromkeys(HEADS))
    named = {name: functools.partial(choose, name) for name in KINDS}
    numbers = {name: functools.partial(parse_whole, name) for name in ("value_rank", "d_value", "window")}
    for name, parse in {"size": parse_count, "scale": parse_scale, **numbers, **named}.items():
        for value in (value for value in lists.get(name, ()) if not (name in ABSENT and value == "none")):
            try:
                parse(value)
            except OptionError as error:
                raise wrong(flag(name), str(error).removeprefix(f"{name}: ")) from error


def make_recipe_maker(
    home: Path, comparing: ComparingOptions, choices: Choices
) -> Callable[[Mapping[str, str]], Recipe]:
    """Return what makes the recipe of an arm from what it varies; raise for what is wrong with all of them."""
    if choices.machine.seed is not None:
        raise wrong("--seed", "a comparison has several: give --seeds")
    as_machine(choices.machine)
    make = as_recipe
    if comparing.probe is not None:
        make = make_probe_maker(home, comparing, choices)
    elif choices.task is None:
        raise missing("--task", f"say what to learn ({', '.join(TASKS)}), or give --probe ({', '.join(PROBES)})")
    elif comparing.longest is not None:
        raise wrong("--longest", "is for probes; the longest row of your text is --context")
    else:
        task = find_task(choices.task)
        check_text(task, choices.text)
        as_corpus(task, choices.text).check()
        choices = replace(choices, text=with_spooled(choices.text, home / "data"))

    def arm_recipe(choice: Mapping[str, str]) -> Recipe:
        # Patience is off unless it is asked for: every arm shall have the same budget.
        budget = replace(choices.budget, patience=choices.budget.patience or 0)
        try:
            return make(replace(choices, model=replace(choices.model, **choice), budget=budget))
        except typer.BadParameter as error:
            # Where a model cannot be, the arm is not possible, and the others are.
            if isinstance(error.__cause__, OptionError):
                raise error.__cause__ from None
            raise

    return arm_recipe


def make_probe_maker(home: Path, comparing: ComparingOptions, choices: Choices) -> Callable[[Choices], Recipe]:
    probe = one_of("--probe", comparing.probe or "", PROBES)
    if extra := given_flags(Choices(task=choices.task, text=choices.text)):
        raise wrong("--probe", f"brings its own task and text: leave out {', '.join(extra)}")
    amount = probe.amount(comparing.longest)
    context = choices.batches.context
    if context is not None and context < probe.width(amount.longest):
        raise wrong("--context", f"this probe has rows of {probe.width(amount.longest)} tokens; came {context}")
    default = probe_recipe(probe, home / "probe", amount, as_machine(choices.machine))
    return lambda arm_choices: override_recipe(arm_choices, default)


def render_page(comparison: Comparison) -> Iterator[RenderableType]:
    """Return the tables, what to know beside them, and where everything is."""
    yield rule(comparison.folder)
    yield align_table(*comparison.table())
    if comparison.distances:
        yield Text()
        yield align_table(*comparison.distance_table())
    yield Text()
    for note in comparison.notes():
        yield prose(escape(note), style="quiet")
    yield Text()
    written = [name for name in WRITTEN if (Path(comparison.folder) / name).exists()]
    yield Group(*(render_row(name.rpartition(".")[2], str(Path(comparison.folder) / name)) for name in written))
    yield Text()


def align_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> RenderableType:
    """Return a table: names to the left, numbers to the right; a row that is wider than the page is not wrapped."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = [Text(style="title"), *(Text() for _ in rows)]
    for line, cells in zip(lines, (head, *rows), strict=True):
        first, *numbers_cells = zip(cells, widths, strict=True)
        line.append("  ".join([f"  {first[0]:<{first[1]}}", *(f"{cell:>{width}}" for cell, width in numbers_cells)]))
        line.no_wrap, line.overflow = True, "ignore"
    # A group leaves its lines as they are; printed one by one they would be wrapped.
    return Group(*lines)
