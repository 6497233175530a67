"""Muon beside torch's own, and which weights it takes; operations on lists of tensors."""

import copy
import functools

import pytest
import torch
from torch import nn

from clearhead.model import presets
from clearhead.training.optimizers import AdamW, Muon, RoundAll, hidden_maps, make_optimizer, orthogonalize
from clearhead.training.recipe import Optimizer
from clearhead.training.tasks import Generate
from clearhead.training.train_step import BatchLoss, loss_in, loss_rounded_at_once, loss_with
from tests.training.test_train_step import learner_of

CPU = torch.device("cpu")


def gpt():
    torch.manual_seed(0)
    return presets.gpt2("tiny", vocabulary=40).build()


@pytest.mark.parametrize("method", ["adamw", "muon"])
def test_a_step_is_counted_by_every_weight(method):
    """Caches of weights go by it: an evaluation decodes with what was packed for the one before."""
    model = gpt()
    optimizer = make_optimizer(model, [*model.parameters()], Optimizer(method=method), CPU)
    for one in model.parameters():
        one.grad = torch.ones_like(one)
    before = [one._version for one in model.parameters()]
    optimizer.step()
    assert all(one._version > count for one, count in zip(model.parameters(), before, strict=True))


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
