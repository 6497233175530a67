"""Probes: tasks with exact answers, made up on the spot, that ask one thing of attention each.

`copy` and `sort` are translations: of a sequence into itself, and into its tokens in order. `recall` is text to go on
with, made of pairs of a key and a value: after some distance a key comes again, and its value must follow. They are
ordinary text files, and a model learns them by the ordinary way.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from clearhead.decoding import generating, session
from clearhead.errors import OptionError, RunError
from clearhead.files import read_json, write_json, write_text
from clearhead.model import PreNorm, presets, variants
from clearhead.model.presets import Size
from clearhead.text.encoding import Corpus
from clearhead.text.kinds import SPECIALS
from clearhead.text.preparing import Tokenizing
from clearhead.text.sources import Aligned, Documents
from clearhead.training.recipe import Batching, Budget, Checkpointing, Machine, Optimizer, Recipe
from clearhead.training.run import Run
from clearhead.training.schedules import SCHEDULES
from clearhead.training.tasks import Generate, task_named
from clearhead.training.tasks.answering import in_batches
from clearhead.training.tasks.learning import PLACEHOLDER, decoder

LETTERS = "abcdefghijklmnopqrstuvwxyz"
SHORTEST = 5
"""The tokens of the shortest sequence to copy or sort."""
VALUES = 16
LEAST = 8
"""The least that the longest may be: with fewer tokens there is only one distance to recall from."""
FAVOUR = 1.5
"""How much oftener each distance is tried than the one before it: a key from far back has often come since."""
TRAINING_TOKENS, MOST_EXAMPLES = 8_000_000, 100_000
"""What there would be to train on, were every example the longest; but no more examples than that."""
NOTES = "probe.json"
SIZE = Size(2, 128, 4, 4, 256)
"""Default size of the model. Recall takes two layers: one to look back a token, one to find the key."""

Example = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Amount:
    """How much of a probe is made. `longest`: tokens of the longest sequence, or to the farthest key to recall."""

    longest: int
    examples: int
    held_out: int

    def __post_init__(self) -> None:
        if self.longest < LEAST or self.examples < 1 or self.held_out < 1:
            raise OptionError(
                f"a probe is {LEAST} tokens long or longer, and has examples to train on and to hold out; came {self}"
            )


@dataclass(frozen=True, kw_only=True)
class Probe:
    """One probe. `example` draws one for a longest sequence: a text for each of its files.

    From the longest sequence follow `width`, the tokens of a model's longest row, and `words`, how many different ones
    there are.
    """

    name: str
    about: str
    task: str
    files: tuple[str, ...]
    example: Callable[[random.Random, int], Example]
    width: Callable[[int], int]
    words: Callable[[int], int]
    longest: int
    held_out: int

    def amount(self, longest: int | None = None) -> Amount:
        """Return how many records train a model, for the usual longest sequence or another."""
        longest = self.longest if longest is None else longest
        examples = max(1, min(MOST_EXAMPLES, TRAINING_TOKENS // self.width(longest)))
        return Amount(longest=longest, examples=examples, held_out=self.held_out)


def draw_copy(draw: random.Random, longest: int) -> Example:
    """Draw a sequence, and return it twice: as source and as target."""
    text = " ".join(letters(draw, longest))
    return text, text


def draw_sort(draw: random.Random, longest: int) -> Example:
    """Draw a sequence, and return it with its letters in order, each as often as it is there."""
    sequence = letters(draw, longest)
    return " ".join(sequence), " ".join(sorted(sequence))


def letters(draw: random.Random, longest: int) -> list[str]:
    return draw.choices(LETTERS, k=draw.randint(min(SHORTEST, longest), longest))


def draw_recall(draw: random.Random, longest: int) -> Example:
    """Draw a text of pairs of a key and a value. A key has one value throughout, drawn for this text.

    At each place a distance is drawn. If the key that far back has not come since, it comes again; else a new one does.
    Some texts have only the lesser distances, and are shorter: a model learns from them what the task is.
    """
    reaches = distances(draw.choice(distances(longest)[1:]))
    n_pairs = pairs(reaches[-1])
    fresh = draw.sample(range(pairs(longest)), n_pairs)
    keys: list[int] = []
    last: dict[int, int] = {}
    for index, reach in enumerate(draw.choices(reaches, [FAVOUR**power for power in range(len(reaches))], k=n_pairs)):
        back = index - draw.randint(reach // 4 + 1, reach // 2)
        again = back >= 0 and last[keys[back]] == back
        keys.append(keys[back] if again else fresh.pop())
        last[keys[-1]] = index
    value_of = {key: draw.randrange(VALUES) for key in last}
    return (" ".join(f"k{key} v{value_of[key]}" for key in keys),)


def distances(longest: int) -> list[int]:
    """Return the distances by which recall is scored, 4, 8, 16 and so on: each stands for those above the one before.

    >>> distances(70)
    [4, 8, 16, 32, 64]
    """
    return [1 << power for power in range(2, longest.bit_length())]


def pairs(longest: int) -> int:
    """Return how many pairs a text has, some more than the greatest distance spans; and how many keys there are."""
    return longest * 5 // 8


PROBES: dict[str, Probe] = {
    probe.name: probe
    for probe in (
        Probe(
            name="copy",
            about="letters, to be said again",
            task="translate",
            files=("source", "target"),
            example=draw_copy,
            width=lambda longest: longest + 1,
            words=lambda longest: len(LETTERS),
            longest=40,
            held_out=1000,
        ),
        Probe(
            name="sort",
            about="letters, to be put in order",
            task="translate",
            files=("source", "target"),
            example=draw_sort,
            width=lambda longest: longest + 1,
            words=lambda longest: len(LETTERS),
            longest=40,
            held_out=1000,
        ),
        Probe(
            name="recall",
            about="keys with values, to be recalled when a key comes again",
            task="generate",
            files=("text",),
            example=draw_recall,
            width=lambda longest: 2 * pairs(longest) + 1,
            words=lambda longest: pairs(longest) + VALUES,
            longest=256,
            held_out=500,
        ),
    )
}
"""Every probe by name."""


def write_probe(probe: Probe, folder: Path, amount: Amount) -> Corpus:
    """Write a probe's files into the folder, unless the same ones are there: always the same bytes.

    What is held out is never among what is trained on.
    """
    notes = {"probe": probe.name, **asdict(amount)}
    if not is_written(folder / NOTES, notes):
        folder.mkdir(parents=True, exist_ok=True)
        held_out = draw_examples(probe, amount.longest, amount.held_out, seed=0, without=set())
        trained = draw_examples(probe, amount.longest, amount.examples, seed=1, without=set(held_out))
        for part, examples in (("dev", held_out), ("train", trained)):
            for file, texts in zip(probe.files, zip(*examples, strict=True), strict=True):
                write_text(file_of(folder, part, file), "".join(f"{text}\n" for text in texts))
        write_json(folder / NOTES, notes)
    train, dev = ([str(file_of(folder, part, file)) for file in probe.files] for part in ("train", "dev"))
    if len(probe.files) == 2:
        return Corpus(train=aligned(train), dev=aligned(dev))
    return Corpus(train=Documents(paths=tuple(train), unit="line"), dev=Documents(paths=tuple(dev), unit="line"))


def is_written(path: Path, notes: dict[str, str | int]) -> bool:
    try:
        return read_json(path) == notes
    except (FileNotFoundError, RunError):
        return False


def draw_examples(probe: Probe, longest: int, count: int, *, seed: int, without: set[Example]) -> list[Example]:
    """Draw `count` different examples, none of them in `without`."""
    draw = random.Random(f"{probe.name} {longest} {seed}")
    examples: dict[Example, None] = {}
    for _ in range(10 * count):
        example = probe.example(draw, longest)
        if example not in without:
            examples.setdefault(example)
        if len(examples) == count:
            return list(examples)
    raise OptionError(f"{probe.name}: there are no {count:,} different examples of this length; ask for fewer")


def file_of(folder: Path, part: str, file: str) -> Path:
    return folder / f"{part}.{file}.txt"


def aligned(paths: Sequence[str]) -> Aligned:
    source, target = paths
    return Aligned(source=(source,), target=(target,))


def probe_recipe(probe: Probe, folder: Path, amount: Amount | None = None, machine: Machine = Machine()) -> Recipe:
    """Write a probe's files into the folder, and return a recipe of a model of two layers that can learn it."""
    amount = amount or probe.amount()
    corpus = write_probe(probe, folder, amount)
    width = probe.width(amount.longest)
    # A stretch of a stream begins anywhere: half as long again as a text, it holds most of one whole.
    context, model = width, presets.classic(PLACEHOLDER, size=SIZE, dropout=0.0, arrangement=PreNorm())
    if task_named(probe.task).family == "decoder":
        context = width * 3 // 2
        model = variants.with_position(decoder(SIZE, context, 0.0), "rotary", context)
    return Recipe(
        task=probe.task,
        corpus=corpus,
        tokenizing=Tokenizing(kind="word", size=probe.words(amount.longest) + len(SPECIALS)),
        model=model,
        optimizer=Optimizer(lr=2e-3, schedule=SCHEDULES["cosine"](warmup=100)),
        batching=Batching(tokens=8192, context=context),
        budget=Budget(steps=3000),
        checkpointing=Checkpointing(evaluate=200, samples=2),
        machine=machine,
    )


class RecallQuestion(NamedTuple):
    """A key that comes again: which pair of the text it is in, and how many tokens after it came last."""

    pair: int
    distance: int

    @property
    def reach(self) -> int:
        """Return the distance as it is scored: the next power of two.

        >>> [RecallQuestion(9, distance).reach for distance in (4, 6, 8, 10)]
        [4, 8, 8, 16]
        """
        return 1 << (self.distance - 1).bit_length()


@dataclass(frozen=True, kw_only=True)
class Recalled:
    """How often the likeliest token after a repeated key was the key's value, by distance (up to that many tokens).

    `accuracy` is the mean over distances, each the same weight, however many questions there were (`asked`).
    """

    accuracy: float
    by_distance: dict[int, float]
    asked: dict[int, int]


def questions(text: str) -> Iterator[RecallQuestion]:
    """Return the questions in a text of pairs: the keys that come again.

    >>> list(questions("k3 v1 k0 v7 k3 v1"))
    [RecallQuestion(pair=2, distance=4)]
    """
    last: dict[str, int] = {}
    for pair, key in enumerate(text.split()[::2]):
        if key in last:
            yield RecallQuestion(pair, 2 * (pair - last[key]))
        last[key] = pair


def score_recall(run: Run, texts: Sequence[str]) -> Recalled:
    """Ask a run all that these texts ask, and score its answers."""
    task = run.asked(Generate)
    tokenizer = task.tokenizers["text"]
    front = task.opener()
    rows = [[*front, *ids] for ids in tokenizer.encode_batch(texts)]
    right: Counter[int] = Counter()
    n_asked: Counter[int] = Counter()
    for text, row, likeliest in zip(texts, rows, likeliest_after(run, rows), strict=True):
        for question in questions(text):
            key = len(front) + 2 * question.pair
            n_asked[question.reach] += 1
            right[question.reach] += likeliest[key] == row[key + 1]
    by_distance = {distance: right[distance] / n_asked[distance] for distance in sorted(n_asked)}
    accuracy = sum(by_distance.values()) / max(len(by_distance), 1)
    return Recalled(accuracy=accuracy, by_distance=by_distance, asked=dict(sorted(n_asked.items())))


def likeliest_after(run: Run, rows: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the likeliest token after each of these."""

    def answer(batch: list[int]) -> list[list[int]]:
        tokens, _ = session.pad_right([rows[i] for i in batch], next(run.model.parameters()).device)
        with generating.eval_mode(run.model):
            return run.task.logits(run.model, {"tokens": tokens}).argmax(-1).tolist()

    return in_batches([len(row) for row in rows], run.model, answer)
