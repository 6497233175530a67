"""Several adapters beside one model: in one batch, each row gets what the model with its adapter alone gives."""

import copy
import random

import pytest
import torch
from torch import nn

from clearhead.decoding import Beam, Greedy, Rules, Sample, generate
from clearhead.decoding.continuous import ContinuousBatch
from clearhead.decoding.prefix_cache import PrefixCache
from clearhead.decoding.scheduler import Job
from clearhead.errors import OptionError
from clearhead.model import presets
from clearhead.model.lora import AdaptedLinear, Lora, add_adapters, find_switch, share_adapters
from clearhead.model.presets import Size
from tests.decoding.serving import decode, unlike_alone
from tests.rounding import same_but_rounding

SIZE = Size(2, 32, 4, 2, 48)
MODELS = {
    "llama": lambda: presets.llama(SIZE, vocabulary=40),
    "gpt2": lambda: presets.gpt2(SIZE._replace(n_kv_heads=4), vocabulary=40),
}
LORAS = (Lora(rank=2, maps=("query", "value")), Lora(rank=5, maps=("all",), alpha=3.0), Lora(rank=1, maps=("up",)))


@pytest.fixture(scope="module", params=sorted(MODELS))
def models(request):
    """A model without adapters, and with each."""
    torch.manual_seed(0)
    plain = MODELS[request.param]().build().double().eval()
    models: list[nn.Module] = [plain]
    for lora in LORAS:
        models.append(add_adapters(copy.deepcopy(plain), lora))
        for module in models[-1].modules():
            if isinstance(module, AdaptedLinear):
                nn.init.normal_(module.adapter_up, std=0.5)
    return models


@pytest.fixture
def shared(models):
    model = copy.deepcopy(models[0])
    share_adapters(model, models[1:])
    return model


def test_rows_of_a_batch_have_different_adapters(models, shared):
    """With prompts that begin alike: keys and values of one adapter are not another's."""
    draw = random.Random(0)
    batch = ContinuousBatch(shared, slots=7, columns=40, prompt_tokens=16, prefixes=PrefixCache(block=4))
    beginning = tuple(draw.randrange(40) for _ in range(10))
    jobs = [
        Job(
            inputs=(*beginning[: draw.choice((0, 5, 10))], *(draw.randrange(40) for _ in range(draw.randint(1, 3)))),
            rules=Rules(max_new=draw.randint(1, 8)),
            method=draw.choice((Greedy(), Sample(seeds=number), Beam(width=2))),
            adapter=number % 4,
        )
        for number in range(40)
    ]
    found = decode(batch, jobs, draw, cancelled=(3,))
    assert batch.counts.shared_tokens > 0
    pairs = [(job, hypotheses) for job, hypotheses in zip(jobs, found, strict=True) if hypotheses is not None]
    assert [told for job, one in pairs for told in unlike_alone(models[job.adapter], job, one)] == []


def test_adapters_differ_and_none_is_the_model_itself(models, shared):
    rules = Rules(max_new=12)
    assert same_but_rounding(*(generate(model, [5, 6], rules=rules) for model in (shared, models[0])))
    batch = ContinuousBatch(shared, slots=4)
    found = decode(batch, [Job(inputs=(5, 6), rules=rules, adapter=number) for number in range(4)])
    assert len({hypothesis.tokens for [hypothesis] in found}) > 2
    switch = find_switch(shared)
    assert switch is not None
    assert switch.rows is None
    assert find_switch(models[0]) is None


def test_only_adapters_of_the_same_weights_are_taken(models):
    model = copy.deepcopy(models[0])
    with pytest.raises(OptionError, match="adapter 1: its model has no LoRA adapters; load it with merge=False"):
        share_adapters(model, [models[0]])
    other = copy.deepcopy(models[1])
    other.output.table.data += 1
    with pytest.raises(OptionError, match=r"adapter 2: its .*table is not that of the model"):
        share_adapters(model, [models[1], other])
