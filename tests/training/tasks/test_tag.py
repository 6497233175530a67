"""Tagging: a tag for each word, whatever the tokeniser makes of the words; from CoNLL to answers."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import clearhead as ch
from clearhead.model.presets import Size
from clearhead.text.encoding import Corpus, words_of_tokens
from clearhead.text.preparing import open_prepared
from clearhead.text.sources import Table
from clearhead.text.tokenizer import Tokenizer
from clearhead.training import Budget, default_recipe, train
from clearhead.training.losses import NOTHING
from clearhead.training.schedules import Unaveraged
from clearhead.training.tasks import Tag
from clearhead.training.tasks.learning import encoder

SENTENCES = [("Anna sees the longest plum", "N V D A N"), ("the plum sees Bernadette", "D N V N")]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tag")
    lines = [f"{word} {tag}" for text, tags in SENTENCES for word, tag in zip(text.split(), tags.split(), strict=True)]
    lines.insert(5, "")
    (folder / "train.conll").write_text("\n".join([*lines, ""] * 20) + "\n")
    table = Table(paths=(str(folder / "train.conll"),), columns=("text", "label"), fields=("text", "label"))
    recipe = default_recipe("tag", Corpus(train=table))
    model = encoder(Size(1, 32, 2, 2, 64), recipe.model.output, 0.0)
    recipe = replace(
        recipe,
        model=model,
        budget=Budget(steps=60),
        optimizer=replace(recipe.optimizer, lr=0.01, averaging=Unaveraged(), r_drop=0.0),
        tokenizing=replace(recipe.tokenizing, size=290),
    )
    return train(folder / "run", recipe, log=lambda _: None)


@pytest.mark.parametrize("kind", ["metaspace", "bpe", "char", "byte", "word"])
def test_each_token_belongs_to_the_word_it_is_of(kind):
    text = " a  longer\tähnlich x"
    tokenizer = Tokenizer.train([text] * 3, kind=kind)
    words = words_of_tokens(tokenizer, text)
    assert words == sorted(words)
    for number, word in enumerate(text.split()):
        ids = [token for token, of in zip(tokenizer.encode(text), words, strict=True) if of == number]
        assert tokenizer.decode(ids).strip() == word


@pytest.mark.slow
def test_a_word_is_asked_at_its_first_token_and_nowhere_else(run):
    task, store = run.task, open_prepared(next(run.folder.data.iterdir())).train
    rows = next(iter(task.planner(store, 512, 0).in_order()))
    batch = task.read(store, rows, np.random.default_rng(0), filled=False)
    for row, length, wanted in zip(batch["tokens"], batch["lengths"], batch["wanted"], strict=True):
        text = task.tokenizer.decode(row[1:length].tolist())
        tags = dict(SENTENCES)[text].split()
        assert [task.labels[i] for i in wanted if i != NOTHING] == tags
        words = words_of_tokens(task.tokenizer, text)
        starts = [1 + words.index(number) for number in range(len(tags))]
        assert torch.nonzero(wanted != NOTHING).flatten().tolist() == starts


@pytest.mark.slow
def test_it_answers_is_scored_and_traced(run):
    for text, tags in SENTENCES:
        (answer,) = run.answer([text])
        assert answer["output"] == tags
        assert [one["word"] for one in answer["words"]] == text.split()
        trace = ch.trace(run, text)
        assert run.task.traced_answer(text, trace) == tags
    assert Tag.fields() == ("text", "label")
    cut = run.answer([" ".join(["plum"] * 400)])[0]["output"].split()
    assert 0 < len(cut) < 400
