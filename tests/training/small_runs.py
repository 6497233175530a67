"""Small runs of every task, each trained once in a session of tests: a second or two, and good for something."""

import random
import shutil
from dataclasses import replace

import torch

from clearhead.model import presets
from clearhead.model.outputs import Blanks, Classes
from clearhead.model.presets import Size
from clearhead.text.encoding import Corpus
from clearhead.text.preparing import Tokenizing
from clearhead.text.sources import Aligned, Documents, Table
from clearhead.training.recipe import Batching, Budget, Checkpointing, Machine
from clearhead.training.run import load
from clearhead.training.schedules import CosineDecay
from clearhead.training.tasks import default_recipe
from clearhead.training.tasks.learning import decoder, encoder
from clearhead.training.train import train
from tests.once import made_once

CONTEXT = 32
DIGITS = ("null", "eins", "zwei", "drei", "vier")
FRUIT, BEASTS = ("apple", "pear", "plum"), ("cat", "dog", "cow")
SIZE = Size(1, 32, 2, 2, 64)
MADE = {}


def pairs(n, seed=0):
    """Digits as words, and as digits: ("zwei null", "20")."""
    draw = random.Random(seed)
    numbers = [[draw.randrange(len(DIGITS)) for _ in range(draw.randint(1, 5))] for _ in range(n)]
    return [(" ".join(DIGITS[i] for i in row), "".join(map(str, row))) for row in numbers]


def labelled(n, seed=0):
    """A thing and what it is: ("red plum", "fruit")."""
    draw = random.Random(seed)
    things = [(draw.choice(FRUIT + BEASTS), draw.choice(("red", "old"))) for _ in range(n)]
    return [(f"{colour} {thing}", "fruit" if thing in FRUIT else "beast") for thing, colour in things]


def sentences(n, seed=0):
    draw = random.Random(seed)
    return [f"the {draw.choice(BEASTS)} eats the {draw.choice(FRUIT)}, größer" for _ in range(n)]


def write_lines(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


def translating(folder):
    rows = pairs(400)
    files = [write_lines(folder / name, [row[i] for row in rows]) for i, name in enumerate(("de", "en"))]
    source = Aligned(source=(files[0],), target=(files[1],))
    return "translate", source, Tokenizing(kind="char"), presets.classic(64, size=SIZE, dropout=0.0)


def documents(folder):
    source = Documents(paths=(write_lines(folder / "lines", sentences(200)),), unit="line")
    return "generate", source, Tokenizing(kind="metaspace", size=320), decoder(SIZE, CONTEXT, 0.0)


def stretch(folder):
    source = Documents(paths=(write_lines(folder / "text", sentences(100)),), unit="file")
    return "generate", source, Tokenizing(kind="byte"), decoder(SIZE, CONTEXT, 0.0)


def filling(folder):
    source = Documents(paths=(write_lines(folder / "lines", sentences(200)),), unit="line")
    return "fill", source, Tokenizing(kind="bpe", size=300), encoder(SIZE, Blanks(), 0.0)


def classifying(folder):
    rows = ["\t".join(row) for row in [("text", "label"), *labelled(300)]]
    source = Table(
        paths=(write_lines(folder / "table.tsv", rows),), columns=("text", "label"), fields=("text", "label")
    )
    return "classify", source, Tokenizing(kind="word"), encoder(SIZE, Classes(2, pool="mean"), 0.0)


def trained(kind, factory, steps=60):
    """Return the run of a kind (one of the functions above), loaded afresh. `factory`: tmp_path_factory.

    It is trained once for all workers, and each has a copy, since tests write into it and lock it.
    """
    name = f"{kind.__name__}-{steps}"
    if name not in MADE:
        whole = made_once(factory, name, lambda folder: made_in(folder, kind, steps))
        MADE[name] = shutil.copytree(whole / "run", factory.mktemp(kind.__name__) / "run", symlinks=True)
    return load(MADE[name], device="cpu")


def made_in(folder, kind, steps=60):
    """Train the run of a kind in a folder, and return where it is."""
    task, source, tokenizing, spec = kind(folder)
    recipe = default_recipe(task, Corpus(train=source), Machine(device="cpu", threads=1))
    recipe = replace(
        recipe,
        model=spec,
        tokenizing=tokenizing,
        optimizer=replace(recipe.optimizer, lr=1e-2, schedule=CosineDecay(warmup=5)),
        batching=Batching(tokens=1024, context=CONTEXT),
        budget=Budget(steps=steps),
        checkpointing=Checkpointing(evaluate=steps, log=steps, score_records=0, samples=1),
    )
    threads = torch.get_num_threads()
    try:
        train(folder / "run", recipe, log=lambda _: None)
    finally:
        torch.set_num_threads(threads)
    return folder / "run"
