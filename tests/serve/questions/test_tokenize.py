"""The tokeniser view's answers: the run's own tokens, its unknowns marked, its fields told."""

import pytest

import clearhead as ch
from clearhead.serve.explorer import Explorer
from tests.serve.asking import ask


def answer(run, text, **more):
    return ask(Explorer(run), "tokenize", {"text": text, **more})


def test_tokens_are_the_tokenizers_word_by_word(documents):
    text = "the cat eats the fish"
    found = answer(documents, text)
    ids = [token["id"] for word in found["words"] for token in word]
    assert ids == documents.tokenizer.encode(text)
    assert (found["tokens"], found["characters"], found["n_bytes"]) == (len(ids), len(text), len(text.encode()))
    assert found["vocabulary"] == documents.tokenizer.vocabulary
    for word in found["words"]:
        for token in word:
            assert text[token["start"] : token["stop"]].strip() in bytes(token["bytes"]).decode()


def test_a_character_never_met_is_marked(translator):
    """Of kinds that have an unknown token; bytes are never unknown."""
    found = answer(translator, "zwei Ω")
    assert found["unknown"] == translator.tokenizer.encode("zwei Ω").count(translator.tokenizer.unknown)
    last = found["words"][-1][-1]
    if found["unknown"]:
        assert (last["unknown"], last["text"], bytes(last["bytes"])) == (True, "Ω", "Ω".encode())


def test_fields_with_a_tokeniser_of_their_own(translator):
    fields = answer(translator, "x")["fields"]
    assert fields[0] == next(iter(translator.task.tokenizers))
    for field in fields:
        found = answer(translator, "two null", field=field)
        ids = [token["id"] for word in found["words"] for token in word]
        assert ids == translator.task.tokenizers[field].encode("two null")


def test_an_empty_text_has_no_tokens(documents):
    assert answer(documents, "")["words"] == []


def test_what_cannot_be_is_told(documents):
    with pytest.raises(ch.errors.OptionError, match="must be one of"):
        answer(documents, "x", field="y")
    with pytest.raises(ch.errors.OptionError, match="at most will do"):
        answer(documents, "x" * 20_001)
