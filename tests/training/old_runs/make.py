"""Make the run folders beside this file, with the code of an earlier commit.

    git worktree add /tmp/old COMMIT --detach
    mkdir -p OUT && cd OUT && PYTHONPATH=/tmp/old OMP_NUM_THREADS=1 python THIS_FILE

It runs in an empty folder with relative paths, so that nothing of a machine is in the files. For each task it leaves
the run after 20 steps (of `translate` with two checkpoints, else one), `expected.json` (what that code answered) and
`resumed.safetensors` (the weights it had after ten more steps).
"""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file

from clearhead.attention.heads import SlicedHeads
from clearhead.decoding import Greedy
from clearhead.model import presets
from clearhead.model.outputs import Blanks, Classes
from clearhead.model.presets import Size
from clearhead.text.encoding import Corpus
from clearhead.text.preparing import Tokenizing
from clearhead.text.sources import Aligned, Documents, Table
from clearhead.training.default_models import decoder, encoder
from clearhead.training.defaults import default_recipe
from clearhead.training.recipe import Batching, Budget, Checkpointing, Machine
from clearhead.training.run import load
from clearhead.training.schedules import CosineDecay
from clearhead.training.train import resume, train

SIZE = Size(1, 8, 2, 2, 8)
TEXTS = [f"{colour} {thing}" for colour in ("red", "old", "new") for thing in ("cat", "dog", "cow", "plum", "pear")]
TEXTS += [f"the {text}" for text in TEXTS]
ASKED = {"translate": "the red cat", "generate": "the red", "fill": "the <mask> cat", "classify": "old plum"}


def source_of(task):
    Path("text").mkdir(exist_ok=True)
    columns = {"text": TEXTS, "reversed": [text[::-1] for text in TEXTS]}
    columns["table.tsv"] = ["text\tlabel", *(f"{text}\t{'fruit' if 'p' in text else 'beast'}" for text in TEXTS)]
    for name, lines in columns.items():
        Path("text", name).write_text("".join(f"{line}\n" for line in lines))
    if task == "translate":
        return Aligned(source=("text/text",), target=("text/reversed",))
    if task == "classify":
        return Table(paths=("text/table.tsv",), columns=("text", "label"), fields=("text", "label"))
    return Documents(paths=("text/text",), unit="line")


def spec_of(task, *, sliced):
    made = {
        "translate": lambda: presets.classic(64, size=SIZE, dropout=0.1),
        "generate": lambda: decoder(SIZE, 24, 0.1),
        "fill": lambda: encoder(SIZE, Blanks(), 0.0),
        "classify": lambda: encoder(SIZE, Classes(2, pool="mean"), 0.0),
    }[task]()
    if sliced:
        [block] = made.blocks
        made = replace(made, blocks=(replace(block, attention=replace(block.attention, heads=SlicedHeads(2))),))
    return made


def recipe_of(task, *, sliced):
    recipe = default_recipe(task, Corpus(train=source_of(task)), Machine(device="cpu", threads=1))
    return replace(
        recipe,
        model=spec_of(task, sliced=sliced),
        tokenizing=Tokenizing(kind="char" if task in ("translate", "generate") else "word"),
        optimizer=replace(recipe.optimizer, lr=1e-2, schedule=CosineDecay(warmup=5)),
        batching=Batching(tokens=128, context=24),
        budget=Budget(steps=20),
        checkpointing=Checkpointing(
            evaluate=10 if task == "translate" else 20,
            save=10,
            log=10,
            checkpoints=2 if task == "translate" else 1,
            select="last",
            score_records=4,
            samples=1,
        ),
    )


def answers(run):
    """What a run gives: text, and the logits of one input."""
    asked = ASKED[run.task.name]
    if run.task.name == "translate":
        said = run.translate([asked, TEXTS[3]], beam=2)
    elif run.task.name == "generate":
        said = run.generate([asked, ""], max_new=12, method=Greedy())
    elif run.task.name == "fill":
        said = [one.text for one in run.fill([asked])]
    else:
        said = [one.label for one in run.classify([asked, TEXTS[0]])]
    ids = torch.tensor([run.tokenizer.encode(TEXTS[7])])
    with torch.inference_mode():
        logits = run.model(ids, ids) if run.task.name == "translate" else run.model(ids)
    return {"said": said, "logits": logits.tolist()}


def make(task, *, sliced=False):
    train(task, recipe_of(task, sliced=sliced), log=lambda _: None)
    told = answers(load(task, device="cpu"))
    shutil.copytree(task, "resumed")
    run = resume("resumed", budget=Budget(steps=30), log=lambda _: None)
    told["resumed"] = answers(run)
    weights = {name: one.clone() for name, one in run.model.state_dict().items()}
    save_file(weights, f"{task}/resumed.safetensors")
    Path(task, "expected.json").write_text(json.dumps(told, indent=1) + "\n")
    for name in (".lock", "curves.svg"):
        Path(task, name).unlink(missing_ok=True)
    shutil.rmtree("resumed")


if __name__ == "__main__":
    for asked in sys.argv[1:] or ASKED:
        make(asked.removesuffix("-sliced"), sliced=asked.endswith("-sliced"))
    shutil.rmtree("text")
