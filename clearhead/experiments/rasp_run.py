"""A compiled RASP program as a run folder: the model, its tokeniser, texts for it, and a checkpoint of step 0.

```
from clearhead.rasp import PROGRAMS
from clearhead.experiments.rasp_run import compile_to_run

compile_to_run(PROGRAMS["sort"], "runs/sort")
```

The folder is a run like any other: it loads, traces, is looked into and is trained further.
"""

import itertools
import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from clearhead.attention.weighting import Weighting
from clearhead.errors import OptionError, RunError
from clearhead.files import os_errors_as_run_errors, write_text
from clearhead.model.outputs import ToVocabulary
from clearhead.rasp import CompiledModel, Program, ProgramPlan, TextLayout, plan, run
from clearhead.rasp.compiled_model import SURE
from clearhead.rasp.compiler import AVERAGING
from clearhead.rasp.description import describe_layers, list_program
from clearhead.rasp.spaces import ONE
from clearhead.text.encoding import Corpus
from clearhead.text.kinds import SPECIALS
from clearhead.text.preparing import Tokenizing, prepare
from clearhead.text.sources import Aligned, Documents
from clearhead.text.tokenizer import Tokenizer
from clearhead.training import claiming, machine
from clearhead.training.checkpoints import UNTRAINED, named_tensors
from clearhead.training.folder import RunFolder
from clearhead.training.folder_lock import LOCK
from clearhead.training.recipe import Batching, Budget, Checkpointing, Machine, Optimizer, Recipe
from clearhead.training.reporting import MetricsLog
from clearhead.training.tasks import Fill, Generate, Task, Translate, task_named
from clearhead.training.train_step import TrainState, training_tensors

START, END = SPECIALS[2], SPECIALS[3]
GO = "<go>"
"""The token that the answer of a program with a source begins from: in a run it is `<s>`."""
LAYOUTS = {
    "encoder": {"target": TextLayout(sink=START, offset=1, beside=1), "source": TextLayout()},
    "decoder": {"target": TextLayout(sink=END, offset=1), "source": TextLayout()},
    "encoder-decoder": {"target": TextLayout(sink=START, offset=0), "source": TextLayout(sink=END, offset=0, beside=1)},
}
"""The layout of a row by the kind of model. Encoder: `<s>`, the text, `</s>`. Decoder: `</s>`, which opens a document,
then the text. Encoder-decoder: the source and `</s>`; the target, whose first token is `<s>` itself."""


@dataclass(frozen=True, kw_only=True)
class ProgramModel:
    """A compiled model whose ids are a tokeniser's, the plan it was built from, and the longest row of its task."""

    task: str
    plan: ProgramPlan
    tokenizer: Tokenizer
    compiled: CompiledModel
    context: int


def compile_for_task(program: Program, *, weighting: Weighting = AVERAGING, sharpness: float = 1.0) -> ProgramModel:
    """Compile a program into a model of the task that fits it: translate with a source, generate if causal, else fill.

    Raises OptionError if no run can hold the program.
    """
    has_source = program.source_vocabulary is not None
    task = Translate if has_source else Generate if program.causal else Fill
    layouts = LAYOUTS[task.family]
    planned = plan(
        program.output,
        program.vocabulary,
        length=program.length,
        source_vocabulary=program.source_vocabulary,
        causal=program.causal,
        weighting=weighting,
        sharpness=sharpness,
        layouts=layouts,
    )
    if has_source:
        check_target_start(program, planned)
    words = [token for token in program.vocabulary if not (has_source and token == GO)]
    tokenizer = make_tokenizer([*words, *(program.source_vocabulary or ())], planned.answers)
    ids = token_ids(tokenizer)
    compiled = planned.build(ids | {GO: ids[START]} if has_source else ids)
    if not compiled.numeric:
        add_end_logit(compiled, planned)
    context = layouts["target"].total(program.length)
    return ProgramModel(task=task.name, plan=planned, tokenizer=tokenizer, compiled=compiled, context=context)


def check_target_start(program: Program, planned: ProgramPlan) -> None:
    """Refuse a target that cannot begin with `<s>`: it lacks `<go>`, or `<s>` would also be the sink of its heads."""
    reason = None
    if GO not in program.vocabulary:
        reason = f"its vocabulary has no {GO} for an answer to begin from"
    elif any(level.own for level in planned.levels["target"]):
        reason = "heads of its target need a token beside the text to attend to, and a run that translates has none"
    if reason is not None:
        raise OptionError(f"{program.name} cannot be a run: {reason}. `clearhead craft run {program.name}` runs it")


@torch.no_grad()
def add_end_logit(compiled: CompiledModel, planned: ProgramPlan) -> None:
    """Give `</s>` half the logit of an answer everywhere, so the model says it exactly if there is no answer."""
    part = compiled.model.stacks[-1]
    assert isinstance(part.output, ToVocabulary)
    part.output.table[compiled.ids[END], planned.directions.of(ONE)] = SURE


def make_tokenizer(vocabulary: Iterable[Any], answers: Iterable[Any]) -> Tokenizer:
    """Return a word tokeniser of the special tokens, the program's tokens, and its other answers."""
    words = [str(token) for token in vocabulary]
    symbols = [*words, *map(str, answers)]
    if reserved := [symbol for symbol in symbols if symbol in SPECIALS]:
        raise OptionError(f"{reserved[0]!r} is a special token of every run, so no program's own; call it otherwise")
    config = json.loads(Tokenizer.train(["a"], "word", len(SPECIALS) + 1).to_json())
    config["model"]["vocab"] = {
        symbol: token_id for token_id, symbol in enumerate(dict.fromkeys([*SPECIALS, *symbols]))
    }
    tokenizer = Tokenizer(json.dumps(config))
    ids = token_ids(tokenizer)
    for word in words:
        if tokenizer.encode(word) != [ids[word]]:
            raise OptionError(f"{word!r} cannot be a word of a run's text: it is empty, or has a space in it")
    return tokenizer


def token_ids(tokenizer: Tokenizer) -> dict[str, int]:
    """Return every token of a tokeniser with its id."""
    return json.loads(tokenizer.to_json())["model"]["vocab"]


TEXTS, HELD_OUT, TRIES = 64, 8, 5000

Lines = list[str]
"""A text, or a source and its target."""


def compile_to_run(
    program: Program, path: str | Path, *, weighting: Weighting = AVERAGING, sharpness: float = 1.0
) -> RunFolder:
    """Compile a RASP program and write it as a run folder. RunError if the folder is there and not empty."""
    path = Path(path)
    folder = RunFolder(path)
    check_empty(path)
    program_model = compile_for_task(program, weighting=weighting, sharpness=sharpness)
    texts = list(draw_texts(program, program_model.context))
    if not texts:
        raise OptionError(f"{program.name}: no text was found that it is for, or that it answers with its own tokens")
    with folder.lock(), os_errors_as_run_errors(path):
        check_empty(path)  # once more, now that nobody else writes there
        claiming.claim(folder)
        program_model.tokenizer.save(path / "tokenizer.json")
        layout = task_named(program_model.task).layout(program_model.context)
        # Very few texts serve for both.
        for part, rows in (("held-out", texts[:HELD_OUT]), ("train", texts[HELD_OUT:] or texts * 2)):
            for index, field in enumerate(layout.texts):
                write_text(path / f"{part}.{field}.txt", "".join(f"{row[index]}\n" for row in rows))
        recipe = recipe_of(program_model, path, layout.texts)
        prepared = prepare(recipe.corpus, layout, recipe.tokenizing, folder.data, log=lambda line: None)
        task = task_named(program_model.task).of(prepared, program_model.context)
        folder.describe(program_model.compiled.model.spec, task, prepared)
        folder.write_own(folder.program_file, describe_program(program, program_model))
        folder.checkpoints.create()
        folder.begin(recipe)
        save(folder, recipe, task, program_model, texts[0])
    return folder


def check_empty(path: Path) -> None:
    """Raise RunError if a folder holds something; the lock of one that is about to be written is nothing."""
    if any(name != LOCK for name in claiming.find_names(path)):
        raise RunError(f"{path}: there is something already; choose another folder, or `clearhead look {path}`")


def recipe_of(program_model: ProgramModel, path: Path, fields: tuple[str, ...]) -> Recipe:
    """Return a recipe of the model and the texts beside it, so that it can be trained further."""
    train, dev = ([(str(path / f"{part}.{field}.txt"),) for field in fields] for part in ("train", "held-out"))
    return Recipe(
        task=program_model.task,
        corpus=Corpus(train=source_of(train), dev=source_of(dev)),
        tokenizing=Tokenizing(kind="word", given=str(path / "tokenizer.json")),
        model=program_model.compiled.model.spec,
        optimizer=Optimizer(),
        batching=Batching(context=program_model.context),
        budget=Budget(steps=1),
        checkpointing=Checkpointing(select="last"),
        machine=machine.resolve_machine(Machine(device="cpu")),
    )


def source_of(files: list[tuple[str]]) -> Aligned | Documents:
    """Return one file as documents, a line each; two files as lines that belong together."""
    if len(files) == 1:
        return Documents(paths=files[0], unit="line")
    return Aligned(source=files[0], target=files[1])


def save(folder: RunFolder, recipe: Recipe, task: Task, program_model: ProgramModel, example: Lines) -> None:
    """Save the checkpoint, of step 0 as nothing was trained, and log an example for the explorer to begin with."""
    log = MetricsLog(folder.metrics)
    sample = dict(zip(("input", "reference"), example, strict=False))
    log.write({"kind": "evaluation", "step": 0, "loss": None, "scores": {}, "samples": [sample], "best": False})
    state = {**UNTRAINED, "metrics_size": log.size}
    log.close()
    train_state = TrainState(program_model.compiled.model, task, recipe.optimizer, recipe.machine)
    folder.checkpoints.save(0, named_tensors(program_model.compiled.model), training_tensors(train_state), state)


def describe_program(program: Program, program_model: ProgramModel) -> dict[str, Any]:
    """Describe what the weights were compiled from: `clearhead.serve.program.RunProgram` has the meanings."""
    compiled, layout = program_model.compiled, program_model.compiled.layouts["target"]
    return {
        "program": program.name,
        "about": program.about,
        "listing": list_program(program_model.plan),
        "layers": describe_layers(program_model.plan),
        "vocabulary": [str(token) for token in program.vocabulary],
        "length": program.length,
        "answers": [str(answer) for answer in compiled.answers],
        "answer_ids": [compiled.ids[str(answer)] for answer in compiled.answers],
        "threshold": SURE,
        "numeric": compiled.numeric,
        "directions": compiled.directions,
        "offset": layout.offset,
        "beside": layout.beside,
    }


def draw_texts(program: Program, context: int) -> Iterator[Lines]:
    """Yield different texts that the program is for, its example first; the seed is fixed, so always the same."""
    seen = dict[str, None]()
    for text in itertools.islice(draw_candidates(program, context), TRIES):
        lines = lines_of(program, text)
        if lines and lines[0] not in seen:
            seen[lines[0]] = None
            yield lines
        if len(seen) == TEXTS:
            return


def draw_candidates(program: Program, context: int) -> Iterator[list[Any]]:
    """Yield the example, then random texts over the vocabulary that the program reads, without end."""
    draw = random.Random(0)
    if program.source_vocabulary is None:
        vocabulary, longest, first = program.vocabulary, program.length, program.usable_example()
    else:
        vocabulary, longest = program.source_vocabulary, context - 1
        first = list(program.source_example or vocabulary)[:longest]
    yield first
    while True:
        yield draw.choices(vocabulary, k=draw.randint(1, longest))


def lines_of(program: Program, text: list[Any]) -> Lines:
    """Return a text as a line, or a source and the program's target; an empty list where it is not for that text."""
    line = " ".join(map(str, text))
    if program.source_vocabulary is None:
        return [line] if program.fits(text) else []
    target = generate_target(program, text)
    return [line, " ".join(map(str, target))] if target else []


def generate_target(program: Program, source: list[Any]) -> list[Any]:
    """Run the interpreter on a source as a decoder runs: each answer is read as the next token, until there is none."""
    vocabulary = {str(token): token for token in program.vocabulary}
    text: list[Any] = [GO]
    while len(text) < program.length:
        answer = run(program.output, text, source)[-1]
        if answer is None or str(answer) not in vocabulary:
            break
        text.append(vocabulary[str(answer)])
    return text[1:]
