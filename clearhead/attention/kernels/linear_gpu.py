"""Linear: kernelized attention in Triton kernels, forward and backward, in time and memory linear in n.

`linear_triton.py` and `linear_backward_triton.py` hold the GPU code and the mathematics; here is what it serves, how a
call is cut up, and the order of the launches. Feature maps elu and relu are computed inside the kernels; other maps by
torch before them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from clearhead.attention.inputs import AttentionInputs, KernelFacts
from clearhead.attention.kernels.base import Context, Kernel, differentiable_once
from clearhead.attention.kernels.chunked import Chunked
from clearhead.attention.kernels.launch import (
    LaunchInputs,
    PaddingArguments,
    block_width,
    dense_rows,
    empty_like_rows,
    key_lengths,
    padding_arguments,
    refuse_launch,
    strides_of,
    triton_code,
)
from clearhead.attention.kernels.linear import features, kernelized
from clearhead.attention.kernels.linear_plan import Cut, LinearPlan, LinearTile, Options, plan_for, sums_mode
from clearhead.attention.modes import under_torch_func
from clearhead.compiling import TRITON_INTERPRETED
from clearhead.devices import on_device

MAPS = {"elu": "elu", "relu": "relu", "plain": "identity"}
"""Feature maps this kernel serves, and what it computes for each: a plain one was mapped by torch before."""
WIDEST = 128
"""Features, or numbers of a value, that one program holds; more are computed in slices."""


class LinearKernel(Kernel):
    name: ClassVar[str] = "linear"
    summary: ClassVar[str] = "kernelized attention in Triton kernels on a GPU: time and memory linear in n"

    def refusal(self, facts: KernelFacts) -> str | None:
        if facts.weighting != "kernelized":
            return "keys and values can be summed before a query comes only in kernelized attention"
        if facts.similarity != "features":
            return "its features come as logarithms, of any size, and these kernels sum numbers"
        if facts.dropout:
            return "dropout leaves out weights, and here they are never formed"
        return refuse_launch(facts)

    def run(self, call: AttentionInputs) -> Context:
        if under_torch_func() or call.query.shape[0] == 0:  # torch.func has no rules for these kernels
            return Chunked().run(call)
        dtype, lengths = call.value.dtype, key_lengths(call)
        options = Options(
            causal="causal" in call.mask.kinds,
            normalised=kernelized(call).normalised,
            map=MAPS[call.similarity.feature_map],
        )
        query, key = call.query, call.key
        if options.map == "identity":
            mapped = features(call.to_float32())
            narrow = dtype if dtype == torch.bfloat16 else torch.float32
            query, key = mapped.query.to(narrow), mapped.key.to(narrow)
        return attend_linear(LaunchInputs(query, key, call.value, lengths), options)


def attend_linear(inputs: LaunchInputs, options: Options) -> Context:
    """Return the context; widths past `WIDEST` in slices, which add up (features) or stand side by side (values)."""
    query, _, value, _ = inputs
    if query.shape[-1] > WIDEST:
        return sum_over_features(inputs, options)
    if value.shape[-1] > WIDEST:
        slices = value.split(WIDEST, -1)
        return torch.cat([attend_linear(inputs._replace(value=part), options) for part in slices], -1)
    if torch.compiler.is_compiling():
        return linear_forward(*inputs, options.causal, options.normalised, options.map)[0]
    if inputs.needs_gradient:
        return differentiable_once(LinearFunction.apply(options, *inputs), LinearKernel.name)
    return forward(inputs, options)[0]


def sum_over_features(inputs: LaunchInputs, options: Options) -> Context:
    """Add up the amounts over slices of the features; a last column of ones becomes the denominator."""
    query, key, value, lengths = inputs
    wide = F.pad(value.float(), (0, 1), value=1.0)
    if lengths is not None:  # padding may hold NaN, and a slice of features sees no reason to leave it out
        hidden = torch.arange(value.shape[2], device=value.device) >= lengths.view(-1, 1, 1)
        wide = wide.masked_fill(hidden.unsqueeze(-1), 0)
    plain = Options(causal=options.causal, normalised=False, map=options.map)
    slices = zip(query.split(WIDEST, -1), key.split(WIDEST, -1), strict=True)
    contexts = [
        attend_linear(LaunchInputs(query_slice.float(), key_slice.float(), wide, lengths), plain)
        for query_slice, key_slice in slices
    ]
    amount, total = reduce(torch.add, contexts).split([value.shape[-1], 1], -1)
    if options.normalised:
        nothing = total == 0
        amount = (amount / total.masked_fill(nothing, 1)).masked_fill(nothing, 0)
    return amount.to(value.dtype)


class LinearFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, options: Options, *tensors: Tensor) -> Tensor:
        inputs = LaunchInputs(*tensors)
        out, inverse, sums = forward(inputs, options)
        ctx.save_for_backward(*inputs, inverse, sums)
        ctx.options = options
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        *inputs, inverse, sums = ctx.saved_tensors
        return None, *backward(LaunchInputs(*inputs), ctx.options, (inverse, sums), grads[0]), None


# The same for torch.compile, as operators that it need not look into. Eagerly they would cost more than the function.


@torch.library.custom_op("clearhead::linear_forward", mutates_args=())
def linear_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: Tensor | None,
    causal: bool,
    normalised: bool,
    map: str,
) -> tuple[Tensor, Tensor, Tensor]:
    return forward(LaunchInputs(query, key, value, lengths), Options(causal, normalised, map))


@linear_forward.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *options: Any) -> tuple[Tensor, Tensor, Tensor]:
    return empty_results(LaunchInputs(query, key, value, options[0]), Options(*options[1:]))


@torch.library.custom_op("clearhead::linear_backward", mutates_args=())
def linear_backward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: Tensor | None,
    causal: bool,
    normalised: bool,
    map: str,
    inverse: Tensor,
    sums: Tensor,
    grad: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    return backward(LaunchInputs(query, key, value, lengths), Options(causal, normalised, map), (inverse, sums), grad)


@linear_backward.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *_: Any) -> tuple[Tensor, ...]:
    return tuple(
        empty_like_rows(x, x.shape[1], x.shape[2], x.shape[3], x.dtype) for x in map(dense_rows, (query, key, value))
    )


def keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:4], *output[1:])
    ctx.options = inputs[4:]


def compiled_backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Any, ...]:
    *inputs, inverse, sums = ctx.saved_tensors
    return *linear_backward(*inputs, *ctx.options, inverse, sums, grad), None, None, None, None


linear_forward.register_autograd(compiled_backward, setup_context=keep_for_backward)


def empty_results(inputs: LaunchInputs, options: Options) -> tuple[Tensor, Tensor, Tensor]:
    """Return tensors like those that `forward` returns, with nothing in them."""
    query, key, value = (dense_rows(tensor) for tensor in inputs[:3])
    batch, n_heads, n_query, _ = query.shape
    plan = plan_for(query, value, max(n_query, key.shape[2]), batch * n_heads)
    n_segments = Cut.of(query, key, options.causal, plan.segment).key_segments
    mode = sums_mode(options.causal, n_segments, plan)
    sums = query.new_empty(0, dtype=torch.float32)
    if mode != "none":
        n_sums = 1 if mode == "all" and n_segments > plan.few else n_segments
        sums = empty_sums(query, batch * value.shape[1], n_sums, constants_for(query, value, options, plan))
    inverse = query.new_empty((batch, n_heads, n_query) if options.normalised else (1,), dtype=torch.float32)
    return empty_like_rows(query, n_heads, n_query, value.shape[3], value.dtype), inverse, sums


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A call as the kernels get it: tensors with dense rows, how they are cut up, and the kernels' constants."""

    query: Tensor
    key: Tensor
    value: Tensor
    padding: PaddingArguments
    options: Options
    plan: LinearPlan
    cut: Cut
    constants: dict[str, Any]

    @classmethod
    def of(cls, inputs: LaunchInputs, options: Options, plan: LinearPlan | None) -> "Launch":
        query, key, value = (dense_rows(tensor) for tensor in inputs[:3])
        batch, n_heads, n_query, _ = query.shape
        plan = plan or plan_for(query, value, max(n_query, key.shape[2]), batch * n_heads)
        return cls(
            query=query,
            key=key,
            value=value,
            padding=padding_arguments(inputs),
            options=options,
            plan=plan,
            cut=Cut.of(query, key, options.causal, plan.segment),
            constants=constants_for(query, value, options, plan),
        )

    def options_of(self, tile: LinearTile) -> dict[str, Any]:
        """Return how a kernel is launched: by its tile, and whether every chunk is WHOLE, with no row to leave out."""
        n_query, n_key = self.query.shape[2], self.key.shape[2]
        full = self.options.causal and n_query == n_key and n_query % tile.chunk == 0 and n_query > 0
        return {"WHOLE": self.plan.whole and full and not self.padding.padded, **tile.options()}

    def start(
        self,
        kernel: Any,
        tile: LinearTile,
        tensors: Sequence[Tensor],
        strided: Sequence[Tensor],
        segments: tuple[int, ...],
        state: tuple[Tensor, str],
        **constants: Any,
    ) -> None:
        """Launch one of the three kernels that start from a state: `attend`, `grad_query`, `grad_key`.

        `segments` are its slots and segments, of which each is a program; `state` has the sums, and how to read them.
        """
        batch, n_heads, n_query, _ = self.query.shape
        sums, mode = state
        kernel[(batch * n_heads * segments[-1],)](
            *tensors,
            self.padding.lengths,
            *strides_of(*strided),
            n_heads,
            self.value.shape[1],
            n_query,
            self.key.shape[2],
            *segments,
            sums.shape[1] if mode != "none" else 0,
            self.padding.stride,
            self.options.causal,
            self.padding.padded,
            self.options.normalised,
            SUMS=mode,
            **self.constants | constants,
            **self.options_of(tile),
        )


def forward(inputs: LaunchInputs, options: Options, plan: LinearPlan | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Return the context, 1 / denominator, and the sums of the segments: what the way back needs."""
    launch = Launch.of(inputs, options, plan)
    with on_device(launch.query):
        sums, mode = launch_sum_keys(launch)
        out, inverse = launch_attend(launch, sums, mode)
    return out, inverse, sums


def launch_sum_keys(launch: Launch) -> tuple[Tensor, str]:
    """Return the sums that each segment starts from, and how they are to be read."""
    query, key, value, padding, cut = launch.query, launch.key, launch.value, launch.padding, launch.cut
    batch, n_kv_heads, n_key, _ = value.shape
    if launch.options.causal and cut.key_segments == 1:
        return query.new_empty(0, dtype=torch.float32), "none"  # one segment starts from nothing
    sums = empty_sums(query, batch * n_kv_heads, cut.key_segments, launch.constants)
    triton_code("linear_triton").sum_keys[(batch * n_kv_heads * cut.key_segments,)](
        key,
        value,
        sums,
        padding.lengths,
        *strides_of(key, value),
        n_kv_heads,
        n_key,
        *cut.of_keys,
        padding.stride,
        padding.padded,
        **pick(launch.constants, "MAP D DV BF BV SEGMENT DOT PRECISION"),
        **launch.options_of(launch.plan.sums),
    )
    return gather_sums(sums, launch.options.causal, launch.plan, reverse=False)


def launch_attend(launch: Launch, sums: Tensor, mode: str) -> tuple[Tensor, Tensor]:
    """Return the context and 1 / denominator."""
    query, key, value, cut = launch.query, launch.key, launch.value, launch.cut
    batch, n_heads, n_query, _ = query.shape
    out = empty_like_rows(query, n_heads, n_query, value.shape[3], value.dtype)
    inverse = query.new_empty((batch, n_heads, n_query) if launch.options.normalised else (1,), dtype=torch.float32)
    tensors = query, key, value, out, inverse, sums
    split = launch.plan.split and launch.constants["SPLIT"]
    kernel, tile = triton_code("linear_triton").attend, launch.plan.attend
    launch.start(kernel, tile, tensors, (query, key, value, out), cut.of_queries, (sums, mode), SPLIT=split)
    return out, inverse


def backward(
    inputs: LaunchInputs, options: Options, saved: tuple[Tensor, Tensor], grad: Tensor, plan: LinearPlan | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of query, key and value.

    `saved` is what `forward` returned beside the context, with the same plan.
    """
    launch = Launch.of(inputs, options, plan)
    inverse, sums = saved
    grad = dense_rows(grad)
    with on_device(launch.query):
        dq, delta = launch_grad_query(launch, grad, inverse, sums)
        back, mode = launch_sum_queries(launch, grad, inverse, delta)
        dk, dv = launch_grad_key(launch, grad, (inverse, delta), back, mode)
    if launch.query.shape[1] != launch.key.shape[1]:
        dk, dv = sum_groups(dk, launch.key), sum_groups(dv, launch.value)
    return dq, dk, dv


def launch_grad_query(launch: Launch, grad: Tensor, inverse: Tensor, sums: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradient of the query, and that of each row's denominator."""
    query, key, value, cut = launch.query, launch.key, launch.value, launch.cut
    _, n_heads, n_query, d_head = query.shape
    dq = empty_like_rows(query, n_heads, n_query, d_head, query.dtype)
    delta = torch.empty_like(inverse)
    mode = sums_mode(launch.options.causal, cut.key_segments, launch.plan)
    tensors, strided = (query, key, value, grad, inverse, delta, sums, dq), (query, key, value, grad, dq)
    kernel, tile = triton_code("linear_backward_triton").grad_query, launch.plan.grad_query
    launch.start(kernel, tile, tensors, strided, cut.of_queries, (sums, mode))
    return dq, delta


def launch_sum_queries(launch: Launch, grad: Tensor, inverse: Tensor, delta: Tensor) -> tuple[Tensor, str]:
    """Return the sums over queries that each segment of keys starts from, and how they are to be read."""
    query, padding, cut, options = launch.query, launch.padding, launch.cut, launch.options
    batch, n_heads, n_query, _ = query.shape
    if options.causal and cut.query_segments == 1:
        return query.new_empty(0, dtype=torch.float32), "none"
    back = empty_sums(query, batch * n_heads, cut.query_segments, launch.constants)
    triton_code("linear_backward_triton").sum_queries[(batch * n_heads * cut.query_segments,)](
        query,
        grad,
        inverse,
        delta,
        back,
        padding.lengths,
        *strides_of(query, grad),
        n_heads,
        n_query,
        launch.key.shape[2],
        cut.query_slots,
        cut.query_segments,
        padding.stride,
        options.causal,
        padding.padded,
        options.normalised,
        **pick(launch.constants, "MAP D DV BF BV SEGMENT DOT PRECISION"),
        **launch.options_of(launch.plan.sums),
    )
    return gather_sums(back, options.causal, launch.plan, reverse=True)


def launch_grad_key(
    launch: Launch, grad: Tensor, rows: tuple[Tensor, Tensor], back: Tensor, mode: str
) -> tuple[Tensor, Tensor]:
    """Return the gradients of key and value for each query head. `rows` is 1 / denominator, and its gradient."""
    query, key, value, cut = launch.query, launch.key, launch.value, launch.cut
    n_heads, d_head = query.shape[1], query.shape[3]
    _, n_kv_heads, n_key, d_value = value.shape
    grouped = n_heads != n_kv_heads
    dk = empty_like_rows(key, n_heads, n_key, d_head, torch.float32 if grouped else key.dtype)
    dv = empty_like_rows(value, n_heads, n_key, d_value, torch.float32 if grouped else value.dtype)
    tensors, strided = (query, key, value, grad, *rows, back, dk, dv), (query, key, value, grad, dk, dv)
    kernel, tile = triton_code("linear_backward_triton").grad_key, launch.plan.grad_key
    launch.start(kernel, tile, tensors, strided, cut.of_keys, (back, mode))
    return dk, dv


def sum_groups(gradient: Tensor, like: Tensor) -> Tensor:
    """Add up the gradients of the query heads that share a key head."""
    summed = empty_like_rows(like, like.shape[1], like.shape[2], like.shape[3], like.dtype)
    return summed.copy_(gradient.unflatten(1, (like.shape[1], -1)).sum(2))


def gather_sums(sums: Tensor, causal: bool, plan: LinearPlan, *, reverse: bool) -> tuple[Tensor, str]:
    """Prepare the sums of the segments for the programs that start from them, and say how to read them."""
    code = triton_code("linear_triton")
    rows, n_segments, size = sums.shape
    mode = sums_mode(causal, n_segments, plan)
    if mode == "all" and n_segments > plan.few:
        return sums.sum(1, keepdim=True), mode
    if mode != "scanned":
        return sums, mode
    scanned = torch.empty_like(sums)
    block = min(64, 1 << (n_segments - 1).bit_length())
    code.scan[(rows * -(-size // 64),)](sums, scanned, n_segments, size, reverse, block, 64, num_warps=4)
    return scanned, mode


def constants_for(query: Tensor, value: Tensor, options: Options, plan: LinearPlan) -> dict[str, Any]:
    """Return the compile-time arguments that the kernels choose from."""
    import triton.language as tl

    d_head, d_value = query.shape[-1], value.shape[-1]
    tensor_cores = value.dtype == torch.bfloat16 and not TRITON_INTERPRETED  # the interpreter has no bfloat16 products
    return {
        "MAP": options.map,
        "D": d_head,
        "DV": d_value,
        "BF": block_width(d_head),
        "BV": block_width(d_value),
        "SEGMENT": plan.segment,
        "DOT": tl.bfloat16 if tensor_cores else tl.float32,
        # float16 has 10 bits, as tf32 has, but φ(q)·φ(k) may leave its range.
        "PRECISION": plan.precision if value.dtype == torch.float32 else "tf32",
        "SPLIT": tensor_cores,
    }


def pick(constants: dict[str, Any], names: str) -> dict[str, Any]:
    return {name: constants[name] for name in names.split()}


def empty_sums(like: Tensor, rows: int, n_segments: int, constants: dict[str, Any]) -> Tensor:
    size = constants["BF"] * (constants["BV"] + 1)
    return like.new_empty(rows, n_segments, size, dtype=torch.float32)
