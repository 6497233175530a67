"""`ch.attribute` on trained runs: answers by name or number, places, and the likeliest where none is named."""

from typing import Any

import pytest

import clearhead as ch
from clearhead.errors import OptionError, PlaceError
from tests.training.small_runs import classifying, documents, filling, trained, translating


def test_the_likeliest_answer_is_taken_apart_where_none_is_named(tmp_path_factory):
    run = trained(documents, tmp_path_factory)
    best = ch.trace(run, "the cat eats").candidates[-1][0]
    found = ch.attribute(run, "the cat eats")
    assert (found.answer, found.names[0], found.place) == (best.id, best.text, 3)
    assert sum(found.parts.values()) == pytest.approx(found.total, abs=1e-4)


def test_answers_are_named_as_a_trace_shows_them(tmp_path_factory):
    run = trained(translating, tmp_path_factory)
    first, second = ch.trace(run, "zwei drei").candidates[0][:2]
    found = ch.attribute(run, "zwei drei", answer=first.text, other=second.text)
    assert (found.place, found.answer, found.other) == (0, first.id, second.id)
    assert found.total > 0
    assert ch.attribute(run, "zwei drei", answer=second.id, other=first.id).total == pytest.approx(-found.total)
    assert f"the logit of {first.text!r} less that of {second.text!r} at place 0" in repr(found)


def test_a_label_and_a_blank_have_their_places(tmp_path_factory):
    run = trained(classifying, tmp_path_factory)
    fruit = ch.attribute(run, "red plum", answer="fruit", other="beast")
    assert fruit.total > 0
    assert sum(fruit.parts.values()) == pytest.approx(fruit.total, abs=1e-4)
    run = trained(filling, tmp_path_factory)
    text = "the <mask> eats the plum, größer"
    place = ch.trace(run, text).sides["encoder"].tokens.index("<mask>")
    assert ch.attribute(run, text).place == place


def test_an_answer_or_place_that_is_not_there_is_refused(tmp_path_factory):
    run = trained(classifying, tmp_path_factory)
    with pytest.raises(OptionError, match=r"there is no answer 'fruits'; the nearest is fruit"):
        ch.attribute(run, "red plum", answer="fruits")
    run = trained(documents, tmp_path_factory)
    with pytest.raises(OptionError, match=r"there is no answer 'cat dog'.*give one token as a trace shows it"):
        ch.attribute(run, "the cat", answer="cat dog")
    with pytest.raises(PlaceError, match="place 99: there are"):
        ch.attribute(run, "the cat", place=99)
    wrong: Any = 0.5
    with pytest.raises(OptionError, match=r"answer.*came 0\.5"):
        ch.attribute(run, "the cat", answer=wrong)
