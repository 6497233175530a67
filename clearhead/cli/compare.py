"""`clearhead compare`: models that differ in a part, with the same budget, data and seeds; a table and a plot."""

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import typer
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.text import Text

from clearhead.cli.options import QUIET, Parts, Words, new_folder, one_of
from clearhead.cli.screen import align_table, prose, rule, show, show_json
from clearhead.cli.train import render_row
from clearhead.errors import RunError, WordError, naming_word
from clearhead.experiments.comparing import BASE, grid, one_by_one
from clearhead.experiments.comparing import compare as comparison_of
from clearhead.experiments.comparison import Comparison
from clearhead.experiments.probes import PROBES, probe_recipe
from clearhead.extras import has_package, how_to_install
from clearhead.model.sizes import parse_count
from clearhead.model.variants import ABSENT, HEADS, KINDS, PARTS, choose, parse_scale, parse_whole
from clearhead.options import Given, flag, flags, given_of, group_of, option
from clearhead.training import folder_lock, reporting
from clearhead.training.recipe import Recipe
from clearhead.training.recipe_options import GROUPS, as_machine, as_recipe, override_recipe
from clearhead.training.tasks import TASKS, task_named
from clearhead.training.text_options import TextOptions, as_corpus, check_text, with_spooled

EXAMPLES = """\b
Examples:
  clearhead compare runs/recall --probe recall --steps 2000 \\
      --attention softmax,cosine,argmax,kernelized
  clearhead compare runs/order --task translate --source de.txt \\
      --target en.txt --position sinusoidal,learned,rotary --minutes 5
  clearhead compare runs/parts --task translate --source de.txt \\
      --target en.txt --steps 1000 --variant base --variant heads=sliced \\
      --variant block=single-residual --variant value-rank=32,d-value=128
  clearhead compare runs/sizes --task generate --text poems/ \\
      --size 300k,1M --seeds 1,2 --steps 1000"""

WRITTEN = ("comparison.svg", "comparison.md", "comparison.json")
LISTS = (*PARTS, "size")
"""The options that may be lists: each makes the grid larger."""


def dashed(name: str) -> str:
    return name.replace("_", "-")


@dataclass(frozen=True, kw_only=True)
class ComparingOptions:
    """What is compared, and on what."""

    title: ClassVar[str] = "Comparison (--attention, --position, --size, --heads, … take lists: a,b,c)"

    variant: list[str] | None = option(
        None,
        "One model, by its differences from the base; repeat it, instead of lists: "
        f"{', '.join(map(dashed, LISTS))}; or {BASE}.",
        takes="PART=VALUE",
        own=True,
    )
    probe: str | None = option(
        None,
        f"Train on a synthetic task, instead of --task and files: {', '.join(PROBES)}.",
        takes="NAME",
        names=PROBES,
    )
    longest: int | None = option(None, "probe: longest sequence, or farthest key, in tokens.", takes="N", least=8)
    seeds: str = option("1,2,3", "Train each model once with each seed.", takes="1,2")
    jobs: int = option(1, "How many runs to train at once.", takes="N", least=1)
    quiet: bool = option(False, QUIET, short="q")
    as_json: bool = option(False, "Print all results as one JSON object.", word="json")


def compare(
    folder: Annotated[str, typer.Argument(help="Folder for the runs, the table and the plot.", metavar="FOLDER")],
    comparing: ComparingOptions,
    choices: Annotated[Given, Words(GROUPS)],
    *,
    parts: Parts = None,
) -> None:
    """Train models that differ in one part or more, and compare them in one table and one plot.

    All have the same budget, data and seeds. Give --attention, --position, --size, --heads, … a list: every combination
    is a row of the table. Or give --variant several times: every variant is a row. Each run is an ordinary run folder
    in FOLDER. If the command is stopped, run it again: it continues.
    """
    home = new_folder("FOLDER", folder)
    log = reporting.ignore if comparing.quiet else reporting.to_stderr
    if not has_package("matplotlib"):
        log(f"There will be no picture: that needs matplotlib ({how_to_install('plots')}).")
    seeds = numbers(comparing.seeds)
    with folder_lock.hold_folder(
        home, log
    ):  # the text of a probe, or of a pipe, is written there before the runs begin
        if comparing.variant is None:
            arms = grid(parse_lists(choices), make_recipe_maker(home, comparing, choices))
        else:
            arms = one_by_one(parse_variants(comparing.variant, choices), make_recipe_maker(home, comparing, choices))
        comparison = comparison_of(home, arms, seeds=seeds, probe=comparing.probe, parallel=comparing.jobs, log=log)
    if not comparison.outcomes:
        raise RunError(f"{folder}: every run failed; {comparison.failures[0].run}: {comparison.failures[0].problem}")
    if comparing.as_json:
        show_json(comparison.to_json())
    else:
        show(*render_page(comparison))


def numbers(text: str) -> list[int]:
    parts = split(text)
    if not parts or not all(part.isdecimal() and len(part) <= 20 for part in parts):
        raise WordError("seeds", f"whole numbers below 2^64 with commas between, such as 1,2,3; came {text[:80]!r}")
    return list(dict.fromkeys(map(int, parts)))


def split(text: str) -> list[str]:
    """Return the items of a list with commas; those inside parentheses belong to an item, as in mine:TopK(a=1,b=2)."""
    parts = re.split(r",(?![^(]*\))", text)
    return [part.strip() for part in parts if part.strip()]


def parse_variants(texts: Sequence[str], choices: Given) -> list[dict[str, str]]:
    """Return what each `--variant` changes: `heads=sliced` one part, `scale=none,block=post` two, `base` nothing."""
    for name in LISTS:
        if len(split(choices.get(name, ""))) > 1:
            raise WordError(
                "variant", f"is given instead of lists: give {flag(name)} one value, which all variants share"
            )
    variants = [parse_variant(text) for text in texts]
    for number, variant in enumerate(variants):
        if variant in variants[:number]:
            raise WordError("variant", f"{texts[number]!r} is there twice")
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
            raise WordError(
                "variant",
                f"expected {BASE}, or PART=VALUE with commas between several, each part once; came {text!r}. The parts "
                f"are: {', '.join(map(dashed, LISTS))}",
            )
        parts[option] = value
    return parts


def parse_lists(choices: Given) -> dict[str, list[str]]:
    """Return what varies. BadParameter for a name that does not exist."""
    values_of = {name: list(dict.fromkeys(split(choices.get(name, "")))) for name in LISTS}
    lists = {name: values for name, values in values_of.items() if values}
    if not lists:
        raise WordError(
            "attention",
            "give a list, or one to --position, --size, --heads, …, such as softmax,cosine; or give "
            "--variant several times",
            is_missing=True,
        )
    check_values(lists)
    return lists


def check_values(lists: Mapping[str, Sequence[str]]) -> None:
    """Raise for a value that no model could have; one that only this model cannot have makes its arm impossible."""
    for value in lists.get("heads", ()):
        one_of("heads", value, dict.fromkeys(HEADS))
    named = {name: functools.partial(choose, name) for name in KINDS}
    numbers = {name: functools.partial(parse_whole, name) for name in ("value_rank", "d_value", "window")}
    for name, parse in {"size": parse_count, "scale": parse_scale, **numbers, **named}.items():
        for value in (value for value in lists.get(name, ()) if not (name in ABSENT and value == "none")):
            with naming_word(name):
                parse(value)


def make_recipe_maker(home: Path, comparing: ComparingOptions, choices: Given) -> Callable[[Mapping[str, str]], Recipe]:
    """Return what makes the recipe of an arm from what it varies; raise for what is wrong with all of them."""
    if "seed" in choices:
        raise WordError("seed", "a comparison has several: give --seeds")
    make = as_recipe
    if comparing.probe is not None:
        make = make_probe_maker(home, comparing, choices)
    elif "task" not in choices:
        tasks, probes = ", ".join(TASKS), ", ".join(PROBES)
        raise WordError("task", f"say what to learn ({tasks}), or give --probe ({probes})", is_missing=True)
    elif comparing.longest is not None:
        raise WordError("longest", "is for probes; the longest row of your text is --context")
    else:
        task, text = task_named(choices["task"]), group_of(TextOptions, choices)
        check_text(task, text)
        as_corpus(task, text).check()
        choices = with_spooled(choices, home / "data")
    # Patience is off unless it is asked for: every arm shall have the same budget.
    choices = {"patience": 0, **choices}
    # What is wrong without the parts that vary is wrong with every arm.
    make({word: value for word, value in choices.items() if word not in LISTS})
    return lambda choice: make({**choices, **choice})


def make_probe_maker(home: Path, comparing: ComparingOptions, choices: Given) -> Callable[[Given], Recipe]:
    probe = one_of("probe", comparing.probe or "", PROBES)
    if extra := [word for word in ("task", *given_of(choices, TextOptions)) if word in choices]:
        raise WordError("probe", f"brings its own task and text: leave out {flags(extra)}")
    amount = probe.amount(comparing.longest)
    context = choices.get("context")
    if context is not None and context < probe.width(amount.longest):
        raise WordError("context", f"this probe has rows of {probe.width(amount.longest)} tokens; came {context}")
    default = probe_recipe(probe, home / "probe", amount, as_machine(choices))
    return lambda given: override_recipe(given, default)


def render_page(comparison: Comparison) -> Iterator[RenderableType]:
    """Return the tables, what to know beside them, and where everything is."""
    yield rule(comparison.folder)
    head, rows = comparison.table()
    yield from align_table(head, rows, left=head[:1])
    if comparison.distances:
        yield Text()
        head, rows = comparison.distance_table()
        yield from align_table(head, rows, left=head[:1])
    yield Text()
    for note in comparison.notes():
        yield prose(escape(note), style="quiet")
    yield Text()
    written = [name for name in WRITTEN if (Path(comparison.folder) / name).exists()]
    yield Group(*(render_row(name.rpartition(".")[2], str(Path(comparison.folder) / name)) for name in written))
    yield Text()
