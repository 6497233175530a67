"""Activation checkpointing is the same arithmetic: values, gradients, and buffers that the forward pass updates."""

import pytest
import torch
from torch import nn

from clearhead.model.recomputing import checkpoint_module


class Running(nn.Module):
    """Divides by a running size that it updates in the same pass; a table beside it is only read."""

    def __init__(self, *, assigns):
        super().__init__()
        self.assigns = assigns
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.register_buffer("size", torch.ones(()))
        self.register_buffer("table", torch.arange(3.0))

    def forward(self, x):
        size = 0.9 * self.size + 0.1 * x.detach().abs().mean()
        if self.assigns:
            self.size = size
        else:
            self.size.copy_(size)
        return (x * self.scale / self.size.clone() + self.table).tanh()


def run(module, *, again):
    x = torch.linspace(-2, 3, 6, dtype=torch.float64).view(2, 3).requires_grad_()
    for _ in range(3):  # several passes before one backward, as with shared blocks
        x = checkpoint_module(module, x) if again else module(x)
        x.retain_grad()
    x.square().sum().backward(retain_graph=True)
    x.sum().backward()
    return x.detach(), x.grad, module.scale.grad, module.size, module.table


@pytest.mark.parametrize("assigns", [False, True])
def test_buffers_are_updated_once_and_gradients_are_those_without_it(assigns):
    plain, again = (run(Running(assigns=assigns).double(), again=again) for again in (False, True))
    for one, other in zip(plain, again, strict=True):
        assert torch.equal(one, other)


def test_a_buffer_stays_the_tensor_it_was():
    module = Running(assigns=False)
    tensor = module.size
    checkpoint_module(module, torch.ones(2, 3, requires_grad=True)).sum().backward()
    assert module.size is tensor
    assert tensor.item() == 1.0


def test_an_error_in_the_second_pass_leaves_the_buffers_of_now():
    module = Running(assigns=False)
    out = checkpoint_module(module, torch.full((2, 3), 2.0, requires_grad=True))
    now = module.size.clone()
    module.forward = lambda x: 1 / 0
    with pytest.raises(ZeroDivisionError):
        out.sum().backward()
    assert torch.equal(module.size, now)


def test_compiled_the_gradients_are_those_without_it():
    found = []
    for again in (False, True):
        module = Running(assigns=False)
        x = torch.full((2, 3), 2.0, requires_grad=True)
        compute = torch.compile(
            lambda x, m=module, a=again: checkpoint_module(m, x) if a else m(x), backend="aot_eager"
        )
        compute(x).sum().backward()
        found.append((x.grad, module.size))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])
