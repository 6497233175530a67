"""Surprise for the page: the trace's own numbers."""

import pytest

import clearhead as ch
from clearhead.errors import OptionError
from clearhead.serve.explorer import Explorer
from tests.serve.asking import ask
from tests.training.small_runs import classifying, documents, filling, trained, translating


@pytest.mark.parametrize("kind", [translating, documents, filling])
def test_the_page_has_the_surprise_of_the_trace(kind, tmp_path_factory):
    run = trained(kind, tmp_path_factory)
    explorer, text = Explorer(run), "zwei drei" if kind is translating else "the cat"
    trace = ask(explorer, "trace", {"source": text})["id"]
    answer, expected = ask(explorer, "surprise", {}, trace), ch.trace(run, text)
    assert answer["side"] == expected.answer_side
    assert answer["surprise"] == pytest.approx(expected.surprise.tolist(), abs=1e-6, nan_ok=True)


def test_a_classifier_is_surprised_by_nothing(tmp_path_factory):
    explorer = Explorer(trained(classifying, tmp_path_factory))
    trace = ask(explorer, "trace", {"source": "red plum"})["id"]
    with pytest.raises(OptionError, match="does not predict tokens"):
        ask(explorer, "surprise", {}, trace)
