"""Words as vectors: their nearest tokens, and one word in several texts."""

import pytest
import torch
from tokenizers import Tokenizer as Library
from tokenizers import models, normalizers, pre_tokenizers

import clearhead as ch
from clearhead.errors import OptionError
from clearhead.serve.budget import AnswerBudget, TooMuchError
from clearhead.serve.explorer import Explorer
from clearhead.serve.questions.words import occurrences, tables_of
from clearhead.text.tokenizer import Tokenizer
from clearhead.tracing.trace import trace_model
from tests.model.small import built, decoder_spec
from tests.serve.asking import ask


def test_neighbours_are_those_of_the_cosine(documents):
    token = documents.tokenizer.encode("the cat")[-1]
    found = ask(Explorer(documents), "neighbours", {"table": "decoder.embedding", "token": token, "count": 4})
    table = documents.model.embedding.table.detach()
    cosine = torch.nn.functional.cosine_similarity(table, table[token], dim=-1)
    cosine[token] = -2
    [first, *_] = found["tables"]
    assert [one["id"] for one in first["near"]] == cosine.topk(4).indices.tolist()
    assert [one["cosine"] for one in first["near"]] == pytest.approx(cosine.topk(4).values.tolist(), abs=1e-6)
    assert first["near"][0]["vector"] == table[cosine.argmax()].tolist()
    assert first["length"] == pytest.approx(table[token].norm().item(), rel=1e-6)


def test_tables_are_listed_once_and_the_unembedding_where_it_is_its_own(translator, documents):
    for run in (translator, documents):
        tables = tables_of(run)
        assert len({id(table) for table in tables.values()}) == len(tables)
    from dataclasses import replace

    from clearhead.model.outputs import NextToken
    from clearhead.training.run import Run

    spec = replace(documents.model.spec, output=NextToken(tied=False))
    run = Run(documents.folder, documents.task, spec.build(), 0)
    assert list(tables_of(run)) == ["decoder.embedding", "output"]
    both = ask(Explorer(run), "neighbours", {"table": "output", "token": 5})["tables"]
    assert [one["table"] for one in both] == ["output", "decoder.embedding"]
    assert both[0]["near"] != both[1]["near"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [({"table": "x", "token": 1}, "must be one of"), ({"table": "decoder.embedding", "token": 10**6}, "must be 0 to")],
)
def test_what_cannot_be_is_told(documents, wrong, said):
    with pytest.raises(ch.errors.OptionError, match=said):
        ask(Explorer(documents), "neighbours", wrong)


def test_the_cost_is_checked_first(documents):
    with pytest.raises(TooMuchError, match="comparing this token"):
        ask(Explorer(documents, AnswerBudget(memory=1000)), "neighbours", {"table": "decoder.embedding", "token": 1})


def given_tokenizer():
    """A tokenizer from elsewhere that makes text lower-case, without accents, and knows few words."""
    known = ["<pad>", "<unk>", "<s>", "</s>", "<mask>", "the", "cafe", "cat", "by"]
    library = Library(models.WordLevel({word: place for place, word in enumerate(known)}, unk_token="<unk>"))
    library.normalizer = normalizers.BertNormalizer(lowercase=True)
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    return Tokenizer(library.to_str())


def places_of(word, text):
    tokenizer = given_tokenizer()
    trace = trace_model(built(decoder_spec()), torch.tensor([tokenizer.encode(text)]))
    found = occurrences(tokenizer, word, text, trace, "decoder", budget=AnswerBudget())
    return [one.places for one in found]


def test_a_word_is_looked_for_as_the_tokenizer_reads_it():
    assert places_of("Café", "The cat by the Café") == [[4]]


def test_a_word_that_the_tokenizer_does_not_know_is_not_said_to_be_missing_in_the_text():
    with pytest.raises(OptionError, match="tokenizer has no token for 'window'"):
        places_of("window", "the cat by the window")
    with pytest.raises(OptionError, match="'by' does not stand in 'the cat'"):
        places_of("by", "the cat")
