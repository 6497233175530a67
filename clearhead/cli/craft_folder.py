"""A crafted program as a run folder: the model, a tokeniser of its symbols, texts it is for, and a checkpoint."""

import json
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from clearhead.cli.craft_program import Ask, example_of, in_words
from clearhead.craft import Crafted, Layout, Program, plan, run
from clearhead.errors import OptionError, RunError
from clearhead.text.encoding import Corpus
from clearhead.text.kinds import SPECIALS
from clearhead.text.preparing import Tokenizing, prepare
from clearhead.text.sources import Documents
from clearhead.text.tokenizer import Tokenizer
from clearhead.training.checkpoints import named_tensors, write_text, writing
from clearhead.training.folder import RunFolder
from clearhead.training.metrics import MetricsLog
from clearhead.training.recipe import Batching, Budget, Keeping, Optimising, Recipe
from clearhead.training.tasks import TASKS

__all__ = ["crafted_for_run", "tokenizer_of", "write_run"]

START, END = SPECIALS[2], SPECIALS[3]
LAYOUTS = {
    "fill": Layout(sink=START, offset=1, beside=1),
    "generate": Layout(sink=END, offset=1),
}
"""How a task's rows stand. To fill: `<s>`, the text, `</s>`. To generate: `</s>`, which opens a document, the text."""
TEXTS, HELD_OUT, TRIES = 64, 8, 5000
PROGRAM = "program.json"


def write_run(ask: Ask, path: Path) -> RunFolder:
    """Writes the run folder of a compiled program; what is there already is never written over."""
    folder = RunFolder(path)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise RunError(f"{path}: there is something already; choose another folder, or `clearhead look {path}`")
    task, tokenizer, crafted = crafted_for_run(ask)
    with folder.locked(), writing(path):
        tokenizer.save(path / "tokenizer.json")
        write_texts(ask.program, path)
        recipe = recipe_of(task, path, crafted)
        folder.begin(recipe)
        kept = prepare(recipe.corpus, layout_of(recipe), recipe.tokenizing, folder.data, told=lambda line: None)
        made = TASKS[task](tokenizers=kept.tokenizers, context=recipe.batching.context)
        folder.describe(crafted.model.spec, made, kept)
        write_text(path / PROGRAM, json.dumps(about(ask.program, crafted), indent=1, ensure_ascii=False) + "\n")
        save(folder, ask.program, crafted)
    return folder


def crafted_for_run(ask: Ask) -> tuple[str, Tokenizer, Crafted]:
    """The task a program's run has, its tokeniser, and the model, whose ids are the tokeniser's."""
    program = ask.program
    if program.source_vocabulary is not None:
        raise OptionError(
            f"{program.name} reads a source, and what it answers begins at a token of its own, where a run that "
            f"translates begins at {START}: it has no run folder. `clearhead craft run {program.name}` runs it"
        )
    task = "generate" if program.causal else "fill"
    made = plan(
        program.output,
        program.vocabulary,
        length=program.length,
        causal=program.causal,
        weighting=ask.weighting,
        sharpness=ask.sharpness,
        layouts={"target": LAYOUTS[task], "source": Layout()},
    )
    tokenizer = tokenizer_of(program.vocabulary, made.answers)
    return task, tokenizer, made.build(ids_of(tokenizer))


def tokenizer_of(vocabulary: Iterable[Any], answers: Iterable[Any]) -> Tokenizer:
    """A tokeniser of words: the special ones, the tokens of the text, and what else may come out."""
    words = [str(token) for token in vocabulary]
    spoken = [*words, *map(str, answers)]
    if taken := [symbol for symbol in spoken if symbol in SPECIALS]:
        raise OptionError(f"{taken[0]!r} is a special token of every run, so no program's own; call it otherwise")
    symbols = dict.fromkeys([*SPECIALS, *spoken])
    whole = json.loads(Tokenizer.train(["a"], "word", len(SPECIALS) + 1).to_json())
    whole["model"]["vocab"] = {symbol: place for place, symbol in enumerate(symbols)}
    made = Tokenizer(json.dumps(whole))
    ids = ids_of(made)
    for word in words:
        if made.encode(word) != [ids[word]]:
            raise OptionError(
                f"{word!r} cannot be a word of a run's text: it has a space in it, or looks like a special token"
            )
    return made


def ids_of(tokenizer: Tokenizer) -> dict[str, int]:
    return json.loads(tokenizer.to_json())["model"]["vocab"]


def recipe_of(task: str, path: Path, crafted: Crafted) -> Recipe:
    """What it would take to go on from these weights by training."""
    text, held_out = (Documents(paths=(str(path / name),), unit="line") for name in ("text.txt", "held-out.txt"))
    context = crafted.layouts["target"].total(crafted.length)
    return Recipe(
        task=task,
        corpus=Corpus(train=text, dev=held_out),
        tokenizing=Tokenizing(kind="word", given=str(path / "tokenizer.json")),
        model=crafted.model.spec,
        optimising=Optimising(),
        batching=Batching(context=context),
        budget=Budget(steps=1),
        keeping=Keeping(select="last"),
    )


def layout_of(recipe: Recipe) -> Any:
    return TASKS[recipe.task].layout(recipe.batching.context)


def save(folder: RunFolder, program: Program, crafted: Crafted) -> None:
    """The checkpoint, of step 0, as nothing was trained. The log has an example, for the explorer to begin with."""
    log = MetricsLog(folder.metrics)
    text = example_of(program)
    sample = {"input": in_words(text), "output": in_words(crafted_answers(program, text))}
    log.write({"kind": "evaluation", "step": 0, "loss": None, "scores": {}, "samples": [sample], "best": False})
    state = {
        "tokens": 0,
        "seconds": 0.0,
        "places": 0,
        "best": None,
        "since_best": 0,
        "finished": False,
        "metrics_size": log.size,
    }
    log.close()
    folder.checkpoints.save(0, named_tensors(crafted.model), {}, state)


def crafted_answers(program: Program, text: Any) -> list[Any]:
    return run(program.output, list(text))


def about(program: Program, crafted: Crafted) -> dict[str, Any]:
    """What the weights were made of: the names of the residual stream's directions, and what the answers are."""
    return {
        "program": program.name,
        "about": program.about,
        "vocabulary": [str(token) for token in program.vocabulary],
        "length": program.length,
        "answers": [str(answer) for answer in crafted.answers],
        "numeric": crafted.numeric,
        "directions": crafted.directions,
    }


def write_texts(program: Program, path: Path) -> None:
    """Texts that the program is for, some of them held out; drawn from one seed, so always the same."""
    lines = list(dict.fromkeys(drawn(program)))
    held_out = lines[:HELD_OUT]
    write_text(path / "held-out.txt", "".join(f"{line}\n" for line in held_out))
    write_text(path / "text.txt", "".join(f"{line}\n" for line in lines[HELD_OUT:] or held_out * 2))


def drawn(program: Program) -> Iterator[str]:
    yield in_words(example_of(program))
    draw, found = random.Random(0), 0
    for _ in range(TRIES):
        text = draw.choices(program.vocabulary, k=draw.randint(1, program.length))
        if program.fits(text):
            yield in_words(text)
            found += 1
        if found == TEXTS:
            return
