"""Fused: torch's scaled_dot_product_attention, with Clearhead's rule for masks around it.

Boolean masks mean "may attend" there too; what torch lacks is added here: positions other than top-left for causal,
zeros for rows that see nothing, no leak from keys nobody sees, and packed documents one by one.

Packed documents, attended to one by one: no matrix of truth values, and no score of two documents is computed.

A query sees keys of its own document alone, so attention to each document by itself is the definition. Documents of one
length that follow each other are a batch of sequences: of eight documents of 2,048 tokens one call is made.

Softmax attention to few keys in training on a CPU: two batched products around a softmax, and their gradients.

Torch's fused kernel works through blocks of 32 queries and up to 512 keys, and computes the weights again in the
backward pass. With fewer than 32 keys, as in a batch of short sentences, each block is mostly empty, and to keep the
weights costs little: forward and backward take less time here. Figures: docs/decisions/0023.
"""

import contextlib
import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from clearhead.attention.inputs import FLOATS, HALF, AttentionInputs, KernelFacts, Visibility, ordinary
from clearhead.attention.kernels.base import Context, Kernel, Refused, differentiable_once
from clearhead.attention.kernels.blockwise import Blockwise
from clearhead.attention.mask_numbers import EqualDocuments
from clearhead.attention.mask_rules import Both, Causal, Document, Everything
from clearhead.attention.modes import assumed_finite, can_read, under_torch_func
from clearhead.attention.positions import NoPosition
from clearhead.attention.score_index import ScoreIndex
from clearhead.attention.similarity import ScaledDot, Similarity
from clearhead.attention.weighting import Softmax
from clearhead.cuda_graphs import is_recorded

FEW_KEYS = 32


def serves_short(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> bool:
    """Check for a call in training with few keys, as many heads for keys as for queries, and no learned bias."""
    return (
        can_read(query)  # first: a compiler is to make no guard of what follows
        and key.shape[2] < FEW_KEYS
        and query.shape[1] == key.shape[1]
        and torch.is_grad_enabled()
        and (query.requires_grad or key.requires_grad or value.requires_grad)
        and not (mask is not None and mask.requires_grad)
        and query.dtype in (torch.float32, torch.float64)
    )


def attend_short(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, causal: bool, scale: float
) -> Context:
    """Return what `scaled_dot_product_attention` does. `mask` is truth values (True = may attend) or a bias."""
    if causal:
        mask = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool).tril_()
    return ShortSoftmax.apply(mask, scale, query, key, value)  # pyright: ignore[reportReturnType]


class ShortSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, mask: Tensor | None, scale: float, *sources: Tensor) -> Tensor:
        batch, heads, n_query, _ = sources[0].shape
        query, key, value = (x.reshape(batch * heads, x.shape[2], -1) for x in sources)
        score = torch.baddbmm(query.new_empty(1), query, key.transpose(1, 2), beta=0, alpha=scale)
        if mask is not None:
            apart = score.view(batch, heads, n_query, -1)
            # Not added as -inf: the score of a key that is NaN would stay NaN.
            apart.masked_fill_(~mask, float("-inf")) if mask.dtype is torch.bool else apart.add_(mask)
        weight = torch.softmax(score, -1)
        ctx.scale = scale
        ctx.save_for_backward(*sources, query, key, value, weight)
        return torch.bmm(weight, value).view(batch, heads, n_query, -1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        *sources, query, key, value, weight = ctx.saved_tensors
        with torch.no_grad():
            rows = grad.reshape(*weight.shape[:2], -1)
            d_value = torch.bmm(weight.transpose(1, 2), rows)
            d_weight = torch.bmm(rows, value.transpose(1, 2))
            d_score = torch.ops.aten._softmax_backward_data(d_weight, weight, -1, weight.dtype)
            nothing = query.new_empty(1)
            d_query = torch.baddbmm(nothing, d_score, key, beta=0, alpha=ctx.scale)
            d_key = torch.baddbmm(nothing, d_score.transpose(1, 2), query, beta=0, alpha=ctx.scale)
        gradients = [
            gradient.view_as(source) for gradient, source in zip((d_query, d_key, d_value), sources, strict=True)
        ]
        if torch.is_grad_enabled():  # a graph of the gradients is asked for, and there is none
            gradients = [Refused.apply("fused", gradient, grad, *sources) for gradient in gradients]
        return None, None, *gradients


Attend = Callable[[Tensor, Tensor, Tensor], Context]
Tensors = tuple[Tensor, Tensor, Tensor]
Rows = Sequence[Sequence[EqualDocuments]]


def attend_documents(tensors: Tensors, rows: Rows, attend: Attend) -> Context:
    """Return the context of every query, by `attend`, which computes it for whole documents.

    `rows` are the runs of each batch row, or one row of runs for all of them.
    """
    if len(rows) == 1:
        return attend_runs(tensors, rows[0], attend)
    # The gradient of `split` is one cat; that of a slice would be a tensor of zeros as large as the whole.
    by_row = zip(*(tensor.split(1) for tensor in tensors), strict=True)
    return join([attend_runs(row, runs, attend) for row, runs in zip(by_row, rows, strict=True)], 0)


def attend_runs(tensors: Tensors, runs: Sequence[EqualDocuments], attend: Attend) -> Context:
    """Return the context of sequences that are all packed in the same way."""
    if len(runs) == 1:
        return attend_run(tensors, runs[0], attend)
    sizes = [run.repeats * run.length for run in runs]
    by_run = zip(*(tensor.split(sizes, 2) for tensor in tensors), strict=True)
    return join([attend_run(some, run, attend) for some, run in zip(by_run, runs, strict=True)], 2)


def attend_run(tensors: Tensors, run: EqualDocuments, attend: Attend) -> Context:
    """Return the context of documents of one length; zeros, without a gradient, if there is no document."""
    query, _, value = tensors
    if not run.document:
        return value.new_zeros(*query.shape[:3], value.shape[-1])
    if run.repeats == 1:
        return attend(*tensors)
    query, key, value = (tensor.unflatten(2, (run.repeats, -1)).transpose(1, 2).flatten(0, 1) for tensor in tensors)
    return attend(query, key, value).unflatten(0, (-1, run.repeats)).transpose(1, 2).flatten(2, 3)


def join(parts: list[Tensor], axis: int) -> Tensor:
    """Concatenate along the batch or the positions; in memory, heads are within positions, as torch's kernels leave
    them and a layer's output map wants them.
    """
    return torch.cat([part.transpose(1, 2) for part in parts], min(axis, 1)).transpose(1, 2)


SCALED_DOT, SOFTMAX, NO_POSITION = ScaledDot(), Softmax(), NoPosition()
ENOUGH_KEYS = 32
"""From so many keys on, torch's fused kernel for a CPU carries NaN on. With fewer keys than a vector register has lanes
(8 on this kind of machine, 16 on the widest) it makes 0 of a row whose scores are all NaN."""

FEW_ON_GPU = 64
"""Up to so many tokens torch's memory-efficient kernel is the quickest on an H200, forward and backward: 16 tokens take
93 to 102 µs where cuDNN takes 139 to 187, 64 tokens 264 to 290 instead of 375 to 430; 128 take 116 instead of 74."""


class Fused(Kernel):
    name: ClassVar[str] = "fused"
    summary: ClassVar[str] = "softmax of a dot product in torch's fused kernel"

    def refusal(self, facts: KernelFacts) -> str | None:
        if facts.weighting != "softmax":
            return "torch's fused kernel computes softmax, and no other weighting"
        if facts.similarity != "dot":
            return "torch's fused kernel scores by a dot product; this similarity is not one"
        return None

    def yields_to(self, facts: KernelFacts) -> str | None:
        """Prefer flex for a long mask or bias on a GPU: here it would be read as a matrix, and no key skipped.

        So would a causal mask of a block of a sequence on all keys before it; in training, where lengths are few.
        """
        reads_matrix = builds_mask(facts) or facts.masks == {"padding"} or facts.bias != "none"
        reads_matrix = reads_matrix or (facts.masks == {"causal"} and facts.offset and facts.gradients)
        return "flex" if reads_matrix and facts.long and facts.device == "cuda" else None

    def notes(self, facts: KernelFacts) -> tuple[str, ...]:
        notes = []
        if facts.by_document:
            notes.append("each document is attended to by itself; lengths that differ take a call each")
        if facts.device == "cpu" and facts.dropout:
            whose = " of each document" if facts.by_document else ""
            notes.append(f"with dropout on the CPU torch builds the n_query x n_key weights{whose}")
        if facts.device == "cpu" and facts.bias == "learned" and facts.gradients:
            notes.append("for a bias's gradient on the CPU torch builds the n_query x n_key weights")
        if not facts.equal_widths:
            notes.append(
                "d_value differs from d_head: the narrower is filled up with zeros, or torch would build n x n"
            )
        if builds_mask(facts):
            notes.append("this mask is built as n_query x n_key truth values, one byte each")
        if facts.bias != "none":
            notes.append("the bias is built as n_query x n_key numbers a head")
        return tuple(notes)

    def run(self, call: AttentionInputs) -> Context:
        # torch.func has rules for every operation of the reference, and for torch's kernel it has not. And of a batch
        # of none that kernel gives no gradient to a bias.
        if under_torch_func() or call.query.shape[0] == 0:
            return Blockwise().run(call)
        documents = call.document_runs()
        if documents is not None:
            return attend_documents((call.query, call.key, call.value), documents, by_document(call, documents))
        unmasked = call.unmasked
        if unmasked and call.position.bias_kind == "none":
            return attend_fused(call)
        cells = call.cells()
        allowed = call.mask.allowed(cells)
        if unmasked:
            return attend_fused(call, mask_with_bias(call, cells, allowed))
        sight = Visibility.of(allowed)
        assert sight.rows is not None
        seeing = sight.rows.unsqueeze(-1)
        finite = call if assumed_finite() else call.zero_hidden(sight)
        context = attend_fused(finite, mask_with_bias(call, cells, allowed | ~seeing))
        if can_read(seeing) and seeing.all():  # read on a CPU only, where reading costs nothing
            return context
        return context.where(seeing, 0)


def attend_directly(query: Tensor, key: Tensor, value: Tensor, mask: object) -> Context | None:
    """Return softmax attention of three plain tensors of one shape, without or with a causal mask, or of packed
    documents; None for all else.

    It is a shortcut around the checks, the choice of a kernel and `Fused.run`, with the same result bit for bit: those
    take about 50 microseconds, a tenth of the arithmetic at n = 256.
    """
    if torch.compiler.is_compiling() or not type(query) is type(key) is type(value) is Tensor:
        return None
    shape, device, causal = query.shape, query.device, type(mask) is Causal
    packed = isinstance(mask, Both | Document) and any(isinstance(term, Document) for term in mask.terms)
    if not shape == key.shape == value.shape or len(shape) != 4 or not (causal or mask is None or packed):
        return None
    if shape[2] < ENOUGH_KEYS or 0 in shape or not query.dtype is key.dtype is value.dtype:
        return None
    if not device == key.device == value.device or device.type not in ("cpu", "cuda") or query.dtype not in FLOATS:
        return None
    if under_torch_func() or torch.is_autocast_enabled(device.type):
        return None
    if isinstance(mask, Both | Document):
        call = AttentionInputs(query, key, value, SCALED_DOT, SOFTMAX, NO_POSITION, mask)
        documents = call.document_runs()
        if documents is None:
            return None
        mask.check(call.extent)
        return attend_documents((query, key, value), documents, by_document(call, documents))
    return torch_attention(query, key, value, causal=causal, scale=shape[3] ** -0.5)


def by_document(call: AttentionInputs, rows: Rows) -> Callable[[Tensor, Tensor, Tensor], Context]:
    """Return the function that attends to documents of this call. What is the same for all of them is asked once, but
    where a document is so short that torch's kernel for a CPU must be watched.
    """
    causal = any(isinstance(term, Causal) for term in call.mask.terms)
    scale = call.scale / call.weighting.temperature
    plain = type(call.similarity).prepare is Similarity.prepare and call.query.shape[-1] == call.value.shape[-1]
    watched = not call.query.is_cuda and any(run.document and run.length < ENOUGH_KEYS for row in rows for run in row)
    if watched or not plain or isinstance(scale, Tensor):
        one_document = call.replace(mask=Causal() if causal else Everything())
        return lambda query, key, value: attend_fused(one_document.replace(query=query, key=key, value=value))
    grouped = call.n_heads != call.key.shape[1]
    return functools.partial(torch_attention, dropout=call.dropout, causal=causal, scale=scale, grouped=grouped)


def builds_mask(facts: KernelFacts) -> bool:
    """Check whether the mask becomes a matrix of truth values, and is not a switch or one row for all queries."""
    if facts.by_document:
        return False
    return len(facts.masks) > 1 or bool(facts.masks - {"none", "causal", "padding"}) or not facts.aligned


def mask_with_bias(call: AttentionInputs, cells: ScoreIndex, allowed: Tensor) -> Tensor:
    """Return the mask as torch takes it: truth values, or the bias with -inf where a query may not attend."""
    if call.position.bias_kind == "none":
        return allowed
    wide = torch.promote_types(call.query.dtype, torch.float32)
    bias = call.position.bias(cells, wide) / call.weighting.temperature
    return torch.where(allowed, bias, float("-inf")).to(call.query.dtype)


def attend_fused(call: AttentionInputs, mask: Tensor | None = None) -> Context:
    query, key, scale = scale_query(call)
    value, d_value = call.value, call.value.shape[-1]
    causal = mask is None and call.n_query > 1 and call.mask.kinds == {"causal"}
    if causal and call.n_query != call.n_key:
        causal, mask = False, call.mask.allowed(call.cells())
    if query.shape[-1] != d_value:
        width = max(query.shape[-1], d_value)
        query, key, value = widen(query, width), widen(key, width), widen(value, width)
    if call.dropout == 0 and serves_short(query, key, value, mask):
        context = attend_short(query, key, value, mask, causal=causal, scale=scale)
        return context if context.shape[-1] == d_value else context[..., :d_value]
    grouped = call.n_heads != key.shape[1]
    with prefer_efficient(call):
        context = torch_attention(
            query, key, value, mask, dropout=call.dropout, causal=causal, scale=scale, grouped=grouped
        )
    context = context if context.shape[-1] == d_value else context[..., :d_value]
    return context if can_read(context) and call.n_key >= ENOUGH_KEYS else with_nan(call, context)


def torch_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    *,
    dropout: float = 0.0,
    causal: bool = False,
    scale: float,
    grouped: bool = False,
) -> Context:
    """Return torch's `scaled_dot_product_attention`, made so that its second derivative raises an error which names
    the reference, and that cuDNN's kernel has its gradient in the layout of the context.

    Torch keeps cuDNN's backward pass by the layouts of query, key and value, but not of the gradient that comes in: one
    with heads inside the positions is read wrongly where the first had them outside (torch 2.11).
    """
    if mask is not None and mask.is_cuda and torch.compiler.is_dynamo_compiling():
        bias = torch.where(mask, 0.0, float("-inf")).to(query.dtype) if mask.dtype is torch.bool else mask
        mask = in_dense_rows(bias)
    context = F.scaled_dot_product_attention(query, key, value, mask, dropout, causal, scale=scale, enable_gqa=grouped)
    if torch.compiler.is_compiling():
        may_be_cudnn = context.is_cuda and context.dtype in HALF and context.requires_grad
        return FixGradientLayout.apply(context, context.stride(1) < context.stride(2)) if may_be_cudnn else context  # pyright: ignore[reportReturnType]
    if context.grad_fn is not None and "Cudnn" in context.grad_fn.name():
        context.grad_fn.register_prehook(functools.partial(restride_first, context.stride()))
    return differentiable_once(context, Fused.name, operation="ScaledDotProduct")  # else it is plain operations


@torch.library.custom_op("clearhead::in_dense_rows", mutates_args=())
def in_dense_rows(bias: Tensor) -> Tensor:
    """Return a copy of a mask, laid out as torch lays out a new tensor, also where a compiler made it.

    The compiler of torch 2.11 keeps a matrix of more than 1,024 columns in rows that are a little longer. On an H200
    the last queries of a compiled call then came out wrong: of 1,500 the last 36, as many as the columns that a row of
    1,536 has more. Eagerly the same call was right. Which of torch's kernels misreads it was not found.
    """
    return bias.clone(memory_format=torch.contiguous_format)


@in_dense_rows.register_fake
def _(bias: Tensor) -> Tensor:
    return bias.new_empty(bias.shape)


def pass_gradient(ctx: Any, grad: Tensor) -> Tensor:
    return grad


in_dense_rows.register_autograd(pass_gradient)


def restride_first(strides: tuple[int, ...], grads: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
    """Return the gradients with the first of them in a layout of these strides; None if it is already."""
    grad = grads[0]
    if all(n == 1 or a == b for n, a, b in zip(grad.shape, grad.stride(), strides, strict=True)):
        return None
    return torch.empty_strided(grad.shape, strides, dtype=grad.dtype, device=grad.device).copy_(grad), *grads[1:]


class FixGradientLayout(torch.autograd.Function):
    """The same context, whose gradient has its heads inside the positions, or outside. Compiled code cannot ask how a
    gradient is laid out, but `contiguous` is left out of it where there is nothing to move.
    """

    @staticmethod
    def forward(ctx: Any, context: Tensor, heads_inside: bool) -> Tensor:
        ctx.heads_inside = heads_inside
        return context.view_as(context)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        grad = grads[0]
        if ctx.heads_inside:
            return grad.transpose(1, 2).contiguous().transpose(1, 2), None
        return grad.contiguous(), None


def prefer_efficient(call: AttentionInputs) -> AbstractContextManager[object]:
    """Let torch try its memory-efficient kernel first, for texts of at most FEW_ON_GPU tokens in captured training.

    It is the quickest there: cuDNN's tiles are 64 x 128. To say so takes Python longer than it saves elsewhere.
    """
    if torch.compiler.is_compiling() or not is_recorded() or not (call.query.is_cuda and call.query.requires_grad):
        return contextlib.nullcontext()
    if max(call.n_query, call.n_key) > FEW_ON_GPU or call.query.dtype not in (torch.bfloat16, torch.float16):
        return contextlib.nullcontext()
    from torch.nn.attention import SDPBackend, sdpa_kernel

    order = (SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.MATH)
    return sdpa_kernel([*order], set_priority=True)


def with_nan(call: AttentionInputs, context: Context) -> Context:
    """Return what one of torch's kernels gave, with NaN where the definition has it.

    Those for a CPU make 0 of a row whose scores are all NaN, for some numbers of keys. Eagerly one number of each row
    is looked at, and only if one is 0 are queries and keys searched for what makes NaN. Elsewhere the queries alone
    decide.
    """
    if not context.is_cpu:
        return context
    if can_read(context):
        usual = context.select(-1, 0).all().item() or (
            ordinary(call.query) and (call.assume_finite or ordinary(call.key))
        )
        return context if usual else Blockwise().run(call)
    return torch.where(call.query.isfinite().all(-1, keepdim=True), context, float("nan"))


def scale_query(call: AttentionInputs) -> tuple[Tensor, Tensor, float]:
    """Return prepared queries and keys, and the factor for their product; a learned one goes into the queries.

    Half precision is prepared in float32 and rounded once.
    """
    scale = call.scale / call.weighting.temperature
    if type(call.similarity).prepare is Similarity.prepare and not isinstance(scale, Tensor):
        return call.query, call.key, scale
    dtype, call = call.query.dtype, call.to_float32()
    query, key = call.similarity.prepare(call.query, call.key)
    return (query * scale).to(dtype), key.to(dtype), 1.0


def widen(vectors: Tensor, width: int) -> Tensor:
    """Pad vectors with zeros to `width`, which leaves dot products as they are."""
    return vectors if vectors.shape[-1] == width else F.pad(vectors, (0, width - vectors.shape[-1]))
