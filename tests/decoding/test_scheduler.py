"""Jobs decoded one at a time: the tokens and hypotheses of `generate`, whatever else was asked."""

import pytest
import torch

from clearhead.decoding import Beam, Greedy, Rules, Sample, generate
from clearhead.decoding.scheduler import Finished, Job, OneAtATime
from clearhead.errors import OptionError
from clearhead.model import presets

RULES = Rules(max_new=6, end=(2,))


@pytest.fixture
def model():
    torch.manual_seed(3)
    return presets.tiny(vocabulary=20).build().eval()


def run(scheduler):
    events = []
    while scheduler.busy:
        events += scheduler.step()
    return events


@pytest.mark.parametrize("method", [Greedy(), Sample(seeds=4), Beam(width=3, n_best=2)])
def test_a_job_gets_what_generate_returns(model, method):
    scheduler = OneAtATime(model)
    tickets = {
        scheduler.add(Job(inputs=row, prefix=(1,), method=method, rules=RULES)): row for row in ((5, 6, 7), (8, 9))
    }
    events = run(scheduler)
    for ticket, row in tickets.items():
        [found] = [event.hypotheses for event in events if isinstance(event, Finished) and event.ticket == ticket]
        assert found == generate(model, [row], method, rules=RULES, prefix=[[1]])[0]


def test_a_cancelled_job_says_nothing_more(model):
    scheduler = OneAtATime(model)
    first, second = (scheduler.add(Job(inputs=(5, token), prefix=(1,), rules=RULES)) for token in (6, 7))
    scheduler.step()
    scheduler.cancel(first)
    scheduler.cancel(first)
    assert {event.ticket for event in run(scheduler)} == {second}


def test_a_wrong_job_is_refused_when_it_comes(model):
    with pytest.raises(OptionError, match="there is 99"):
        OneAtATime(model).add(Job(inputs=(99,), prefix=(1,), rules=RULES))
