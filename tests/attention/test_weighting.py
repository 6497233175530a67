"""Weightings: small cases by hand, ties, straight-through gradients, and what random features are on average."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import clearhead as ch
from clearhead.attention.weighting import Argmax, Kernelized, RandomFeatures, Sigmoid, Softmax, Sparsemax, Weighting
from clearhead.attention.weighting.features import DrawnFeatures, orthogonal_rows
from clearhead.errors import OptionError

DOUBLE = torch.float64
HEADS = ch.HeadShape(n_heads=2, n_kv_heads=2, d_head=4)


def weights(
    weighting: Weighting, *scores: float, allowed: list[bool] | None = None, dtype: torch.dtype = DOUBLE
) -> Tensor:
    """The weights of one row of scores."""
    query, key = torch.tensor([scores], dtype=dtype), torch.eye(len(scores), dtype=dtype)
    mask = None if allowed is None else torch.tensor([allowed])
    return ch.explain(query, key, key, similarity=ch.similarity.Dot(), weighting=weighting, mask=mask).weight[0]


@pytest.mark.parametrize(
    ("weighting", "scores", "wanted"),
    [
        (Softmax(), [0, math.log(3)], [1 / 4, 3 / 4]),
        (Softmax(temperature=0.5), [0, math.log(3)], [1 / 10, 9 / 10]),
        (Softmax(temperature=2.0), [0, math.log(9)], [1 / 4, 3 / 4]),
        (Softmax(), [7, 7, 7], [1 / 3, 1 / 3, 1 / 3]),
        (Sigmoid(offset=0.0), [0, math.log(3)], [1 / 2, 3 / 4]),
        (Sigmoid(offset=-math.log(3)), [0, math.log(3)], [1 / 4, 1 / 2]),
        (Sigmoid(), [0, 0, 0, 0], [1 / 5] * 4),
        (Sigmoid(), [math.log(4)], [4 / 5]),
        (Sparsemax(), [1, 0.5], [3 / 4, 1 / 4]),
        (Sparsemax(), [0.5, 2, 0], [0, 1, 0]),
        (Sparsemax(), [1, 0.8, -3, 0.3], [0.6, 0.4, 0, 0]),
        (Sparsemax(), [2, 2, 2], [1 / 3, 1 / 3, 1 / 3]),
        (Argmax(), [1, 3, 2], [0, 1, 0]),
        (Argmax(ties="last"), [1, 3, 2], [0, 1, 0]),
        (Argmax(ties="average"), [1, 3, 2], [0, 1, 0]),
        (Argmax(), [-5, -2, -2], [0, 1, 0]),
        (Argmax(ties="last"), [-5, -2, -2], [0, 0, 1]),
        (Argmax(ties="average"), [-5, -2, -2], [0, 1 / 2, 1 / 2]),
    ],
)
def test_a_row_by_hand(weighting: Weighting, scores: list[float], wanted: list[float]):
    torch.testing.assert_close(weights(weighting, *scores), torch.tensor(wanted, dtype=DOUBLE))


@pytest.mark.parametrize("name", [name for name, part in ch.weighting.TABLE.items() if part.form != "kernelized"])
def test_a_blocked_score_does_not_count(name: str):
    """The best one is blocked: the row is that of the others, and the blocked weight exactly 0."""
    weighting = ch.weighting.TABLE[name]
    made = weights(weighting, 9.0, 1.0, 1.5, allowed=[False, True, True])
    assert made[0].item() == 0
    torch.testing.assert_close(made[1:], weights(weighting, 1.0, 1.5))


@pytest.mark.parametrize(("ties", "wanted"), [("first", [1, 0, 0]), ("last", [0, 0, 1]), ("average", [1 / 3] * 3)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_keys_a_billionth_apart_are_tied(ties: str, wanted: list[float], dtype: torch.dtype):
    made = weights(Argmax(ties=ties), 1.0, 1.0 + 1e-9, 1.0 - 1e-9, dtype=dtype)
    assert torch.equal(made, torch.tensor(wanted, dtype=dtype))


@pytest.mark.parametrize(
    ("tolerance", "scores", "tied"),
    [
        (1e-5, [1, 1 - 2e-5], [1, 0]),
        (1e-5, [1, 1 - 0.9e-5], [1, 1]),
        (1e-5, [1000, 1000 - 0.9e-2], [1, 1]),
        (1e-5, [1000, 1000 - 2e-2], [1, 0]),
        (1e-5, [-1000, -1000 - 0.9e-2], [1, 1]),
        (1e-5, [0, -0.9e-5], [1, 1]),
        (0.0, [1, 1 - 1e-15, 1], [1, 0, 1]),
        (0.5, [2, 1.6, 0.9, 0.4], [1, 1, 0, 0]),
        (0.5, [0, -0.4, -0.8], [1, 1, 0]),
    ],
)
def test_tied_is_within_the_tolerance_of_the_maximum(tolerance: float, scores: list[float], tied: list[int]):
    """Of the maximum, not of the next best: a chain of small steps is no tie. Above 1 it is relative."""
    made = weights(Argmax(ties="average", tolerance=tolerance), *scores)
    assert torch.equal(made, torch.tensor(tied, dtype=DOUBLE) / sum(tied))


@pytest.mark.parametrize("ties", ["first", "last", "average"])
@pytest.mark.parametrize("kernel", ["auto", "reference", "blockwise"])
def test_ties_are_broken_alike_on_every_kernel_and_with_a_cache(ties: str, kernel: str):
    """Equal keys do not give equal bits: each has its score from another sum."""
    key = torch.randn(1, 1, 1, 64).expand(-1, -1, 9, -1) * (1 + 1e-7 * torch.randn(1, 1, 9, 1))
    query, value = key + torch.randn(1, 1, 9, 64) * 1e-3, torch.eye(9)[None, None]
    parts = {"weighting": Argmax(ties=ties), "mask": ch.masks.causal(), "kernel": kernel}
    whole = ch.attend(query, key, value, **parts)
    wanted = {
        "first": torch.eye(9)[[0] * 9],
        "last": torch.eye(9),
        "average": torch.ones(9, 9).tril() / torch.arange(1.0, 10)[:, None],
    }[ties]
    assert torch.equal(whole[0, 0], wanted)
    for now in range(9):
        one = ch.attend(query[:, :, [now]], key[:, :, : now + 1], value[:, :, : now + 1], **parts)
        assert torch.equal(one[0, 0, 0], wanted[now])


@settings(max_examples=20)
@given(seed=st.integers(0, 999), n=st.integers(1, 7), shift=st.sampled_from([0.0, 3.0, -1e4, 1e7]))
def test_sparsemax_is_the_nearest_distribution(seed: int, n: int, shift: float):
    """Its gap to the scores is τ inside and at least the score outside: the conditions of the projection."""
    scores = torch.randn(n, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed)) * 2
    made = weights(Sparsemax(), *(scores + shift).tolist())
    threshold = (scores - made)[made > 0]
    torch.testing.assert_close(threshold, threshold[:1].expand_as(threshold), rtol=0, atol=1e-7)
    assert (scores[made == 0] <= threshold[0] + 1e-7).all()
    assert made.sum().item() == pytest.approx(1)


@pytest.mark.parametrize("name", [name for name, part in ch.weighting.TABLE.items() if part.form != "kernelized"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_huge_scores_give_finite_weights(name: str, dtype: torch.dtype):
    made = weights(ch.weighting.TABLE[name], 1e12, -1e12, 1e12, dtype=dtype)
    assert made.isfinite().all()
    if ch.weighting.TABLE[name].sums_to_one:
        assert made.sum().item() == pytest.approx(1)


def test_sigmoid_counts_the_keys_a_query_may_attend():
    made = weights(Sigmoid(), 0.0, 0.0, 0.0, 0.0, allowed=[True, True, False, True])
    assert made.tolist() == pytest.approx([1 / 4, 1 / 4, 0, 1 / 4])


def linear(features: str, *, normalised: bool = True) -> list[float]:
    """Of the query (1, 0) and the keys (1, 0), (0, 2) and (-1, -1)."""
    query, key = torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, 2.0], [-1.0, -1.0]])
    return ch.explain(query, key, key, weighting=Kernelized(features, normalised=normalised)).weight[0].tolist()


def test_kernelized_weights_by_hand():
    """elu + 1 of the query is (2, 1), of the keys (2, 1), (1, 3) and (1/e, 1/e)."""
    total = 5 + 5 + 3 / math.e
    assert linear("elu", normalised=False) == pytest.approx([5, 5, 3 / math.e])
    assert linear("elu") == pytest.approx([5 / total, 5 / total, 3 / math.e / total])
    assert linear("relu", normalised=False) == [1, 0, 0]
    assert linear("relu") == [1, 0, 0]
    a, b = math.e / (1 + math.e), math.exp(2) / (1 + math.exp(2))
    products = [a * a + (1 - a) ** 2, a * (1 - b) + (1 - a) * b, 0.5]
    assert linear("softmax", normalised=False) == pytest.approx(products)
    assert linear("softmax") == pytest.approx([product / sum(products) for product in products])


def test_in_kernelized_attention_scaled_is_the_score_and_blocked_is_zero():
    q = torch.randn(1, 3, 4)
    made = ch.explain(q, q, q, weighting=Kernelized(), mask=ch.masks.causal())
    assert torch.equal(made.scaled, made.score)
    assert torch.equal(made.masked, made.score.tril())


@pytest.mark.parametrize("kernel", ["chunked", "recurrent", "blockwise", "reference"])
def test_a_denominator_of_zero_gives_zeros_and_finite_gradients(kernel: str):
    q = torch.tensor([[-1.0, -2.0], [1.0, -1.0]], requires_grad=True)
    k = torch.tensor([[-1.0, 3.0], [-2.0, 1.0], [0.0, 0.0]], requires_grad=True)
    context = ch.attend(q, k, torch.randn(3, 2), weighting=Kernelized("relu"), kernel=kernel)
    assert not context.any()
    gradients = torch.autograd.grad(context.sum(), (q, k))
    assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("count", [1, 4, 6])
@pytest.mark.slow
def test_random_features_are_the_exponential_on_average(count: int):
    """Over many drawn projections, within five standard errors; short vectors, so that no few of them weigh it all."""
    draws, d = 1500, 4
    q = torch.tensor([[0.4, -0.2, 0.1, 0.5], [-0.3, 0.1, 0.5, 0.0], [0.6, 0.1, -0.3, 0.2]], dtype=DOUBLE)
    k = torch.tensor([[0.3, 0.3, -0.1, 0.4], [0.5, 0.2, -0.6, 0.1], [0.6, 0.1, -0.3, 0.2]], dtype=DOUBLE)
    generator = torch.Generator().manual_seed(count)
    drawn = torch.cat([orthogonal_rows(count, d, generator) for _ in range(draws)])
    for factor, scale in ((1.0, 1.0), (None, 0.5)):
        features = DrawnFeatures(drawn, factor)
        each_row = features.map(q) * features.map(k) * drawn.shape[0]
        each_draw = each_row.unflatten(-1, (draws, count)).mean(-1)
        standard_error = each_draw.std(-1) / draws**0.5
        wanted = torch.exp((q * k).sum(-1) * scale)
        assert ((each_draw.mean(-1) - wanted).abs() < 5 * standard_error).all()
        assert (standard_error < 0.1 * wanted).all()


@pytest.mark.slow
@pytest.mark.parametrize(("error", "d_head", "std"), [(0.1, 64, 0.25), (0.3, 16, 0.5), (0.5, 32, 0.4)])
def test_features_for_an_accuracy_have_it(error: float, d_head: int, std: float):
    """The relative error of φ(q)·φ(k) over many projections: as stated for independent rows, no more for orthogonal."""
    part = RandomFeatures.for_accuracy(error, d_head=d_head, std=std)
    q = torch.zeros(d_head, dtype=DOUBLE)
    k = q.clone()
    q[0] = k[1] = std * d_head**0.5  # |q + k|² = 2 d_head std², exactly
    generator = torch.Generator().manual_seed(3)

    def measured(rows) -> float:
        draws = [DrawnFeatures(rows(), None) for _ in range(300)]
        products = torch.stack([(drawn.map(q) * drawn.map(k)).sum() for drawn in draws])  # exp(q·k/√d) is 1
        return (products - 1).square().mean().sqrt().item()

    independent = measured(lambda: torch.randn(part.count, d_head, generator=generator, dtype=DOUBLE))
    assert independent == pytest.approx(error, rel=0.2)
    assert measured(lambda: orthogonal_rows(part.count, d_head, generator)) < 1.2 * error


def test_an_accuracy_out_of_reach_is_told_with_what_is_in_reach():
    with pytest.raises(
        OptionError,
        match=r"takes 8.9e\+08 features, and the most is 65,536, which are enough up to std=0.64. .*Softmax",
    ):
        RandomFeatures.for_accuracy(0.1, d_head=64)
    RandomFeatures.for_accuracy(0.1, d_head=64, std=0.63)
    with pytest.raises(OptionError, match="more than 1e300 features"):
        RandomFeatures.for_accuracy(0.1, d_head=64, std=100.0)
    with pytest.raises(OptionError, match=r"error and std must be above 0 and finite.*came error=0.0"):
        RandomFeatures.for_accuracy(0.0, d_head=64)


def test_random_features_come_closer_to_softmax_with_their_number():
    """Half the error with four times as many, where the vectors are small enough for either."""
    q, k, v = (torch.randn(4, 32, 64, dtype=DOUBLE) * size for size in (0.3, 0.3, 1.0))
    wanted = ch.attend(q, k, v)

    def error(count: int) -> float:
        parts = [Kernelized(RandomFeatures(count, seed=seed)) for seed in range(4)]
        return sum((ch.attend(q, k, v, weighting=part) - wanted).norm().item() for part in parts)

    assert error(1024) / error(64) == pytest.approx(0.25, abs=0.08)


def test_normalised_random_features_score_by_the_logarithm():
    q, k = torch.randn(2, 3, 4, dtype=DOUBLE), torch.randn(2, 5, 4, dtype=DOUBLE)
    made = ch.explain(q, k, k, weighting=Kernelized("random"))
    plain = ch.explain(q, k, k, weighting=Kernelized("random", normalised=False))
    torch.testing.assert_close(made.score, plain.score.log())
    torch.testing.assert_close(made.weight, plain.weight / plain.weight.sum(-1, keepdim=True))


def test_random_features_made_in_inference_mode_can_be_trained_with():
    q = torch.randn(1, 3, 4, requires_grad=True)
    part = Kernelized(RandomFeatures(count=11, seed=77))
    with torch.inference_mode():
        ch.attend(q, q, q, weighting=part)
    ch.attend(q, q, q, weighting=part).sum().backward()


def test_rows_of_a_block_are_orthogonal():
    rows = orthogonal_rows(10, 4, torch.Generator().manual_seed(0))
    for block in (rows[:4], rows[4:8], rows[8:]):
        product = block @ block.T
        torch.testing.assert_close(product, torch.diag(product.diagonal()), rtol=0, atol=1e-5)


def test_each_layer_draws_its_own_projection_and_a_bare_spec_always_the_same():
    spec = Kernelized(RandomFeatures(count=16))
    first, second = (spec.similarity.build(HEADS).features.projection for _ in range(2))
    assert not torch.equal(first, second)
    q = torch.randn(2, 3, 4)
    assert torch.equal(ch.attend(q, q, q, weighting=spec), ch.attend(q, q, q, weighting=spec))
    other = Kernelized(RandomFeatures(count=16, seed=1))
    assert not torch.allclose(ch.attend(q, q, q, weighting=spec), ch.attend(q, q, q, weighting=other))


@pytest.mark.parametrize("kernel", ["reference", "blockwise", "chunked", "recurrent"])
@pytest.mark.parametrize("features", ["elu", "relu", "softmax", "random"])
def test_a_changed_future_key_changes_no_bit_of_earlier_rows(kernel: str, features: str):
    q, k, v = torch.randn(3, 1, 2, 9, 4)
    parts = {"weighting": Kernelized(features), "mask": ch.masks.causal(), "kernel": kernel}
    before = ch.attend(q, k, v, **parts)
    k[:, :, 5], v[:, :, 5] = 3.0, 1e6
    after = ch.attend(q, k, v, **parts)
    assert torch.equal(after[:, :, :5], before[:, :, :5])
    assert not torch.allclose(after[:, :, 5:], before[:, :, 5:])


@pytest.mark.parametrize("ties", ["first", "last", "average"])
@pytest.mark.parametrize("kernel", ["reference", "blockwise"])
def test_straight_through_is_softmaxs_gradient_at_the_hard_choice(ties: str, kernel: str):
    """dL/dweight is that of the hard forward; from there to q and k it goes back through softmax."""
    q, k, v = (torch.randn(2, 3, n, 4, dtype=DOUBLE, requires_grad=True) for n in (5, 6, 6))
    mask, upstream = torch.rand(2, 1, 5, 6) < 0.7, torch.randn(2, 3, 5, 4, dtype=DOUBLE)
    hard = Argmax(ties=ties)
    context = ch.attend(q, k, v, weighting=hard, mask=mask, kernel=kernel)
    came = torch.autograd.grad((context * upstream).sum(), (q, k, v))
    choice = ch.explain(q, k, v, weighting=hard, mask=mask).weight.detach()
    of_weight = (upstream @ v.mT).detach()
    soft = (ch.explain(q, k, v, mask=mask).weight * of_weight).sum()
    wanted = (*torch.autograd.grad(soft, (q, k)), choice.mT @ upstream)
    for ours, theirs in zip(came, wanted, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("kernel", ["reference", "blockwise"])
def test_without_a_gradient_only_the_values_learn(kernel: str):
    q, k, v = (torch.randn(2, 3, 5, 4, requires_grad=True) for _ in range(3))
    context = ch.attend(q, k, v, weighting=Argmax(gradient="none"), kernel=kernel)
    of_query, of_key, of_value = torch.autograd.grad(context.sum(), (q, k, v), allow_unused=True)
    assert of_query is None or not of_query.any()
    assert of_key is None or not of_key.any()
    assert of_value.any()
    assert torch.equal(context, ch.attend(q, k, v, weighting=Argmax(), kernel=kernel))
