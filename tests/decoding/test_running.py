"""What jobs in a running batch choose: each by its own method, rules and candidates."""

from dataclasses import dataclass

import pytest
import torch

from clearhead.decoding import Beam, Greedy, Rules, Sample, generate
from clearhead.decoding.continuous import ContinuousBatch
from clearhead.decoding.sampling import Chooser
from clearhead.decoding.scheduler import Finished, Job
from clearhead.model import presets
from tests.decoding.serving import decode, unlike_alone


@pytest.fixture
def model():
    torch.manual_seed(3)
    return presets.gpt2("tiny", vocabulary=20).build().double().eval()


@dataclass(frozen=True)
class Second(Chooser):
    """A user's own method: the second best."""

    def draws(self, count):
        return []

    def choose(self, logits, draws):
        return logits.topk(2, -1).indices[:, 1]


def test_a_method_of_the_users_own_stands_beside_ours(model):
    jobs = [Job(inputs=(5, 6), rules=Rules(max_new=4), method=method) for method in (Second(), Greedy(), Second())]
    found = decode(ContinuousBatch(model, slots=3), jobs)
    assert found[0] == found[2] != found[1]
    assert [told for job, one in zip(jobs, found, strict=True) for told in unlike_alone(model, job, one)] == []


@pytest.mark.parametrize("method", [Greedy(), Sample(), Beam(width=3)])
@pytest.mark.parametrize(
    "rules",
    [
        Rules(max_new=1),
        Rules(max_new=5, end=tuple(range(20))),
        Rules(max_new=5, never=tuple(range(20))),
        Rules(max_new=5, min_new=4, end=(2, 3)),
        Rules(max_new=6, no_repeat=1),
        Rules(max_new=6, repetition_penalty=5.0),
        Rules(max_new=6, presence_penalty=1.0, frequency_penalty=0.5),
        Rules(max_new=6, logit_bias=((4, 1.5), (7, -2.0))),
    ],
    ids=[
        "one token",
        "ends at once",
        "nothing is allowed",
        "not too short",
        "never again",
        "penalty",
        "counts",
        "bias",
    ],
)
def test_short_and_forbidden_outputs_are_those_of_generate(method, rules, model):
    jobs = [Job(inputs=(5, 6), rules=rules, method=method), Job(inputs=(7,), rules=Rules(max_new=3))]
    found = decode(ContinuousBatch(model, slots=4), jobs)
    assert [told for job, one in zip(jobs, found, strict=True) for told in unlike_alone(model, job, one)] == []


def test_samples_draw_from_their_own_seeds_and_candidates_are_counted_by_job(model):
    jobs = [
        Job(inputs=(5,), rules=Rules(max_new=6), method=Sample(seeds=seed), candidates=seed % 3) for seed in range(6)
    ]
    found = decode(ContinuousBatch(model, slots=4), jobs)
    assert len({one[0].tokens for one in found}) > 1
    assert [len(one[0].candidates[0]) if one[0].candidates else 0 for one in found] == [0, 1, 2, 0, 1, 2]
    assert [told for job, one in zip(jobs, found, strict=True) for told in unlike_alone(model, job, one)] == []


def test_a_beam_takes_as_many_slots_as_it_is_wide_and_says_nothing_until_the_end(model):
    scheduler = ContinuousBatch(model, slots=7)
    tickets = [scheduler.add(Job(inputs=(4, 5), rules=Rules(max_new=4), method=Beam(width=3))) for _ in range(3)]
    events = []
    for step in range(4):
        events += scheduler.step()
        assert (scheduler.running, scheduler.waiting, scheduler.rows_in_use) == ((2, 1, 6) if step < 3 else (0, 1, 0))
    while scheduler.busy:
        events += scheduler.step()
    assert [event.ticket for event in events] == tickets
    assert all(isinstance(event, Finished) for event in events)
    alone = generate(model, [[4, 5]], Beam(width=3), rules=Rules(max_new=4))[0]
    assert all(event.hypotheses[0].tokens == alone[0].tokens for event in events)
