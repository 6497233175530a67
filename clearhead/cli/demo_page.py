"""What `clearhead demo` shows of its run: the score, translations, attention maps, and where everything is."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from clearhead.cli.attention_map import attention_map, legend, swap
from clearhead.cli.attention_page import attention_page, joined
from clearhead.cli.number_words import english, german
from clearhead.cli.progress import duration
from clearhead.cli.screen import prose, rule
from clearhead.training.looking import CrossWeights, View, clearest, cross_weights, views
from clearhead.training.run import Run

__all__ = ["Shown", "Translation", "as_object", "look", "page"]

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
class Shown:
    """All that is shown of a run."""

    run: Run
    evaluation: Mapping[str, Any]
    translations: tuple[Translation, ...]
    looks: tuple[CrossWeights, ...]
    view: View

    @property
    def file(self) -> Path:
        """The page for a browser."""
        return self.run.folder.path / "attention.html"

    @property
    def html(self) -> str:
        said = [score_said(self.evaluation), HOW_TO_READ, clearest_said(self)]
        return attention_page(self.looks, title=TITLE, said=said)


HOW_TO_READ = (
    "A row is a piece of the English output, a column a piece of the German input; the row's weights, which add up to "
    "1, say where the model looked when it wrote that piece."
)


def look(run: Run, evaluation: Mapping[str, Any], *, asked: Sequence[int], mapped: Sequence[int]) -> Shown:
    """Translates the numbers that are asked about, and looks into the translations of those that are mapped."""
    sources = [german(number) for number in asked]
    outputs = run.translate(sources, beam=1)
    looks = tuple(cross_weights(run, german(number)) for number in mapped)
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


def view_of_the_swap(looks: Sequence[CrossWeights]) -> View:
    """The clearest of the views that show a swap in each translation; of all of them where none does."""
    every = views(looks[0])
    swapping = [view for view in every if all(swap(one.target, one.source, view.of(one)) for one in looks)]
    return clearest(looks, swapping or every)


def page(shown: Shown, *, earlier: bool) -> Page:
    """The whole page. `earlier`: the run was there already."""
    yield rule(TITLE)
    if earlier:
        yield prose("Trained earlier, and used again; [chosen]clearhead demo --again[/] trains anew.")
    yield prose(score_said(shown.evaluation), style="chosen")
    yield prose(size_said(shown.evaluation), style="quiet")
    yield Text()
    yield rule("Numbers never seen in training")
    for one in shown.translations:
        yield from translated(one)
    yield Text()
    yield rule("Where it looked")
    yield prose(HOW_TO_READ)
    yield prose(f"Shown is {view_name(shown)}: of all views, the one in which the swap is clearest.")
    for one in shown.looks:
        yield from mapped(one, shown.view)
    yield Text()
    yield legend()
    yield Text()
    yield from ways_on(shown)


def score_said(evaluation: Mapping[str, Any]) -> str:
    wrong = round(evaluation["n"] * (1 - evaluation["exact_match"]))
    return (
        f"{100 * evaluation['exact_match']:.1f} % of {evaluation['n']:,} held-out numbers from 0 to 999,999 are "
        f"translated exactly, word for word; {wrong} {'is' if wrong == 1 else 'are'} not."
    )


def size_said(evaluation: Mapping[str, Any]) -> str:
    return (
        f"{evaluation['parameters']:,} parameters, {evaluation['steps']:,} steps, "
        f"{duration(evaluation['training_seconds'])} of training"
    )


def view_name(shown: Shown) -> str:
    layer, head = shown.view
    layers = shown.looks[0].layers
    which = "the mean of its heads" if head is None else f"head {head + 1} of {len(layers[layer])}"
    return f"the cross-attention of decoder block {layer + 1} of {len(layers)}, {which}"


def clearest_said(shown: Shown) -> str:
    return f"Here is every head of every decoder block. The terminal showed {view_name(shown)}."


def translated(one: Translation) -> Page:
    mark = ("✓", "value") if one.right else ("✗", "refused")
    yield Text.assemble("  ", mark, f" {one.number:>{NUMBER},}  ", (one.source, "key"))
    yield indented(one.output, "query")
    if not one.right:
        yield indented(f"wanted: {one.reference}", "quiet")


def indented(text: str, style: str) -> RenderableType:
    """Below the German words; what is too long for a line goes on there."""
    return Padding(Text(text, style), (0, 0, 0, NUMBER + 6))


def mapped(one: CrossWeights, view: View) -> Page:
    weight = view.of(one)
    yield Text()
    yield Text.assemble("  ", (joined(one.source), "key"), " → ", (joined(one.target), "query"))
    yield Text()
    yield from attention_map(one.target, one.source, weight)
    yield Text()
    found = swap(one.target, one.source, weight)
    if found is None:
        yield prose("No two words swap places in this view.")
        return
    (first, second), (later, sooner) = found.queries, found.keys
    yield prose(
        f"The swap: [query]{first}[/] comes before [query]{second}[/], and was written from [key]{later}[/], which "
        f"comes after [key]{sooner}[/]."
    )


def ways_on(shown: Shown) -> Page:
    folder = shown.run.folder
    quoted = shlex.quote(str(folder.path))
    for name, value in (
        ("open", str(shown.file)),
        ("scores", str(folder.evaluation)),
        ("curves", str(folder.curves)),
        ("text", str(folder.path / "data-files")),
        ("try", f"echo dreiundzwanzigtausendvier | clearhead translate {quoted}"),
        ("", "clearhead steps"),
    ):
        # In a group, because a text that is printed by itself forgets that it must not be wrapped.
        yield Group(Text.assemble((f"  {name:<{COLUMN}}", "quiet"), value, no_wrap=True, overflow="ignore"))
    yield Text()


def as_object(shown: Shown) -> dict[str, Any]:
    """The same for a program; layer and head count from 0, and `head` null is the mean."""
    return {
        "path": str(shown.run.folder.path),
        "page": str(shown.file),
        "evaluation": dict(shown.evaluation),
        "translations": [asdict(one) | {"right": one.right} for one in shown.translations],
        "attention": {
            "layer": shown.view.layer,
            "head": shown.view.head,
            "maps": [
                {"source": one.source, "target": one.target, "weight": shown.view.of(one).tolist()}
                for one in shown.looks
            ],
        },
    }
