"""What `clearhead demo` shows of its run: the score, translations, attention maps, and where everything is."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from clearhead.cli.attention_map import SwappedQueries, Weights, attention_map, legend, swap
from clearhead.cli.number_words import HELD_OUT_DIGITS, ROUND, Numbers, english, german
from clearhead.cli.progress import format_duration
from clearhead.cli.screen import named_row, prose, rule
from clearhead.serve.questions.trace import AskTrace
from clearhead.serve.traced import Traced
from clearhead.tracing.survey import View, information, views
from clearhead.tracing.trace import Trace
from clearhead.training.run import Run
from clearhead.training.tracing import trace

END = "</s>"
TITLE = "German → English number words"
NUMBER, COLUMN = 7, 12
"""Columns of a number, and of what a path or a command is."""

LEAST_RIGHT = 0.995
"""From this share on a row of the score is shown as a success."""

Page = Iterator[RenderableType]


@final
@dataclass(frozen=True, kw_only=True)
class DemoTranslation:
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
class TracedTranslation:
    """A translation traced. A row of its maps is named by the piece that was written from there."""

    traced: Traced
    source: list[str]
    target: list[str]

    @property
    def trace(self) -> Trace:
        return self.traced.trace


@final
@dataclass(frozen=True, kw_only=True)
class DemoResults:
    """All that the demo shows of its run."""

    run: Run
    evaluation: Mapping[str, Any]
    learned: tuple[DemoTranslation, ...]
    translations: tuple[DemoTranslation, ...]
    """Of numbers that are not in the training text."""
    looks: tuple[TracedTranslation, ...]
    view: View


NO_PAGE = "the page for a browser is not built: run `make web`"
HOW_TO_READ = (
    "A row is a token of the English output, a column a token of the German input. The weights of a row sum to 1, and "
    "say where the model looked when it wrote that token."
)


def inspect_run(
    run: Run, evaluation: Mapping[str, Any], *, learned: Sequence[int], asked: Sequence[int], mapped: Sequence[int]
) -> DemoResults:
    """Translate the numbers to show, learned and not, and look into the translations of those that are mapped."""
    looks = tuple(trace_translation(run, german(number)) for number in mapped)
    return DemoResults(
        run=run,
        evaluation=evaluation,
        learned=translate_numbers(run, learned),
        translations=translate_numbers(run, asked),
        looks=looks,
        view=choose_view(looks),
    )


def translate_numbers(run: Run, numbers: Sequence[int]) -> tuple[DemoTranslation, ...]:
    sources = [german(number) for number in numbers]
    outputs = run.translate(sources, beam=1)
    return tuple(
        DemoTranslation(number=number, source=source, output=output, reference=english(number))
        for number, source, output in zip(numbers, sources, outputs, strict=True)
    )


def score_by_digits(run: Run, numbers: Numbers) -> list[dict[str, Any]]:
    """Return how many numbers of each length are translated exactly, and how many of them the training text has.

    An average over all numbers hides the short ones: one number in 100,000 has one digit.
    """
    groups = {str(digits): list(range(10 ** (digits - 1) * (digits > 1), 10**digits)) for digits in (1, 2)}
    for digits in HELD_OUT_DIGITS:
        groups[str(digits)] = [number for number in numbers.held_out if len(str(number)) == digits]
    groups["round"] = list(ROUND)
    seen = set(numbers.train)
    return [
        {
            "digits": name,
            "n": len(group),
            "right": sum(translation.right for translation in translate_numbers(run, group)),
            "learned": len(seen.intersection(group)),
        }
        for name, group in groups.items()
    ]


def trace_translation(run: Run, text: str) -> TracedTranslation:
    traced = trace(run, text)
    request = AskTrace(source=text, target=None, step=run.step)
    target_tokens = traced.sides["decoder"].tokens[1:]
    return TracedTranslation(
        traced=Traced(request, run, traced), source=traced.sides["encoder"].tokens, target=[*target_tokens, END]
    )


def choose_view(looks: Sequence[TracedTranslation]) -> View:
    """Return the view of cross-attention that shows the swap: in the first translation, then in the next, then most
    clearly.
    """
    crossing = [layer.cross for layer in looks[0].trace.decoder if layer.cross is not None]

    def rank(view: View) -> tuple[list[bool], float]:
        maps = [view.of(translation.trace) for translation in looks]
        swaps = [find_swap(translation, weight) is not None for translation, weight in zip(looks, maps, strict=True)]
        return swaps, sum(information([weight]) for weight in maps)

    return max(views(crossing), key=rank)


def write_opening(results: DemoResults) -> None:
    """Write what every page of the run opens on: the first number that is mapped, and the view in which it swaps."""
    folder = results.run.folder
    mapped = [translation.traced.request.source for translation in results.looks]
    texts = dict.fromkeys([*mapped, *(translation.source for translation in results.translations)])
    examples = [{"source": text} for text in texts]
    folder.write_own(folder.opening_file, {"examples": examples, **results.view.opening})


def find_swap(translation: TracedTranslation, weight: Weights) -> SwappedQueries | None:
    return swap(translation.target, translation.source, weight)


def render_page(results: DemoResults, page: Path | None, *, earlier: bool) -> Page:
    """Return the whole page. `page` is the one for a browser; `earlier`: the run was there."""
    yield rule(TITLE)
    if earlier:
        yield prose("Trained earlier, and used again; [chosen]clearhead demo --again[/] trains a new one.")
    yield prose("Numbers translated exactly, word for word, by how many digits they have:")
    yield Text()
    for row in results.evaluation["by_digits"]:
        yield render_score(row)
    yield Text()
    seconds = results.evaluation["training_seconds"]
    yield prose(
        f"{results.evaluation['parameters']:,} parameters, {results.evaluation['steps']:,} steps, "
        f"{format_duration(seconds)} of training",
        style="quiet",
    )
    yield Text()
    yield rule("Numbers from the training text")
    for translation in results.learned:
        yield from render_translation(translation)
    yield Text()
    yield rule("Numbers never seen in training")
    for translation in results.translations:
        yield from render_translation(translation)
    yield Text()
    yield rule("Where it looked")
    yield prose(HOW_TO_READ)
    head = "the mean of its heads" if results.view.head is None else f"head {results.view.head}"
    yield prose(f"Shown is [weight]{results.view.site}[/], {head}, where the swap is clearest.")
    for translation in results.looks:
        yield from render_map(translation, results.view)
    yield Text()
    yield legend()
    yield Text()
    yield from render_next_steps(results, page)


def render_score(row: Mapping[str, Any]) -> RenderableType:
    """Return a line of the score: how many are right, and whether they were learned or held out."""
    name = {"1": "1 digit", "round": "100, 200, … 999,000"}.get(row["digits"], f"{row['digits']} digits")
    learned = {0: "held out", row["n"]: "all in the training text"}.get(
        row["learned"], f"{row['learned']:,} of them in the training text"
    )
    right = f"{row['right']:,} of {row['n']:,}"
    style = "value" if row["right"] >= LEAST_RIGHT * row["n"] else "refused"
    return Text.assemble(f"  {name:<20}", (f"{right:>14}", style), ("   " + learned, "quiet"))


def render_translation(translation: DemoTranslation) -> Page:
    mark = ("✓", "value") if translation.right else ("✗", "refused")
    yield Text.assemble("  ", mark, f" {translation.number:>{NUMBER},}  ", (translation.source, "key"))
    yield indent(translation.output, "query")
    if not translation.right:
        yield indent(f"wanted: {translation.reference}", "quiet")


def indent(text: str, style: str) -> RenderableType:
    """Indent a text below the German words; what is too long for a line goes on there."""
    return Padding(Text(text, style), (0, 0, 0, NUMBER + 6))


def render_map(translation: TracedTranslation, view: View) -> Page:
    weight = view.of(translation.trace)
    yield Text()
    yield Text.assemble(
        "  ", (join_pieces(translation.source), "key"), " → ", (join_pieces(translation.target), "query")
    )
    yield Text()
    yield from attention_map(translation.target, translation.source, weight)
    yield Text()
    swapped = find_swap(translation, weight)
    if swapped is None:
        yield prose("No two words swap places in this view.")
        return
    (first, second), (later, sooner) = swapped.queries, swapped.keys
    yield prose(
        f"The swap: [query]{first}[/] comes before [query]{second}[/], and was written from [key]{later}[/], which "
        f"comes after [key]{sooner}[/]."
    )


def join_pieces(pieces: Sequence[str]) -> str:
    """Join pieces into a text, but for the end token."""
    return "".join(pieces[:-1]).replace("▁", " ").strip()


def render_next_steps(results: DemoResults, page: Path | None) -> Page:
    folder = results.run.folder
    quoted = shlex.quote(str(folder.path))
    for name, value in (
        ("open", NO_PAGE if page is None else str(page)),
        ("scores", str(folder.evaluation)),
        ("curves", str(folder.curves)),
        ("text", str(folder.path / "data-files")),
        ("try", f"echo dreiundzwanzigtausendvier | clearhead translate {quoted}"),
        ("", f"clearhead trace {quoted} {results.looks[0].traced.request.source}"),
        ("", f"clearhead look {quoted}"),
        ("", "clearhead steps"),
    ):
        yield named_row(name, value, COLUMN)
    yield Text()


def as_object(results: DemoResults, page: Path | None) -> dict[str, Any]:
    """Return the same for a program; `head` counts from 0, and null is the mean."""
    return {
        "path": str(results.run.folder.path),
        "page": None if page is None else str(page),
        "evaluation": dict(results.evaluation),
        "learned": [asdict(translation) | {"right": translation.right} for translation in results.learned],
        "translations": [asdict(translation) | {"right": translation.right} for translation in results.translations],
        "attention": {
            "site": results.view.site,
            "head": results.view.head,
            "maps": [
                {
                    "source": translation.source,
                    "target": translation.target,
                    "weight": results.view.of(translation.trace).tolist(),
                }
                for translation in results.looks
            ],
        },
    }
