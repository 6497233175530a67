"""Faults users of other packages complain about: ours is free of each, and the peer, where it is cheap to show, is not.

A peer that mends its fault makes the line about the peer fail here: delete that line, and keep ours.
"""

import contextlib

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import clearhead as ch
from clearhead.attention.kernels import KERNELS
from clearhead.attention.weighting import TABLE as WEIGHTINGS
from clearhead.errors import UnsupportedError
from tests.peers import Late, transformers

modeling_llama = Late("transformers.models.llama.modeling_llama")
attend = Late("x_transformers.attend")

pytestmark = pytest.mark.slow

CAUSAL = ch.masks.causal()
NAN, INF = float("nan"), float("inf")
every_weighting = pytest.mark.parametrize("weighting", WEIGHTINGS.values(), ids=WEIGHTINGS)


def draw(*shape, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


def on_every_kernel(*inputs, **parts):
    """What `attend` gives by `auto` and by each kernel that does not refuse."""
    made = {}
    for kernel in ("auto", *KERNELS):
        with contextlib.suppress(UnsupportedError):
            made[kernel] = ch.attend(*inputs, kernel=kernel, **parts)
    assert {"auto", "reference"} < made.keys()
    return made.values()


def gradients(context, *inputs):
    upstream = torch.arange(1, context.numel() + 1, dtype=context.dtype).view(context.shape).sin()
    return torch.autograd.grad(context, inputs, upstream, retain_graph=True, allow_unused=True, materialize_grads=True)


def close(ours, theirs, tolerance=1e-10):
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


# --- torch MultiheadAttention


def test_causal_needs_no_mask_beside_it():
    x = draw(1, 3, 4, dtype=torch.float32)
    peer = nn.MultiheadAttention(4, 2, batch_first=True)
    with pytest.raises(RuntimeError, match="Need attn_mask"):
        peer(x, x, x, is_causal=True)
    layer = ch.Attention(4, heads=2, mask=CAUSAL)
    assert torch.equal(layer.explain(x).weight > 0, torch.ones(3, 3).tril().bool().expand(1, 2, 3, 3))
    (grad,) = torch.autograd.grad(layer(x)[:, 1].sum(), x)
    assert grad[:, :2].all()
    assert not grad[:, 2].any()


def test_a_row_without_keys_is_zero_whether_weights_are_asked_for_or_not():
    x, blocked = draw(1, 3, 4, dtype=torch.float32), torch.tensor([[0, 0, 0], [1, 1, 1], [0, 0, 1]]).bool()
    peer = nn.MultiheadAttention(4, 2, batch_first=True)
    theirs, _ = peer(x, x, x, attn_mask=blocked)
    assert theirs[:, 1].isnan().all()
    assert torch.autograd.grad(theirs.sum(), x)[0].isnan().all()
    assert peer(x, x, x, attn_mask=blocked, need_weights=False)[0].isfinite().all()

    layer = ch.Attention(4, heads=2)
    ours, steps = layer(x, mask=~blocked), layer.explain(x, mask=~blocked)
    assert not ours[:, 1].any()
    assert not steps.weight[:, :, 1].any()
    assert not steps.context[:, :, 1].any()
    for output in (ours, steps.context):
        grad = torch.autograd.grad(output.square().sum(), x, retain_graph=True)[0]
        assert grad.isfinite().all()
        assert grad.any()


@every_weighting
def test_a_row_without_keys_is_zero_for_every_weighting_on_every_kernel(weighting):
    inputs = draw(2, 2, 3, 4), draw(2, 2, 5, 4), draw(2, 2, 5, 4)
    mask = torch.ones(3, 5, dtype=torch.bool)
    mask[1] = False
    for context in on_every_kernel(*inputs, weighting=weighting, mask=mask):
        assert not context[:, :, 1].any()
        assert context[:, :, [0, 2]].any()
        assert not any(grad.any() for grad in gradients(context[:, :, 1], *inputs))
        assert all(grad.isfinite().all() for grad in gradients(context, *inputs))


def test_a_boolean_mask_means_what_it_means_to_sdpa():
    x, mask = draw(1, 3, 4), torch.tensor([[1, 1, 0], [0, 1, 0], [1, 1, 1]]).bool()
    peer = nn.MultiheadAttention(4, 1, batch_first=True, bias=False, dtype=torch.float64)
    _, weight = peer(x, x, x, attn_mask=mask, need_weights=True)
    assert torch.equal(weight[0].nan_to_num() > 0, ~mask)
    q = x[None]
    close(ch.attend(q, q, q, mask=mask), F.scaled_dot_product_attention(q, q, q, attn_mask=mask))
    assert torch.equal(ch.explain(q, q, q, mask=mask).weight[0, 0] > 0, mask)


# --- torch scaled_dot_product_attention


def test_two_new_queries_on_five_keys_see_four_and_five_of_them():
    q, k, v = draw(1, 1, 2, 5), draw(1, 1, 5, 5), torch.eye(5, dtype=torch.float64)[None, None]
    theirs = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert (theirs[0, 0] > 0).sum(-1).tolist() == [1, 2]
    whole = torch.cat([draw(1, 1, 3, 5), q], 2)
    uncached = F.scaled_dot_product_attention(whole, k, v, is_causal=True)[:, :, 3:]
    for weight in on_every_kernel(q, k, v, mask=CAUSAL):
        assert (weight[0, 0] > 0).sum(-1).tolist() == [4, 5]
        close(weight, uncached)


@pytest.mark.parametrize(("where", "poison"), [("key", NAN), ("value", NAN), ("value", INF)])
def test_what_stands_at_a_masked_key_leaks_from_sdpa(where, poison):
    q, k, v = draw(1, 1, 2, 4), *(poisoned(draw(1, 1, 5, 4), poison, name == where) for name in ("key", "value"))
    mask = torch.tensor([1, 1, 1, 1, 0]).bool().expand(2, 5)
    theirs = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    assert theirs.isnan().any()
    assert torch.autograd.grad(theirs.sum(), q)[0].isnan().any()


def poisoned(tensor, poison, really=True):
    if really:
        tensor.detach()[..., -1, :] = poison
    return tensor


@every_weighting
@pytest.mark.parametrize("poison", [NAN, INF, -INF])
@pytest.mark.parametrize("where", [{"key"}, {"value"}, {"key", "value"}], ids=["key", "value", "both"])
@pytest.mark.pairs
def test_what_stands_at_a_masked_key_does_not_leak_from_ours(weighting, where, poison):
    q, clean_k, clean_v = draw(2, 4, 3, 4), draw(2, 2, 4, 4), draw(2, 2, 4, 3)
    exact = ch.attend(q, clean_k, clean_v, weighting=weighting, kernel="reference")
    wanted = gradients(exact, q, clean_k, clean_v)
    k, v = (
        poisoned(F.pad(clean.detach(), (0, 0, 0, 1)).requires_grad_(), poison, name in where)
        for name, clean in (("key", clean_k), ("value", clean_v))
    )
    mask = ch.masks.padding([4, 4])
    assert ch.explain(q, k, v, weighting=weighting, mask=mask).weight.isfinite().all()
    for context in on_every_kernel(q, k, v, weighting=weighting, mask=mask):
        close(context, exact)
        for ours, clean in zip(gradients(context, q, k, v), wanted, strict=True):
            close(ours, clean if ours.shape == clean.shape else F.pad(clean, (0, 0, 0, 1)))


# --- Hugging Face


def tiny_llama(implementation):
    config = transformers.LlamaConfig(
        hidden_size=8,
        num_attention_heads=2,
        num_key_value_heads=2,
        num_hidden_layers=1,
        intermediate_size=8,
        vocab_size=11,
        attn_implementation=implementation,
    )
    return transformers.LlamaModel(config).eval()


def test_weights_asked_of_hugging_faces_default_kernel_are_an_empty_tuple():
    ids = torch.tensor([[1, 2, 3]])
    assert tiny_llama("sdpa")(ids, output_attentions=True).attentions == ()


@every_weighting
@pytest.mark.parametrize("mask", [None, CAUSAL, CAUSAL & ch.masks.padding([3, 6])], ids=["all", "causal", "padded"])
def test_weights_asked_of_ours_are_those_of_the_output(weighting, mask):
    q, k, v = inputs = draw(2, 4, 6, 4), draw(2, 2, 6, 4), draw(2, 2, 6, 3)
    steps = ch.explain(q, k, v, weighting=weighting, mask=mask)
    close(steps.weight @ steps.value, steps.context)
    for context in on_every_kernel(*inputs, weighting=weighting, mask=mask):
        close(context, steps.context)


def test_attention_of_ones_own_keeps_the_causal_mask(monkeypatch):
    """transformers#45811: it is given no mask there unless a mask function is registered under its name too."""

    def own(module, *tensors, scaling, **_):
        return modeling_llama.eager_attention_forward(module, *tensors, scaling=scaling)

    monkeypatch.setitem(transformers.AttentionInterface._global_mapping, "own", own)
    peer, ids, other = tiny_llama("own"), torch.tensor([[1, 2, 3]]), torch.tensor([[1, 2, 7]])
    assert not torch.allclose(peer(ids).last_hidden_state[:, 0], peer(other).last_hidden_state[:, 0])

    class Squares(ch.weighting.Weighting):
        def weigh(self, masked, allowed):
            squares = masked.square().masked_fill(~allowed, 0)
            return squares / squares.sum(-1, keepdim=True)

    x = draw(1, 1, 3, 4)
    for context in on_every_kernel(x, x, x, weighting=Squares(), mask=CAUSAL):
        (grad,) = torch.autograd.grad(context[:, :, 1].sum(), x)
        assert grad[:, :, :2].any()
        assert not grad[:, :, 2].any()


# --- x-transformers


def test_hard_attention_does_without_the_whole_square():
    with pytest.raises(AssertionError, match="hard attention not available for flash"):
        attend.Attend(hard=True, flash=True)
    q, k, v = draw(1, 2, 5, 4), draw(1, 2, 7, 4), draw(1, 2, 7, 4)
    assert ch.which_kernel(q, k, v, weighting=ch.weighting.Argmax()).kernel != "reference"


# --- flash-linear-attention (not installed: it needs a GPU; its faults are written out here)


def with_padding_in_the_denominator(q, k, v):
    """Zeros for padded keys and values before φ, as there: φ(0) = 1 is still counted."""
    phi_q, phi_k = F.elu(q) + 1, F.elu(k) + 1
    return phi_q @ (phi_k.mT @ v) / (phi_q @ phi_k.sum(-2).unsqueeze(-1))


@pytest.mark.parametrize("features", ["elu", "softmax", "random"])
@pytest.mark.parametrize("filling", [0.0, 5.0, NAN])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.pairs
def test_padded_keys_are_not_in_the_denominator(features, filling, causal):
    q, k, v = draw(2, 2, 6, 4), draw(2, 2, 6, 4), draw(2, 2, 6, 3)
    long_k, long_v = (F.pad(x.detach(), (0, 0, 0, 5), value=filling).requires_grad_() for x in (k, v))
    long_q = F.pad(q, (0, 0, 0, 5)) if causal else q
    order = CAUSAL if causal else ch.masks.everything()
    weighting = ch.weighting.Kernelized(features)
    exact = ch.attend(q, k, v, weighting=weighting, mask=order, kernel="reference")
    for context in on_every_kernel(long_q, long_k, long_v, weighting=weighting, mask=order & ch.masks.padding([6, 6])):
        close(context[:, :, :6], exact)
        assert all(grad.isfinite().all() for grad in gradients(context, q, long_k, long_v))


def test_padded_keys_in_the_denominator_would_be_seen():
    q, k, v = draw(2, 2, 6, 4), draw(2, 2, 6, 4), draw(2, 2, 6, 3)
    exact = ch.attend(q, k, v, weighting=ch.weighting.Kernelized("elu"))
    close(with_padding_in_the_denominator(q, k, v), exact)
    longer = with_padding_in_the_denominator(q, *(F.pad(x, (0, 0, 0, 5)) for x in (k, v)))
    assert (longer - exact).abs().max() > 0.01


def running_sums(q, k, v, dtype):
    """Causal linear attention, its state and normaliser kept in `dtype`."""
    phi_q, phi_k, v = (F.elu(q) + 1).to(dtype), (F.elu(k) + 1).to(dtype), v.to(dtype)
    state, total, out = torch.zeros(q.shape[-1], v.shape[-1], dtype=dtype), torch.zeros(q.shape[-1], dtype=dtype), []
    for query, key, value in zip(phi_q, phi_k, v, strict=True):
        state, total = state + torch.outer(key, value), total + key
        out.append(query @ state / (query @ total))
    return torch.stack(out)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.slow
def test_the_normaliser_is_kept_in_float32_over_4096_tokens(dtype):
    q, k, v = (torch.randn(4096, 16).to(dtype) for _ in range(3))
    v = v + 1
    exact = running_sums(q.double(), k.double(), v.double(), torch.float64)
    assert not (running_sums(q, k, v, dtype).double() - exact).abs().max() < 0.1
    parts = {"weighting": ch.weighting.Kernelized("elu"), "mask": CAUSAL}
    ends = on_every_kernel(q[-64:], k, v, **parts)
    for context in (ch.attend(q, k, v, **parts), *ends):
        assert context.dtype == dtype
        half_a_step = torch.finfo(dtype).eps / 2
        torch.testing.assert_close(context.double(), exact[-len(context) :], rtol=1.01 * half_a_step, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_a_denominator_of_zero_gives_zeros_in_half_precision_too(dtype):
    """An added 1e-10 is 0 in float16."""
    q, k, v = -torch.ones(1, 1, 3, 4, dtype=dtype), draw(1, 1, 5, 4, dtype=dtype), draw(1, 1, 5, 4, dtype=dtype)
    q.requires_grad_()
    for context in on_every_kernel(q, k, v, weighting=ch.weighting.Kernelized("relu")):
        assert not context.any()
        assert all(grad.isfinite().all() for grad in gradients(context, q, k, v))
