"""A crafted program as a run folder: the model, its tokeniser, texts that it is for, and a checkpoint."""

import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from clearhead.cli.craft_model import GO, Fitted, fitted
from clearhead.cli.craft_program import Ask, example_of, in_words
from clearhead.errors import OptionError, RunError
from clearhead.files import os_errors_as_run_errors, write_text
from clearhead.rasp import Program, run
from clearhead.rasp.compiled_model import SURE
from clearhead.rasp.description import describe_layers, list_program
from clearhead.serve.program import PROGRAM
from clearhead.text.encoding import Corpus
from clearhead.text.preparing import Tokenizing, prepare
from clearhead.text.sources import Aligned, Documents
from clearhead.training.checkpoints import named_tensors
from clearhead.training.claiming import claim
from clearhead.training.folder import RunFolder
from clearhead.training.loop import training_tensors
from clearhead.training.machine import settled
from clearhead.training.metrics import MetricsLog
from clearhead.training.recipe import Batching, Budget, Checkpointing, Machine, Optimizer, Recipe
from clearhead.training.tasks import Task, task_named
from clearhead.training.train_step import TrainState

__all__ = ["write_run"]

TEXTS, HELD_OUT, TRIES = 64, 8, 5000

Lines = list[str]
"""A text, or a source and its target."""


def write_run(ask: Ask, path: Path) -> RunFolder:
    """Writes the run folder of a compiled program. What is there already is never written over."""
    folder = RunFolder(path)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise RunError(f"{path}: there is something already; choose another folder, or `clearhead look {path}`")
    made = fitted(ask)
    texts = list(drawn(ask.program, made.context))
    if not texts:
        raise OptionError(
            f"{ask.program.name}: no text was found that it is for, or that it answers with its own tokens"
        )
    with folder.locked(), os_errors_as_run_errors(path):
        claim(folder)
        made.tokenizer.save(path / "tokenizer.json")
        layout = task_named(made.task).layout(made.context)
        write_texts(path, layout.texts, texts)
        recipe = recipe_of(made, path, layout.texts)
        kept = prepare(recipe.corpus, layout, recipe.tokenizing, folder.data, log=lambda line: None)
        task = task_named(made.task).of(kept, made.context)
        folder.describe(made.crafted.model.spec, task, kept)
        folder.write_own(path / PROGRAM, about(ask.program, made))
        folder.checkpoints.create()
        folder.begin(recipe)
        save(folder, recipe, task, made, texts[0])
    return folder


def recipe_of(made: Fitted, path: Path, fields: tuple[str, ...]) -> Recipe:
    """What the model is, and the texts beside it; the rest is what every recipe says."""
    train, dev = ([(str(path / f"{part}.{field}.txt"),) for field in fields] for part in ("train", "held-out"))
    return Recipe(
        task=made.task,
        corpus=Corpus(train=source_of(train), dev=source_of(dev)),
        tokenizing=Tokenizing(kind="word", given=str(path / "tokenizer.json")),
        model=made.crafted.model.spec,
        optimizer=Optimizer(),
        batching=Batching(context=made.context),
        budget=Budget(steps=1),
        checkpointing=Checkpointing(select="last"),
        machine=settled(Machine(device="cpu")),
    )


def source_of(files: list[tuple[str]]) -> Aligned | Documents:
    if len(files) == 1:
        return Documents(paths=files[0], unit="line")
    return Aligned(source=files[0], target=files[1])


def save(folder: RunFolder, recipe: Recipe, task: Task, made: Fitted, example: Lines) -> None:
    """The checkpoint, of step 0, as nothing was trained. The log has an example, for the explorer to begin with."""
    log = MetricsLog(folder.metrics)
    sample = dict(zip(("input", "reference"), example, strict=False))
    log.write({"kind": "evaluation", "step": 0, "loss": None, "scores": {}, "samples": [sample], "best": False})
    state = {
        "seconds": 0.0,
        "tokens": 0,
        "places": 0,
        "metrics_size": log.size,
        "best": None,
        "since_best": 0,
        "finished": False,
    }
    log.close()
    train_state = TrainState(made.crafted.model, task, recipe.optimizer, recipe.machine)
    folder.checkpoints.save(0, named_tensors(made.crafted.model), training_tensors(train_state), state)


def about(program: Program, made: Fitted) -> dict[str, Any]:
    """Describe what the weights were compiled from: `clearhead.serve.program.RunProgram` has the meanings."""
    crafted, layout = made.crafted, made.crafted.layouts["target"]
    return {
        "program": program.name,
        "about": program.about,
        "listing": list_program(made.plan),
        "layers": describe_layers(made.plan),
        "vocabulary": [str(token) for token in program.vocabulary],
        "length": program.length,
        "answers": [str(answer) for answer in crafted.answers],
        "answer_ids": [crafted.ids[str(answer)] for answer in crafted.answers],
        "threshold": SURE,
        "numeric": crafted.numeric,
        "directions": crafted.directions,
        "offset": layout.offset,
        "beside": layout.beside,
    }


def write_texts(path: Path, fields: tuple[str, ...], texts: list[Lines]) -> None:
    """Some of them held out; of very few, all are, and trained on too."""
    parts = {"held-out": texts[:HELD_OUT], "train": texts[HELD_OUT:] or texts * 2}
    for part, rows in parts.items():
        for place, field in enumerate(fields):
            write_text(path / f"{part}.{field}.txt", "".join(f"{row[place]}\n" for row in rows))


def drawn(program: Program, context: int) -> Iterator[Lines]:
    """Texts that the program is for, its example first; from one seed, so always the same."""
    seen = dict[str, None]()
    for text in itertools.islice(candidates(program, context), TRIES):
        lines = lines_of(program, text)
        if lines and lines[0] not in seen:
            seen[lines[0]] = None
            yield lines
        if len(seen) == TEXTS:
            return


def candidates(program: Program, context: int) -> Iterator[list[Any]]:
    """Texts over the vocabulary of what is read."""
    draw = random.Random(0)
    if program.source_vocabulary is None:
        vocabulary, longest, first = program.vocabulary, program.length, example_of(program)
    else:
        vocabulary, longest = program.source_vocabulary, context - 1
        first = list(program.source_example or vocabulary)[:longest]
    yield first
    while True:
        yield draw.choices(vocabulary, k=draw.randint(1, longest))


def lines_of(program: Program, text: list[Any]) -> Lines:
    """A text, or a source and what the program writes for it; nothing where the program is not for it."""
    if program.source_vocabulary is None:
        return [in_words(text)] if program.fits(text) else []
    answer = written(program, text)
    return [in_words(text), answer] if answer else []


def written(program: Program, source: list[Any]) -> str:
    """What the program writes for a source, each answer read again, until it gives nothing."""
    known = {str(token): token for token in program.vocabulary}
    text: list[Any] = [GO]
    while len(text) < program.length:
        answer = run(program.output, text, source)[-1]
        if answer is None or str(answer) not in known:
            break
        text.append(known[str(answer)])
    return in_words(text[1:])
