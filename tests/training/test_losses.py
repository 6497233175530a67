"""The objective: against torch's own cross-entropy, and R-Drop against its published formula; gradients too."""

import pytest
import torch
from torch.nn import functional as F

from clearhead.training.losses import NOTHING, cross_entropy, r_drop

SMOOTHINGS = [0.0, 0.1, 0.5]
smoothings = pytest.mark.parametrize("smoothing", SMOOTHINGS)


def drawn(places=7, choices=5, *, dtype=torch.float64):
    logits = (3 * torch.randn(places, choices, dtype=dtype)).requires_grad_()
    wanted = torch.randint(choices, (places,))
    wanted[1::3] = NOTHING
    return logits, wanted


def twice(places=6, choices=5):
    """Two answers to the same places, one half after the other."""
    logits, wanted = drawn(places, choices)
    other = (3 * torch.randn(places, choices, dtype=torch.float64)).requires_grad_()
    return logits, other, wanted


def published(first, second, wanted, smoothing, alpha):
    """Liang et al. (2021): -log p - log q + alpha / 2 (KL(p, q) + KL(q, p)), summed over the places, by two calls."""
    asked = wanted != NOTHING
    losses = [
        F.cross_entropy(logits, wanted, ignore_index=NOTHING, reduction="sum", label_smoothing=smoothing)
        for logits in (first, second)
    ]
    p, q = (torch.log_softmax(logits[asked], -1) for logits in (first, second))
    divergence = F.kl_div(q, p, log_target=True, reduction="sum") + F.kl_div(p, q, log_target=True, reduction="sum")
    return losses[0] + losses[1] + alpha / 2 * divergence


@smoothings
def test_cross_entropy_is_torchs(smoothing):
    logits, wanted = drawn()
    mine = cross_entropy(logits, wanted, smoothing)
    theirs = F.cross_entropy(logits, wanted, ignore_index=NOTHING, reduction="sum", label_smoothing=smoothing)
    torch.testing.assert_close(mine.objective, theirs, rtol=1e-12, atol=1e-12)
    plain = F.cross_entropy(logits, wanted, ignore_index=NOTHING, reduction="sum").detach()
    torch.testing.assert_close(mine.nll, plain, rtol=1e-12, atol=1e-12)
    assert not mine.nll.requires_grad
    gradients = [torch.autograd.grad(one, logits)[0] for one in (mine.objective, theirs)]
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-12)


@smoothings
def test_gradients_are_those_of_differences(smoothing):
    logits, wanted = drawn(4, 3)
    assert torch.autograd.gradcheck(lambda given: cross_entropy(given, wanted, smoothing).objective, logits)
    both = torch.cat([wanted, wanted])
    doubled = torch.randn(8, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda given: r_drop(given, both, smoothing, 2.0).objective, doubled)


@smoothings
@pytest.mark.parametrize("alpha", [0.5, 5.0])
def test_r_drop_is_half_of_the_published_formula(smoothing, alpha):
    first, second, wanted = twice()
    mine = r_drop(torch.cat([first, second]), torch.cat([wanted, wanted]), smoothing, alpha)
    theirs = published(first, second, wanted, smoothing, alpha) / 2
    torch.testing.assert_close(mine.objective, theirs, rtol=1e-12, atol=1e-12)
    ours = torch.autograd.grad(mine.objective, (first, second))
    expected = torch.autograd.grad(theirs, (first, second))
    for one, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_r_drop_of_two_equal_answers_is_cross_entropy():
    logits, wanted = drawn()
    mine = r_drop(torch.cat([logits, logits]), torch.cat([wanted, wanted]), 0.1, 5.0)
    plain = cross_entropy(logits, wanted, 0.1)
    torch.testing.assert_close(mine.objective, plain.objective, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(mine.nll, plain.nll, rtol=1e-12, atol=1e-12)


@smoothings
def test_places_that_ask_for_nothing_never_matter(smoothing):
    logits, wanted = drawn()
    ignored = wanted == NOTHING
    for other in (torch.full_like(logits, 1e4), torch.full_like(logits, float("nan"))):
        changed = torch.where(ignored[:, None], other, logits)
        assert torch.equal(
            cross_entropy(changed, wanted, smoothing).objective, cross_entropy(logits, wanted, smoothing)[0]
        )
        pair, both = torch.cat([changed, logits]), torch.cat([wanted, wanted])
        plain = r_drop(torch.cat([logits, logits]), both, smoothing, 3.0)
        assert torch.equal(r_drop(pair, both, smoothing, 3.0).objective, plain.objective)
    [gradient] = torch.autograd.grad(cross_entropy(logits, wanted, smoothing).objective, logits)
    assert not gradient[ignored].any()
    assert gradient[~ignored].any(-1).all()


@smoothings
def test_where_nothing_is_asked_there_is_no_loss_and_no_nan(smoothing):
    logits = torch.randn(4, 5, requires_grad=True)
    wanted = torch.full((4,), NOTHING)
    for found in (cross_entropy(logits, wanted, smoothing), r_drop(logits, wanted, smoothing, 2.0)):
        assert found.objective.item() == found.nll.item() == 0
        [gradient] = torch.autograd.grad(found.objective, logits)
        assert not gradient.any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_widened_before_it_is_summed(dtype):
    logits, wanted = drawn(9, 600, dtype=dtype)
    for smoothing in SMOOTHINGS:
        found = cross_entropy(logits, wanted, smoothing).objective
        assert found.dtype == torch.float32
        assert torch.equal(found, cross_entropy(logits.float(), wanted, smoothing).objective)


def test_a_mean_over_places_comes_out_the_same_however_they_are_cut():
    logits, wanted = drawn(12)
    whole = cross_entropy(logits, wanted, 0.1).objective
    parts = sum(cross_entropy(*part, 0.1).objective for part in zip(logits.chunk(4), wanted.chunk(4), strict=True))
    torch.testing.assert_close(whole, parts, rtol=1e-12, atol=1e-12)
