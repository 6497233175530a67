"""The places of a word in a text, whatever the tokenizer makes of it."""

import pytest
import torch
from tokenizers import Tokenizer as Library
from tokenizers import models, normalizers, pre_tokenizers

from clearhead.errors import OptionError
from clearhead.serve.budget import AnswerBudget
from clearhead.serve.questions.context import occurrences
from clearhead.text.tokenizer import Tokenizer
from clearhead.tracing.trace import trace_model
from tests.model.small import built, decoder_spec


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
