"""Designs: weights as the library has them, and what is graded is every word of every sentence."""

import pytest
import torch

import clearhead as ch
from clearhead.exercises import EXERCISES
from clearhead.exercises.designs import design_cases, grade_queries, read_vectors, weights_of

DESIGNS = [pytest.param(each, id=each.name) for each in EXERCISES.of_kind("design")]


@pytest.mark.parametrize("causal", [False, True])
def test_weights_are_those_of_attention(causal):
    words, generator = ["a", "b", "a"], torch.manual_seed(0)
    vectors = {
        role: {(word, at): torch.randn(4, generator=generator).double() for at, word in enumerate(words)}
        for role in ("query", "key")
    }
    query, key = (torch.stack([vectors[role][word, at] for at, word in enumerate(words)]) for role in ("query", "key"))
    expected = ch.explain(query, key, key, mask=ch.masks.causal() if causal else None).weight
    assert torch.allclose(weights_of(vectors, words, causal=causal), expected)


@pytest.mark.parametrize("exercise", DESIGNS)
def test_every_word_of_every_sentence_is_graded(exercise):
    sentences = list(exercise.checks["sentences"]())
    cases = design_cases(exercise)
    assert set(cases) == {(word, place) for words in sentences for place, word in enumerate(words)}
    vectors = {role: {case: torch.zeros(3) for case in cases} for role in ("query", "key", "value")}
    assert len(list(grade_queries(exercise, vectors))) == sum(map(len, sentences))


def test_rows_of_unequal_length_are_no_vectors():
    exercise = EXERCISES["look-at-blue"]
    answers = [{"values": [1.0]} for _ in design_cases(exercise)]
    assert read_vectors(exercise, answers) is not None
    assert read_vectors(exercise, [{"values": [1.0, 2.0]}, *answers[1:]]) is None
