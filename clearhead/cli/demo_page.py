"""What `clearhead demo` shows of its run: the score, translations, attention maps, and where everything is.

The demo's text: numbers in German and English words, made on the spot, and which of them are held out.
"""

import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from clearhead.cli.attention_map import SwappedQueries, Weights, attention_map, legend, swap
from clearhead.cli.progress import format_duration
from clearhead.cli.screen import named_row, prose, rule
from clearhead.errors import OptionError
from clearhead.experiments.tracing import trace
from clearhead.files import write_text
from clearhead.serve.questions.trace import AskTrace
from clearhead.serve.traced import Traced
from clearhead.text.sources import Aligned
from clearhead.tracing.survey import View, information, views
from clearhead.tracing.trace import Trace
from clearhead.training.run import Run

BELOW = 1_000_000
ROUND = (*range(100, 10_000, 100), *range(10_000, BELOW, 1_000))
"""Round hundreds and thousands, which people ask for early on. They are never held out."""
SHARES = {1: 0.05, 2: 0.08, 3: 0.10, 4: 0.10, 5: 0.17}
"""What share of the training text has numbers with this many digits. `ROUND_SHARE` is round; the rest has six digits.

Only one number in 100,000 has one digit. Drawn evenly, the model would not learn what people type first, and a score
over all numbers would not show it: a model with 9 % of the one-digit numbers right had 99.9 % of all of them right.
"""
ROUND_SHARE = 0.06
SHORT = ("hundert", "tausend")
"""What people begin a number with where num2words begins it with *einhundert* or *eintausend*."""
HELD_OUT_DIGITS = (3, 4, 5, 6)
"""Numbers of digits of held-out numbers, in equal shares. The 100 shorter numbers are all learned."""
MOST_HELD_OUT = 1_600
SPOKEN = 20
"""How often *hundert* and *tausend* are in the training text by themselves."""


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """Numbers to learn from, short ones many times, and held-out numbers to ask about. No number is in both."""

    train: tuple[int, ...]
    held_out: tuple[int, ...]


def draw(seed: int, *, train: int = 20_000, held_out: int = 1_000, apart: Collection[int] = ()) -> Numbers:
    """Draw numbers below a million by their number of digits. None of those `apart` is trained on.

    The same seed draws the same numbers.

    >>> numbers = draw(1, train=100, held_out=12)
    >>> len(numbers.train), len(numbers.held_out), set(numbers.train) & set(numbers.held_out)
    (100, 12, set())
    """
    if not 0 < train <= BELOW // 10 or not 0 < held_out <= MOST_HELD_OUT:
        limits = f"from 1 to {BELOW // 10:,} numbers to train on and from 1 to {MOST_HELD_OUT:,} to hold out"
        raise OptionError(f"draw {limits}; came {train:,} and {held_out:,}")
    random = np.random.default_rng([seed, BELOW])
    free = np.ones(BELOW, bool)
    free[list(apart)] = False
    may_be_held_out = free.copy()
    may_be_held_out[list(ROUND)] = False
    ends = np.linspace(0, held_out, len(HELD_OUT_DIGITS) + 1).astype(int)
    by_length = [
        pick(random, with_digits(may_be_held_out, digits), count)
        for digits, count in zip(HELD_OUT_DIGITS, np.diff(ends).tolist(), strict=True)
    ]
    held = random.permutation(np.concatenate(by_length))
    free[held] = False
    chosen = [pick(random, with_digits(free, digits), round(share * train)) for digits, share in SHARES.items()]
    chosen.append(pick(random, np.array(ROUND)[free[list(ROUND)]], round(ROUND_SHARE * train)))
    chosen.append(pick(random, with_digits(free, 6), train - sum(map(len, chosen))))
    train_numbers = random.permutation(np.concatenate(chosen))
    return Numbers(train=tuple(train_numbers.tolist()), held_out=tuple(held.tolist()))


def with_digits(free: np.ndarray, digits: int) -> np.ndarray:
    """Return the free numbers that have this many digits."""
    first = 0 if digits == 1 else 10 ** (digits - 1)
    return first + np.flatnonzero(free[first : 10**digits])


def pick(random: np.random.Generator, candidates: np.ndarray, count: int) -> np.ndarray:
    """Pick numbers in a random order; with fewer candidates than asked for, each equally often."""
    return np.resize(random.permutation(candidates), count)


def german(number: int) -> str:
    """Return the number in German words.

    >>> german(24), german(67_000)
    ('vierundzwanzig', 'siebenundsechzigtausend')
    """
    from num2words import num2words

    return num2words(number, lang="de")


def english(number: int) -> str:
    """Return the number in English words.

    >>> english(24), english(67_024)
    ('twenty-four', 'sixty-seven thousand and twenty-four')
    """
    from num2words import num2words

    return num2words(number)


def shorten(words: str) -> str:
    """Return German words as people say them: *hundertdrei* for *einhundertdrei*.

    >>> shorten("einhundertdrei"), shorten("eintausend"), shorten("einundzwanzig")
    ('hundertdrei', 'tausend', 'einundzwanzig')
    """
    rest = words.removeprefix("ein")
    return rest if rest.startswith(SHORT) else words


def write_pairs(numbers: Sequence[int], folder: Path, name: str, *, spoken: Sequence[int] = ()) -> Aligned:
    """Write the two aligned files `name`.de and `name`.en, a number a line, as a user would have them.

    The numbers `spoken` come after the others, in the words that people use.
    """
    folder.mkdir(parents=True, exist_ok=True)
    source, target = folder / f"{name}.de", folder / f"{name}.en"
    words = [*map(german, numbers), *(shorten(german(number)) for number in spoken)]
    write_text(source, "".join(f"{word}\n" for word in words))
    write_text(target, "".join(f"{english(number)}\n" for number in (*numbers, *spoken)))
    return Aligned(source=(str(source),), target=(str(target),))


def spoken_numbers(numbers: Numbers) -> list[int]:
    """Return the numbers that are learned in a second, shorter form too: a hundred and a thousand most of all."""
    short = [number for number in numbers.train if shorten(german(number)) != german(number)]
    return [*(100, 1_000) * SPOKEN, *short]


END = "</s>"
TITLE = "German → English number words"
NUMBER, COLUMN = 7, 12
"""Columns of a number, and of what a path or a command is."""

LEAST_RIGHT = 0.995
"""From this share on a row of the score is shown as a success."""

Page = Iterator[RenderableType]


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


@dataclass(frozen=True, kw_only=True)
class TracedTranslation:
    """A translation traced. A row of its maps is named by the piece that was written from there."""

    traced: Traced
    source: list[str]
    target: list[str]

    @property
    def trace(self) -> Trace:
        return self.traced.trace


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
    """Join pieces into a text, without the end token."""
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
