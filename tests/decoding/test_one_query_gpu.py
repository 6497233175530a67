"""Attention of one query a head on a GPU; tests/plain/test_triton.py runs it in Triton's interpreter."""

import contextlib
from unittest import mock

import pytest
import torch
from torch.nn import functional as F

import clearhead as ch
from clearhead.decoding import one_query_gpu
from clearhead.decoding.caches import matrices_to_fuse
from clearhead.decoding.continuous import ContinuousBatch
from clearhead.decoding.scheduler import Finished, Job
from clearhead.model import fused_step, presets
from clearhead.model.int8 import quantize
from clearhead.model.norms import LayerNorm, RMSNorm
from clearhead.model.presets import AttentionSpec, Size

NORMED = AttentionSpec(
    heads=ch.Heads(4, kv=2, qk_norm=RMSNorm()), position=ch.positions.Rotary(pairing="halves", width=8)
)
INTERLEAVED = AttentionSpec(heads=ch.Heads(4, kv=2), position=ch.positions.Rotary())
FUSED = {
    "rotary by halves": lambda: presets.llama(Size(2, 48, 4, 2, 80), vocabulary=50),
    "rotary in part, normed queries and keys": lambda: presets.llama(
        Size(2, 64, 4, 2, 80), vocabulary=50, attention=NORMED
    ),
    "rotary interleaved": lambda: presets.llama(Size(1, 64, 4, 2, 80), vocabulary=50, attention=INTERLEAVED),
}
"""Models whose steps are fused. On a CPU, in Triton's interpreter, only grouped heads are."""


@contextlib.contextmanager
def counting_steps():
    """Yield a list that grows with every fused attention inside."""
    attend, calls = one_query_gpu.StepAttention.__call__, []

    def count(*given):
        calls.append(1)
        return attend(*given)

    with mock.patch.object(one_query_gpu.StepAttention, "__call__", count):
        yield calls


def decode_in_slots(batch, lengths, n_new):
    """Return prompts of these lengths, each with its greedy hypothesis from continuous batching."""
    prompts = [torch.randint(0, 50, (n,)).tolist() for n in lengths]
    tickets = {batch.add(Job(inputs=tuple(prompt), rules=ch.Rules(max_new=n_new))): prompt for prompt in prompts}
    found = []
    while batch.busy:
        done = [event for event in batch.step() if isinstance(event, Finished)]
        found += [(tickets[event.ticket], event.hypotheses[0]) for event in done]
    return found


@torch.no_grad()
def find_wrong_tokens(model, decoded, limit=1e-4):
    """Return what differs from the uncached forward: tokens that are not the likeliest, other log-probabilities."""
    wrong = []
    for prompt, best in decoded:
        ids = torch.tensor([[*prompt, *best.tokens]], device=model.embedding.table.device)
        log_probs = model(ids)[0, len(prompt) - 1 : -1].double().log_softmax(-1)
        theirs = log_probs.gather(1, ids[0, len(prompt) :, None])[:, 0]
        ours = torch.tensor(best.log_probs, dtype=torch.float64, device=ids.device)
        worst = max((log_probs.max(1).values - theirs).max(), (ours - theirs).abs().max())
        if worst > limit:
            wrong.append(f"a prompt of {len(prompt)}: {float(worst):.1e}")
    return wrong


@pytest.mark.gpu
@pytest.mark.parametrize("name", [*FUSED, "gpt2"])
@pytest.mark.parametrize("rows", [1, 2, 32, 33])
@pytest.mark.parametrize("int8", [False, True], ids=["float32", "int8"])
def test_fused_steps_are_the_uncached_forward(name, rows, int8):
    torch.manual_seed(0)
    spec = presets.gpt2("tiny", vocabulary=50) if name == "gpt2" else FUSED[name]()
    model = spec.build().eval().cuda()
    model = quantize(model) if int8 else model
    for lengths in ([9] * rows, [1 + 5 * (row % 4) for row in range(rows)]):
        prompts = [torch.randint(0, 50, (n,)).tolist() for n in lengths]
        with counting_steps() as calls:
            for _ in range(2):  # the second call is recorded from its first step on
                found = ch.generate(model, prompts, rules=ch.Rules(max_new=90))
        assert calls
        assert find_wrong_tokens(model, [(prompt, best[0]) for prompt, best in zip(prompts, found, strict=True)]) == []
    batch = ContinuousBatch(model, slots=rows, columns=120)
    assert find_wrong_tokens(model, decode_in_slots(batch, [1 + 3 * (i % 7) for i in range(2 * rows)], 40)) == []


def test_it_serves_one_query_where_triton_runs():
    query, keys = torch.randn(2, 4, 1, 8), torch.randn(2, 4, 6, 8)
    assert not one_query_gpu.serves(query, keys)  # on a CPU torch's kernel is asked


@pytest.mark.parametrize(
    ("n_query", "n_keys", "width", "served"),
    [(1, 64, 64, True), (2, 64, 64, False), (1, 4096, 64, False), (1, 64, 512, False)],
)
def test_many_queries_keys_or_numbers_are_torchs(n_query, n_keys, width, served, monkeypatch):
    monkeypatch.setattr(one_query_gpu, "missing_triton", lambda device: None)
    query, keys = torch.empty(2, 4, n_query, width), torch.empty(2, 4, n_keys, width)
    assert one_query_gpu.serves(query, keys) == served


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("filled", [1, 64, 65, 200])
@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("biased", [False, True])
def test_it_is_torchs_attention(dtype, filled, kv_heads, biased):
    torch.manual_seed(0)
    query = torch.randn(5, 4, 1, 64, device="cuda", dtype=dtype)
    keys, values = (torch.randn(5, kv_heads, 200, 64, device="cuda", dtype=dtype) for _ in range(2))
    allowed = (torch.arange(200, device="cuda") < filled).expand(5, 1, 1, 200)
    bias = None
    if biased:
        shown = torch.rand(5, 1, 1, 200, device="cuda") < 0.7
        shown[..., 0], shown[3] = True, False
        bias, allowed = shown.to(dtype).log(), allowed & shown
    hidden = ~allowed.any(0).view(-1, 1)
    cached = [one.masked_fill(hidden, float("nan")) for one in (keys, values)]
    column = torch.tensor([filled - 1], device="cuda")
    context = one_query_gpu.attend_one(query, *cached, scale=0.2, bias=bias, column=column)
    wide = [query.double(), *(one.double().repeat_interleave(4 // kv_heads, 1) for one in (keys, values))]
    wanted = F.scaled_dot_product_attention(*wide, allowed, scale=0.2)
    wanted = wanted.where(allowed.any(-1, keepdim=True), 0)
    limit = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 1e-2}[dtype]
    assert context.dtype == dtype
    torch.testing.assert_close(context.double(), wanted, atol=limit, rtol=limit)


@pytest.mark.parametrize(
    ("heads", "position", "fused"),
    [
        (ch.Heads(4, kv=2, qk_norm=RMSNorm()), ch.positions.Rotary(), True),
        (ch.Heads(4, kv=2, qk_norm=RMSNorm(), qk_norm_joint=True), ch.positions.Rotary(), False),
        (ch.Heads(4, qk_norm=LayerNorm()), None, False),
        (ch.Heads(4, output=False), None, False),
    ],
    ids=["normed by head", "normed together", "layer norm", "no output"],
)
def test_attention_is_fused_where_the_kernel_computes_it(heads, position, fused, monkeypatch):
    monkeypatch.setattr(fused_step, "missing_triton", lambda device: None)
    with torch.no_grad():
        layer = ch.Attention(64, heads, position=position, mask=ch.masks.causal())
        assert bool(matrices_to_fuse(layer, 100)) == fused
