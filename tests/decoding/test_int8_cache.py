"""Keys and values cached as int8: what is lost, and what stays a law."""

import copy

import pytest
import torch

from benchmarks.differences import compare
from clearhead.decoding import Beam, Greedy, Rules, Sample, use_int8_cache, which_step
from clearhead.decoding.caches import round_to_int8
from clearhead.decoding.continuous import ContinuousBatch
from clearhead.decoding.prefix_cache import PrefixCache
from clearhead.decoding.scheduler import Job
from clearhead.decoding.session import EVERYTHING, Prefill
from clearhead.model import presets
from tests.decoding.serving import decode
from tests.training.small_runs import documents, trained


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_vector_is_rounded_by_half_a_step_at_most(dtype):
    torch.manual_seed(0)
    vectors = torch.randn(3, 2, 5, 16, dtype=dtype) * torch.logspace(-3, 3, 5, dtype=dtype).view(5, 1)
    vectors[0, 0, 0] = 0
    codes, scale = round_to_int8(vectors)
    step = vectors.double().abs().amax(-1, keepdim=True) / 127
    off = (codes.double() * scale.double() - vectors.double()).abs()
    assert (codes.dtype, scale.shape) == (torch.int8, (3, 2, 5, 1))
    assert (off <= step * (0.5 if dtype is not torch.bfloat16 else 1.0) * (1 + 1e-5)).all()  # a scale in bfloat16


@pytest.mark.parametrize("spec", [presets.llama("tiny", vocabulary=20), presets.tiny(20)], ids=["llama", "classic"])
def test_an_output_is_the_same_alone_in_a_batch_in_pieces_and_on_a_shared_beginning(spec):
    torch.manual_seed(0)
    model = spec.build().double().eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=1.5 * parameter.shape[-1] ** -0.5)
    texts = [torch.tensor([[1, 2, 3, 4]])] * (1 if model.encoder is None else 2)
    exact = model(*texts)
    use_int8_cache(model)
    beginning, methods = (3, 7, 1, 9, 2, 8, 4, 4, 6, 11, 5, 13), [Greedy(), Sample(seeds=4), Beam(width=3)]
    prefixes = [(*beginning[: 12 - i % 2 * 4], *range(i + 1)) for i in range(9)]
    jobs = [
        Job(
            inputs=(5, 6) if model.encoder else prefix,
            prefix=prefix if model.encoder else None,
            method=method,
            rules=Rules(max_new=6),
        )
        for prefix, method in zip(prefixes, methods * 3, strict=True)
    ]
    batch = ContinuousBatch(model, slots=5, columns=64, prompt_tokens=8, prefixes=PrefixCache(1 << 20, 4))
    for job, found in zip(jobs, decode(batch, jobs), strict=True):
        assert compare(model, job, found).verdict == "equal"
    assert model.encoder or batch.counts.shared_tokens > 0
    assert torch.equal(exact, model(*texts))  # nothing is rounded where nothing is cached


def test_it_takes_a_fraction_of_the_memory_and_says_so():
    model = presets.gpt2("tiny", vocabulary=20).build()
    jobs = [Job(inputs=(1, 2, 3), rules=Rules(max_new=4))]
    sizes = []
    for on in (False, True):
        use_int8_cache(model, on=on)
        batch = ContinuousBatch(model, slots=4)
        decode(batch, jobs)
        sizes.append(batch.bytes())
        assert ("int8" in which_step(model).why) == on
    d_head = model.decoder.stack.blocks[0].attention.shape.d_head
    assert sizes[1] == sizes[0] * (d_head + 4) // (4 * d_head)


@pytest.mark.slow
def test_little_is_lost_of_a_trained_model(tmp_path_factory):
    run = trained(documents, tmp_path_factory)
    ids = run.tokenizer.encode("the cat eats the fish and the dog sees a bird")[:24]
    losses = []
    for on in (False, True):
        model = use_int8_cache(copy.deepcopy(run.model).double(), on=on)
        prefill = Prefill(model.decoder, [[*ids, 0]], None, 64, EVERYTHING)
        with torch.inference_mode():
            logits = model.decoder.output(torch.cat([prefill.read(torch.tensor([[token]])) for token in ids], 1))[0]
        losses.append(torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(ids[1:])).item())
    assert losses[0] != losses[1]
    assert losses[1] == pytest.approx(losses[0], abs=0.02)
