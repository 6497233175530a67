"""Recipes of runs of a dozen steps, for tests that train them again and again; and how two runs differ."""

from dataclasses import replace

from clearhead.model.variants import with_dropout
from clearhead.text.encoding import Corpus
from clearhead.text.preparing import prepare
from clearhead.training.folder import RunFolder
from clearhead.training.loop import Trainer
from clearhead.training.recipe import Batching, Budget, Checkpointing, Machine
from clearhead.training.reporting import read_metrics
from clearhead.training.tasks import default_recipe, task_named
from tests.training import small_runs

TIMES = ("seconds", "tokens_per_second", "memory_mb")
"""Keys of metrics whose numbers differ between two runs that are otherwise equal."""
STEPS = 12
KEEPING = Checkpointing(log=3, evaluate=6, save=4, score_records=2, samples=1)


def without_times(lines):
    return [{key: value for key, value in line.items() if key not in TIMES} for line in lines]


def quiet(text):
    """Is told, and says nothing."""


def recipe_for(kind, folder, *, dropout=0.1, **changed):
    """A recipe of a kind (a function of small_runs, which writes its text into the folder), with fields changed."""
    folder.mkdir(parents=True, exist_ok=True)
    task, source, tokenizing, spec = kind(folder)
    recipe = default_recipe(task, Corpus(train=source), Machine(device="cpu", threads=1))
    return replace(
        recipe,
        **{
            "model": with_dropout(spec, dropout),
            "tokenizing": tokenizing,
            "batching": Batching(tokens=512, context=small_runs.CONTEXT),
            "budget": Budget(steps=STEPS),
            "checkpointing": KEEPING,
            **changed,
        },
    )


def work_on(recipe, home):
    """A trainer that is not built, with token ids in this folder."""
    context, kind = recipe.batching.context, task_named(recipe.task)
    prepared = prepare(recipe.corpus, kind.layout(context), recipe.tokenizing, home, quiet)
    task = kind.of(prepared, context)
    spec = task.fitted(recipe.model)
    return Trainer(RunFolder(home / "run"), recipe, prepared, task, spec)


def last_bytes(folder):
    """The files of the last checkpoint that hold tensors."""
    newest = folder.checkpoints.all()[0].folder
    return {name: (newest / name).read_bytes() for name in ("model.safetensors", "training.safetensors")}


def differences(folder, other):
    """In what two runs differ: bytes of the last checkpoint, and lines of the log but for their times."""
    ours, theirs = last_bytes(folder), last_bytes(other)
    found = [f"{folder.path}: {name} has other bytes" for name in ours if ours[name] != theirs[name]]
    lines, others = (without_times(read_metrics(one.metrics)) for one in (folder, other))
    return found if lines == others else [*found, f"{folder.path}: its metrics are others"]


def assert_same_run(folder, other):
    """Bit for bit, but for the times in the log."""
    assert differences(folder, other) == []
