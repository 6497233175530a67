"""A mixture in training: batches from anywhere are those of a training that never stopped; epochs are told."""

import itertools
from dataclasses import replace

import pytest
import torch

from clearhead.errors import ClearheadError, OptionError
from clearhead.text.preparing import prepare
from clearhead.training.folder import RunFolder
from clearhead.training.recipe import Batching, Budget
from clearhead.training.reporting import read_metrics
from clearhead.training.resume import resume
from clearhead.training.tasks import task_named
from clearhead.training.train import train
from clearhead.training.train_step import BatchStream
from tests.training import small_runs
from tests.training.tiny import quiet, recipe_for

SCHEDULE = "0.7,0.3;0.5:0.2,0.8"


def mixed_recipe(kind, folder, **changed):
    recipe = recipe_for(kind, folder / "one", dropout=0.0, **changed)
    other = recipe_for(kind, folder / "two", dropout=0.0).corpus.train
    source = recipe.corpus.train
    names = ("source", "target") if kind is small_runs.translating else ("paths",)
    both = replace(source, **{name: (*getattr(source, name), *getattr(other, name)) for name in names})
    return replace(recipe, corpus=replace(recipe.corpus, train=both))


def stream_of(recipe, folder):
    kind, context = task_named(recipe.task), recipe.batching.context
    prepared = prepare(recipe.corpus, kind.layout(context), recipe.tokenizing, folder / "data", quiet)
    return BatchStream(recipe, kind.of(prepared, context), prepared.train, filled=False)


@pytest.mark.parametrize("kind", [small_runs.documents, small_runs.translating])
@pytest.mark.parametrize("passes", [1, 2])
def test_batches_from_anywhere_are_those_of_a_training_that_never_stopped(kind, passes, tmp_path):
    batching = Batching(tokens=256, micro_batch_tokens=256 // passes, context=small_runs.CONTEXT, mix=SCHEDULE)
    recipe = mixed_recipe(kind, tmp_path, batching=batching, budget=Budget(steps=40))
    alone = list(itertools.islice(stream_of(recipe, tmp_path).batches(0), 60))
    for skip in (1, 19, 20 * passes, 45):
        for batch, expected in zip(stream_of(recipe, tmp_path).batches(skip), alone[skip:], strict=False):
            assert batch.keys() == expected.keys()
            assert all(torch.equal(batch[name], expected[name]) for name in batch)


def test_an_epoch_of_a_mixture_in_epochs_is_all_sources_together(tmp_path):
    batching = Batching(tokens=256, context=small_runs.CONTEXT, mix="1,1")
    recipe = mixed_recipe(small_runs.documents, tmp_path, batching=batching, budget=Budget(epochs=2))
    planner = stream_of(recipe, tmp_path).planner
    read = planner.epochs(2 * planner.count(0))
    assert sum(read[name] * count for name, count in zip(read, planner.counts, strict=True)) == pytest.approx(
        2 * sum(planner.counts), rel=0.1
    )


def options(folder, **more):
    files = []
    for seed, name in enumerate(("one", "two")):
        lines = [f"{i} {line}" for i, line in enumerate(small_runs.sentences(200, seed))]
        files.append(small_runs.write_lines(folder / f"{name}.txt", lines))
    usual = {"documents": "line", "context": 16, "batch_tokens": 256, "size": "20k", "log_every": 1, "seed": 1}
    return {"task": "generate", "text": files, "mix": SCHEDULE, "steps": 8, **usual, **more}


def test_epochs_of_each_source_are_told_and_a_resume_changes_nothing(tmp_path):
    logged = []
    given = options(tmp_path, filter=["length(least=3)"], deduplicate="exact")
    train(tmp_path / "run", log=logged.append, watcher=quiet, save_every=3, **given)
    [told] = [line for line in logged if line.startswith("epochs of each source: ")]
    lines = [line for line in read_metrics(RunFolder(tmp_path / "run").metrics) if line["kind"] == "step"]
    assert told.count(".txt ") == 2
    one, two = zip(*(line["epochs"].values() for line in lines), strict=True)
    assert one[3] > two[3] > 0
    assert two[7] - two[3] > one[7] - one[3]
    with pytest.raises(OptionError, match="the shares of the mixture change at parts of the steps"):
        resume(tmp_path / "run", budget=Budget(steps=20), log=quiet, watcher=quiet)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"mix": "1,2,3"}, "mix: there are 3 shares, and 2 sources of training text"),
        ({"mix": "a,b"}, "mix: expected shares such as"),
        ({"filter": ["lenght"]}, "filter: there is no 'lenght'"),
        ({"filter": ["length(least=-1)"]}, "filter: LengthFilter: expected 0 <= least"),
        ({"deduplicate": "fuzzy"}, "deduplicate: there is no 'fuzzy'"),
        ({"context": 4000}, "mix: .*one.txt: a stretch of [0-9]* tokens and the next one do not fit"),
        ({"documents": "file"}, ".*: has a share of the mixture, and no record is left in it"),
    ],
)
def test_what_cannot_be_is_told_before_training(more, message, tmp_path):
    with pytest.raises(ClearheadError, match=message):
        train(tmp_path / "run", log=quiet, watcher=quiet, **{**options(tmp_path), **more})
