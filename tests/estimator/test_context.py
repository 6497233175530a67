"""Sequences that several GPUs share: memory and bytes by hand, and torchtitan's published points."""

import functools
import math
from dataclasses import replace

import pytest

from clearhead.errors import OptionError
from clearhead.model import presets
from clearhead.model.presets import Size
from estimator.estimate import COMPILED, EAGER, Form, Job, Rates, Workload

FSDP = Form(parallel="fsdp", checkpointing=True)
SMALL = Workload(spec=presets.llama(Size(3, 32, 4, 2, 64), vocabulary=301), source=1, target=64)

LLAMA_8B = presets.llama(Size(32, 4096, 32, 8, 14336), vocabulary=128_256)
PUBLISHED = {1: 3890, 2: 2540, 4: 1071, 8: 548}
"""Tokens a second and GPU on 8 H100s by the GPUs that share a sequence of 32,768 tokens for each of them: torchtitan
(Liang et al., 2024), Llama 3.1 8B with FSDP, full activation checkpointing, torch.compile and float8."""
H100 = Rates(matrix_tflops=600 * 1.6, copy_gb_s=2100 * EAGER / COMPILED, memory_gib=95)
"""At 500 W, as guessed in benchmarks/results/checks.md; float8 products 1.6 times as quick. torchtitan compiles its
blocks under FSDP, which the estimator does not count on."""


@functools.cache  # a workload keeps the passes that it has measured, which take seconds
def workload(context):
    return Workload(spec=LLAMA_8B, source=1, target=32_768 * context)


def estimate(context, rates=H100):
    work = workload(context)
    job = Job(workload=work, gpus=8, rates=rates, sequences=8 // context, micro=1, context=context)
    return work, job.estimate(FSDP)


def tokens_a_second(context, rates):
    return 32_768 / estimate(context, rates)[1].time.total


def test_a_shared_sequence_is_divided_but_for_the_keys_of_a_layer():
    one = Job(workload=SMALL, gpus=8, sequences=8, micro=1).estimate(FSDP)
    four = Job(workload=SMALL, gpus=8, sequences=2, micro=1, context=4).estimate(FSDP)
    keys = 2 * 2 * 2 * 8 * 64  # keys and values, bfloat16, two heads of 8, 64 places
    assert SMALL.key_value_bytes == [keys] * 3
    assert four.memory.activations == one.memory.activations // 4
    assert four.memory.working == one.memory.working // 4 + 2 * keys
    sent = 3 * keys * 3 // 4
    assert four.communication.gather - one.communication.gather == 2 * sent
    assert four.communication.scatter - one.communication.scatter == sent
    assert four.time.compute < one.time.compute
    assert four.form.name == "fsdp/4 + checkpointing"


def test_gpus_that_cannot_be_grouped_are_refused():
    with pytest.raises(OptionError, match="gpus: 8 cannot be grouped by context=3"):
        Job(workload=SMALL, gpus=8, context=3)


@pytest.mark.slow
def test_torchtitans_points_are_predicted_from_two_of_them():
    """Two numbers are fitted, to 32,768 and 262,144 tokens: attention's rate, and what a doubling costs it."""
    seconds = {context: 32_768 / PUBLISHED[context] for context in (1, 8)}
    found = {}
    for context in (1, 8):
        work, estimated = estimate(context, replace(H100, attention_tflops=1e9))
        found[context] = 4 * work.attention_flops / context / 1e12, seconds[context] - estimated.time.total
    rate = found[1][0] / found[1][1]
    cost = (found[8][1] * rate / found[8][0] - 1) / math.log2(8)
    fitted = replace(H100, attention_tflops=rate, doubling_cost=cost)
    print(f"attention {rate:.0f} TFLOP/s, a doubling costs {cost:.1%}")
    assert 100 < rate < 500
    assert 0 < cost < 0.3
    for context, published in PUBLISHED.items():
        off = tokens_a_second(context, fitted) / published - 1
        print(f"{32_768 * context:,} tokens: {tokens_a_second(context, fitted):,.0f}, {off:+.1%}")
        assert abs(off) < (0.01 if context in (1, 8) else 0.15)
