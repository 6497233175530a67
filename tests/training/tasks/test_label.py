"""To label: any number of labels for a text, from a table to answers."""

import math
import re
from dataclasses import replace

import pytest
import torch

from clearhead.errors import DataError
from clearhead.model.outputs import Classes
from clearhead.text.encoding import Corpus, split_labels
from clearhead.text.preparing import Tokenizing
from clearhead.text.sources import Table
from clearhead.training.evaluation import evaluate
from clearhead.training.recipe import Batching, Budget, Checkpointing, Machine
from clearhead.training.schedules import CosineDecay
from clearhead.training.tasks import default_recipe, task_named
from clearhead.training.tasks.label import Label, score_labels
from clearhead.training.tasks.learning import encoder
from clearhead.training.train import train
from tests.training.small_runs import CONTEXT, SIZE, labelled, write_lines

RARE = 40
"""One record in so many has the label "rare"."""


def rows(n, seed=0):
    """What a thing is, whether it is old, and for one in forty that it is rare; a red beast has no label at all."""
    for i, (text, kind) in enumerate(labelled(n, seed)):
        labels = [kind] if kind == "fruit" else []
        labels += ["old"] if text.startswith("old") else []
        rare = i % RARE == 0
        yield f"{text} blue" if rare else text, ",".join([*labels, "rare"] if rare else labels) or "-"


def table(folder, records):
    lines = ["text\tlabel", *("\t".join(row) for row in records)]
    return Table(paths=(write_lines(folder / "t.tsv", lines),), columns=("text", "label"), fields=("text", "label"))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("labels")
    said = []
    recipe = default_recipe("label", Corpus(train=table(folder, rows(400))), Machine(device="cpu", threads=1))
    recipe = replace(
        recipe,
        model=encoder(SIZE, Classes(2, pool="mean"), 0.0),
        tokenizing=Tokenizing(kind="word"),
        optimizer=replace(recipe.optimizer, lr=1e-2, schedule=CosineDecay(warmup=5)),
        batching=Batching(tokens=1024, context=CONTEXT),
        budget=Budget(steps=80),
        checkpointing=Checkpointing(evaluate=80, log=80, score_records=0, samples=2),
    )
    made = train(folder / "run", recipe, log=said.append)
    return made, said, folder


@pytest.mark.slow
def test_every_label_is_answered_by_itself(run):
    made, _, _ = run
    answers = made.task.answer(made.model, ["red plum", "old plum", "old cat", "red cat", "old plum blue"])
    assert [one["labels"] for one in answers] == [["fruit"], ["fruit", "old"], ["old"], [], ["fruit", "old", "rare"]]
    assert [one["output"] for one in answers] == ["fruit", "fruit, old", "old", "-", "fruit, old, rare"]
    assert all(0 <= share <= 1 for one in answers for share in one["probabilities"].values())


def test_counts_are_printed_before_training(run):
    _, said, _ = run
    counts = next(line for line in said if line.startswith("3 labels in "))
    assert "too rare to be learned well: 'rare'." in counts
    assert counts.endswith("have no label")
    dev = said[said.index(counts) + 1]
    assert re.match(r"\d+ dev records: ", dev)
    assert all(re.search(rf"'{label}' \d", dev) for label in ("fruit", "old", "rare"))


def test_scores_of_a_file(run):
    made, _, folder = run
    scores = evaluate(made, table(folder, rows(60, seed=1)))
    assert scores["exact_match"] == scores["micro_f1"] == scores["macro_f1"] == 1
    assert scores["f1"] == {"fruit": 1, "old": 1, "rare": 1}
    assert 0 < scores["loss"] < 0.3


def test_the_loss_is_binary_cross_entropy(run):
    """The two logits of each label have the loss of a sigmoid: what PyTorch gives for it."""
    made, _, _ = run
    wanted = torch.randint(0, 2, (4, 3))
    batch = {"tokens": torch.randint(5, 12, (4, 3)), "lengths": torch.full((4,), 3)}
    yes, logits = made.model(batch["tokens"], lengths=batch["lengths"]), made.task.logits(made.model, batch)
    ours = torch.nn.functional.cross_entropy(logits.flatten(0, -2), wanted.flatten())
    theirs = torch.nn.functional.binary_cross_entropy_with_logits(yes, wanted.float())
    torch.testing.assert_close(ours, theirs)


def test_without_any_label_there_is_nothing_to_learn(tmp_path):
    recipe = default_recipe("label", Corpus(train=table(tmp_path, [("a", "-"), ("b", "-")] * 20)))
    with pytest.raises(DataError, match="no record has a label"):
        train(tmp_path / "run", recipe, log=lambda _: None)


@pytest.mark.parametrize(
    ("written", "labels"), [("a", ["a"]), ("a,b", ["a", "b"]), (" a , b c ,a", ["a", "b c"]), (",", []), ("a,,", ["a"])]
)
def test_labels_stand_between_commas(written, labels):
    assert split_labels(written) == labels


def test_scores_by_hand():
    found = score_labels([["a"], ["a", "b"], []], [["a"], ["b"], ["a"]], ["a", "b", "c"])
    assert found.f1 == {"a": 0.5, "b": 1.0, "c": 0.0}, "nobody used c"
    assert math.isclose(found.micro_f1, 2 / 3)
    assert found.macro_f1 == 0.75
    assert found.exact_match == pytest.approx(1 / 3)


def test_it_has_a_name():
    assert task_named("label") is Label
