"""Results compared: ties are told from mistakes."""

import pytest
import torch

from benchmarks.differences import Comparison, Tally, compare, decode_alone, first_difference
from clearhead.decoding import Beam, Greedy, Hypothesis, Rules, Sample
from clearhead.decoding.scheduler import Job
from clearhead.model import presets


def hypothesis(tokens, log_probs):
    return Hypothesis(tokens=tuple(tokens), log_probs=tuple(log_probs), score=sum(log_probs), ended=False)


ONE = hypothesis((5, 6, 7), (-1.0, -2.0, -3.0))


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (ONE, Comparison("equal")),
        (hypothesis((5, 6, 7), (-1.0, -2.00005, -3.0)), Comparison("equal")),
        (hypothesis((5, 8, 1), (-1.0, -2.0625, -9.0)), Comparison("different", 0.0625, 0, 1)),
        (hypothesis((5, 8, 1), (-1.0, -2.0, -9.0)), Comparison("tie", 0.0, 0, 1)),
        (hypothesis((5, 6, 7), (-1.0, -2.5, -3.0)), Comparison("different", 0.5, 0, 1)),
        (hypothesis((5, 6, 7), (-1.0, float("nan"), -3.0)), "different"),
        (hypothesis((5, 6), (-1.0, -2.0)), Comparison("different", float("inf"), 0, 2)),
        (hypothesis((5, 6, 7), (-1.0, -2.0, -3.0002)), "different"),
    ],
)
def test_the_first_difference_and_its_gap(found, expected):
    told = first_difference([found], [ONE])
    assert (told.verdict if isinstance(expected, str) else told) == expected


def test_numbers_whose_rounding_is_larger_are_compared_by_their_size():
    large = hypothesis((5, 6), (-1e20, -3.0))
    assert first_difference([hypothesis((5, 6), (-1e20 * (1 + 1e-12), -3.0))], [large]).verdict == "equal"
    assert first_difference([hypothesis((5, 6), (-1e20 * (1 + 1e-6), -3.0))], [large]).verdict == "different"


def test_a_missing_hypothesis_is_a_difference():
    assert first_difference([], [ONE]).verdict == "different"


@pytest.fixture
def model():
    torch.manual_seed(3)
    return presets.gpt2("tiny", vocabulary=20).build().double().eval()


@pytest.mark.parametrize("method", [Greedy(), Sample(seeds=4, top_p=0.9, min_p=0.01), Beam(width=3, n_best=2)])
def test_another_token_is_no_tie_where_the_choice_was_clear(method, model):
    job = Job(inputs=(5, 6), rules=Rules(max_new=4), method=method)
    right = decode_alone(model, job)
    assert compare(model, job, right).verdict == "equal"
    tokens = list(right[0].tokens)
    tokens[2] = (tokens[2] + 1) % 20
    wrong = hypothesis(tokens, [*right[0].log_probs[:2], right[0].log_probs[2] - 0.3, -1.0])
    told = compare(model, job, [wrong, *right[1:]])
    assert (told.verdict, told.place) == ("different", 2)


def test_a_draw_on_the_border_between_two_tokens_is_a_tie(model):
    """With two tokens of equal probability in the whole vocabulary, any draw but one at the very ends is near none."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()  # every token is as likely as any other: borders lie at multiples of 1 / 20
    rules, seeds = Rules(max_new=1), range(4000)
    drawn = [float(torch.rand((), generator=torch.Generator().manual_seed(seed))) for seed in seeds]
    near = min(seeds, key=lambda seed: min(abs(drawn[seed] - k / 20) for k in range(1, 20)))
    far = max(seeds, key=lambda seed: min(abs(drawn[seed] - k / 20) for k in range(21)))
    for seed, verdict in ((near, "tie"), (far, "different")):
        job = Job(inputs=(5,), rules=rules, method=Sample(seeds=seed))
        [right] = decode_alone(model, job)
        other = hypothesis([(right.tokens[0] + 1) % 20], [right.log_probs[0] - 0.5])
        assert compare(model, job, [other]).verdict == verdict


def test_equal_beams_are_a_tie(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    job = Job(inputs=(5,), rules=Rules(max_new=2), method=Beam(width=2))
    [right] = decode_alone(model, job)
    other = hypothesis([(token + 1) % 20 for token in right.tokens], [value - 0.5 for value in right.log_probs])
    assert compare(model, job, [other]).verdict == "tie"


def test_outputs_that_tie_are_a_tie_though_one_was_asked_for(model):
    """Two outputs that end with equal scores: which of them is the best one is decided by rounding."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    job = Job(inputs=(5,), rules=Rules(max_new=1), method=Beam(width=2))
    [right] = decode_alone(model, job)
    other = hypothesis([right.tokens[0] + 1], right.log_probs)
    assert compare(model, job, [other]) == Comparison("tie", 0.0, 0, 0)


def test_beams_part_by_their_sums_and_not_by_one_token(model):
    """Two tokens of equal log-probability where the outputs part are no tie of the search."""
    job = Job(inputs=(5, 6), rules=Rules(max_new=4), method=Beam(width=3))
    [right] = decode_alone(model, job)
    tokens = list(right.tokens)
    tokens[1] = (tokens[1] + 1) % 20
    told = compare(model, job, [hypothesis(tokens, right.log_probs)])
    assert (told.verdict, told.place) == ("different", 1)
    assert told.gap > 1e-4


def test_verdicts_are_counted():
    tally = Tally()
    for told in (Comparison("equal"), Comparison("tie", 2e-5), Comparison("equal")):
        tally.add(told)
    assert str(tally) == "2 equal, 1 tie, 0 different; widest gap 2e-05"
