"""Continuous and static batches: every job gets what it gets alone, whoever else is there and whenever it comes."""

import random

import pytest
import torch

from benchmarks import serving_mixed
from benchmarks.differences import compare
from clearhead.decoding import Beam, Greedy, Rules, Sample
from clearhead.decoding.continuous import ContinuousBatch
from clearhead.decoding.scheduler import Chosen, Finished, Job
from clearhead.errors import OptionError
from clearhead.extras import has_package
from clearhead.model import presets
from tests.covering import few
from tests.decoding.models import LINEAR, PLAIN, VOCABULARY, build, models, on_axes
from tests.decoding.serving import decode, draw_job, unlike_alone

RULES = Rules(max_new=4)
GRAMMARS = has_package("llguidance")


@pytest.fixture
def decoder():
    torch.manual_seed(3)
    return presets.gpt2("tiny", vocabulary=20).build().eval()


@pytest.fixture
def translator():
    torch.manual_seed(3)
    return presets.tiny(vocabulary=20).build().eval()


def check_model(choices, seed: int) -> list[str]:
    model, draw = build(choices), random.Random(seed)
    encoder = len(model.stacks) > 1
    scheduler = ContinuousBatch(
        model,
        slots=5,
        columns=40,
        source_columns=40 if encoder else None,
        prompt_tokens=draw.choice((3, 8, 64)),
    )
    jobs = [draw_job(draw, VOCABULARY, encoder=encoder) for _ in range(7)]
    found = decode(scheduler, jobs, draw, cancelled=(1, 4))
    pairs = [(job, hypotheses) for job, hypotheses in zip(jobs, found, strict=True) if hypotheses is not None]
    return [told for job, hypotheses in pairs for told in unlike_alone(model, job, hypotheses)]


@pytest.mark.parametrize("place", few(list(range(24)), 8))
def test_every_kind_of_model_gives_what_generate_gives(place):
    assert check_model(models()[place], place) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.thorough)])
def test_requests_of_every_kind_together_get_what_each_gets_alone(seed):
    """Prefixes, pieces, choices, adapters, penalties, beams, cancelled ones, and grammars if there are any."""
    tally, facts, different, _ = serving_mixed.run(80 if seed == 0 else 1000, torch.float64, seed, grammars=GRAMMARS)
    assert different == []
    assert tally.counts["equal"] == facts["requests"]
    assert facts["tokens of prompts shared"] > 0
    assert facts["longer than a piece"] > 0
    assert facts["with an adapter"] > 0
    assert (facts["with a grammar"] > 0) == GRAMMARS


def test_a_job_joins_while_a_longer_one_that_was_read_with_it_waits_for_its_place():
    """The source of 80 tokens is wider than what is allocated for the source of 3."""
    torch.manual_seed(0)
    model = presets.tiny(20).build().double().eval()
    batch, rules = ContinuousBatch(model, slots=4), Rules(max_new=3)
    jobs = [
        Job(inputs=(1, 2, 3), prefix=(1,), rules=rules),
        Job(inputs=(1, 2) * 40, prefix=(1,), rules=rules, method=Beam(width=4)),
    ]
    for job, found in zip(jobs, decode(batch, jobs), strict=True):
        assert compare(model, job, found).verdict == "equal"


def test_sums_begin_at_zero_in_a_slot_that_was_computed_before_anyone_had_it():
    model = build(on_axes(PLAIN | {"weighting": LINEAR[0]}))
    batch = ContinuousBatch(model, slots=8)
    jobs = [Job(inputs=(token,), rules=Rules(max_new=9)) for token in range(1, 7)]
    tickets = [batch.add(job) for job in jobs[:5]]
    batch.step()  # eight rows
    tickets.append(batch.add(jobs[5]))
    found = {}
    while batch.busy:
        found |= {event.ticket: event.hypotheses for event in batch.step() if isinstance(event, Finished)}
    assert unlike_alone(model, jobs[5], found[tickets[5]]) == []


@pytest.mark.parametrize("waiting", [1, 9])
def test_no_running_job_waits_for_more_than_one_piece_of_a_prompt(waiting):
    """While 8,000 tokens are read, and short prompts with them, every step of the batch gives a running job its token.

    Between two steps at most 64 tokens are read, or 128 if more jobs wait than there are slots.
    """
    spec = presets.llama(size=presets.Size(1, 8, 1, 1, 8), vocabulary=20)
    model, draw = spec.build().eval(), random.Random(waiting)
    batch = ContinuousBatch(model, slots=4, columns=8300, prompt_tokens=64)
    stream = batch.add(Job(inputs=(1,), rules=Rules(max_new=250)))
    batch.step()
    lengths = [60, 8000, 63, 64, 65, *(draw.randint(1, 150) for _ in range(waiting - 1))]
    for length in lengths:
        batch.add(Job(inputs=tuple(draw.randrange(20) for _ in range(length)), rules=Rules(max_new=2)))
    before, most = batch.counts.prompt_tokens, []
    while batch.running + batch.waiting > 1:
        patience = 2 if batch.waiting > 4 else 1
        events = batch.step()
        assert any(event.ticket == stream for event in events)
        most.append((batch.counts.prompt_tokens - before) / patience)
        before = batch.counts.prompt_tokens
    assert max(most) <= 64
    assert batch.counts.prompt_tokens >= sum(lengths) - len(lengths)


@pytest.mark.thorough
@pytest.mark.parametrize("place", range(len(models())))
def test_every_pair_of_parts_gives_what_generate_gives(place):
    assert check_model(models()[place], place + 1000) == []


@pytest.mark.slow
def test_mixed_jobs_get_what_generate_gives(translator):
    model, draw = translator.double(), random.Random(5)
    jobs = [draw_job(draw, 20, encoder=True) for _ in range(12)]
    scheduler = ContinuousBatch(model, slots=6, columns=16, source_columns=16)
    found = decode(scheduler, jobs, draw)
    assert [told for job, one in zip(jobs, found, strict=True) for told in unlike_alone(model, job, one)] == []
    assert scheduler.rows_in_use == 0
    assert scheduler.counts.finished == 12


def test_jobs_join_in_the_order_they_came(decoder):
    scheduler = ContinuousBatch(decoder, slots=3)
    jobs = [
        Job(inputs=(1,), rules=Rules(max_new=3)),
        Job(inputs=(2,), rules=RULES, method=Beam(width=3)),  # waits for three slots, and the next wait for it
        Job(inputs=(3,), rules=Rules(max_new=1)),
        Job(inputs=(4,), rules=Rules(max_new=1)),
    ]
    tickets = [scheduler.add(job) for job in jobs]
    order = [event.ticket for _ in range(20) for event in scheduler.step() if isinstance(event, Finished)]
    assert order == tickets
    assert not scheduler.busy


def test_a_job_joins_while_others_run(decoder):
    scheduler = ContinuousBatch(decoder, slots=2)
    for n in (6, 2, 1):
        scheduler.add(Job(inputs=(1, 2), rules=Rules(max_new=n)))
    events = [(step, event) for step in range(9) for event in scheduler.step()]
    assert max(step for step, event in events if isinstance(event, Finished) and event.ticket == 3) == 2


def test_many_wait_for_one_another_and_join_together(decoder):
    """Letting in one job costs those who run a step, so it waits until waiting has cost as much."""
    scheduler = ContinuousBatch(decoder, slots=16)
    for _ in range(8):
        scheduler.add(Job(inputs=(1, 2), rules=Rules(max_new=40)))
    scheduler.step()
    running = []
    for _ in range(6):
        scheduler.add(Job(inputs=(3,), rules=Rules(max_new=20)))
        scheduler.step()
        running.append(scheduler.running)
    assert running == [8, 8, 8, 12, 12, 12]  # 1 + 2 + 3 + 4 steps were waited, 8 are running
    scheduler = ContinuousBatch(decoder, slots=16)
    scheduler.add(Job(inputs=(3,), rules=RULES))
    scheduler.step()
    assert scheduler.running == 1, "where nobody runs, nobody waits"


def test_a_long_prompt_is_read_between_the_steps_of_others(decoder):
    scheduler = ContinuousBatch(decoder.double(), slots=2, prompt_tokens=4)
    scheduler.add(Job(inputs=(1,), rules=Rules(max_new=12)))
    scheduler.step()
    job = Job(inputs=tuple(range(19)), rules=RULES)
    ticket = scheduler.add(job)
    steps, read = [], scheduler.counts.prompt_tokens
    for _ in range(12):
        events = scheduler.step()
        assert scheduler.counts.prompt_tokens - read <= 4
        read = scheduler.counts.prompt_tokens
        steps.append({event.ticket for event in events})
    assert all(1 in step for step in steps[:11]), "nobody waits for the whole prompt"
    assert min(place for place, step in enumerate(steps) if ticket in step) == 4  # 18 tokens before the last, in pieces
    assert unlike_alone(decoder, job, decode(ContinuousBatch(decoder, slots=2, prompt_tokens=4), [job])[0]) == []


@pytest.mark.parametrize("state", ["waiting", "being read", "running", "a beam", "done"])
def test_a_cancelled_job_frees_its_rows_at_once(state, decoder):
    scheduler = ContinuousBatch(decoder, slots=4, prompt_tokens=4)
    other = scheduler.add(Job(inputs=(5,), rules=Rules(max_new=6)))
    method = Beam(width=3) if state == "a beam" else Greedy()
    prompt = tuple(range(14)) if state == "being read" else (7, 8)
    ticket = scheduler.add(Job(inputs=prompt, rules=Rules(max_new=1 if state == "done" else 5), method=method))
    events = [event for _ in range(0 if state == "waiting" else 2) for event in scheduler.step()]
    scheduler.cancel(ticket)
    scheduler.cancel(ticket)
    assert scheduler.waiting == (1 if state == "waiting" else 0)
    assert scheduler.rows_in_use == (0 if state == "waiting" else 1)
    while scheduler.busy:
        after = scheduler.step()
        assert ticket not in {event.ticket for event in after}
        events += after
    assert sum(isinstance(event, Chosen) and event.ticket == other for event in events) == 6


@pytest.mark.parametrize(
    ("job", "why"),
    [
        (
            Job(inputs=(1,), prefix=(1,), rules=RULES, method=Beam(width=5)),
            "a beam of 5 rows does not fit into 4 slots",
        ),
        (Job(inputs=(1,), prefix=(1, 2, 3), rules=Rules(max_new=7)), "take 9 columns of the cache, and it has 8"),
        (Job(inputs=(1,) * 7, prefix=(1,), rules=RULES), "the input has 7 tokens, and there is memory for 6"),
        (Job(inputs=(), prefix=(1,), rules=RULES), "is empty"),
        (Job(inputs=(1,), rules=RULES), "give prefix"),
        (Job(inputs=(99,), prefix=(1,), rules=RULES), "there is 99"),
        (Job(inputs=(1,), prefix=(1,), rules=RULES, method=Sample(seeds=(1, 2))), "2 seeds"),
        (Job(inputs=(1,), prefix=(1,), rules=RULES, candidates=-1), "0 or more"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_job_that_can_never_fit_is_refused_when_it_comes(job, why, translator):
    scheduler = ContinuousBatch(translator, slots=4, columns=8, source_columns=6)
    with pytest.raises(OptionError, match=why):
        scheduler.add(job)
    assert not scheduler.busy


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"slots": 0}, "slots must be 1 or more"),
        ({"columns": 0}, "columns must be 1 or more"),
        ({"prompt_tokens": 0}, "prompt_tokens must be 1 or more"),
    ],
)
def test_wrong_options_are_refused(options, why, decoder):
    with pytest.raises(OptionError, match=why):
        ContinuousBatch(decoder, **options)


def test_rows_are_packed_when_few_are_left(decoder):
    model = decoder.double()
    scheduler = ContinuousBatch(model, slots=16)
    jobs = [Job(inputs=(token, 3), rules=Rules(max_new=2 if token < 15 else 12)) for token in range(16)]
    found = decode(scheduler, jobs)
    assert scheduler.counts.row_steps == 2 * 16 + 10 * 1
    assert [told for job, one in zip(jobs, found, strict=True) for told in unlike_alone(model, job, one)] == []


def test_a_model_in_training_is_switched_to_eval_mode(decoder):
    decoder.train()
    scheduler = ContinuousBatch(decoder, slots=2)
    assert not decoder.training
    decoder.train()
    decode(scheduler, [Job(inputs=(1,), rules=RULES)])
    assert not any(module.training for module in decoder.modules())
