"""Caches of slots: nothing of who had a slot before is left, and memory grows no further than it must."""

import pytest
import torch

from clearhead import masks, weighting
from clearhead.decoding import Beam, Rules
from clearhead.decoding.caches import FullCache, SourceCache, SourceStateCache, StateCache, WindowCache
from clearhead.decoding.clock import Clock, SessionSize
from clearhead.decoding.continuous import ContinuousBatch
from clearhead.decoding.scheduler import Job
from clearhead.model.blocks import AttentionSpec, BlockSpec
from clearhead.model.feedforward import ReLU
from clearhead.model.transformers import DecoderSpec, EncoderDecoderSpec, EncoderSpec
from tests.decoding.serving import decode, unlike_alone

KINDS = {
    "softmax": (AttentionSpec(heads=2), FullCache, SourceCache),
    "window": (AttentionSpec(heads=2, mask=masks.window(3)), WindowCache, SourceCache),
    "wide window": (AttentionSpec(heads=2, mask=masks.window(99)), FullCache, SourceCache),
    "kernelized": (AttentionSpec(heads=2, weighting=weighting.Kernelized()), StateCache, SourceStateCache),
}


def make(name: str):
    own, cross = KINDS[name][0], AttentionSpec(heads=2, weighting=KINDS[name][0].weighting)
    encoder = BlockSpec(attention=cross, feed_forward=ReLU(24))
    decoder = BlockSpec(attention=own, cross=cross, feed_forward=ReLU(24))
    torch.manual_seed(1)
    spec = EncoderDecoderSpec(
        encoder=EncoderSpec(vocabulary=11, d_model=16, blocks=(encoder,), output=None),
        decoder=DecoderSpec(vocabulary=11, d_model=16, blocks=(decoder,)),
    )
    return spec.build().double().eval()


def job(*inputs: int, prefix=(1, 4, 5), method=None):
    return Job(inputs=inputs, prefix=prefix, rules=Rules(max_new=6), **({} if method is None else {"method": method}))


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.slow
def test_nan_in_a_slot_that_was_freed_does_not_reach_the_next(name):
    model = make(name)
    scheduler = ContinuousBatch(model, slots=3, columns=24, source_columns=24)
    decode(scheduler, [job(5, 6, 7), job(8, 9, 3, 2, 1), job(2)])
    assert {type(cache) for cache in scheduler.session.caches} == set(KINDS[name][1:])
    jobs = [job(3, 9), job(4, prefix=(1,)), job(6, 6, 6), job(2, method=Beam(width=2))]
    with torch.inference_mode():
        for cache in scheduler.session.caches:
            for held in cache.tensors():
                held.fill_(True if held.dtype == torch.bool else torch.nan)
    found = decode(scheduler, jobs)
    assert [
        told for one, hypotheses in zip(jobs, found, strict=True) for told in unlike_alone(model, one, hypotheses)
    ] == []


def test_memory_grows_with_the_longest_job_and_no_further():
    scheduler = ContinuousBatch(make("softmax"), slots=4, columns=200, source_columns=100)
    decode(scheduler, [job(1, 2)])
    small = scheduler.bytes()
    decode(scheduler, [job(1, 2)] * 9)
    assert scheduler.bytes() == small
    decode(scheduler, [Job(inputs=(1, 2), prefix=(1,), rules=Rules(max_new=90))])
    assert small < scheduler.bytes() < 2 * small  # 128 columns for 64; those of the source are as many as before


@pytest.mark.parametrize(
    ("there", "wanted", "most", "made"), [(0, 5, 99, 64), (0, 5, 9, 16), (64, 65, 999, 128), (64, 65, 70, 80)]
)
def test_columns_are_doubled_up_to_the_limit_and_aligned(there, wanted, most, made):
    clock = Clock(SessionSize(1, most), torch.device("cpu"), torch.float32)
    cache, like = FullCache(clock, plain=True), torch.zeros(1, 2, 1, 4)
    cache.allocate((like, like), there)
    clock.columns = wanted
    for _ in range(2):
        assert [part.shape[2] for part in cache.reserve(like, like)] == [made, made]
