"""The batches that a run is trained on: of all epochs, one after another, and in parts where memory is short; and the
seed of each step.
"""

from collections.abc import Iterator
from typing import final

import numpy as np

from clearhead.text.store import Store
from clearhead.training.keyed_dropout import ROW_KEYS, draw_row_keys
from clearhead.training.losses import NOTHING
from clearhead.training.recipe import Recipe
from clearhead.training.tasks.base import Task
from clearhead.training.tasks.learning import Batch


@final
class BatchStream:
    """The batches of all epochs, one after another, starting anywhere."""

    def __init__(self, recipe: Recipe, task: Task, store: Store, *, filled: bool) -> None:
        self.store, self.task, self.seed, self.filled = store, task, recipe.seed, filled
        self.keyed = bool(recipe.machine.keyed_dropout)
        self.planner = task.planner(store, recipe.batching.at_once, self.seed)
        self.taken = 0

    def count(self) -> int:
        """Return the number of batches in the first epoch."""
        return sum(1 for _ in self.planner.epoch(0))

    def batches(self, skip: int) -> Iterator[Batch]:
        self.taken, epoch = 0, 0
        while True:
            for rows in self.planner.epoch(epoch):
                self.taken += 1
                if self.taken > skip:
                    random = np.random.default_rng([self.seed, self.taken])
                    batch = self.task.read(self.store, rows, random, filled=self.filled)
                    yield {**batch, ROW_KEYS: draw_row_keys(random, len(batch["wanted"]))} if self.keyed else batch
            epoch += 1


def split_rows(batch: Batch, parts: int) -> list[Batch]:
    """Return a batch as `parts` smaller ones, of about equally many rows; those without a target are left out.

    >>> import torch
    >>> [one["wanted"].tolist() for one in split_rows({"wanted": torch.tensor([[1], [2], [NOTHING]])}, 2)]
    [[[1], [2]]]
    """
    if parts == 1:
        return [batch]
    split = {name: tensor.tensor_split(parts) for name, tensor in batch.items()}
    micro_batches = [{name: parts_of_tensor[i] for name, parts_of_tensor in split.items()} for i in range(parts)]
    return [smaller for smaller in micro_batches if (smaller["wanted"] != NOTHING).any()]


def step_seed(seed: int, step: int, rank: int = 0) -> int:
    """Return the seed of a step of a run in a process; neighbouring steps have unrelated ones."""
    return int(
        np.random.SeedSequence([seed, step, rank] if rank else [seed, step]).generate_state(1, np.uint64)[0]
        >> np.uint64(1)
    )
