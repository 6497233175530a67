"""Argmax: argmax attention in Triton kernels, one pass over the keys and a second only where keys tie.

`argmax_triton.py` holds the GPU code and says why one pass is enough. The straight-through gradient of queries and keys
is softmax attention's at the same scores, and torch's fused kernel computes it on the way back.
"""

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.attention import SDPBackend, sdpa_kernel

from clearhead.attention import masks, weighting
from clearhead.attention.inputs import HALF, AttentionInputs, KernelFacts
from clearhead.attention.kernels.base import Context, Kernel, differentiable_once
from clearhead.attention.kernels.blockwise import BLOCK_NUMBERS, Blockwise, block_rows, sight
from clearhead.attention.kernels.fused import Fused
from clearhead.attention.kernels.launch import (
    LaunchInputs,
    block_width,
    dense_rows,
    empty_like_rows,
    key_lengths,
    padding_arguments,
    refuse_launch,
    strides_of,
    triton_code,
)
from clearhead.attention.mask_rules import Mask
from clearhead.attention.modes import under_torch_func
from clearhead.attention.positions import NoPosition
from clearhead.attention.score_index import Subset
from clearhead.attention.similarity import ScaledDot, Similarity
from clearhead.compiling import TRITON_INTERPRETED
from clearhead.devices import on_device

WIDEST = {torch.float32: 128, torch.bfloat16: 256, torch.float16: 256}
"""Numbers of a head that a program holds."""
BACKENDS = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""Order in which torch's kernels are tried for the straight-through gradient. On an H200 cuDNN's is the fastest."""
Scores = tuple[Tensor, Tensor]
"""Gradients of queries and keys."""
SORTED = {"ROWS": 32, "KEYS": 32, "num_warps": 4, "num_stages": 1}
"""Launch options of `sum_chosen`: the quickest of nine on an H200, 63 µs where 64 rows and keys take 102."""


class ArgmaxKernel(Kernel):
    name: ClassVar[str] = "argmax"
    summary: ClassVar[str] = "argmax of a dot product in Triton kernels on a GPU, never n x n"

    def refusal(self, facts: KernelFacts) -> str | None:
        if facts.weighting != "argmax":
            return "it computes argmax, and no other weighting"
        if facts.similarity != "dot":
            return "it scores by a dot product; this similarity is not one"
        if facts.bias != "none":
            return "it adds no bias of a position to the scores"
        if facts.dropout:
            return "it has no dropout on the weights"
        if facts.width > WIDEST.get(facts.dtype, facts.width):
            return f"a program holds {WIDEST[facts.dtype]} numbers of a head, and there are {facts.width}"
        return refuse_launch(facts)

    def notes(self, facts: KernelFacts) -> tuple[str, ...]:
        if facts.gradients and "padding" in facts.masks:
            return ("for the straight-through gradient the mask is built as n_query x n_key truth values",)
        return ()

    def run(self, call: AttentionInputs) -> Context:
        if under_torch_func() or call.query.shape[0] == 0:  # torch.func has no rules for these kernels
            return Blockwise().run(call)
        rule = cast(weighting.Argmax, call.weighting)
        scale = call.scale
        query, key, value = call.query, call.key, call.value
        if isinstance(scale, Tensor) or type(call.similarity).prepare is not Similarity.prepare:
            # Prepared in float32 and left so: rounded to half precision, other keys would win.
            call = call.to_float32()
            if not call.unmasked:
                call = call.zero_hidden(sight(call, block_rows(call, BLOCK_NUMBERS)))
            query, key = call.similarity.prepare(call.query, call.key)
            query, scale = (query * scale, 1.0) if isinstance(scale, Tensor) else (query, scale)
        task = ArgmaxOptions(mask=call.mask, share=call.share, scale=float(scale), rule=rule)
        inputs = LaunchInputs(query, key, value, key_lengths(call))
        if torch.compiler.is_compiling():
            return attend_compiled(inputs, task)
        if not inputs.needs_gradient:
            return choose(inputs, task).context
        return differentiable_once(ArgmaxFunction.apply(task, *inputs), ArgmaxKernel.name)


@dataclass(frozen=True)
class ArgmaxOptions:
    """Options of the computation, apart from the tensors."""

    mask: Mask
    scale: float
    rule: weighting.Argmax
    share: Subset | None = None

    @property
    def causal(self) -> bool:
        return "causal" in self.mask.kinds


@dataclass(frozen=True)
class ArgmaxTile:
    """Launch options of a kernel: queries and keys in a tile, warps, stages of its pipeline, registers for a thread."""

    rows: int = 64
    keys: int = 64
    warps: int = 4
    stages: int = 3
    registers: int | None = None

    def options(self) -> dict[str, Any]:
        return {
            "ROWS": self.rows,
            "KEYS": self.keys,
            "num_warps": self.warps,
            "num_stages": self.stages,
            "maxnreg": self.registers,
        }


@dataclass(frozen=True)
class ArgmaxWinners:
    """The context, and what the backward pass needs: each row's winner (-1: it sees nothing); and, where tied keys
    share the weight, the least score that is tied and the share of each."""

    context: Tensor
    winners: Tensor
    thresholds: Tensor
    shares: Tensor


class ArgmaxFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, task: ArgmaxOptions, *tensors: Tensor) -> Tensor:
        made = choose(LaunchInputs(*tensors), task)
        ctx.save_for_backward(*tensors, made.winners, made.thresholds, made.shares)
        ctx.task = task
        return made.context

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        inputs, chosen = LaunchInputs(*ctx.saved_tensors[:4]), ctx.saved_tensors[4:]
        task, grad = ctx.task, grads[0]
        dq = dk = dv = None
        straight = task.rule.gradient == "straight-through" and (ctx.needs_input_grad[1] or ctx.needs_input_grad[2])
        of_value = partial(backward_value, inputs, task, ArgmaxWinners(inputs.value, *chosen), grad)
        of_scores = partial(softmax_gradients, inputs, task, grad)
        if straight and ctx.needs_input_grad[3]:  # sorting rows leaves most of a GPU idle
            dv, (dq, dk) = run_beside(of_value, of_scores, grad)
        elif straight:
            dq, dk = of_scores()
        elif ctx.needs_input_grad[3]:
            dv = of_value()
        return None, dq, dk, dv, None


def run_beside(first: Callable[[], Tensor], second: Callable[[], Scores], tensor: Tensor) -> tuple[Tensor, Scores]:
    """Return what both give; where the tensor is on a GPU, `first` runs on a stream of its own beside `second`."""
    if not tensor.is_cuda:
        return first(), second()
    here, aside = torch.cuda.current_stream(tensor.device), torch.cuda.Stream(tensor.device)
    aside.wait_stream(here)
    with torch.cuda.stream(aside):
        made = first()
    other = second()
    here.wait_stream(aside)
    made.record_stream(here)
    return made, other


def softmax_gradients(inputs: LaunchInputs, task: ArgmaxOptions, grad: Tensor) -> Scores:
    """Return the gradients that softmax attention at the same scores has for queries and keys."""
    query, key, value, _ = inputs
    leaves = [side.detach().requires_grad_() for side in (query, key)]
    with torch.enable_grad(), fastest_softmax(query):
        context = soften(leaves[0], leaves[1], value, task)
        dq, dk = torch.autograd.grad(context, leaves, grad.to(context.dtype))
    return dq, dk


def soften(query: Tensor, key: Tensor, value: Tensor, task: ArgmaxOptions) -> Tensor:
    """Return softmax attention at the same scores."""
    soft = AttentionInputs(
        query=query,
        key=key,
        value=value.detach().to(query.dtype),
        similarity=ScaledDot(task.scale),
        weighting=weighting.Softmax(),
        position=NoPosition(),
        mask=task.mask,
        share=task.share,
    )
    return Fused().run(soft)


def attend_compiled(inputs: LaunchInputs, task: ArgmaxOptions) -> Context:
    """Return the same for torch.compile, which cannot look into the kernels: an operator, and softmax beside it.

    Softmax attention is added and taken away again: 0, with the straight-through gradient. So it runs in the forward
    pass, and not on the way back as in `ArgmaxFunction`.
    """
    query, key, value, lengths = inputs
    rule = task.rule
    chosen = argmax_forward(
        query.detach(), key.detach(), value, lengths, task.causal, task.scale, rule.ties, rule.tolerance
    )
    context = chosen[0]
    if rule.gradient == "straight-through" and torch.is_grad_enabled() and (query.requires_grad or key.requires_grad):
        with fastest_softmax(query):
            soft = soften(query, key, value, task)
        context = context + (soft - soft.detach()).to(context.dtype)
    return context


@torch.library.custom_op("clearhead::argmax_forward", mutates_args=())
def argmax_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: Tensor | None,
    causal: bool,
    scale: float,
    ties: str,
    tolerance: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    made = choose(LaunchInputs(query, key, value, lengths), plain_task(causal, scale, ties, tolerance))
    return made.context, made.winners, made.thresholds, made.shares


@argmax_forward.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *options: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    made = empty_choice(dense_rows(query), value, options[3])
    return made.context, made.winners, made.thresholds, made.shares


@torch.library.custom_op("clearhead::argmax_backward", mutates_args=())
def argmax_backward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: Tensor | None,
    causal: bool,
    scale: float,
    ties: str,
    tolerance: float,
    winners: Tensor,
    thresholds: Tensor,
    shares: Tensor,
    grad: Tensor,
) -> Tensor:
    choice = ArgmaxWinners(value, winners, thresholds, shares)
    task = plain_task(causal, scale, ties, tolerance)
    return backward_value(LaunchInputs(query, key, value, lengths), task, choice, grad)


@argmax_backward.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *_: Any) -> Tensor:
    return empty_like_rows(dense_rows(value), value.shape[1], value.shape[2], value.shape[3], value.dtype)


def keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:4], *output[1:])
    ctx.options = inputs[4:]


def compiled_backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Any, ...]:
    inputs, chosen = ctx.saved_tensors[:4], ctx.saved_tensors[4:]
    return None, None, argmax_backward(*inputs, *ctx.options, *chosen, grad), None, None, None, None, None


argmax_forward.register_autograd(compiled_backward, setup_context=keep_for_backward)


def plain_task(causal: bool, scale: float, ties: str, tolerance: float) -> ArgmaxOptions:
    """Return the task of an operator, which is given plain values only; the padding's lengths come as a tensor."""
    rule = weighting.Argmax(ties=cast(Any, ties), tolerance=tolerance)
    return ArgmaxOptions(mask=masks.causal() if causal else masks.everything(), scale=scale, rule=rule)


def empty_choice(query: Tensor, value: Tensor, ties: str) -> ArgmaxWinners:
    """Return a choice with nothing in it yet."""
    batch, n_heads, n_query, _ = query.shape
    out = empty_like_rows(query, n_heads, n_query, value.shape[3], value.dtype)
    winners = query.new_empty(batch, n_heads, n_query, dtype=torch.int32)
    shape = winners.shape if ties == "average" else (1,)
    thresholds, shares = (query.new_empty(shape, dtype=torch.float32) for _ in range(2))
    return ArgmaxWinners(out, winners, thresholds, shares)


def fastest_softmax(query: Tensor) -> AbstractContextManager[object]:
    """Let torch try its attention kernels in the order of `BACKENDS`, where it has a choice."""
    if query.device.type != "cuda" or query.dtype not in HALF:
        return contextlib.nullcontext()
    return sdpa_kernel(BACKENDS, set_priority=True)


def tile_for(query: Tensor) -> ArgmaxTile:
    """Choose a tile for these shapes. The figures come from benchmarks/gpu_kernels.py."""
    if query.dtype == torch.float32:
        return ArgmaxTile(rows=64, keys=32, warps=4, stages=1)
    return ArgmaxTile(stages=3 if query.shape[-1] <= 128 else 2)


def choose(inputs: LaunchInputs, task: ArgmaxOptions, tile: ArgmaxTile | None = None) -> ArgmaxWinners:
    """Find each row's winner, and its value."""
    code = triton_code("argmax_triton")
    query, key, value = (dense_rows(tensor) for tensor in inputs[:3])
    batch, n_heads, n_query, _ = query.shape
    n_kv_heads, n_key = value.shape[1], value.shape[2]
    tile = tile or tile_for(query)
    n_blocks = -(-n_query // tile.rows)
    padding = padding_arguments(inputs)
    made = empty_choice(query, value, task.rule.ties)
    with on_device(query):
        code.choose[(batch * n_heads * n_blocks,)](
            query,
            key,
            value,
            made.context,
            made.winners,
            made.thresholds,
            made.shares,
            padding.lengths,
            *strides_of(query, key, value, made.context),
            abs(task.scale),
            task.rule.tolerance,
            n_heads,
            n_kv_heads,
            n_query,
            n_key,
            n_blocks,
            padding.stride,
            task.causal,
            padding.padded,
            TIES=task.rule.ties,
            **constants_for(query, value, task),
            **tile.options(),
        )
    return made


def backward_value(
    inputs: LaunchInputs, task: ArgmaxOptions, choice: ArgmaxWinners, grad: Tensor, tile: ArgmaxTile | None = None
) -> Tensor:
    """Return the gradient of the values: each gets that of the rows that chose it."""
    grad = dense_rows(grad)
    if task.rule.ties == "average":
        return share_gradient(inputs, task, choice, grad, tile or tile_for(inputs.query))
    code = triton_code("argmax_triton")
    value = dense_rows(inputs.value)
    batch, n_kv_heads, n_key, d_value = value.shape
    n_heads, n_query = choice.winners.shape[1:]
    order, starts = sort_rows(choice.winners, n_kv_heads, n_key)
    n_blocks = -(-n_key // SORTED["KEYS"])
    dv = empty_like_rows(value, n_kv_heads, n_key, d_value, value.dtype)
    with on_device(grad):
        code.sum_chosen[(batch * n_kv_heads * n_blocks,)](
            grad,
            dv,
            order,
            starts,
            *strides_of(grad, dv),
            n_heads,
            n_kv_heads,
            n_query,
            n_key,
            n_blocks,
            GROUPED=n_heads != n_kv_heads,
            DV=d_value,
            BV=block_width(d_value),
            DOT_GRAD=product_type(grad.dtype),
            PRECISION="tf32x3",
            **SORTED,
        )
    return dv


def sort_rows(winners: Tensor, n_kv_heads: int, n_key: int) -> tuple[Tensor, Tensor]:
    """Return all rows of the batch in the order of the keys they chose, and where the rows of each key begin, with the
    end of the last. Before the keys of each head is a place for the rows that chose none.
    """
    batch, n_heads, _ = winners.shape
    n_places = batch * n_kv_heads * (n_key + 1)
    dtype = torch.int32 if n_places < 2**31 else torch.int64
    begins = torch.arange(1, n_places, n_key + 1, dtype=dtype, device=winners.device)
    places = winners.view(batch, n_kv_heads, n_heads // n_kv_heads, -1) + begins.view(batch, n_kv_heads, 1, 1)
    ordered, order = torch.sort(places.flatten(), stable=True)
    return order, torch.searchsorted(ordered, torch.arange(n_places + 1, dtype=dtype, device=winners.device))


def share_gradient(
    inputs: LaunchInputs, task: ArgmaxOptions, choice: ArgmaxWinners, grad: Tensor, tile: ArgmaxTile
) -> Tensor:
    """Return the gradient of the values where tied keys share a row, which finds them by their scores once more."""
    code = triton_code("argmax_triton")
    query, key, value = (dense_rows(tensor) for tensor in inputs[:3])
    batch, n_heads, n_query, _ = query.shape
    n_kv_heads, n_key, d_value = value.shape[1], value.shape[2], value.shape[3]
    n_blocks = -(-n_key // tile.keys)
    padding = padding_arguments(inputs)
    dv = empty_like_rows(value, n_kv_heads, n_key, d_value, value.dtype)
    with on_device(query):
        code.grad_value[(batch * n_kv_heads * n_blocks,)](
            query,
            key,
            grad,
            dv,
            choice.winners,
            choice.thresholds,
            choice.shares,
            padding.lengths,
            *strides_of(query, key, grad, dv),
            abs(task.scale),
            n_heads,
            n_kv_heads,
            n_query,
            n_key,
            n_blocks,
            padding.stride,
            task.causal,
            padding.padded,
            DOT_GRAD=product_type(grad.dtype),
            **constants_for(query, value, task),
            **tile.options(),
        )
    return dv


def constants_for(query: Tensor, value: Tensor, task: ArgmaxOptions) -> dict[str, Any]:
    """Return the compile-time arguments of both kernels."""
    d_head, d_value = query.shape[-1], value.shape[-1]
    return {
        "NEGATED": task.scale < 0,
        "D": d_head,
        "DV": d_value,
        "BD": block_width(d_head),
        "BV": block_width(d_value),
        "DOT": product_type(query.dtype),
        "PRECISION": "tf32x3",
    }


def product_type(dtype: torch.dtype) -> Any:
    """Return the type of a matrix product's factors. Half precision enters as it is, so the products are exact."""
    import triton.language as tl

    if TRITON_INTERPRETED:  # which has no bfloat16 products
        return tl.float32
    return {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}.get(dtype, tl.float32)
