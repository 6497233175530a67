"""What `clearhead demo` shows of its run: the score, translations, attention maps, and where everything is."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, final

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from clearhead.cli.attention_map import Swap, Weights, attention_map, legend, swap
from clearhead.cli.number_words import english, german
from clearhead.cli.progress import duration
from clearhead.cli.screen import named_row, prose, rule
from clearhead.serve.page import page_of
from clearhead.serve.trace_request import TraceRequest
from clearhead.serve.traced import Traced
from clearhead.tracing.survey import View, information, survey, views
from clearhead.tracing.trace import Trace
from clearhead.training.run import Run
from clearhead.training.tracing import trace

__all__ = ["Pages", "Shown", "Translation", "as_object", "live_page_file", "look", "page", "page_file"]

END = "</s>"
TITLE = "German → English number words"
NUMBER, COLUMN = 7, 12
"""Columns of a number, and of what a path or a command is."""

Page = Iterator[RenderableType]


@final
@dataclass(frozen=True, kw_only=True)
class Translation:
    """A number in German, what the model made of it, and what is right."""

    number: int
    source: str
    output: str
    reference: str

    @property
    def right(self) -> bool:
        return self.output == self.reference


@final
@dataclass(frozen=True, kw_only=True)
class Look:
    """A translation traced. A row of its maps is named by the piece that was written from there."""

    traced: Traced
    source: list[str]
    target: list[str]

    @property
    def trace(self) -> Trace:
        return self.traced.trace


@final
@dataclass(frozen=True, kw_only=True)
class Shown:
    """All that is shown of a run."""

    run: Run
    evaluation: Mapping[str, Any]
    translations: tuple[Translation, ...]
    looks: tuple[Look, ...]
    view: View

    @property
    def html(self) -> str:
        """Return the page for a browser: the last of the translations, with every number."""
        traced = self.looks[-1].traced
        return page_of(traced, survey(traced.trace), view=self.view).text


class Pages(NamedTuple):
    """The pages for a browser that were written; None where they are not built."""

    saved: Path | None = None
    """One translation with every number."""
    live: Path | None = None
    """The model itself, for any text."""


def page_file(run: Run) -> Path:
    return run.folder.path / "attention.html"


def live_page_file(run: Run) -> Path:
    return run.folder.path / "live.html"


NO_PAGE = "the page for a browser is not built: run `make web`"
HOW_TO_READ = (
    "A row is a token of the English output, a column a token of the German input. The weights of a row sum to 1, and "
    "say where the model looked when it wrote that token."
)


def look(run: Run, evaluation: Mapping[str, Any], *, asked: Sequence[int], mapped: Sequence[int]) -> Shown:
    """Translate the numbers that are asked about, and look into the translations of those that are mapped."""
    sources = [german(number) for number in asked]
    outputs = run.translate(sources, beam=1)
    looks = tuple(look_into(run, german(number)) for number in mapped)
    return Shown(
        run=run,
        evaluation=evaluation,
        translations=tuple(
            Translation(number=number, source=source, output=output, reference=english(number))
            for number, source, output in zip(asked, sources, outputs, strict=True)
        ),
        looks=looks,
        view=view_of_the_swap(looks),
    )


def look_into(run: Run, text: str) -> Look:
    made = trace(run, text)
    wanted = TraceRequest(source=text, target=None, edits=[], step=run.step)
    written = made.sides["decoder"].tokens[1:]
    return Look(traced=Traced(wanted, run, made), source=made.sides["encoder"].tokens, target=[*written, END])


def view_of_the_swap(looks: Sequence[Look]) -> View:
    """Return the clearest of the views that show a swap in each translation; of all of them where none does."""
    crossing = [layer.cross for layer in looks[0].trace.decoder if layer.cross is not None]
    weights = {view: [view.of(one.trace) for one in looks] for view in views(crossing)}
    swapping = [view for view, maps in weights.items() if all(map(swap_of, looks, maps))]
    return max(swapping or weights, key=lambda view: sum(information([weight]) for weight in weights[view]))


def swap_of(one: Look, weight: Weights) -> Swap | None:
    return swap(one.target, one.source, weight)


def page(shown: Shown, files: Pages, *, earlier: bool) -> Page:
    """Return the whole page. `files` are those for a browser; `earlier`: the run was there."""
    yield rule(TITLE)
    if earlier:
        yield prose("Trained earlier, and used again; [chosen]clearhead demo --again[/] trains a new one.")
    yield prose(score_said(shown.evaluation), style="chosen")
    seconds = shown.evaluation["training_seconds"]
    yield prose(
        f"{shown.evaluation['parameters']:,} parameters, {shown.evaluation['steps']:,} steps, "
        f"{duration(seconds)} of training",
        style="quiet",
    )
    yield Text()
    yield rule("Numbers never seen in training")
    for one in shown.translations:
        yield from translated(one)
    yield Text()
    yield rule("Where it looked")
    yield prose(HOW_TO_READ)
    head = "the mean of its heads" if shown.view.head is None else f"head {shown.view.head}"
    yield prose(f"Shown is [weight]{shown.view.site}[/], {head}, where the swap is clearest.")
    for one in shown.looks:
        yield from mapped(one, shown.view)
    yield Text()
    yield legend()
    yield Text()
    yield from ways_on(shown, files)


def score_said(evaluation: Mapping[str, Any]) -> str:
    wrong = round(evaluation["n"] * (1 - evaluation["exact_match"]))
    return (
        f"{100 * evaluation['exact_match']:.1f} % of {evaluation['n']:,} held-out numbers from 0 to 999,999 are "
        f"translated exactly, word for word; {wrong} {'is' if wrong == 1 else 'are'} not."
    )


def translated(one: Translation) -> Page:
    mark = ("✓", "value") if one.right else ("✗", "refused")
    yield Text.assemble("  ", mark, f" {one.number:>{NUMBER},}  ", (one.source, "key"))
    yield indent(one.output, "query")
    if not one.right:
        yield indent(f"wanted: {one.reference}", "quiet")


def indent(text: str, style: str) -> RenderableType:
    """Indent a text below the German words; what is too long for a line goes on there."""
    return Padding(Text(text, style), (0, 0, 0, NUMBER + 6))


def mapped(one: Look, view: View) -> Page:
    weight = view.of(one.trace)
    yield Text()
    yield Text.assemble("  ", (join_pieces(one.source), "key"), " → ", (join_pieces(one.target), "query"))
    yield Text()
    yield from attention_map(one.target, one.source, weight)
    yield Text()
    found = swap_of(one, weight)
    if found is None:
        yield prose("No two words swap places in this view.")
        return
    (first, second), (later, sooner) = found.queries, found.keys
    yield prose(
        f"The swap: [query]{first}[/] comes before [query]{second}[/], and was written from [key]{later}[/], which "
        f"comes after [key]{sooner}[/]."
    )


def join_pieces(pieces: Sequence[str]) -> str:
    """Join pieces into a text, but for the end token."""
    return "".join(pieces[:-1]).replace("▁", " ").strip()


def ways_on(shown: Shown, files: Pages) -> Page:
    folder = shown.run.folder
    quoted = shlex.quote(str(folder.path))
    for name, value in (
        ("open", NO_PAGE if files.saved is None else str(files.saved)),
        *([] if files.live is None else [("any text", str(files.live))]),
        ("scores", str(folder.evaluation)),
        ("curves", str(folder.curves)),
        ("text", str(folder.path / "data-files")),
        ("try", f"echo dreiundzwanzigtausendvier | clearhead translate {quoted}"),
        ("", f"clearhead trace {quoted} vierundzwanzig"),
        ("", f"clearhead look {quoted}"),
        ("", "clearhead steps"),
    ):
        yield named_row(name, value, COLUMN)
    yield Text()


def as_object(shown: Shown, files: Pages) -> dict[str, Any]:
    """Return the same for a program; `head` counts from 0, and null is the mean."""
    return {
        "path": str(shown.run.folder.path),
        "page": None if files.saved is None else str(files.saved),
        "live_page": None if files.live is None else str(files.live),
        "evaluation": dict(shown.evaluation),
        "translations": [asdict(one) | {"right": one.right} for one in shown.translations],
        "attention": {
            "site": shown.view.site,
            "head": shown.view.head,
            "maps": [
                {"source": one.source, "target": one.target, "weight": shown.view.of(one.trace).tolist()}
                for one in shown.looks
            ],
        },
    }
