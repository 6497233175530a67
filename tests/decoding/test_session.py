"""Prompts read before their sequences join, whole or in pieces; and steps that are recorded."""

import random

import pytest
import torch

from clearhead.decoding import recorded
from clearhead.decoding.caches import FullCache
from clearhead.decoding.continuous import ContinuousBatch
from clearhead.decoding.session import Prefill
from clearhead.model import presets
from tests.decoding.serving import decode, draw_job, unlike_alone

pytestmark = pytest.mark.usefixtures("one_thread")


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
