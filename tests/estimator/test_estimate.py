"""Estimates of training on many GPUs: memory adds up, what is sent follows the ring, and time knows its limits."""

from dataclasses import replace

import pytest

from clearhead.errors import OptionError
from clearhead.model import presets
from clearhead.model.presets import Size
from estimator.estimate import FEW, FORMS, GIB, MANY, Form, Job, Rates, Workload
from estimator.step_cost import PassCost, measure_pass

SPEC = presets.gpt2(Size(3, 32, 4, 4, 64), vocabulary=301, length=16, dropout=0.0)
DDP, FSDP = Form(parallel="ddp"), Form(parallel="fsdp")
SMALL = Rates(memory_gib=0.02, reserved_gib=0.0)


KEYS = [("rounded", False), ("autocast", True), ("bfloat16", False), ("bfloat16", True)]


def cost(sequences, checkpointing):
    """A made-up cost of a pass: tables are the peak of few sequences, and logits that of many."""
    kept = 1000 * sequences if checkpointing else 40_000 * sequences
    return PassCost(kept, kept + max(60_000 + 500 * sequences, 20_000 * sequences), 10**6 * sequences, 0)


def counted(spec=SPEC, **options):
    """A workload whose costs are made up, so that nothing is run."""
    batches = (*FEW, *MANY)
    costs = {key: [cost(one, key[1]) for one in batches] for key in KEYS}
    return Workload(**{"spec": spec, "source": 1, "target": 16, "costs": costs, **options})


@pytest.fixture(scope="module")
def work():
    return counted()


def test_costs_of_any_batch_are_on_the_lines_of_few_and_many(work):
    for sequences in (1, 2, 3, 7, 100, 5000):
        assert work.pass_cost(DDP, sequences) == cost(sequences, False)
        assert work.pass_cost(replace(FSDP, checkpointing=True), sequences) == cost(sequences, True)


@pytest.mark.slow
def test_costs_are_counted_when_they_are_not_given():
    made = Workload(spec=SPEC, source=1, target=16)
    seven = made.pass_cost(DDP, 7)
    exact = measure_pass(SPEC, batch=7, source=1, target=16, arithmetic="rounded")
    assert seven == pytest.approx(exact, rel=1e-3)


def test_one_gpu_sends_nothing_and_waits_for_nobody(work):
    for form in (DDP, FSDP):
        made = Job(workload=work, gpus=1, sequences=4).estimate(form)
        assert made.communication.total == 0
        assert made.time.communication == made.time.exposed == 0


def test_ddp_sends_each_gradient_twice_around_the_ring_whatever_the_passes(work):
    for gpus in (2, 4, 64):
        made = Job(workload=work, gpus=gpus, sequences=4 * gpus, micro=1).estimate(DDP)
        assert made.passes == 4
        assert made.communication.total == 2 * 4 * work.parameters * (gpus - 1) // gpus


def test_fsdp_gathers_twice_but_the_root_and_scatters_once_in_every_pass(work):
    # 2 divides every first axis but the vocabulary's: 301 rows become 302.
    root, *blocks = work.units
    padded = root.size + 32
    once = Job(workload=work, gpus=2, sequences=4, micro=2).estimate(FSDP).communication
    assert once.gather == 2 * (padded + 2 * sum(unit.size for unit in blocks)) // 2
    assert once.scatter == 4 * (padded + sum(unit.size for unit in blocks)) // 2
    assert Job(workload=work, gpus=2, sequences=4, micro=1).estimate(FSDP).communication.total == 2 * once.total


def test_shards_need_less_until_there_are_as_many_as_rows(work):
    held = [sum(Job(workload=work, gpus=gpus).memory(FSDP, 1)[:3]) for gpus in (1, 2, 8, 301, 1000)]
    assert held == sorted(held, reverse=True)
    assert held[-1] == held[-2]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_the_largest_batch_fits_and_one_more_does_not(work, form):
    job = Job(workload=work, gpus=4, rates=SMALL)
    most = job.largest(form)
    assert most > 2
    assert job.memory(form, most).total <= job.capacity < job.memory(form, most + 1).total


def test_what_does_not_fit_is_said_and_sharding_may_help():
    large = counted(presets.gpt2(Size(2, 64, 4, 4, 256), vocabulary=50, length=16, dropout=0.0))
    rates = replace(SMALL, memory_gib=0.0015)
    job = Job(workload=large, gpus=64, rates=rates)
    assert job.largest(DDP) == 0
    assert not job.estimate(DDP).fits
    assert job.choose().form.parallel == "fsdp"
    assert job.choose().fits
    least = Job(workload=large, gpus=64, rates=replace(rates, memory_gib=1e-6)).choose()
    assert not least.fits


def test_an_average_is_one_more_copy_and_checkpointing_keeps_less(work):
    plain = Job(workload=work, gpus=2).memory(DDP, 4)
    averaged = Job(workload=replace(work, averaged=True), gpus=2).memory(DDP, 4)
    assert averaged.average == 4 * work.parameters
    assert averaged.total - plain.total == averaged.average
    again = Job(workload=work, gpus=2).memory(replace(FSDP, checkpointing=True), 64)
    assert again.activations < 0.2 * Job(workload=work, gpus=2).memory(FSDP, 64).activations


def test_links_that_are_slow_show_and_fast_ones_are_hidden(work):
    job = Job(workload=work, gpus=4, sequences=4)
    slow = replace(job, rates=Rates(link_gb_s=1e-3)).estimate(FSDP).time
    fast = replace(job, rates=Rates(link_gb_s=1e9, call_us=0.0, link_latency_us=0.0)).estimate(FSDP).time
    assert slow.exposed > 0.9 * slow.communication - slow.compute > 0
    assert fast.exposed < 1e-3 * fast.compute
    assert slow.compute == fast.compute


def test_gloo_sends_twice_when_it_scatters_and_hides_nothing(work):
    cpu = replace(Rates(), on_cpu=True)
    for form in (DDP, FSDP):
        job = Job(workload=work, gpus=4, sequences=4)
        ours, theirs = replace(job, rates=cpu).estimate(form), job.estimate(form)
        assert ours.communication.scatter == pytest.approx(2 * theirs.communication.scatter, abs=1)
        assert ours.communication.gather == theirs.communication.gather
        assert ours.time.exposed == ours.time.communication
        assert theirs.time.exposed < ours.time.exposed or form == DDP  # a model of one bucket hides nothing
    assert cpu.scatter_seconds(4, 1e6) == cpu.sum_seconds(4, 1e6)


def test_rings_wait_for_every_gpu_and_trees_for_few():
    rates = Rates()
    assert rates.ring_latency(4096) == pytest.approx(1e-6 * (8.4 + 3584 * 3.4 + 511 * 9.6))
    assert rates.sum_seconds(4096, 0) == rates.tree_latency(4096) < 0.02 * rates.ring_latency(4096)
    assert rates.bus(8) == 370e9
    assert Rates(network_gb_s=12.0).bus(16) == 96e9


@pytest.mark.slow
@pytest.mark.thorough
def test_the_measured_steps_of_an_h200_are_near():
    """The constants were fitted to GPT-2's steps; base is the check (estimator/README.md)."""
    gpt2 = Workload(spec=presets.gpt2("small", vocabulary=50_304, dropout=0.0), source=1, target=1024)
    made = Job(workload=gpt2, gpus=1, sequences=32, micro=32).estimate(DDP)
    assert made.time.total == pytest.approx(32 * 1024 / 549e3, rel=0.01)
    base = Workload(spec=presets.base(32_768), source=128, target=128)
    made = Job(workload=base, gpus=1, sequences=256, micro=256).estimate(DDP)
    assert made.time.total == pytest.approx(256 * 128 / 888e3, rel=0.05)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"gpus": 0}, "gpus: 1 or more; came 0"),
        ({"gpus": 64, "sequences": 8}, "tokens: a step of 128 tokens has 8 sequences of 16, too few for 64 GPUs"),
    ],
)
def test_nonsense_is_refused(work, asked, said):
    with pytest.raises(OptionError, match=said):
        Job(workload=work, **asked)
    with pytest.raises(OptionError, match="link_gb_s must be above 0; came 0"):
        Rates(link_gb_s=0.0)
    assert Job(workload=work, gpus=1).capacity == 135 * GIB
