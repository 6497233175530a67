"""Prompts read before their sequences join, whole or in pieces; and steps that are recorded."""

import random
import warnings

import pytest
import torch

from clearhead import weighting
from clearhead.attention.cpu_matmul import which_product
from clearhead.decoding import recorded, session, which_step
from clearhead.decoding.caches import FullCache
from clearhead.decoding.continuous import ContinuousBatch
from clearhead.decoding.session import Prefill
from clearhead.model import presets
from clearhead.taps import watching
from tests.decoding.serving import decode, draw_job, unlike_alone
from tests.model.own_feed_forward import ChangedAfter, Own, Said


def test_a_prompt_in_pieces_leaves_the_keys_it_leaves_as_a_whole():
    torch.manual_seed(0)
    model = presets.gpt2("tiny", vocabulary=20).build().double().eval()
    prompt = list(range(12))
    with torch.inference_mode():
        whole, pieces = (Prefill(model, [prompt], None, 64, at_once) for at_once in (64, 4))
        assert whole.read_next() == 11
        assert [pieces.read_next() for _ in range(3)] == [4, 4, 3]
    assert whole.done
    assert pieces.done
    for one, other in zip(whole.caches, pieces.caches, strict=True):
        assert isinstance(one, FullCache)
        assert isinstance(other, FullCache)
        torch.testing.assert_close(other.keys[:, :, :11], one.keys[:, :, :11], rtol=0, atol=1e-12)


@pytest.mark.slow
def test_a_step_is_recorded_once_for_each_shape_and_again_when_memory_has_grown(monkeypatch):
    """Recording is CUDA's; here a recorded step computes again, into the output that its shape has."""
    shapes = []

    def record(work):
        shapes.append(scheduler.session.shape)
        return work

    monkeypatch.setattr(recorded, "record", record)
    torch.manual_seed(0)
    model = presets.tiny(vocabulary=20).build().double().eval()
    draw = random.Random(2)
    scheduler = ContinuousBatch(model, slots=40, columns=90, source_columns=40)
    assert not scheduler.session.recordable
    scheduler.session.recordable = True
    jobs = [draw_job(draw, 20, encoder=True) for _ in range(30)]
    found = decode(scheduler, jobs, random.Random(3))
    assert [told for job, one in zip(jobs, found, strict=True) for told in unlike_alone(model, job, one)] == []
    assert shapes
    assert len(set(shapes)) == len(shapes)
    assert set(scheduler.session.replays) >= set(shapes)
    assert {shape[0] for shape in scheduler.session.replays} <= {32, 40}


@pytest.mark.parametrize(("kind", "records"), [(Own, False), (Said, True), (ChangedAfter, False)])
def test_a_part_of_the_users_own_is_recorded_if_it_says_so(kind, records, monkeypatch):
    monkeypatch.setattr(session, "can_record_on", lambda device: True)
    model = presets.llama(presets.Size(2, 32, 4, 2, 64), vocabulary=20).build().eval()
    assert which_step(model).kind == "recorded"
    model.stack.blocks[0].feed_forward = kind(model.stack.blocks[0].feed_forward)
    step = which_step(model)
    assert step.kind == ("recorded" if records else "fast")
    assert (kind.__name__ in step.why) == (not records)


def test_a_part_that_makes_decoding_slower_is_named_once(monkeypatch):
    class Slow(Own):
        """Its class is this test's own, since each is named once."""

    model = presets.gpt2("tiny", vocabulary=20).build().eval()
    model.stack.blocks[0].register_module("feed_forward", Slow(model.stack.blocks[0].feed_forward))
    ContinuousBatch(model)  # on a CPU nothing is recorded, and nothing is said
    monkeypatch.setattr(session, "can_record_on", lambda device: True)
    with pytest.warns(UserWarning, match="Slow does not say `recordable = True`"):
        ContinuousBatch(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ContinuousBatch(model)


def test_a_step_says_why_it_is_no_faster(monkeypatch):
    model = presets.gpt2("tiny", vocabulary=20).build().eval()
    kind, why = which_step(model)
    assert kind == "fast"
    assert why == f"steps are recorded on CUDA, and it is on cpu; {which_product()}"
    with watching(model, lambda name, value: None):
        assert which_step(model).kind == "forward"
    monkeypatch.setattr(session, "can_record_on", lambda device: True)
    attention = presets.AttentionSpec(heads=4, weighting=weighting.Kernelized())
    model = presets.gpt2(presets.Size(2, 32, 4, 4, 64), vocabulary=20, length=64, attention=attention).build()
    assert "StateCache" in which_step(model).why
