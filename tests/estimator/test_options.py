"""Options of the estimator: what they plan, and what is refused."""

import pytest

from clearhead.errors import WordError
from clearhead.model import presets
from clearhead.model.presets import Size
from estimator.options import RateOptions, ScalingOptions, plan_training

SPEC = presets.gpt2(Size(1, 16, 2, 2, 32), vocabulary=50, length=16)


def planned(rates=RateOptions(), **options):
    return plan_training(SPEC, (1, 16), ScalingOptions(**options), rates, None)


def test_tokens_are_those_of_all_gpus():
    job = planned(gpus=4, tokens=1024, micro_batch_tokens=128).job
    assert (job.sequences, job.micro) == (64, 2)
    assert job.workload.bfloat16
    assert not job.workload.averaged


def test_rates_that_are_given_replace_an_h200s():
    rates = planned(RateOptions(memory_gb=80.0, matrix_tflops=600.0, gpus_per_node=4), gpus=8).job.rates
    assert (rates.memory_gib, rates.matrix_tflops, rates.gpus_per_node, rates.link_gb_s) == (80.0, 600.0, 4, 370.0)


def test_forms_are_those_that_were_asked_for():
    def names(**options):
        return [form.name for form in planned(gpus=2, **options).forms]

    assert names() == ["ddp", "ddp + checkpointing", "fsdp", "fsdp + checkpointing"]
    assert names(parallel="fsdp") == ["fsdp", "fsdp + checkpointing"]
    assert names(parallel="ddp", activation_checkpointing=True) == ["ddp + checkpointing"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"gpus": 8, "parallel": "tensor"}, "there is no 'tensor'; there are auto, ddp, fsdp"),
        ({"gpus": 8, "precision": "int8"}, "there is no 'int8'"),
        ({"gpus": 8, "tokens": 64}, "a step of 64 tokens has 4 sequences of 16, too few for 8 GPUs"),
        ({"gpus": 8, "micro_batch_tokens": 64}, "a sequence of 16 tokens on each GPU, 128 in all; came 64"),
        ({"gpus": 8, "train_tokens": "many"}, "'many' is no number"),
    ],
)
def test_nonsense_is_refused(options, said):
    with pytest.raises(WordError, match=said):
        planned(**options)
