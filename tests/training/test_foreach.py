"""Weights rounded all at once: the numbers and gradients of rounding each by itself."""

import functools

import pytest
import torch
from torch import nn

from clearhead.model import presets
from clearhead.training.foreach import RoundAll
from clearhead.training.recipe import Optimizer
from clearhead.training.tasks import Generate
from clearhead.training.train_step import BatchLoss, loss_in, loss_rounded_at_once, loss_with

SPEC = presets.gpt2(presets.Size(2, 12, 2, 2, 20), vocabulary=11, length=8, dropout=0.0)


def make_weights():
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(*shape)) for shape in ((4, 3), (3,), (2, 3))]


def use(first, second, third):
    return ((first * second).sin().sum(0) @ third.T).sum().float()


@pytest.mark.parametrize("fresh", [False, True], ids=["added", "written over"])
@pytest.mark.parametrize("had", [False, True], ids=["no gradient before", "one before"])
def test_gradients_are_those_of_rounding_each(had, fresh):
    wanted, got = make_weights(), make_weights()
    for weights in (wanted, got) if had else ():
        for one in weights:
            one.grad = None if fresh and weights is wanted else torch.ones_like(one)
    use(*(one.to(torch.bfloat16) for one in wanted)).backward()
    use(*RoundAll.apply(torch.bfloat16, fresh, *got)).backward()
    for one, other in zip(wanted, got, strict=True):
        assert other.grad.dtype == torch.float32
        assert torch.equal(one.grad, other.grad)


def test_a_frozen_weight_and_one_without_use_get_no_gradient():
    first, second, third = make_weights()
    second.requires_grad_(False)
    rounded = RoundAll.apply(torch.bfloat16, False, first, second, third)
    assert [one.requires_grad for one in rounded] == [True, False, True]
    (rounded[0] * rounded[1]).sum().float().backward()
    assert first.grad is not None
    assert second.grad is None
    assert third.grad is None


def test_a_weight_without_use_has_no_gradient_of_the_step_before():
    weights = make_weights()
    for one in weights:
        one.grad = torch.ones_like(one)
    RoundAll.apply(torch.bfloat16, True, *weights)[0].sum().float().backward()
    assert [one.grad.sum().item() for one in weights] == [12, 0, 0]


def test_the_loss_of_a_model_and_its_gradients_are_the_same():
    found = []
    for run in (loss_in, functools.partial(loss_rounded_at_once, loss_with)):
        torch.manual_seed(0)
        loss = BatchLoss(SPEC.build(), Generate(tokenizers={}, context=8), Optimizer())
        ids = torch.randint(11, (3, 9))
        made = run(loss, {"tokens": ids[:, :-1], "wanted": ids[:, 1:]}, torch.bfloat16)
        made.objective.backward()
        found.append([made.objective.detach(), *(one.grad for one in loss.parameters())])
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)
