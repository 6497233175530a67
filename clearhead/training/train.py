"""`train` and `resume`: from a recipe to a run folder that is whole at any moment."""

import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from clearhead.calls import public
from clearhead.devices import choose_device
from clearhead.errors import OptionError, RunError
from clearhead.model.sizes import resized
from clearhead.serialization import from_json, to_json
from clearhead.text.encoding import Corpus, Encoding, Layout
from clearhead.text.mixing import read_mix
from clearhead.text.parts import PartJob, Team, encode_parts
from clearhead.text.preparing import Prepared, load_tokenizers, open_prepared, prepare
from clearhead.text.tokenizer import Tokenizer
from clearhead.training import claiming
from clearhead.training.baseline import Baseline
from clearhead.training.checkpoints import Checkpoint
from clearhead.training.distributed import Processes, check_devices, current_processes, joined
from clearhead.training.final_scores import score
from clearhead.training.fine_tuning import begin_tuning, check_known, fine_tuning_recipe, load_source, tuned_task
from clearhead.training.fitting import Workload, check_minutes, choose_vocabulary, fit
from clearhead.training.folder import RunFolder
from clearhead.training.folder_lock import Hold
from clearhead.training.loop import Trainer, Watcher
from clearhead.training.machine import prepare_machine, resolve_machine
from clearhead.training.pacing import LINE
from clearhead.training.parallel import check_groups, check_room, check_together
from clearhead.training.recipe import CLASSES, Recipe, read_parallel
from clearhead.training.recipe_options import recipe_of
from clearhead.training.reporting import ProgressLine, Stopped, Stopping, phase, to_stderr
from clearhead.training.run import Run, load
from clearhead.training.tasks import Task, task_named
from clearhead.training.tasks.instruct import with_template
from clearhead.training.weights import write_wide
from clearhead.training.wide import has_wide

HEADERS = frozenset(
    ["label", "labels", "class", "classes", "category", "target", "sentiment", "topic", "text", "sentence", "y"]
)
"""Names of columns that are no likely labels."""


@public
def train(
    path: str | Path,
    recipe: Recipe | None = None,
    *,
    initial: Run | str | Path | None = None,
    watcher: Watcher | None = None,
    log: Callable[[str], None] = to_stderr,
    data: Path | None = None,
    checkpoints: str | Path | None = None,
    spent: float = 0.0,
    spool: Callable[[Path], Corpus] | None = None,
    **options: Any,
) -> Run:
    """Train a new run, and return it loaded with its best weights.

    Give a recipe, or the options of `clearhead train` under the same names and with the same checks:
    `train("runs/de-en", task="translate", source="train.de", target="train.en", minutes=10)`. They are in
    docs/options.md. Under torchrun every process calls it and they train together, with the arguments of the first one.

    Args:
        path: Run folder to make.
        recipe: Everything that decides what the run becomes; None if options are given.
        initial: A run to start from, or its folder: its model, weights and tokenizers take the place of the recipe's.
        watcher: Called with every line of metrics; None shows a line of progress.
        log: Called with lines for the user.
        data: Folder for token ids; in the run folder if None.
        checkpoints: Folder for checkpoints, on another disk for instance.
        spent: Seconds of a budget of minutes that are already used.
        spool: Copies text that can be read only once into the folder it is given, and returns the corpus of the copies.
        options: Options of `clearhead train`.

    Returns:
        The run.

    Raises:
        OptionError: If an option is missing or out of range, or both a recipe and options are given.
        DataError: If a text file cannot be used.
        RunError: If the folder cannot be used.
    """
    began = time.perf_counter() - spent
    if recipe is not None and options:
        raise OptionError(f"train: there is a recipe, which says all of it: leave out {', '.join(options)}")
    with joined() as processes:
        if not processes.is_first:
            return take_part(processes)
        folder = RunFolder(Path(path))
        claiming.check_new(folder)
        recipe = recipe or recipe_of(options)
        if initial is not None:
            recipe = starting_from(initial, recipe)
        if processes.together:
            check_together(recipe, processes.count)
            check_devices(choose_device(recipe.machine.device), processes.local_count)
        check_recipe(recipe)
        with folder.lock(log) as hold, claiming.leave_nothing(hold):
            claiming.claim(folder)
            if checkpoints is not None:
                claiming.keep_elsewhere(folder, hold, checkpoints)
            if spool is not None:
                recipe = replace(recipe, corpus=spool(folder.data))
            trainer = prepare_run(
                folder,
                recipe,
                data or folder.data,
                hold=hold,
                watcher=watcher or ProgressLine(),
                log=log,
                began=began,
            )
            return run_to_end(trainer, None)


def prepare_run(
    folder: RunFolder,
    recipe: Recipe,
    data: Path,
    *,
    hold: Hold,
    watcher: Watcher,
    log: Callable[[str], None],
    began: float,
) -> Trainer:
    """Prepare the text of a claimed run, fit its recipe to the budget, and write what the run begins with.

    Its budget of minutes `began` then.
    """
    source = None if recipe.fine_tuning is None else load_source(recipe.fine_tuning)
    recipe, task, prepared, baseline = follow(recipe, data, source, log, began=began)
    spec = recipe.model
    hold.check()
    if source is not None:
        recipe = begin_tuning(folder, recipe, task, source, log=log)
    if baseline is not None and has_wide(spec) and (part := baseline.wide_part()) is not None:
        write_wide(folder, part)
    chat = None if source is None or task.target != "continues" else source.folder.chat()
    folder.describe(spec, task, prepared, chat=chat, pretrained=source is not None)
    folder.checkpoints.create()
    hold.add(folder.checkpoints.folder)
    folder.begin(recipe)
    if baseline is not None:
        folder.write_own(folder.baseline, baseline.as_json())
    began += 0.0 if recipe.plan is None else recipe.plan.late_seconds
    return Trainer(folder, recipe, prepared, task, spec, hold=hold, watcher=watcher, log=log, began=began)


def take_part(processes: Processes) -> Run:
    """Encode parts of the text that the first process announces, then train the run that it has prepared, on rows of
    its own of the same batches, and print nothing.
    """
    message = processes.send(None)
    while "encode" in message:
        job = message["encode"]
        parts = Path(job["folder"])
        source = from_json(job["source"], CLASSES, where="the first process's text")
        layout = Layout(**{**job["layout"], "texts": tuple(job["layout"]["texts"])})
        labels = None if job["labels"] is None else tuple(job["labels"])
        filters = from_json(job["filters"], CLASSES, where="the first process's filters")
        encode_parts(
            PartJob(source, layout, labels, job["skip_bad"], parts, filters, job["near"], tuple(job["shards"])),
            load_tokenizers(parts.parent),
            processes.rank,
            processes.count,
        )
        message = processes.send(None)
    folder = RunFolder(Path(message["run"]))
    recipe = from_json(message["recipe"], CLASSES, where="the first process's recipe")
    assert isinstance(recipe, Recipe)
    task, spec = folder.task(), folder.spec()
    prepared = load_prepared(Path(message["data"]), folder, recipe, task)
    checkpoint = None
    if message["checkpoint"] is not None:
        at = Path(message["checkpoint"])
        checkpoint = folder.checkpoints_at(at.parent).read(at)
    return run_to_end(Trainer(folder, recipe, prepared, task, spec, began=message["began"]), checkpoint)


def starting_from(initial: Run | str | Path, recipe: Recipe) -> Recipe:
    """Return a recipe that starts from the weights that are saved in the folder of another run."""
    path = initial.folder.path if isinstance(initial, Run) else Path(initial)
    tuned = fine_tuning_recipe(path, recipe.corpus, task=recipe.task, machine=recipe.machine)
    still_open = tuple(name for name in recipe.open if name in ("budget", "schedule", "warmup", "evaluate", "log"))
    return replace(
        recipe,
        model=tuned.model,
        tokenizing=tuned.tokenizing,
        batching=replace(recipe.batching, context=min(recipe.batching.context, tuned.batching.context)),
        fine_tuning=tuned.fine_tuning,
        parameters=None,
        open=still_open,
    )


class Followed(NamedTuple):
    """A recipe with nothing left open, the task and text that it is for, and the linear model to compare with."""

    recipe: Recipe
    task: Task
    prepared: Prepared
    baseline: Baseline | None


def follow(recipe: Recipe, data: Path, source: Run | None, log: Callable[[str], None], *, began: float) -> Followed:
    """Prepare the text of a recipe, train the simple model of its task, and fit what the recipe leaves open."""
    recipe = choose_vocabulary(replace(recipe, machine=resolve_machine(recipe.machine)))
    check_room(recipe, current_processes())
    check_minutes(recipe)
    with phase("reading and tokenising the text", log):
        prepared, task = prepare_text(recipe, task_named(recipe.task), source, data, log)
    reading = time.perf_counter() - began
    if header := find_header(task, prepared):
        log(header)
    spec = task.fitted(recipe.model)
    if recipe.parameters is not None:
        spec = resized(spec, recipe.parameters)
    recipe = replace(recipe, model=spec)
    minutes = math.inf if recipe.budget.minutes is None else recipe.budget.minutes
    left = max(60 * minutes - reading, 30 * minutes)  # reading counts for half of the minutes at most
    with phase("training a simple model to compare with", log):
        baseline = announce_records(task, recipe, prepared, log, seconds=LINE * left)
    if baseline is not None:
        recipe = replace(recipe, model=baseline.joined(spec))
    if recipe.open or recipe.budget.minutes is not None:
        prepare_machine(recipe.machine)
        workload = Workload(task=task, prepared=prepared, used=time.perf_counter() - began, reading=reading)
        with phase("timing a few steps", log):
            recipe = fit(recipe, workload, log)
    return Followed(recipe, task, prepared, baseline)


def check_recipe(recipe: Recipe) -> None:
    """Raise for what is wrong with a recipe, as far as it shows before the text is read."""
    check_groups(current_processes().count, read_parallel(recipe.machine.parallel))
    recipe.corpus.check()
    check_mix(recipe)
    kind, context, given = task_named(recipe.task), recipe.batching.context, recipe.tokenizing.given
    # Whether a task takes a model does not depend on the tokeniser, so any will do.
    tokenizer = Tokenizer.train(["a"], "word") if given is None else Tokenizer.load(given)
    texts = kind.layout(context).texts
    kind(tokenizers=dict.fromkeys(texts, tokenizer), context=context, labels=("a", "b")).fitted(recipe.model)


def check_mix(recipe: Recipe) -> None:
    """Raise where the shares of a mixture are not as many as the sources."""
    if recipe.batching.mix is None:
        return
    shares, sources = len(read_mix(recipe.batching.mix)[0].shares), len(recipe.corpus.train.sources())
    if shares != sources:
        raise OptionError(f"mix: there are {shares} shares, and {sources} sources of training text: give as many")


def find_header(task: Task, prepared: Prepared) -> str | None:
    """Return a warning where the header of a table seems to be read as data: a label that occurs once, so named."""
    label = task.usual_layout().label
    if label is None or task.usual_layout().label_of != "record":
        return None
    counts = np.bincount(prepared.train[label].ids, minlength=len(prepared.labels))
    counts = counts + np.bincount(prepared.dev[label].ids, minlength=len(prepared.labels))
    for name, count in zip(prepared.labels, counts, strict=True):
        if count == 1 and name.strip().lower() in HEADERS:
            return (
                f"WARNING: the label {name!r} occurs once and is named like a column: is the first line of the table a "
                "header? Then give the columns by name, such as --columns text,label"
            )
    return None


def followed_recipe(recipe: Recipe, *, log: Callable[[str], None] = to_stderr) -> Recipe:
    """Return the recipe that `train` would follow, with nothing open. It reads the text and times steps as `train`
    does, and leaves nothing on the disk.
    """
    check_recipe(recipe)
    source = None if recipe.fine_tuning is None else load_source(recipe.fine_tuning)
    with tempfile.TemporaryDirectory() as folder:
        return follow(recipe, Path(folder), source, log, began=time.perf_counter()).recipe


def announce_records(
    task: Task, recipe: Recipe, prepared: Prepared, log: Callable[[str], None], *, seconds: float
) -> Baseline | None:
    """Print what the task says about its records and the score of a simple model, which is returned: one that can be
    fitted in so many seconds.
    """
    for line in task.describe_records(prepared):
        log(line)
    baseline = task.baseline(recipe.corpus, prepared, seconds=seconds)
    if baseline is not None:
        log(baseline.announce())
    return baseline


def prepare_text(
    recipe: Recipe, kind: type[Task], source: Run | None, data: Path, log: Callable[[str], None]
) -> tuple[Prepared, Task]:
    """Return the text of a run as ids, and its task; from a source to start from, with the tokenisers that it has."""
    context = recipe.batching.context
    if source is None:
        prepared = prepare(recipe.corpus, kind.layout(context), recipe.tokenizing, data, log, team=make_team())
        return prepared, kind.of(prepared, context)
    tuned = tuned_task(kind, source.task, context)
    corpus = recipe.corpus
    if kind.chats:
        chat = source.folder.chat()
        dev = None if corpus.dev is None else with_template(corpus.dev, chat)
        corpus = replace(corpus, train=with_template(corpus.train, chat), dev=dev)
        if chat is not None:  # a template brings its own special tokens
            tuned = replace(tuned, framing={name: replace(tuned.frame(), before=()) for name in tuned.tokenizers})
    prepared = prepare(corpus, tuned.usual_layout(), tuned.tokenizers, data, log)
    check_known(prepared, log)
    return prepared, replace(kind.of(prepared, context), framing=tuned.framing)


def make_team() -> Team:
    """Return the processes of this training as those that prepare its text: what is to be encoded is sent to them."""
    processes = current_processes()

    def announce(job: PartJob) -> None:
        layout = {**asdict(job.layout), "texts": list(job.layout.texts)}
        source = to_json(job.source, CLASSES)
        about = {"source": source, "layout": layout, "labels": job.labels, "skip_bad": job.skip_bad, "near": job.near}
        about["shards"] = list(job.shards)
        about["filters"] = [to_json(each, CLASSES) for each in job.filters]
        processes.send({"encode": {**about, "folder": str(job.folder.absolute())}})

    return Team(processes.count, announce)


def load_prepared(data: Path, folder: RunFolder, recipe: Recipe, task: Task) -> Prepared:
    home = data / folder.read_description()["data"]
    if not (home / "whole.json").exists():
        raise RunError(f"{home}: the token ids of this run are not there; put them back, or train a new run")
    prepared = open_prepared(home, tokenizers=None if recipe.fine_tuning is None else task.tokenizers)
    sizes = Encoding(task.usual_layout(), prepared.tokenizers, prepared.labels).sizes
    for store in (prepared.train, prepared.dev):
        if {**store.vocabularies} != sizes:
            raise RunError(
                f"{store.folder}: these are not the token ids of this run; put them back, or train a new run"
            )
    return prepared


def run_to_end(
    trainer: Trainer, checkpoint: Checkpoint | None, write_changes: Callable[[], None] = lambda: None
) -> Run:
    """Build, train to the end, and evaluate. `write_changes` is called when all is there, just before training."""
    trainer.build(checkpoint)
    processes, device = trainer.processes, str(trainer.train_state.device)
    with Stopping(quiet=processes.together) as stopping:
        trainer.begin(checkpoint)
        write_changes()
        trainer.train(stopping)
    if trainer.stop_signal and not trainer.is_finished():
        raise Stopped(trainer.folder.path, trainer.done, trainer.stop_signal)
    run = score(trainer, device) if processes.is_first else None
    processes.wait()
    return run or load(trainer.folder.path, device=device)
