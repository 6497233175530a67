"""Similarities: small cases by hand, and why the dot product is scaled."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import clearhead as ch
from clearhead.attention.similarity import Additive, CappedDot, Cosine, Dot, ScaledDot, Similarity
from clearhead.errors import OptionError
from clearhead.model import NextToken

HEADS = ch.HeadShape(n_heads=2, n_kv_heads=2, d_head=3)
A, B = torch.tensor([[2.0, 3.0]]), torch.tensor([[1.0, 4.0]])


def scaled(query: Tensor, key: Tensor, similarity: Similarity) -> Tensor:
    return ch.explain(query, key, key, similarity=similarity).scaled


@pytest.mark.parametrize(
    ("similarity", "score", "scaled"),
    [
        (Dot(), 14, 14),
        (ScaledDot(), 14, 14 / math.sqrt(2)),
        (ScaledDot(factor=0.25), 14, 3.5),
        (ScaledDot(factor=-1.0), 14, -14),
        (Cosine(temperature=1.0), 14 / math.sqrt(13 * 17), 14 / math.sqrt(13 * 17)),
        (Cosine(), 14 / math.sqrt(13 * 17), 10 * 14 / math.sqrt(13 * 17)),
    ],
    ids=repr,
)
def test_the_notes_two_words(similarity: Similarity, score: float, scaled: float):
    made = ch.explain(A, B, B, similarity=similarity)
    assert made.score.item() == pytest.approx(score)
    assert made.scaled.item() == pytest.approx(scaled)


def test_the_default_is_the_scaled_dot_product():
    q, k = torch.randn(4, 9), torch.randn(5, 9)
    assert torch.allclose(ch.explain(q, k, k).scaled, (q @ k.T) / 3, atol=1e-6)


@pytest.mark.parametrize("kernel", ["reference", "fused", "blockwise"])
@pytest.mark.parametrize(("query_size", "key_size"), [(1e19, 1e19), (1e-23, 1e-23), (1e19, 1e-23), (1e37, 1e-37)])
def test_the_cosine_of_vectors_of_any_size_is_that_of_their_directions(query_size, key_size, kernel):
    """Value and gradient: the squares of these sizes are no float32."""
    directions = torch.randn(3, 4, dtype=torch.float64), torch.randn(5, 4, dtype=torch.float64)
    value, upstream = torch.randn(5, 2, dtype=torch.float64), torch.randn(3, 2, dtype=torch.float64)

    def results(sizes, dtype):
        vectors = [(side * size).to(dtype).requires_grad_() for side, size in zip(directions, sizes, strict=True)]
        context = ch.attend(*vectors, value.to(dtype), similarity=Cosine(temperature=1.0, learned=False), kernel=kernel)
        gradients = torch.autograd.grad((context * upstream.to(dtype)).sum(), vectors)
        return context, *(gradient.double() * size for gradient, size in zip(gradients, sizes, strict=True))

    for ours, exact in zip(
        results((query_size, key_size), torch.float32), results((1.0, 1.0), torch.float64), strict=True
    ):
        torch.testing.assert_close(ours.double(), exact, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("zero", ["query", "key", "both"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_zero_vector_has_a_cosine_of_zero_with_everything(zero: str, dtype: torch.dtype):
    q, k = torch.randn(3, 4, dtype=dtype), torch.randn(2, 4, dtype=dtype)
    q[0 if zero != "key" else slice(0, 0)] = 0
    k[1 if zero != "query" else slice(0, 0)] = 0
    q.requires_grad_(), k.requires_grad_()
    made = ch.explain(q, k, k, similarity=Cosine())
    assert made.score.isfinite().all()
    assert not made.score[(q == 0).all(-1)].any()
    assert not made.score[:, (k == 0).all(-1)].any()
    gradients = torch.autograd.grad((made.context * torch.randn_like(made.context)).sum(), (q, k))
    assert all(gradient.isfinite().all() for gradient in gradients)


@settings(max_examples=25)
@given(
    seed=st.integers(0, 99), of_query=st.floats(1e-100, 1e100), of_key=st.floats(1e-100, 1e100), width=st.integers(1, 9)
)
def test_the_cosine_is_of_the_angle_alone(seed: int, of_query: float, of_key: float, width: int):
    generator = torch.Generator().manual_seed(seed)
    q, k = torch.randn(2, 3, width, dtype=torch.float64, generator=generator)
    cosine = scaled(q, k, Cosine(temperature=1.0))
    assert (cosine.abs() <= 1 + 1e-12).all()
    torch.testing.assert_close(scaled(q * of_query, k * of_key, Cosine(temperature=1.0)), cosine)
    torch.testing.assert_close(scaled(q, -k, Cosine(temperature=1.0)), -cosine)
    torch.testing.assert_close(scaled(q, q, Cosine(temperature=1.0)).diagonal(), torch.ones(3, dtype=torch.float64))


@pytest.mark.parametrize("name", [name for name, part in ch.similarity.TABLE.items() if part.form == "dot"])
def test_what_is_a_dot_product_is_symmetric(name: str):
    q, k = torch.randn(3, 4), torch.randn(5, 4)
    there, back = (scaled(*pair, ch.similarity.TABLE[name]) for pair in ((q, k), (k, q)))
    torch.testing.assert_close(there, back.T)


def test_a_layer_learns_its_own_temperature_for_each_head():
    spec = Cosine(temperature=0.5)
    first, second = spec.build(HEADS), spec.build(HEADS)
    q = torch.randn(1, 2, 4, 3)
    torch.testing.assert_close(scaled(q, q, first), scaled(q, q, spec))
    with torch.no_grad():
        next(first.parameters())[1] += math.log(2.0)  # twice as warm, in the second head
    torch.testing.assert_close(scaled(q, q, first)[:, 0], scaled(q, q, spec)[:, 0])
    torch.testing.assert_close(scaled(q, q, first)[:, 1], scaled(q, q, spec)[:, 1] / 2)
    torch.testing.assert_close(scaled(q, q, second), scaled(q, q, spec))
    scaled(q, q, first).square().sum().backward()
    assert all(parameter.grad.ne(0).all() for parameter in first.parameters())


def test_a_temperature_that_is_not_learned_stays_a_number():
    spec = Cosine(learned=False)
    assert spec.build(HEADS) is spec


def test_additive_is_a_small_network_on_each_pair():
    """w·tanh(W_q q + W_k k) with all the weights 1 in the first head and 2 in the second, all but the last layer's."""
    similarity = Additive(width=5).build(HEADS)
    with torch.no_grad():
        for parameter in similarity.parameters():
            parameter.copy_(torch.ones_like(parameter))
            parameter[1] *= 2 if parameter.ndim == 3 else 1
    q, k = torch.tensor([[[0.1, 0.2, 0.3]]] * 2), torch.tensor([[[0.0, 0.5, -0.4], [1.0, -1.0, -0.6]]] * 2)
    wanted = [[[5 * math.tanh(0.7), 0.0]], [[5 * math.tanh(1.4), 0.0]]]
    torch.testing.assert_close(ch.explain(q, k, k, similarity=similarity).score, torch.tensor(wanted))


@pytest.mark.parametrize(("width", "hidden"), [(None, 3), (7, 7), (1, 1)])
def test_additive_is_as_wide_as_asked_or_as_the_head(width: int | None, hidden: int):
    similarity = Additive(width=width).build(HEADS)
    assert sum(parameter.numel() for parameter in similarity.parameters()) == 2 * (2 * 3 * hidden + hidden)


def test_a_built_similarity_builds_into_itself():
    for spec in ch.similarity.TABLE.values():
        built = spec.build(HEADS)
        assert built.build(HEADS) is built


SAMPLES = 20_000


@pytest.mark.parametrize("d", [1, 3, 16, 100])
@pytest.mark.parametrize(
    "draw", [torch.randn, lambda *shape: torch.randint(0, 2, shape) * 2.0 - 1], ids=["normal", "±1"]
)
def test_the_variance_of_a_dot_product_is_d_and_1_once_scaled(d: int, draw):
    """q·k is a sum of d products x of mean 0 and variance 1, so its fourth moment is 3d² + d(E x⁴ - 3), with E x⁴ = 9

    for normal entries and 1 for ±1. Its square has the variance 2d² + d(E x⁴ - 3), which gives the standard error.
    """
    q, k = draw(SAMPLES, 1, 1, d), draw(SAMPLES, 1, 1, d)
    made = ch.explain(q, k, k)
    fourth = 9 if draw is torch.randn else 1
    standard_error = math.sqrt((2 * d**2 + d * (fourth - 3)) / SAMPLES)
    assert made.score.square().mean().item() == pytest.approx(d, abs=5 * standard_error + 1e-6)
    assert made.scaled.square().mean().item() == pytest.approx(1, abs=5 * standard_error / d + 1e-6)


def test_without_the_scale_softmaxs_gradient_shrinks_as_d_grows():
    def gradient(d: int, similarity: Similarity) -> float:
        q, k, v = torch.randn(200, 1, 1, d, requires_grad=True), torch.randn(200, 1, 8, d), torch.randn(200, 1, 8, 4)
        made = ch.explain(q, k, v, similarity=similarity)
        return torch.autograd.grad(made.context.sum(), made.scaled)[0].norm(dim=-1).mean().item()

    widths = (4, 16, 64, 256, 1024)
    plain, scaled = ([gradient(d, similarity) for d in widths] for similarity in (Dot(), ScaledDot()))
    assert all(wide < 0.8 * narrow for narrow, wide in itertools.pairwise(plain))
    assert plain[-1] < plain[0] / 5
    assert max(scaled) < 1.3 * min(scaled)


def test_a_capped_dot_product_is_the_scaled_one_where_it_is_small_and_stays_below_its_cap():
    query, key = torch.randn(1, 2, 3, 4, dtype=torch.float64), torch.randn(1, 2, 5, 4, dtype=torch.float64)
    exact = ScaledDot().score(query, key) / 2
    torch.testing.assert_close(CappedDot(cap=1e6).score(query, key), exact)
    torch.testing.assert_close(CappedDot(cap=3.0, factor=2.0).score(query, key), 3 * torch.tanh(exact * 4 / 3))
    assert CappedDot(cap=3.0).score(100 * query, 100 * key).abs().max() <= 3
    with pytest.raises(OptionError, match="CappedDot: cap must be above 0 and finite; came 0"):
        CappedDot(cap=0.0)
    with pytest.raises(OptionError, match="NextToken: cap must be above 0 and finite; came -1"):
        NextToken(cap=-1.0)
