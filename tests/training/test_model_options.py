"""Options that choose a model: by name, by size, and with learned positions as long as its rows."""

from dataclasses import replace

import pytest
import torch

from clearhead.attention import positions
from clearhead.model.outputs import Blanks, Classes
from clearhead.options import read_words
from clearhead.text.tokenizer import Tokenizer
from clearhead.training.recipe_options import WORDS, as_recipe


@pytest.fixture
def recipe(tmp_path):
    """The recipe for a task on a small text, with these groups of options."""
    (tmp_path / "a.txt").write_text("one two three\n" * 100)
    (tmp_path / "t.tsv").write_text("text\tlabel\n" + "one\tx\ntwo\ty\n" * 50)

    def made(task, **groups):
        text = {"table": tmp_path / "t.tsv"} if task == "classify" else {"text": tmp_path / "a.txt"}
        given = {word: value for options in groups.values() for word, value in options.items()}
        return as_recipe(read_words({"task": task, **text, **given}, WORDS))

    return made


@pytest.mark.parametrize(("task", "output"), [("fill", Blanks), ("classify", Classes)])
def test_an_encoder_by_name_or_size_keeps_the_output_of_the_task(recipe, task, output):
    for options in ({"preset": "bert"}, {"size": "1M"}):
        assert isinstance(recipe(task, model=options).model.output, output)


@pytest.mark.parametrize("kind", [None, "given"])
def test_a_size_is_met_with_the_vocabulary_that_is_to_be(recipe, kind, tmp_path):
    tokenizer = Tokenizer.train(["one two three"], "byte")
    tokenizer.save(tmp_path / "tokenizer.json")
    path = None if kind is None else str(tmp_path / "tokenizer.json")
    vocabulary = 2000 if kind is None else None
    options = {"tokenizer": path, "vocabulary": vocabulary}
    spec = recipe("generate", tokenizer=options, model={"size": "1M"}).model
    with torch.device("meta"):
        model = replace(spec, vocabulary=vocabulary or tokenizer.vocabulary).build()
    assert sum(one.numel() for one in model.parameters()) == pytest.approx(1e6, rel=0.1)


def test_learned_positions_are_as_many_as_a_row_is_long(recipe):
    for options in ({}, {"preset": "gpt2"}, {"position": "learned"}):
        spec = recipe("generate", model=options, batches={"context": 48}).model
        assert spec.embedding.position == positions.Learned(48)
