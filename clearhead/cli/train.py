"""`clearhead train`: from text files to a trained model in one command; and resume it where it was stopped."""

import shlex
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from clearhead import training
from clearhead.cli.completion import RUNS, complete_names
from clearhead.cli.options import QUIET, Parts, Words, new_folder
from clearhead.cli.progress import Progress, format_duration, format_own_scores, format_scores, open_progress
from clearhead.cli.screen import named_row, prose, rule, show, show_json
from clearhead.devices import choose_device
from clearhead.errors import ClearheadError, WordError, naming_word
from clearhead.options import Given, flags, given_of, option, words_of
from clearhead.serialization import to_json
from clearhead.system import process_seconds
from clearhead.training.claiming import check_new, check_unlinked
from clearhead.training.distributed import EndedElsewhere, ProcessFailed, check_devices, is_launched, joined, launch
from clearhead.training.folder import RunFolder
from clearhead.training.loop import Watcher
from clearhead.training.machine import resolve_machine
from clearhead.training.parallel import check_together
from clearhead.training.recipe import CLASSES, Budget, Machine, Recipe, load_recipe, own_modules
from clearhead.training.recipe_options import GROUPS, ModelOptions, as_recipe, new_budget, new_machine
from clearhead.training.reporting import TensorBoard, import_writer
from clearhead.training.run import Run
from clearhead.training.tasks import task_named
from clearhead.training.text_options import spooled_corpus
from clearhead.training.train import followed_recipe, take_part

EXAMPLES = """\b
Examples:
  clearhead train runs/de-en --task translate --source de.txt --target en.txt
  clearhead train runs/de-en --task translate --table pairs.tsv \\
      --columns german,english --minutes 10
  clearhead train runs/poems --task generate --text poems/ --size 10M
  clearhead train runs/blanks --task fill --text corpus.txt.gz --steps 2000
  clearhead train runs/mood --task classify --table reviews.csv \\
      --columns sentence,label
  zcat big.gz | clearhead train runs/big --task generate --text -
  clearhead train runs/mood --from runs/blanks --task classify \\
      --table reviews.csv --columns sentence,label --lora 8
  clearhead train runs/de-en --resume
  clearhead train runs/poems --task generate --text poems/ --processes 4"""

COLUMN = 14
MACHINE = {*words_of(Machine), "seed"}
"""Options for where and how a run is trained, which do not make it another run."""
EXPORTS = ("hf", "ctranslate2", "onnx", "gguf", "torch")
"""The formats of `clearhead export`, whose import takes a second."""


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options for what to do with the recipe."""

    resume: bool = option(False, "Continue a stopped run. You may give a new budget, --lr or machine.")
    checkpoints: str | None = option(
        None, "Write checkpoints to this folder, for example on another disk.", takes="FOLDER"
    )
    must_export: str | None = option(
        None,
        f"Choose a model that these formats can express, or refuse: {', '.join(EXPORTS)}.",
        takes="FORMAT[,…]",
        names=EXPORTS,
        several=True,
    )
    tensorboard: bool = option(False, "Also write TensorBoard logs.")
    recipe: str | None = option(None, "Follow this recipe.json, edited or not, instead of options.", takes="FILE")
    dry_run: bool = option(False, "Print the recipe as it would be followed, as JSON, and exit without training.")
    processes: int | None = option(
        None,
        "Train in so many processes on this machine. For several machines: torchrun -m clearhead train …",
        takes="N",
        least=1,
    )
    quiet: bool = option(False, QUIET, short="q")
    as_json: bool = option(False, "Print the final evaluation as one JSON object.", word="json")


def train(
    run: Annotated[
        str,
        typer.Argument(
            help="The run folder to write: a new one, or with --resume an existing one.",
            metavar="RUN",
            autocompletion=complete_names([RUNS]),
        ),
    ],
    choices: Annotated[Given, Words(GROUPS)],
    ways: RunOptions,
    *,
    parts: Parts = None,
) -> None:
    """Train a model on your text: translate, generate, fill blanks, or classify.

    Only --task and the files are needed. Tokeniser, model, schedule and length of training are chosen for your text and
    your machine; every option below overrides one choice. With --from, training starts from the weights of another run.
    Everything is written to the run folder.
    """
    folder = RunFolder(new_folder("RUN", run))
    if ways.tensorboard:
        with naming_word("tensorboard"):
            import_writer()
    try:
        with joined() as processes:
            if processes.is_first:
                train_first(folder, choices, ways)
            else:
                take_part(processes)
    except (EndedElsewhere, ProcessFailed) as error:  # the process that failed has said why
        raise typer.Exit(error.exit_code) from None


def train_first(folder: RunFolder, choices: Given, ways: RunOptions) -> None:
    """Train, as the process that reads the options and the text, and speaks."""
    if not (ways.resume or ways.dry_run):
        check_new(folder)
    if ways.resume and ways.recipe is not None:
        raise WordError("recipe", f"a run goes on by its own recipe: leave it out, or begin a run with {ways.recipe}")
    recipe = recipe_to_resume(folder, choices) if ways.resume else new_recipe(choices, ways)
    if ways.dry_run:
        print_recipe(recipe, choices, ways)
        return
    if ways.processes is not None and not is_launched():
        check_together(recipe, ways.processes)
        check_devices(choose_device(recipe.machine.device), ways.processes)
        resolve_machine(recipe.machine)
        launch(ways.processes, without_option(sys.argv[1:], "--processes"), run=str(folder.path))
        return
    with ExitStack() as stack:
        progress = stack.enter_context(open_progress(quiet=ways.quiet))
        board = stack.enter_context(Board(folder.path / "tensorboard")) if ways.tensorboard else None
        watcher, log = watch_both(progress, board), progress.log
        if ways.resume:
            old = folder.recipe()
            trained = training.resume(
                folder.path,
                budget=None if recipe.budget == old.budget else recipe.budget,
                lr=choices.get("lr"),
                machine=None if recipe.machine == old.machine else recipe.machine,
                watcher=watcher,
                log=log,
                checkpoints=ways.checkpoints,
            )
        else:
            trained = training.train(
                folder.path,
                recipe,
                watcher=watcher,
                log=log,
                checkpoints=ways.checkpoints,
                # The time that it took to start the program is inside a budget of minutes.
                spent=process_seconds(),
                spool=lambda data: spooled_corpus(recipe, choices, data),
            )
    evaluation = trained.folder.read_evaluation()
    if ways.as_json:
        show_json({"path": str(trained.folder.path), "task": trained.task.name, "evaluation": evaluation})
    else:
        show(*render_page(trained, evaluation))


def without_option(args: Sequence[str], name: str) -> list[str]:
    """Return the words of a command without an option and its value.

    >>> without_option(["train", "runs/x", "--processes", "2", "--steps=9"], "--processes")
    ['train', 'runs/x', '--steps=9']
    """
    remaining: list[str] = []
    words = iter(args)
    for word in words:
        if word == name:
            next(words, None)
        elif not word.startswith(f"{name}="):
            remaining.append(word)
    return remaining


def new_recipe(choices: Given, ways: RunOptions) -> Recipe:
    """Return the recipe of a new run, from options or from a file; print what --must-export changed in it."""
    recipe = as_recipe(choices) if ways.recipe is None else file_recipe(ways.recipe, choices)
    if ways.must_export is None:
        return recipe
    from clearhead.interop.export import exportable_recipe

    named = [word for word in given_of(choices, ModelOptions) if word not in ("size", "dropout")]
    may_change = not (ways.recipe or named or "from_" in choices or "vectors" in choices)
    formats = [name.strip() for name in ways.must_export.split(",")]
    with naming_word("must_export"):
        recipe, change = exportable_recipe(recipe, formats, may_change=may_change)
    if change and not ways.quiet:
        typer.echo(change, err=True)
    return recipe


def file_recipe(path: str, choices: Given) -> Recipe:
    """Return the recipe of a file; beside it only a machine may be given."""
    if extra := [word for word in choices if word not in MACHINE]:
        raise WordError("recipe", f"{path} says all of it: change it there, and leave out {flags(extra)}")
    try:
        recipe = load_recipe(Path(path))
        task_named(recipe.task)
    except (ClearheadError, FileNotFoundError) as error:
        raise WordError("recipe", f"there is no file {path}" if isinstance(error, OSError) else str(error)) from None
    return replace(recipe, machine=new_machine(choices, recipe.machine), seed=choices.get("seed", recipe.seed))


def print_recipe(recipe: Recipe, choices: Given, ways: RunOptions) -> None:
    """Print the recipe that would be followed. For a new run its text is read, in a folder that is removed."""
    if not ways.resume:
        with tempfile.TemporaryDirectory() as folder:
            recipe = replace(recipe, corpus=spooled_corpus(recipe, choices, Path(folder)))
            recipe = followed_recipe(recipe, log=lambda _: None)
    show_json(to_json(recipe, CLASSES))


def recipe_to_resume(folder: RunFolder, choices: Given) -> Recipe:
    """Return the recipe of an existing run with another budget, rate, micro-batch or machine if one was given.

    Anything else would make it another run, and is refused.
    """
    may_change = {*MACHINE, *words_of(Budget), "lr", "micro_batch_tokens"} - {"seed"}
    if extra := [word for word in choices if word not in may_change]:
        raise WordError("resume", f"goes on with what the run was begun with: leave out {flags(extra)}")
    recipe = folder.recipe()
    # Batches stay as they were planned, and each is computed in parts: so the steps are the same.
    micro, machine = choices.get("micro_batch_tokens"), new_machine(choices, recipe.machine)
    return replace(
        recipe,
        budget=new_budget(choices, recipe.budget) or recipe.budget,
        optimizer=replace(recipe.optimizer, lr=choices.get("lr", recipe.optimizer.lr)),
        machine=machine if micro is None else replace(machine, splits=-(-recipe.batching.at_once // micro)),
    )


class Board:
    """TensorBoard's files, begun with the first line: a run that is refused leaves none."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.writer: TensorBoard | None = None

    def __enter__(self) -> "Board":
        return self

    def __exit__(self, *failed: object) -> None:
        if self.writer is not None:
            self.writer.close()

    def __call__(self, line: Mapping[str, Any]) -> None:
        if self.writer is None:
            check_unlinked(self.folder.parent)
            self.writer = TensorBoard(self.folder, resumed=line["step"] - 1)
        self.writer.write(line)


def watch_both(shown: Progress, board: Board | None) -> Watcher:
    def watcher(line: Mapping[str, Any]) -> None:
        shown(line)
        if board is not None:
            board(line)

    return watcher


def render_page(run: Run, evaluation: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Yield the scores, where everything is, and what to do next."""
    path = run.folder.path
    yield rule(str(path))
    loss = evaluation["loss"]
    own_scores = {measure.key: evaluation.get(measure.key) for measure in run.task.measures if measure.key != "loss"}
    parts = [
        "loss NaN" if loss is None else f"loss {loss:.4f}",
        *format_scores(evaluation),
        *format_own_scores(own_scores),
    ]
    yield prose(f"[chosen]{'   '.join(parts)}[/]")
    if (ngram := evaluation.get("ngram")) is not None:
        yield prose(f"a byte {ngram['order']}-gram on the same text: bits per byte {ngram['bits_per_byte']:.4g}")
    seconds, records = evaluation["training_seconds"], evaluation["records"]
    yield prose(
        f"{evaluation['parameters']:,} parameters, {format_duration(seconds)} of training; the weights "
        f"of step {run.step:,}, on {records:,} held-out record{'s' * (records != 1)}."
    )
    yield Text()
    for name, path_of in (
        ("scores", run.folder.evaluation),
        ("checkpoints", run.folder.checkpoints.folder),
        ("curves", run.folder.curves),
        ("metrics", run.folder.metrics),
        ("recipe", run.folder.recipe_file),
    ):
        yield render_row(name, str(path_of))
    yield Text()
    quoted = shlex.join([str(path), *(word for name in own_modules(run.folder.recipe()) for word in ("--parts", name))])
    use, evaluate = run.task.usage()
    yield render_row("try", use.format(run=quoted))
    yield render_row("", evaluate.format(run=quoted))
    yield render_row("", f"clearhead train {quoted} --resume --steps {2 * run.folder.checkpoints.all()[0].step}")
    yield Text()


def render_row(name: str, value: str) -> RenderableType:
    return named_row(name, value, COLUMN)
