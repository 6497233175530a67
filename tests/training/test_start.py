"""Starting from word vectors: the words that are found enter the model as the file has them, the others at random."""

from dataclasses import replace

import pytest
import torch

from clearhead.errors import OptionError
from clearhead.model import presets
from clearhead.model.outputs import Classes
from clearhead.model.presets import Size
from clearhead.text.tokenizer import Tokenizer
from clearhead.training.default_models import decoder, encoder
from clearhead.training.start import start_from_vectors
from clearhead.training.tasks import Classify, Generate, Translate

SIZE = Size(1, 4, 2, 2, 8)
FILE = "cat 1 2 3 4\nthe -1 0 1 2\nHaus 5 5 5 5\n"


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "vectors.txt"
    path.write_text(FILE)
    return str(path)


def words(*texts):
    return Tokenizer.train(texts, kind="word")


def entering(embedding, tokenizer, word):
    """What comes out of an embedding without position for a word."""
    [place] = tokenizer.encode(word)
    return embedding.table[place] * embedding.factor


@pytest.mark.parametrize("make", [lambda: decoder(SIZE, 8, 0.0), lambda: encoder(SIZE, Classes(2), 0.0)])
def test_found_words_are_as_in_the_file_and_the_others_as_they_were(file, make):
    tokenizer, told = words("The cat eats a fish"), []
    model = replace(make(), vocabulary=tokenizer.vocabulary).build()
    before = model.embedding.table.detach().clone()
    kind = Generate if hasattr(model.spec.output, "tied") and not isinstance(model.spec.output, Classes) else Classify
    task = kind(tokenizers={"text": tokenizer}, context=8, labels=("a", "b"))
    start_from_vectors(model, task, file, told.append)
    torch.testing.assert_close(entering(model.embedding, tokenizer, "cat"), torch.tensor([1.0, 2.0, 3.0, 4.0]))
    torch.testing.assert_close(entering(model.embedding, tokenizer, "The"), torch.tensor([-1.0, 0.0, 1.0, 2.0]))
    [fish] = tokenizer.encode("fish")
    assert torch.equal(model.embedding.table[fish], before[fish])
    assert told == [f"vectors: 2 of {tokenizer.vocabulary} words of the text are in {file}, which has 3"]


def test_both_sides_of_a_translator_have_their_own_words(file):
    source, target = words("das Haus"), words("the house cat")
    task = Translate(tokenizers={"source": source, "target": target}, context=8)
    model = task.fitted(presets.classic(9, size=SIZE)).build()
    told = []
    start_from_vectors(model, task, file, told.append)
    torch.testing.assert_close(entering(model.encoder.embedding, source, "Haus"), torch.full((4,), 5.0))
    torch.testing.assert_close(entering(model.decoder.embedding, target, "cat"), torch.tensor([1.0, 2.0, 3.0, 4.0]))
    assert len(told) == 2


def test_tokens_that_are_no_words_and_another_width_are_told(file):
    tokenizer = Tokenizer.train(["the cat"], kind="char")
    task = Generate(tokenizers={"text": tokenizer}, context=8)
    model = replace(decoder(SIZE, 8, 0.0), vocabulary=tokenizer.vocabulary).build()
    with pytest.raises(OptionError, match="tokens of the text are of kind 'char'; choose the tokeniser word"):
        start_from_vectors(model, task, file, print)
    tokenizer = words("the cat")
    wide = replace(decoder(Size(1, 8, 2, 2, 8), 8, 0.0), vocabulary=tokenizer.vocabulary).build()
    with pytest.raises(OptionError, match="they have 4 numbers each, and the model is 8 wide"):
        start_from_vectors(wide, Generate(tokenizers={"text": tokenizer}, context=8), file, print)
