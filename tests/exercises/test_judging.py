"""Judging: what is said of answers that are not what was asked for."""

import pytest
import torch

from clearhead.exercises import EXERCISES, check
from clearhead.exercises.exercise import run_code


@pytest.mark.parametrize(
    "where", ["weight", ("decoder.7.attention", "weight"), ("decoder.0.attention", "wait"), 3, ("a",)]
)
def test_a_place_that_is_none_is_told_with_those_there_are(where):
    verdict = check("slip-1", {"where": lambda: where, "repair": lambda steps: steps["score"]})
    assert verdict.state == "not yet"
    assert "Places: decoder.embedding, decoder.0.attention, decoder.1.attention" in verdict.lines[0]


@pytest.mark.parametrize(
    "value", [torch.zeros(3), torch.zeros(2, 9, 9), "x", [[1]], torch.full((2, 5, 5), float("nan"))]
)
def test_a_repair_of_another_shape_or_kind_is_refused(value):
    verdict = check("slip-1", {"where": lambda: ("decoder.1.attention", "scaled"), "repair": lambda steps: value})
    assert verdict.state == "not yet"
    assert verdict.lines


def test_a_repair_that_stops_is_told_and_one_that_is_a_little_off_refused():
    place = EXERCISES["slip-1"].checks["place"]
    failed = check("slip-1", {"where": lambda: place, "repair": lambda steps: steps["scores"]})
    assert (failed.state, "KeyError" in failed.lines[0]) == ("failed", True)
    assert not check("slip-1", {"where": lambda: place, "repair": lambda steps: steps["score"] / 1.4143}).is_right
    assert check("slip-1", {"where": lambda: place, "repair": lambda steps: steps["score"] / 2**0.5}).is_right


@pytest.mark.parametrize(
    ("query", "key", "said"),
    [
        (lambda word, place: 3, lambda word, place: [1], "`query` gives a list of numbers"),
        (lambda word, place: [1] * (place + 1), lambda word, place: [1], "`query` gives a list of numbers"),
        (lambda word, place: [1, 2], lambda word, place: [1], "came 2 and 1"),
        (lambda word, place: ["a"], lambda word, place: [1], "`query` gives a list of numbers"),
        (lambda word, place: [float("inf")], lambda word, place: [1], "`query` gives a list of numbers"),
        (lambda word, place: [], lambda word, place: [], "`query` gives a list of numbers"),
    ],
)
def test_vectors_that_are_none_are_told(query, key, said):
    verdict = check("look-at-blue", {"query": query, "key": key})
    assert verdict.state == "not yet"
    assert said in verdict.lines[0]


def test_scores_that_are_no_number_get_no_credit():
    """1e200 · 1e200 is infinite, and its softmax no number: such a row was right if another one came before it."""

    def query(word, place):
        return [1e200 if place else 1.0, 1.0]

    verdict = check("look-at-blue", {"query": query, "key": lambda word, place: [1e200, 9.0 * (word == "blue")]})
    assert verdict.state == "not yet"
    assert "puts 0% on what is asked" in verdict.lines[0]


def test_credit_is_the_mean_weight_and_the_worst_query_is_named():
    """By hand: with equal scores a word of a sentence of n puts 1/n on blue; sentences without blue count in full."""
    verdict = check("look-at-blue", {"query": lambda word, place: [0], "key": lambda word, place: [0]})
    sentences = list(EXERCISES["look-at-blue"].checks["sentences"]())
    rows = [1 / len(words) if "blue" in words else 1.0 for words in sentences for _ in words]
    assert verdict.lines[0].startswith(f"{sum(rows) / len(rows):.0%} of the weight is right. The worst: ")
    assert "puts 17% on what is asked" in verdict.lines[0]


def test_edges_that_are_none_are_told_and_counted():
    program = run_code(EXERCISES["mystery-1"].solution, "x")["answer"]
    assert "`edges` is a list" in check("mystery-1", {"edges": [1], "answer": program}).lines[0]
    unknown = check("mystery-1", {"edges": ["encoder.embedding.token -> encoder.outputs"], "answer": program})
    assert "There is no edge" in unknown.lines[0]
    none = check("mystery-1", {"edges": [], "answer": program})
    assert none.lines == ("Edges: 0 of 2 found, 0 too many.",)
    german = check("mystery-1", {"edges": [], "answer": program}, language="de")
    assert german.lines == ("Kanten: 0 von 2 gefunden, 0 zu viel.",)
