"""Judging: what is said of answers that are not what was asked for."""

import pytest
import torch

from clearhead.exercises import EXERCISES, check
from clearhead.exercises.checking import check_file
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
        (lambda word, place: 3, lambda word, place: [1], "`query` should return a list of numbers"),
        (lambda word, place: [1] * (place + 1), lambda word, place: [1], "`query` should return a list of numbers"),
        (lambda word, place: [1, 2], lambda word, place: [1], "came 2 and 1"),
        (lambda word, place: ["a"], lambda word, place: [1], "`query` should return a list of numbers"),
        (lambda word, place: [float("inf")], lambda word, place: [1], "`query` should return a list of numbers"),
        (lambda word, place: [], lambda word, place: [], "`query` should return a list of numbers"),
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
    assert none.lines == ("Edges: 0 of 2 found, 0 too many.", "The program is right.")
    german = check("mystery-1", {"edges": [], "answer": program}, language="de")
    assert german.lines == ("Kanten: 0 von 2 gefunden, 0 zu viel.", "Das Programm ist richtig.")


def test_edges_are_graded_before_there_is_a_program(tmp_path):
    edges = run_code(EXERCISES["mystery-1"].solution, "x")["edges"]
    expected = ("Edges: 1 of 2 found, 0 too many.", "There is no program yet: `answer` is empty.")
    assert check("mystery-1", {"edges": edges[:1], "answer": None}).lines == expected
    (tmp_path / "mine.py").write_text(f"edges = {edges[:1]}\nanswer = ...\n")
    assert check_file(EXERCISES["mystery-1"], tmp_path / "mine.py").lines == expected
    whole = check("mystery-1", {"edges": edges, "answer": None})
    assert whole.lines == ("Edges: 2 of 2 found, 0 too many.", expected[1])
    assert whole.state == "not yet"
    assert check("mystery-1", {"edges": [], "answer": None}).state == "empty"


def test_the_word_whose_vector_is_odd_is_named():
    lines = check("look-at-blue", {"query": lambda word, place: 5, "key": lambda word, place: [1]}).lines
    assert lines[0].endswith("For *a* at place 0 came 5.")
    longer = {"query": lambda word, place: [1] * (1 + (word == "forest")), "key": lambda word, place: [1]}
    assert check("look-at-blue", longer).lines[0].endswith("For *forest* at place 1 came [1, 1].")
    tensor = {"query": lambda word, place: torch.ones(1, 2), "key": lambda word, place: [1]}
    assert check("look-at-blue", tensor, language="de").lines[0].endswith("Bei *a* an Stelle 0 kam [[1.0, 1.0]].")


def slip_of(name, query, key):
    """Return what is said of a head besides the credit, and the known mistakes of its exercise."""
    said = [slip.said["en"] for slip in EXERCISES[name].slips]
    return [line for line in check(name, {"query": query, "key": key}).lines if line in said]


def test_a_known_mistake_of_a_head_is_found_by_what_the_head_does():
    """As the newcomer of decision 0035 wrote it: other numbers, and more of them, than the listed mistake has."""

    def direction(word, place):
        return [100.0 * (sum(map(ord, word)) % 128 == at) for at in range(128)]

    assert slip_of("look-at-the-repeat", direction, direction) == [
        "It finds the same word, and itself just as much: half of the weight is lost."
    ]

    def flat(word, place):
        return [2.0 * (place == at) for at in range(9)]

    assert slip_of("look-back", lambda word, place: flat(word, place - 1), flat) == [
        "The right place, but too flat: divided by √6 a 1 is hardly more than 0."
    ]
    assert slip_of("look-at-blue", lambda word, place: [3, 4], lambda word, place: [2, 2]) == [
        "All scores are the same, so every word gets the same weight."
    ]
    assert slip_of("look-back", lambda word, place: [place, 1], lambda word, place: [len(word), ord(word[-1])]) == []


@pytest.mark.parametrize(
    ("name", "place"), [("slip-2", "decoder.0.attention masked"), ("slip-4", "decoder.embedding out")]
)
def test_a_listed_wrong_place_is_recognised_whatever_the_repair_does(name, place):
    def fails(steps):
        return steps["nothing"]

    said = {slip.said["en"] for slip in EXERCISES[name].slips}
    verdict = check(name, {"where": lambda: tuple(place.split()), "repair": fails})
    assert "the slip is not there" in verdict.lines[0]
    assert verdict.lines[1] in said
