"""Labels of words: a label for each token, cut with the text; what does not fit is told with its line."""

import re

import pytest

from clearhead.errors import DataError
from clearhead.text.encoding import Corpus, Layout
from clearhead.text.preparing import Tokenizing, prepare
from clearhead.text.sources import Aligned

TAGGED = Layout(texts=("source",), label="target", label_of="word", most=4)
WORDS = Tokenizing(kind="word")
ROWS = [("the dog eats", "D N V"), ("a saw  saw a plum", "D N V D N"), ("the saw", "D N"), ("a dog eats", "D N V")]


def corpus(folder, rows=ROWS, **changed):
    for side, name in enumerate(("words", "tags")):
        (folder / name).write_text("".join(f"{row[side]}\n" for row in rows), encoding="utf-8")
    source = Aligned(source=(str(folder / "words"),), target=(str(folder / "tags"),))
    return Corpus(train=source, dev=source, **changed)


def prepared(folder, rows=ROWS, tokenizing=WORDS, **changed):
    return prepare(corpus(folder, rows, **changed), TAGGED, tokenizing, folder / "data", log=lambda line: None)


def test_every_token_has_its_label_and_both_are_cut_alike(tmp_path):
    found = prepared(tmp_path)
    assert found.labels == ("D", "N", "V")
    tokenizer = found.tokenizers["source"]
    for place, (words, tags) in enumerate(ROWS):
        assert found.train["source"][place].tolist() == tokenizer.encode(words)[:4]
        assert [found.labels[i] for i in found.train["target"][place]] == tags.split()[:4]


def test_a_line_with_more_words_than_labels_is_told(tmp_path):
    rows = [*ROWS, ("a red dog", "D N")]
    place = re.escape(f"{tmp_path / 'words'}:5")
    with pytest.raises(DataError, match=f"{place}: there are 3 words and 2 labels; each word needs one"):
        prepared(tmp_path, rows)
    assert prepared(tmp_path, rows, skip_bad=True).notes["skipped"] == {"labels do not match words": 1}


def test_a_label_that_training_has_not_is_told(tmp_path):
    made = corpus(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    dev = corpus(other, [("the red dog", "D A N")]).train
    with pytest.raises(DataError, match="the label 'A' never occurs in the training files, which have 'D', 'N', 'V'"):
        prepare(Corpus(train=made.train, dev=dev), TAGGED, WORDS, tmp_path / "data", log=lambda line: None)


def test_tokens_that_are_no_words_are_refused(tmp_path):
    with pytest.raises(DataError, match="12 tokens for its 3 labels: where words have labels, tokens are words"):
        prepared(tmp_path, tokenizing=Tokenizing(kind="byte"))
