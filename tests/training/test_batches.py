"""Batches of all epochs: begun anywhere they are the same, and parts of one have all of its targets."""

import itertools

import pytest
import torch

from clearhead.training.losses import NOTHING
from clearhead.training.train_step import BatchStream, split_rows
from tests.training import small_runs
from tests.training.tiny import recipe_for, work_on


@pytest.fixture
def stream(tmp_path):
    trainer = work_on(recipe_for(small_runs.filling, tmp_path), tmp_path)  # what is masked is drawn at random
    return lambda: BatchStream(trainer.recipe, trainer.task, trainer.prepared.train, filled=False)


@pytest.mark.parametrize("skip", [1, 7])
def test_batches_that_are_begun_anywhere_are_those_of_a_whole_run(stream, skip):
    count = stream().count() + 3  # into the second epoch
    whole = [*itertools.islice(stream().batches(0), count)]
    rest = [*itertools.islice(stream().batches(skip), count - skip)]
    for batch, again in zip(whole[skip:], rest, strict=True):
        assert batch.keys() == again.keys()
        assert all(torch.equal(batch[name], again[name]) for name in batch)


@pytest.mark.parametrize("parts", [1, 2, 3, 9])
def test_parts_of_a_batch_have_each_of_its_targets_once(stream, parts):
    batch = next(stream().batches(0))
    wanted = torch.cat([part["wanted"].flatten() for part in split_rows(batch, parts)])
    assert sorted(wanted[wanted != NOTHING].tolist()) == sorted(batch["wanted"][batch["wanted"] != NOTHING].tolist())
