"""Muon beside torch's own, and which weights it takes."""

import copy

import pytest
import torch
from torch import nn

from clearhead.model import presets
from clearhead.training.optimizers import AdamW, Muon, hidden_maps, make_optimizer, orthogonalize
from clearhead.training.recipe import Optimizer
from tests.training.test_train_step import learner_of

CPU = torch.device("cpu")


def gpt():
    torch.manual_seed(0)
    return presets.gpt2("tiny", vocabulary=40).build()


@pytest.mark.parametrize("shape", [(3, 8, 8), (1, 5, 12), (2, 12, 5), (1, 1, 4)])
def test_orthogonalized_matrices_keep_their_directions_and_have_singular_values_near_one(shape):
    torch.manual_seed(1)
    matrices = torch.randn(shape) @ torch.diag(torch.linspace(0.3, 3, shape[-1]))
    u, _, vh = torch.linalg.svd(matrices, full_matrices=False)
    found = u.mT @ orthogonalize(matrices) @ vh.mT
    values = found.diagonal(dim1=-2, dim2=-1)
    assert (values > 0.6).all()
    assert (values < 1.3).all()
    torch.testing.assert_close(found, torch.diag_embed(values), atol=1e-4, rtol=0)


def test_a_gradient_of_zeros_stays_zero():
    assert not orthogonalize(torch.zeros(2, 3, 4)).any()


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_steps_are_those_of_torchs_muon_and_adamw(decay):
    """Torch's own rounds to bfloat16 on the way, hence the tolerance: a hundredth of a step."""
    model = gpt()
    other = copy.deepcopy(model)
    taken = {id(one) for one in hidden_maps(other)}
    muon = torch.optim.Muon(
        [one for one in other.parameters() if id(one) in taken],
        lr=0.01,
        weight_decay=decay,
        adjust_lr_fn="match_rms_adamw",
    )
    rest = [one for one in other.parameters() if id(one) not in taken]
    adamw = torch.optim.AdamW(
        [
            {"params": [one for one in rest if one.ndim >= 2]},
            {"params": [one for one in rest if one.ndim < 2], "weight_decay": 0.0},
        ],
        lr=0.01,
        betas=(0.9, 0.98),
        weight_decay=decay,
    )
    ours = make_optimizer(model, list(model.parameters()), Optimizer(lr=0.01, weight_decay=decay, method="muon"), CPU)
    assert isinstance(ours, Muon)
    before = copy.deepcopy(model)
    for _ in range(3):
        for one, twin in zip(model.parameters(), other.parameters(), strict=True):
            one.grad = torch.randn_like(one)
            twin.grad = one.grad.clone()
        for optimizer in (ours, muon, adamw):
            optimizer.step()
    for (name, one), twin, old in zip(model.named_parameters(), other.parameters(), before.parameters(), strict=True):
        moved = (twin - old).norm()
        assert moved > 0, name
        assert (one - twin).norm() < (0.02 if id(twin) in taken else 1e-5) * moved, name


def test_muon_takes_the_maps_inside_blocks_and_nothing_else():
    model = gpt()
    names = {name for name, one in model.named_parameters() if any(one is taken for taken in hidden_maps(model))}
    inside = {name for name, one in model.named_parameters() if ".blocks." in name and one.ndim == 2}
    assert names == inside
    assert len(names) >= 12


def test_adamw_is_the_usual_and_is_taken_where_no_block_has_a_map():
    model = gpt()
    assert type(make_optimizer(model, list(model.parameters()), Optimizer(), CPU)) is AdamW
    head = nn.Linear(3, 4)
    made = make_optimizer(head, list(head.parameters()), Optimizer(method="muon"), CPU)
    assert type(made) is AdamW


def test_frozen_maps_are_left_alone():
    model = gpt()
    frozen = hidden_maps(model)[0].requires_grad_(False)
    kept = frozen.clone()
    trained = [one for one in model.parameters() if one.requires_grad]
    optimizer = make_optimizer(model, trained, Optimizer(method="muon", weight_decay=0.1), CPU)
    for one in trained:
        one.grad = torch.randn_like(one)
    optimizer.step()
    assert torch.equal(frozen, kept)


def test_a_run_starts_without_momentum():
    state = learner_of(method="muon").optimizer.state
    assert any("momentum_buffer" in one for one in state.values())
    assert not any(tensor.any() for one in state.values() for tensor in one.values())
