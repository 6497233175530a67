"""A run is loaded while another process trains it, saves a checkpoint and removes the one before."""

import pytest

from clearhead.training import weights
from clearhead.training.folder import RunFolder
from clearhead.training.run import load
from clearhead.training.train import train
from tests.training import small_runs
from tests.training.tiny import quiet, recipe_for


@pytest.mark.slow
def test_a_checkpoint_that_is_replaced_between_listing_and_reading(tmp_path, monkeypatch):
    """`make attack` found it: 58 of 704 loads failed during training that kept one checkpoint."""
    train(tmp_path / "run", recipe_for(small_runs.translating, tmp_path / "text"), log=quiet)
    newer, older, *others = RunFolder(tmp_path / "run").checkpoints.folders()
    for one in others:
        one.rename(tmp_path / one.name)
    newer.rename(tmp_path / "aside")
    read, told = weights.load_weights, []

    def replaced(checkpoint, *others):
        if older.exists():
            (tmp_path / "aside").rename(newer)
            older.rename(tmp_path / "removed")
        return read(checkpoint, *others)

    monkeypatch.setattr(weights, "load_weights", replaced)
    assert load(tmp_path / "run", device="cpu", log=told.append).step == 12
    assert told == []
