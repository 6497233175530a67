"""Beams side by side in a running batch: each gets what it gets alone, whenever it begins."""

import pytest
import torch

from clearhead.decoding import Beam, Rules
from clearhead.decoding.continuous import ContinuousBatch
from clearhead.decoding.method import Start
from clearhead.decoding.scheduler import Finished, Job
from clearhead.model import presets
from tests.decoding.serving import unlike_alone


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(3)
    return presets.gpt2("tiny", vocabulary=20).build().double().eval()


def job(*inputs, method=Beam(width=3, n_best=2), **rules):
    return Job(inputs=inputs, rules=Rules(**{"max_new": 6, "end": (2,), **rules}), method=method)


def decode_late(scheduler, jobs):
    """Add a job every second step, and return the results."""
    found, waiting, tickets = {}, list(jobs), []
    while waiting or scheduler.busy:
        if waiting and (scheduler.counts.steps % 2 == 0 or not scheduler.busy):
            tickets.append(scheduler.add(waiting.pop(0)))
        found |= {event.ticket: event.hypotheses for event in scheduler.step() if isinstance(event, Finished)}
    return [found[ticket] for ticket in tickets]


@pytest.mark.parametrize(
    ("method", "rules"),
    [
        (Beam(width=3, n_best=2), {}),
        (Beam(width=3, length_penalty=0.5, stop="heuristic"), {"never": (4, 7)}),
        (Beam(width=2, stop="early"), {"end": (2, 5, 9)}),
        (Beam(width=3), {"min_new": 3, "end": (2, 5)}),
        (Beam(width=1), {}),
        (Beam(width=3, length_penalty=-1.0), {"end": ()}),
        (Beam(width=3), {"no_repeat": 2, "repetition_penalty": 1.3}),
        (Beam(width=2), {"never": tuple(range(20))}),
        (Beam(width=8, n_best=8), {"never": tuple(range(3, 20)), "no_repeat": 1}),
    ],
)
def test_beams_begin_and_end_at_different_steps(method, rules, model):
    jobs = [job(5, place, method=method, **{**rules, "max_new": 3 + 2 * place}) for place in range(5)]
    found = decode_late(ContinuousBatch(model, slots=9), jobs)
    assert [
        told for one, hypotheses in zip(jobs, found, strict=True) for told in unlike_alone(model, one, hypotheses)
    ] == []


def test_a_beam_that_is_cancelled_leaves_the_others_as_they_are(model):
    scheduler = ContinuousBatch(model, slots=9)
    jobs = [job(5, place, end=()) for place in range(3)]
    tickets = [scheduler.add(one) for one in jobs]
    scheduler.step()
    scheduler.step()
    scheduler.cancel(tickets[1])
    found = {}
    while scheduler.busy:
        found |= {event.ticket: event.hypotheses for event in scheduler.step()}
    assert sorted(found) == [tickets[0], tickets[2]]
    assert unlike_alone(model, jobs[0], found[tickets[0]]) == unlike_alone(model, jobs[2], found[tickets[2]]) == []


@pytest.mark.parametrize(
    ("origins", "slots", "moves"),
    [
        ([0, 1, 2], [4, 6, 8], []),
        ([2, 0, 1], [8, 4, 6], []),
        ([0, 0, 0], [4, 8, 6], [(4, 8), (4, 6)]),
        ([1, 1, 0], [6, 8, 4], [(6, 8)]),
    ],
)
def test_a_beam_stays_in_the_slot_of_the_one_it_continues_where_it_can(origins, slots, moves):
    one = Beam(width=3).start(Start(1, (5,), [4, 6, 8], Rules(max_new=6)))
    assert one.place_beams(origins) == moves
    assert one.slots == slots
