"""A program that is wrong by one, made soft, learns the right one from examples."""

import dataclasses
import itertools
import random

import pytest
import torch

from clearhead.attention.layer import Attention
from clearhead.attention.weighting import Argmax, Softmax
from clearhead.rasp import CompiledModel, compile
from clearhead.rasp.programs import shift
from clearhead.tracing import trace_model

pytestmark = pytest.mark.plain

VOCABULARY, LENGTH = "abc", 6
TEMPERATURE = 1.0
"""With which the scores, 2 for what is wanted, 1 for the sink and 0 for all else, go into softmax."""
STEPS, BATCH = 200, 32


def shifted(text, by):
    return [None] * min(by, len(text)) + list(text[: max(0, len(text) - by)])


def wrong_by_one():
    """Shift by one, its head's query map moved so that each place asks for the key one further back."""
    crafted = compile(shift(1), VOCABULARY, length=LENGTH, causal=True, weighting=Softmax(temperature=TEMPERATURE))
    (layer,) = (layer for layer in crafted.model.modules() if isinstance(layer, Attention))
    with torch.no_grad():
        asked = layer.query.linear.weight[1 : 1 + LENGTH]
        asked.copy_(torch.cat([asked[1:], torch.zeros_like(asked[:1])]))
    return crafted


def with_weighting(crafted, weighting):
    """The same weights in a model that weighs otherwise."""
    spec = crafted.model.spec
    blocks = tuple(
        dataclasses.replace(block, attention=dataclasses.replace(block.attention, weighting=weighting))
        for block in spec.blocks
    )
    model = dataclasses.replace(spec, blocks=blocks).build().eval()
    model.load_state_dict(crafted.model.state_dict())
    kept = ("ids", "vocabulary", "answers", "numeric", "length", "directions", "layouts")
    return CompiledModel(model=model, **{name: getattr(crafted, name) for name in kept})


def mistakes(crafted, by=1):
    """Of all texts up to four tokens and some of six, those it is wrong for."""
    short = [text for length in range(1, 5) for text in itertools.product(VOCABULARY, repeat=length)]
    draw = random.Random(1)
    longer = [tuple(draw.choices(VOCABULARY, k=LENGTH)) for _ in range(100)]
    return [text for text in short + longer if crafted.run(text) != shifted(text, by)]


def looked_at(crafted):
    """The token each token of the text looks at most; the first at the sink, token 0."""
    made = trace_model(crafted.model, crafted.tensors("abcabc")[0])
    return made.decoder[0].attention.head[0].weight.argmax(-1).tolist()[1:]


def examples(crafted, draw):
    """A batch of texts as ids, and what the right program has in the logits: 1 for the answer, all 0 for none."""
    texts = [draw.choices(VOCABULARY, k=LENGTH) for _ in range(BATCH)]
    wanted = torch.zeros(BATCH, LENGTH, len(crafted.ids))
    for row, text in enumerate(texts):
        for place, answer in enumerate(shifted(text, 1)):
            if answer is not None:
                wanted[row, place, crafted.ids[answer]] = 1
    return torch.cat([crafted.tensors(text)[0] for text in texts]), wanted


def tune(crafted, parts, rate):
    """The loss at each step; only parameters whose name has one of the parts learn."""
    for name, parameter in crafted.model.named_parameters():
        parameter.requires_grad_(any(part in name for part in parts))
    learning = [parameter for parameter in crafted.model.parameters() if parameter.requires_grad]
    draw, optimizer = random.Random(0), torch.optim.Adam(learning, lr=rate)
    losses = []
    for _ in range(STEPS):
        ids, wanted = examples(crafted, draw)
        loss = (crafted.model(ids)[:, 1:] - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parts", "rate"),
    [
        pytest.param(("",), 0.02, id="the whole model", marks=pytest.mark.thorough),
        pytest.param(("attention.query",), 0.1, id="its query map alone"),
    ],
)
def test_tuning_recovers_a_head_that_is_off_by_one(parts, rate):
    crafted = wrong_by_one()
    hard = with_weighting(crafted, Argmax(ties="average"))
    assert mistakes(hard, by=2) == []
    assert len(mistakes(hard)) > 100
    assert len(mistakes(crafted)) > 100
    losses = tune(crafted, parts, rate)
    assert losses[-1] < losses[0] / 1000
    assert mistakes(crafted) == []
    assert mistakes(with_weighting(crafted, Argmax(ties="average"))) == []
    assert looked_at(crafted) == [0, 1, 2, 3, 4, 5]


def test_without_tuning_it_stays_wrong_however_sharp():
    assert len(mistakes(with_weighting(wrong_by_one(), Softmax(temperature=0.05)))) > 100
