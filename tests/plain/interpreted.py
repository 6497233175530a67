"""Run the Triton kernels in Triton's interpreter, on a CPU: a part of the grid, and lengths with several chunks.

`python tests/plain/interpreted.py linear beam` prints, for each, what is wrong and a count; test_triton.py runs all of
them in one process of their own, since Triton decides when it is imported whether it interprets.
"""

import dataclasses
import itertools
import os
import sys
import types

if __name__ == "__main__":  # pytest imports this module too, to look for doctests
    os.environ["TRITON_INTERPRET"] = "1"

import torch
import triton.language as tl
from torch.nn import functional as F
from triton.runtime import interpreter

import clearhead as ch
from clearhead.attention import grid
from clearhead.attention.grid.case import difference
from clearhead.attention.kernels import argmax_gpu, block_masks, linear_gpu, linear_plan
from clearhead.decoding import beam_gpu, greedy, one_query_gpu
from clearhead.decoding.beam_state import BeamState
from clearhead.decoding.continuous import ContinuousBatch
from clearhead.decoding.rules import FORBIDDEN
from clearhead.model import activation_gpu, fused_step, layer_norm_gpu
from clearhead.training import cross_entropy_gpu, losses
from tests.decoding.test_beam_state import VOCABULARY, draw_case
from tests.decoding.test_one_query_gpu import FUSED, counting_steps, decode_in_slots, find_wrong_tokens
from tests.model.test_fused_step import compute_apart, draw_linear

M = ch.masks
THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"
COMBINATIONS = 16 if THOROUGH else 1
OFTEN = (
    *("scanned, padded, grouped", "more keys", "cross, padded"),
    *("first, causal", "last, more queries", "average, cross", "no tolerance"),
)
"""Cases of `make test`: each path through the kernels, and each rule for ties, once."""
NAN = float("nan")


class Kept:
    def restore(self) -> None:
        """Leave Triton's functions as they are: nothing else runs in this process."""


def patch_interpreter() -> None:
    """Mend two things in Triton's interpreter (3.6 and 3.7).

    It replaces Triton's functions anew at each call, which takes most of the time: once is enough. And it makes an int
    of an array of one number, which numpy 2.4 refuses.
    """
    replace = interpreter._patch_lang
    replace(types.SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    type.__setattr__(tl.core.tensor, "__index__", lambda self: int(self.handle.data.item()))
    interpreter._patch_lang = lambda function: Kept()


def linear_cases():
    """Yield a name, a weighting, lengths, heads, widths, a dtype, the mask, lengths of padding, and a plan."""
    plan = linear_plan.LinearPlan.of(linear_plan.LinearTile(chunk=16), segment=32, whole=True)
    scanned = linear_plan.LinearPlan.of(linear_plan.LinearTile(chunk=16), segment=16, few=1, whole=True)
    elu, relu, plain = (ch.weighting.Kernelized(name) for name in ("elu", "relu", "softmax"))
    total = ch.weighting.Kernelized("elu", normalised=False)
    yield "two segments", elu, (50, 50), (2, 2), (8, 8), M.causal(), None, plan
    yield "scanned, padded, grouped", relu, (50, 50), (2, 1), (8, 5), M.causal(), [50, 21], scanned
    yield "whole chunks", elu, (64, 64), (2, 1), (8, 8), M.causal(), None, scanned
    yield "cross, whole chunks", relu, (32, 48), (1, 1), (8, 8), None, None, plan
    yield "more keys, whole chunks", elu, (32, 48), (1, 1), (8, 8), M.causal(), None, plan
    yield "no keys", elu, (16, 0), (1, 1), (8, 8), None, None, plan
    yield "more keys", total, (20, 50), (1, 1), (8, 20), M.causal(), [50, 0], scanned
    yield "more queries", elu, (50, 20), (2, 1), (8, 8), M.causal(), None, plan
    yield "cross, padded", plain, (20, 40), (2, 1), (8, 8), None, [0, 33], plan
    yield "cross, many segments", elu, (20, 70), (1, 1), (8, 8), None, None, scanned
    yield "wide features and values", elu, (20, 20), (1, 1), (140, 150), M.causal(), [20, 9], plan


def argmax_cases():
    plan = argmax_gpu.ArgmaxTile(rows=16, keys=16)
    for ties in ("first", "last", "average"):
        rule = ch.weighting.Argmax(ties=ties)
        yield f"{ties}, causal", rule, (40, 40), (2, 1), (4, 8), M.causal(), [40, 21], plan
        yield f"{ties}, more queries", rule, (40, 20), (2, 2), (4, 8), M.causal(), None, plan
        yield f"{ties}, cross", rule, (20, 40), (1, 1), (4, 8), None, [0, 33], plan
    yield "no gradient", ch.weighting.Argmax(gradient="none"), (20, 40), (2, 1), (4, 8), M.causal(), None, plan
    yield "no tolerance", ch.weighting.Argmax(tolerance=0.0), (20, 40), (1, 1), (4, 8), M.causal(), None, plan


def compare(kernel, weighting, sizes, mask, n_keys):
    """Return what the kernel gets wrong; NaN stands in the padding, and argmax gets whole numbers, which tie."""
    (n_query, n_key), (n_heads, n_kv_heads), (d_head, d_value) = sizes
    query, key = torch.randn(2, n_heads, n_query, d_head), torch.randn(2, n_kv_heads, n_key, d_head)
    value, upstream = torch.randn(2, n_key, n_kv_heads, d_value), torch.randn(2, n_heads, n_query, d_value)
    value = value.transpose(1, 2)
    if kernel == "argmax":
        query, key = query.round(), key.round()
    if n_keys is not None:
        hidden = (torch.arange(n_key) >= torch.tensor(n_keys).view(-1, 1, 1)).unsqueeze(-1)
        key, value = key.masked_fill(hidden, NAN), value.masked_fill(hidden, NAN)
        mask = M.padding(n_keys) if mask is None else mask & M.padding(n_keys)
    found = []
    for name in ("reference", kernel):
        leaves = [side.clone().requires_grad_() for side in (query, key, value)]
        context = ch.attend(*leaves, weighting=weighting, mask=mask, kernel=name)
        gradients = torch.autograd.grad(context, leaves, upstream, allow_unused=True, materialize_grads=True)
        found.append([context.detach(), *gradients])
    named = zip(("context", "query", "key", "value"), *reversed(found), strict=True)
    return [text for name, got, wanted in named if (text := difference(name, got, wanted, 2e-5)) is not None]


def layer_norm_problems():
    """Yield what LayerNorm's backward gets wrong: rows that fill no tile, widths that are no power of two."""
    layer_norm_gpu.wrap_triton = lambda kernel: kernel
    layer_norm_gpu.PROGRAMS = 3
    for n_rows, width in ((70, 48), (9, 33), (1, 1), (2, 2100), *(((300, 64),) if THOROUGH else ())):
        layer_norm_gpu.NUMBERS = 512
        x, gamma, beta = torch.randn(n_rows, width), torch.randn(width), torch.randn(width)
        leaves = [one.requires_grad_() for one in (x, gamma, beta)]
        out, mean, deviation = torch.native_layer_norm(x, (width,), gamma, beta, 1e-5)
        kept = [one.detach() for one in (x, gamma, mean, deviation)]
        upstream, past = torch.randn(width, n_rows).T, torch.randn(n_rows, width)
        for residual in (None, past):
            others = () if residual is None else (x,)
            wanted = torch.autograd.grad((out, *others), leaves, (upstream, past)[: 1 + len(others)], retain_graph=True)
            grad_x, sums = layer_norm_gpu.launch_backward(upstream, residual, *kept)
            named = zip(("x", "gamma", "beta"), (grad_x, *sums), wanted, strict=True)
            yield [
                f"{n_rows} rows of {width}: {text}"
                for name, got, right in named
                if (text := difference(name, got, right, 2e-5)) is not None
            ]
        for shift in (beta.detach(), None):
            y = torch.randn(n_rows, width)
            got = layer_norm_gpu.add_layer_norm(x.detach(), y, gamma.detach(), shift, 1e-5)
            right = torch.layer_norm(x.detach() + y, (width,), gamma.detach(), shift)
            text = difference("norm of a sum", got, right, 2e-5)
            yield [] if text is None else [f"{n_rows} rows of {width}: {text}"]


def activation_problems():
    """Yield what activations get wrong: rows and columns that fill no tile, and numbers far from 0."""
    activation_gpu.wrap_triton = lambda kernel: kernel
    activation_gpu.PROGRAMS = 6
    torchs = {
        "relu": F.relu,
        "silu": F.silu,
        "gelu": F.gelu,
        "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    }
    for kind, (shape, dtype) in itertools.product(
        activation_gpu.KINDS, (((70, 300), torch.float32), ((2, 3, 5), torch.bfloat16), ((1, 1), torch.float32))
    ):
        x, upstream = ((torch.randn(shape) * 3).to(dtype) for _ in range(2))
        x.view(-1)[-1], x.view(-1)[0] = -1e4, 1e4
        narrow, wide, bias = x.clone().requires_grad_(), x.double().requires_grad_(), torch.zeros(shape[-1])
        out, right = activation_gpu.activate(narrow, bias.requires_grad_(), kind), torchs[kind](wide)
        slopes = torch.autograd.grad(out, (narrow, bias), upstream)
        (slope,) = torch.autograd.grad(right, wide, upstream.double())
        wanted = (("out", out, right), ("x", slopes[0], slope), ("bias", slopes[1], slope.flatten(0, -2).sum(0)))
        limit = 2e-2 if dtype is torch.bfloat16 else 1e-5
        yield [
            f"{kind} {shape}: {text}"
            for name, got, right in wanted
            if (text := difference(name, got.double(), right, limit)) is not None
        ]


def loss_problems():
    """Yield what the loss over a vocabulary gets wrong: blocks that a row does not fill, places without a target,
    choices that are out of question.
    """
    cross_entropy_gpu.wrap_triton = lambda kernel: kernel
    cross_entropy_gpu.ROW_BLOCK = cross_entropy_gpu.BLOCK = 64
    cross_entropy_gpu.PAIR_BLOCK = 32
    for n_rows, choices in ((6, 20), (4, 1), (10, 150), (8, 64)):
        for smoothing, weight in ((0.0, None), (0.1, None), (0.0, 3.0), (0.2, 5.0)):
            half = torch.randint(choices, (n_rows // 2,))
            half[0] = losses.NOTHING
            wanted = torch.cat([half, half])
            logits = torch.randn(n_rows, choices, dtype=torch.float64) * 4
            if smoothing == 0 and weight is None and choices > 80:
                logits[1, :70] = float("-inf")
                wanted[1] = 75
            wide, narrow = (logits.to(kind).requires_grad_() for kind in (torch.float64, torch.float32))

            def run(logits, weight=weight, wanted=wanted, smoothing=smoothing):
                if weight is None:
                    return losses.cross_entropy(logits, wanted, smoothing)
                return losses.r_drop(logits, wanted, smoothing, weight)

            assert cross_entropy_gpu.serves(narrow), "the kernels were not taken"
            assert not cross_entropy_gpu.serves(wide), "the definition was not taken"
            right, got = run(wide), run(narrow)
            grads = [torch.autograd.grad(loss.objective * 0.25, one)[0] for loss, one in ((right, wide), (got, narrow))]
            named = (("objective", got[0], right[0]), ("nll", got[1], right[1]), ("gradient", grads[1], grads[0]))
            where = f"{n_rows} x {choices}, smoothing {smoothing}, R-Drop {weight}"
            yield [
                f"{where}: {text}"
                for name, one, other in named
                if (text := difference(name, one.double(), other, 2e-6)) is not None
            ]
    outside = cross_entropy_gpu.cross_entropy(torch.randn(1, 5), torch.tensor([5]), 0.0)
    yield [] if outside[0].isnan() else [f"a target that is no choice has the loss {outside[0].item()}"]


def greedy_problems():
    """Yield where the likeliest token or its log-probability is wrong: ties, NaN, inf, rows longer than a block."""
    for rows, vocabulary in ((5, 20), (3, 1), (2, 9000), (4, 8192)):
        for dtype in (torch.float32, torch.float64):
            logits = torch.randn(rows, vocabulary, dtype=dtype) * 3
            logits[-1, vocabulary // 2 :] = logits.max() + 1  # equal: the first is taken
            odd = torch.full((3, vocabulary), -1.0, dtype=dtype)
            odd[0, -1], odd[1, 0], odd[2] = float("nan"), float("inf"), float("-inf")
            logits = torch.cat([logits, odd])
            wide = torch.log_softmax(logits, -1).max(-1)
            for got, right in zip(greedy.likeliest(logits), wide, strict=True):
                found, wanted = (one.double().nan_to_num(nan=-1e6) for one in (got, right))
                text = difference(f"{rows} rows of {vocabulary}", found, wanted, 1e-6)
                yield [] if text is None else [text]


def tiles_problems():
    """Yield where the lists of tiles differ from those of counted cells: ends of tiles, queries that see nothing."""
    for batch, n_query, n_key in ((2, 300, 300), (1, 128, 256), (1, 2200, 2100), (2, 5, 130)):
        first = torch.randint(-50, n_key, (batch, 1)) + torch.randint(0, 90, (batch, n_query))
        stop = first + torch.randint(0, 600, (batch, n_query))
        first[-1], stop[-1, : n_query // 2] = 0, n_key  # full tiles
        first[0, n_query // 3 :] = n_key  # nothing
        made = block_masks.list_range_tiles(first, stop, n_key)
        cut, end = made[0].long(), made[1].long()
        wanted = block_masks.list_counted_tiles(block_masks.count_range_cells(cut, end, n_key).unsqueeze(1))
        sees = first.clamp(min=0) < stop.clamp(max=n_key)
        right = [torch.equal(cut, first.clamp(min=0) * sees), torch.equal(end, stop.clamp(max=n_key) * sees)]
        for at in range(0, 8, 2):
            counts, places = made[2 + at], made[3 + at]
            unlisted = torch.arange(places.shape[-1]) >= counts.unsqueeze(-1)
            right.append(torch.equal(counts, wanted[at]))
            right.append(torch.equal(places.masked_fill(unlisted, -1), wanted[at + 1].masked_fill(unlisted, -1)))
        yield [] if all(right) else [f"{batch} x {n_query} queries on {n_key} keys: {right}"]


def one_query_problems():
    """Yield what attention with one query a head gets wrong: blocks that the keys do not fill, grouped heads, biases,
    NaN at columns that are hidden or not filled, rows that see nothing.
    """
    one_query_gpu.BLOCK = 16
    sizes = itertools.product(((3, 4, 2), (2, 2, 2)), (1, 16, 37), (8, 5), (torch.float32, torch.float64))
    for (rows, heads, kv_heads), n, d, dtype in sizes:
        query = torch.randn(rows, heads, 1, d, dtype=dtype)
        keys, values = (torch.randn(rows, n, kv_heads, d, dtype=dtype).transpose(1, 2) for _ in range(2))
        for filled, biased in itertools.product({n, n // 2 + 1}, (False, True)):
            allowed = torch.arange(n).expand(rows, 1, 1, n) < filled
            bias = torch.randn(rows, 1, 1, n, dtype=dtype) if biased else None
            if bias is not None:
                bias[0], bias[1, ..., : n // 2] = float("-inf"), float("-inf")
                allowed = allowed & (bias > float("-inf"))
            hidden = ~allowed.any(0).view(-1)
            cached = [one.masked_fill(hidden.view(1, 1, n, 1), NAN) for one in (keys, values)]
            column = None if filled == n else torch.tensor([filled - 1])
            got = one_query_gpu.attend_one(query, *cached, scale=0.3, bias=bias, column=column)
            mask = torch.where(allowed, torch.zeros(()) if bias is None else bias, float("-inf")).double()
            wide = (query.double(), *(one.repeat_interleave(heads // kv_heads, 1).double() for one in (keys, values)))
            right = F.scaled_dot_product_attention(wide[0], wide[1], wide[2], mask, scale=0.3)
            right = right.where(allowed.any(-1, keepdim=True), 0)
            where = f"{rows} x {heads} heads of {d}, {filled} of {n} keys, {'a bias' if biased else 'no bias'}"
            text = difference(where, got.double(), right, 1e-6)
            yield [] if text is None else [text]


def fused_step_problems():
    """Yield what fused products get wrong (one row and several, rows that share a matrix, every norm and activation),
    and whole models that decode by them in slots, each at its own column, with keys read by several programs.
    """
    fused_step.PROGRAMS = one_query_gpu.PROGRAMS = 24
    one_query_gpu.BLOCK = 16
    cases = itertools.product((1, 5), ((96, 40), (600, 33)), ("", "rms", "layer"), (False, True))
    names = itertools.cycle(fused_step_names())
    for (rows, sizes, norm, gated), activation, int8 in zip(cases, names, itertools.cycle((True, False)), strict=False):
        fused, x, step_norm, residual = draw_linear(rows, sizes, norm, gated=gated, activation=activation, int8=int8)
        got, right = fused(x, norm=step_norm, residual=residual), compute_apart(fused, x, step_norm, residual)
        where = f"{rows} rows, {sizes}, {norm or 'no norm'}, {activation}{', int8' if int8 else ''}"
        text = difference(where, got.double(), right, 1e-5)
        yield [] if text is None else [text]
    for name, spec in FUSED.items():
        model = spec().build().eval()
        with counting_steps() as calls:
            decoded = decode_in_slots(ContinuousBatch(model, slots=4, columns=60), (3, 1, 40), 5)
        wrong = find_wrong_tokens(model, decoded)
        yield [f"{name}: {wrong}"] * bool(wrong) + [f"{name}: not fused"] * (not calls)


def fused_step_names():
    return "relu", "silu", "gelu", "gelu_tanh", ""


def beam_problems():
    """Yield what a step of beam search gets wrong, in searches drawn at random; no two numbers are equal."""
    for seed in range(16 if THOROUGH else 3):
        method, rules, steps = draw_case(seed)
        rules = dataclasses.replace(rules, never=())
        states = [BeamState(4, method, rules, VOCABULARY, torch.device("cpu")) for _ in range(2)]
        for length, like in enumerate(steps, 1):
            log_probs, n = -6 * torch.rand_like(like), torch.tensor([length])
            by_tensors, by_kernel = (
                (state, advance(state, log_probs, n))
                for state, advance in zip(states, (BeamState.advance, beam_gpu.advance), strict=True)
            )
            where = f"seed {seed}, length {length}, {method}, {rules}"
            named = zip(NAMES, what_counts(*by_tensors), what_counts(*by_kernel), strict=True)
            yield [f"{where}: {name}" for name, wanted, got in named if not torch.equal(wanted, got)]


NAMES = ("totals", "tokens", "parents", "origins", "chosen", "going", "nodes", "scores", "finished")


def what_counts(state, step):
    """Return all that a step computes, with zeros where there is no continuation, beam or output."""
    masks = (step.totals, state.totals, state.scores)
    groups = (step[:3], (*step[3:], state.totals, state.nodes), (state.scores, state.finished))
    return [one.masked_fill(mask == FORBIDDEN, 0) for mask, group in zip(masks, groups, strict=True) for one in group]


def attention_problems(kernel):
    """Yield what a kernel of attention gets wrong in each combination of the grid, and in each case above."""
    served = (one for one in grid.combinations(kernel) if not grid.reasons(one))
    for combination in itertools.islice(served, COMBINATIONS):
        yield grid.check([combination]).failures
    cases, chooser = {
        "linear": (linear_cases(), (linear_gpu, "plan_for")),
        "argmax": (argmax_cases(), (argmax_gpu, "tile_for")),
    }[kernel]
    for name, weighting, *sizes, mask, n_keys, plan in cases:
        if not THOROUGH and name not in OFTEN:
            continue
        owner, attribute = chooser
        setattr(owner, attribute, lambda *_: plan)  # noqa: B023
        yield [f"{name}: {text}" for text in compare(kernel, weighting, sizes, mask, n_keys)]


def main(kernels: list[str]) -> None:
    patch_interpreter()
    torch.set_num_threads(1)
    problems = {
        "layer_norm": layer_norm_problems,
        "activation": activation_problems,
        "loss": loss_problems,
        "beam": beam_problems,
        "greedy": greedy_problems,
        "one_query": one_query_problems,
        "fused_step": fused_step_problems,
        "tiles": tiles_problems,
    }
    for kernel in kernels:
        torch.manual_seed(0)
        found = list(problems[kernel]() if kernel in problems else attention_problems(kernel))
        print(*itertools.chain(*found), sep="\n")
        print(f"{kernel}: {len(found)} run, {sum(map(len, found))} wrong", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
