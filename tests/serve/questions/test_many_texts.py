"""Means over many texts for the page: repeats, effects, and what is refused."""

import pytest

from clearhead.errors import OptionError
from clearhead.experiments import mean_effects, mean_readings, repeats
from clearhead.serve.budget import AnswerBudget
from clearhead.serve.explorer import Explorer
from tests.serve.asking import ask
from tests.training.small_runs import documents, trained

SITE, TEXTS = "decoder.0.attention", ["the cat eats", "the dog"]


def test_repeats_and_effects_are_those_of_python(tmp_path_factory):
    run = trained(documents, tmp_path_factory)
    explorer = Explorer(run)
    answer = ask(explorer, "means", {"site": SITE, "repeats": 2})
    found = mean_readings(run, repeats(run, count=2, length=15), sites=[SITE])[SITE]
    assert answer["texts"] == 2
    assert answer["metrics"]["induction"]["mean"] == pytest.approx(found["induction"].mean.tolist(), abs=1e-6)
    answer = ask(explorer, "means", {"site": SITE, "texts": TEXTS, "kind": "effects"})
    found = mean_effects(run, TEXTS, sites=[SITE])[SITE]
    assert answer["metrics"]["change"]["mean"] == pytest.approx(found["change"].mean.tolist(), abs=1e-6)


def test_what_cannot_be_read_is_refused(tmp_path_factory):
    explorer = Explorer(trained(documents, tmp_path_factory), AnswerBudget(cells=10))
    with pytest.raises(OptionError, match="give texts, or how many repeats"):
        ask(explorer, "means", {"site": SITE})
    with pytest.raises(OptionError, match=r"there is no attention called 'decoder\.9'"):
        ask(explorer, "means", {"site": "decoder.9", "texts": TEXTS})
    with pytest.raises(OptionError, match=r"readings over 2 texts takes .*send fewer or shorter texts"):
        ask(explorer, "means", {"site": SITE, "texts": TEXTS})
    with pytest.raises(OptionError, match=r"reading 2 texts takes .*send fewer"):
        ask(Explorer(explorer.run, AnswerBudget(cells=1)), "exciting", {"at": SITE, "index": 0, "texts": TEXTS})
