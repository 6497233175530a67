"""The demo's run made small: fewer numbers and steps, and several checkpoints; trained once for all workers."""

from dataclasses import replace

import torch

from clearhead.cli.demo import ASKED, LEARNED, MAPPED, demo_recipe, write_corpus
from clearhead.cli.demo_page import draw, inspect_run, write_opening
from clearhead.training.recipe import Batching, Budget, Checkpointing, Machine
from clearhead.training.train import train
from tests.once import made_once


def demo_once(factory):
    """Return the folder of the run. `factory`: tmp_path_factory."""
    return made_once(factory, "demo", lambda home: train_small(home / "run", home / "files")) / "run"


def train_small(folder, files):
    recipe = replace(
        demo_recipe(write_corpus(draw(1, train=3_000, held_out=60), files), 1),
        batching=Batching(tokens=1024, context=64),
        budget=Budget(steps=90),
        checkpointing=Checkpointing(log=5, evaluate=30, checkpoints=3, select="last", score_records=5),
        machine=Machine(device="cpu", threads=1),
    )
    threads = torch.get_num_threads()
    try:
        run = train(folder, recipe, log=lambda _: None)
        write_opening(inspect_run(run, {}, learned=LEARNED, asked=ASKED, mapped=MAPPED))
    finally:
        torch.set_num_threads(threads)
