"""To classify pairs: from a table with two texts to answers, in a model that is trained here and in an imported one."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch

import clearhead as ch
from clearhead.errors import OptionError
from clearhead.interop.export import blocks_by_format, export
from clearhead.interop.run import import_model
from clearhead.model.lora import Lora
from clearhead.model.outputs import Classes
from clearhead.text.encoding import Corpus
from clearhead.text.preparing import Tokenizing
from clearhead.text.sources import Table
from clearhead.text.store import Store
from clearhead.training.fine_tuning import fine_tuning_recipe
from clearhead.training.recipe import Batching, Budget, Checkpointing, Machine
from clearhead.training.schedules import CosineDecay
from clearhead.training.tasks import ClassifyPairs, default_recipe
from clearhead.training.tasks.learning import encoder
from clearhead.training.train import train
from tests.interop import saved_models
from tests.peers import late
from tests.rounding import assert_equal_but_rounding
from tests.training.small_runs import SIZE, write_lines

AutoModelForSequenceClassification, AutoTokenizer = late(
    "transformers", "AutoModelForSequenceClassification", "AutoTokenizer"
)

WORDS = ("cat", "mat", "dog", "sea")
FIELDS = ("first", "second", "label")
MACHINE = Machine(device="cpu", threads=1)


def rows(n, seed=0):
    """Two words, and whether they are the same: neither text alone says it."""
    draw = random.Random(seed)
    for _ in range(n):
        first, second = draw.choice(WORDS), draw.choice(WORDS)
        second = first if draw.random() < 0.3 else second
        yield first, f"the {second}", "cat" if first == second else "plum"


def table(folder, records, name="pairs.tsv"):
    lines = ["\t".join(FIELDS), *("\t".join(row) for row in records)]
    return Table(paths=(write_lines(folder / name, lines),), columns=FIELDS, fields=FIELDS)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("pairs")


@pytest.fixture(scope="module")
def run(home):
    recipe = default_recipe("classify-pairs", Corpus(train=table(home, rows(400))), MACHINE)
    recipe = replace(
        recipe,
        model=encoder(SIZE, Classes(2, pool="mean"), 0.0),
        tokenizing=Tokenizing(kind="word"),
        optimizer=replace(recipe.optimizer, lr=1e-2, schedule=CosineDecay(warmup=5), r_drop=0.0),
        batching=Batching(tokens=1024, context=12),
        budget=Budget(steps=120),
        checkpointing=Checkpointing(evaluate=120, log=120, score_records=0, samples=2),
    )
    return train(home / "run", recipe)


@pytest.fixture(scope="module")
def imported(home):
    saved_models.save("classifier", home / "classifier")
    return import_model(home / "classifier", home / "imported", task="classify-pairs", device="cpu")


@pytest.mark.slow
def test_it_learns_what_only_the_two_together_say(run, home):
    found = run.evaluate(table(home, rows(200, seed=1), "test.tsv"))
    assert found["accuracy"] > 0.9
    pairs = [(first, second) for first, second, _ in rows(50, seed=2)]
    answers = [one.label for one in run.classify(pairs)]
    assert answers == [one["output"] for one in run.answer(["\t".join(pair) for pair in pairs])]
    assert answers != [one.label for one in run.classify([(first, "the sea") for first, _ in pairs])]
    with pytest.raises(OptionError, match="was trained to classify-pairs: give each text as a pair of two"):
        run.classify(["cat"])


@pytest.mark.slow
def test_a_run_of_pairs_loads_and_is_traced(run):
    again = ch.load(run.folder.path, device="cpu")
    assert isinstance(again.task, ClassifyPairs)
    trace = ch.trace(again, "cat\tthe sea")
    assert trace.sides["encoder"].tokens == ["<s>", "cat", "</s>", "the", "sea"]
    [one] = again.classify([("cat", "the sea")])
    assert trace.candidates[-1][0].text == one.label
    with pytest.raises(OptionError, match="expected two texts with one tab between"):
        ch.trace(again, "cat")
    with pytest.raises(OptionError, match="the text has 43 tokens, and the model was trained to read 12"):
        ch.trace(again, ("cat " * 20, "sea " * 21))


def test_rows_to_train_on_are_those_of_transformers(imported, home):
    """Ids and segments of a batch, of pairs that are too long too; filled up, a row stays what it is."""
    tokenizer, task = AutoTokenizer.from_pretrained(home / "classifier"), imported.task
    pairs = [("the cat", "a dog"), ("plums " * 60, "the cat"), ("a", "mat " * 80), ("sea " * 70, "rain " * 70)]
    source = table(home, [(*pair, label) for pair, label in zip(pairs, ("cat", "plum") * 2, strict=True)], "long.tsv")
    corpus = Corpus(train=source, dev=source)
    recipe = fine_tuning_recipe(home / "imported", corpus, machine=MACHINE)
    recipe = replace(recipe, budget=Budget(steps=1), batching=Batching(tokens=4096, context=task.context))
    made = train(home / "one step", recipe)
    store = Store(made.folder.data / str(made.folder.read_description()["data"]) / "dev")
    for rows in made.task.planner(store, 1024, 0).in_order():
        plain = made.task.read(store, rows, np.random.default_rng(0), filled=False)
        filled = made.task.read(store, rows, np.random.default_rng(0), filled=True)
        assert filled["tokens"].shape == (rows.full, rows.width)
        for place, record in enumerate(rows.which.tolist()):
            how = {"truncation": True, "max_length": task.context}
            expected = tokenizer(*pairs[record], **how)
            length = len(expected["input_ids"])
            for batch in (plain, filled):
                assert batch["lengths"][place] == length <= rows.width
                assert batch["tokens"][place, :length].tolist() == expected["input_ids"]
                assert batch["segments"][place, :length].tolist() == expected["token_type_ids"]


@torch.no_grad()
def test_scores_and_traces_are_those_of_transformers(imported, home):
    peer = AutoModelForSequenceClassification.from_pretrained(home / "classifier", attn_implementation="eager")
    tokenizer = AutoTokenizer.from_pretrained(home / "classifier")
    records = list(rows(30, seed=3))
    read = tokenizer([one[:2] for one in records], padding=True, return_tensors="pt")
    wanted = torch.tensor([imported.task.labels.index(label) for *_, label in records])
    logits = peer(**read).logits
    found = imported.evaluate(table(home, records, "scored.tsv"))
    assert found["accuracy"] == pytest.approx((logits.argmax(-1) == wanted).double().mean().item())
    assert found["loss"] == pytest.approx(torch.nn.functional.cross_entropy(logits, wanted).item(), abs=1e-5)
    pair = "the cat sat", "a window"
    weights = peer(**tokenizer(*pair, return_tensors="pt"), output_attentions=True).attentions
    trace = ch.trace(imported, pair)
    for layer, weight in enumerate(weights):
        for head, expected in enumerate(weight[0]):
            assert_equal_but_rounding(trace.encoder[layer].attention.head[head].weight, expected)
    swapped = ch.trace(imported, (pair[1], pair[0])).encoder[0].attention.head[0].weight
    assert not torch.allclose(swapped, trace.encoder[0].attention.head[0].weight)


@pytest.mark.slow
@pytest.mark.parametrize("start", ["bert", "classifier"])
def test_an_encoder_is_fine_tuned_on_pairs_and_goes_back(home, start):
    saved_models.save(start, home / f"{start} saved")
    task = "classify-pairs" if start == "classifier" else None
    import_model(home / f"{start} saved", home / start / "run", task=task, device="cpu")
    corpus = Corpus(train=table(home, rows(200), "tuned.tsv"))
    recipe = fine_tuning_recipe(home / start / "run", corpus, task="classify-pairs", lora=Lora(rank=2), machine=MACHINE)
    recipe = replace(recipe, budget=Budget(steps=4), batching=replace(recipe.batching, context=32))
    run = train(home / start / "tuned", recipe)
    assert run.task.frame().segment == 1
    assert blocks_by_format(run.folder.spec(), run.task.name)["onnx"] == [
        "input for the segments, which tell the two texts of a pair apart"
    ]
    folder = home / start / "hf"
    export(run, to="hf", path=folder)
    peer, tokenizer = (kind.from_pretrained(folder) for kind in (AutoModelForSequenceClassification, AutoTokenizer))
    for first, second, _ in rows(10, seed=5):
        shares = peer(**tokenizer(first, second, return_tensors="pt")).logits[0].softmax(-1).detach()
        [one] = run.classify([(first, second)])
        assert list(one.probabilities.values()) == pytest.approx(shares.tolist(), abs=1e-5)
        assert list(one.probabilities) == [peer.config.id2label[i] for i in range(2)]


@pytest.mark.parametrize("task", ["classify-pairs", "label"])
def test_only_single_classes_have_a_wide_part(task, tmp_path):
    corpus = Corpus(train=table(tmp_path, rows(40)))
    assert default_recipe("classify", corpus, MACHINE).model.output.ngrams is not None
    assert default_recipe(task, corpus, MACHINE).model.output.ngrams is None
