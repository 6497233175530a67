"""Pairs of texts that a run answers differently: a translator, a language model, a classifier."""

from itertools import permutations

import pytest

from clearhead.circuits.forward import run_graph
from clearhead.errors import OptionError, ShapeError
from clearhead.training.contrast import contrast_texts, first_difference
from clearhead.training.tracing import encode_inputs, with_own_output
from tests.training.small_runs import DIGITS


def test_a_translator_is_compared_at_the_first_token_that_differs(translator):
    """The small translator is not good at it: of pairs of its words, one that it translates differently is taken."""
    written = {word: with_own_output(translator, encode_inputs(translator, word), ()).ids["decoder"] for word in DIGITS}
    one, two = next(pair for pair in permutations(DIGITS, 2) if written[pair[0]] != written[pair[1]])
    same = first_difference(written[one], written[two])
    contrast = contrast_texts(translator, [one], [two]).contrast
    assert (
        contrast.clean.tokens["decoder"].tolist() == [written[one][:same]] == contrast.other.tokens["decoder"].tolist()
    )
    assert contrast.metric.place.tolist() == [same - 1]
    assert int(contrast.metric.answer) == written[one][same : same + 1][0]
    assert (contrast.clean_value > 0).all()
    assert (contrast.other_value < 0).all()


def test_a_classifier_is_compared_by_its_label(classifier):
    found = contrast_texts(classifier, ["red plum"], ["red dog"])
    assert found.answers == [("fruit", "beast")]
    assert found.tokens == ("red", "plum") or "plum" in found.tokens
    assert found.contrast.metric.place is None


def test_a_language_model_is_compared_at_its_next_token(documents):
    texts = ["the cat eats the", "the cat"]
    found = contrast_texts(documents, texts[:1], ["cat the the eats"])
    logits = run_graph(found.contrast.graph, found.contrast.clean).logits[0]
    place = found.contrast.metric.place
    assert int(place[0]) == logits.shape[1] - 1
    assert int(found.contrast.metric.answer[0]) == int(logits[0, -1].argmax())


def test_what_cannot_be_compared_is_named(translator, classifier):
    with pytest.raises(OptionError, match="the same answer"):
        contrast_texts(classifier, ["red plum"], ["old plum"])
    with pytest.raises(OptionError, match="as many texts"):
        contrast_texts(classifier, ["red plum"], [])
    with pytest.raises(ShapeError, match="as many tokens"):
        contrast_texts(translator, ["zwei"], ["zwei vier"])


def test_rows_differ_somewhere_or_one_begins_the_other():
    assert first_difference([1, 2, 3], [1, 4, 3]) == 1
    assert first_difference([1, 2], [1, 2, 3]) == 2
