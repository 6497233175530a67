"""Products of a decoding step on a GPU with what stands around them: norm, activation, gate and residual.

`FusedLinear` is one map, or a gate and the map it gates. A branch of a block that is made of them (`FusedBranch`) takes
the norm before it and the residual after it into its own kernels, so that a block of a language model is five kernels
for one row. docs/decisions/0010 has what they were measured at.

A step multiplies a few rows with every weight of the model, so it cannot take less time than reading the weights once.
What stands between two products (norm, activation, gate, residual) is a thousand numbers: as a kernel of its own each
takes as long as it takes to launch, so all of it is done where the numbers are read or written anyway. For one row the
products are sums of elementwise products, since the matrix units would be idle but for a sixteenth; for several rows
they are the matrix units' work, with the weights as the left factor, since they need at least 16 rows there.

With `PDL` (programmatic dependent launch) a kernel starts while the one before it is still ending. It may read weights,
which no kernel writes, and must wait before it reads anything else.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from clearhead.compiling import jit, missing_triton
from clearhead.devices import FLOATS
from clearhead.model.fast_step import (
    DecodingModule,
    FastStep,
    StepMatrix,
    StepNorm,
    fast_step_of,
    find_step_matrix,
    has_own_step,
)

if TYPE_CHECKING:
    import triton.language as tl
    from triton.language.extra import cuda

MOST_ROWS = 32
"""Rows for which these kernels are ahead of torch's."""
WIDEST = 16384
"""Numbers of a row that a program holds for its norm."""
PROGRAMS = 264
"""Two for each multiprocessor of an H200: with fewer, not all of the memory is read at once."""


class FusedBranch(ABC):
    """A branch of a block that can also be computed together with its norm and its residual."""

    @abstractmethod
    def __call__(self, x: Float[Tensor, "row d_model"]) -> Float[Tensor, "row d_model"]:
        """Return the branch's output."""

    @abstractmethod
    def serves(self, x: Float[Tensor, "row d_model"]) -> bool:
        """Check whether `residual` can be called now, with these rows."""

    @abstractmethod
    def residual(self, x: Float[Tensor, "row d_model"], norm: StepNorm) -> Float[Tensor, "row d_model"]:
        """Return x + branch(norm(x))."""


def add_branch(norm: nn.Module, branch: FastStep) -> FastStep:
    """Return x + branch(norm(x)) as a function of x, by fused kernels if branch and norm have them."""
    norm_step = fast_step_of(norm)
    step_norm = norm.step_norm if isinstance(norm, DecodingModule) and has_own_step(norm) else None
    if step_norm is None or not isinstance(branch, FusedBranch) or len(step_norm.gamma) > WIDEST:
        return lambda x: x + branch(norm_step(x))
    return lambda x: branch.residual(x, step_norm) if branch.serves(x) else x + branch(norm_step(x))


@functools.cache
def launch_options(device: torch.device) -> dict[str, Any]:
    """Return how kernels are launched: since Hopper a kernel may start before the one before it has ended."""
    early = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)
    return {"launch_pdl": True} if early else {}


def power_of_two(n: int) -> int:
    """Return the least power of two that is no less."""
    return 1 << (n - 1).bit_length()


def can_fuse_weight(weight: Tensor) -> bool:
    """Check for a matrix that these kernels read, on a device that has Triton, and that nobody wants a gradient of."""
    read = weight.dtype in FLOATS or weight.dtype is torch.int8
    return read and weight.is_contiguous() and not torch.is_grad_enabled() and not missing_triton(weight.device.type)


def fusible_matrices(maps: Sequence[nn.Module]) -> list[StepMatrix]:
    """Return linear maps as the matrices that these kernels read; nothing unless all are such maps, of one dtype."""
    found = [matrix for matrix in map(find_step_matrix, maps) if matrix is not None]
    dtypes = {(matrix.weight.dtype, None if matrix.scale is None else matrix.scale.dtype) for matrix in found}
    fits = len(found) == len(maps) and len(dtypes) == 1 and all(can_fuse_weight(matrix.weight) for matrix in found)
    return found if fits else []


class FusedLinear:
    """A linear map of one or a few rows with all that stands around it, as one kernel; two with a norm of several rows.

    `up` makes it a gate: activation(weight x) · (up x).
    """

    def __init__(self, matrix: StepMatrix, *, up: StepMatrix | None = None, activation: str = "") -> None:
        weight, self.bias, self.scale = matrix
        self.weight, self.activation, self.gated = weight, activation, up is not None
        self.up, self.up_bias, self.up_scale = matrix if up is None else up
        self.launch = launch_options(weight.device)
        self.counters = torch.zeros(-(-len(weight) // 16), dtype=torch.int32, device=weight.device)

    def __call__(
        self, x: Float[Tensor, "row d_in"], *, norm: StepNorm | None = None, residual: Tensor | None = None
    ) -> Float[Tensor, "row d_out"]:
        x = x.contiguous()
        residual = None if residual is None else residual.contiguous()
        if len(x) == 1:
            return self.multiply_row(x, norm, residual)
        return self.multiply_rows(x if norm is None else self.normalize(x, norm), residual)

    def multiply_many(self, x: Float[Tensor, "row d_in"]) -> Float[Tensor, "row d_out"]:
        """Return the map alone of many rows, where torch's products are ahead."""
        if self.scale is None:
            return F.linear(x, self.weight, self.bias)
        product = F.linear(x, self.weight.to(x.dtype)) * self.scale
        return product if self.bias is None else product + self.bias

    def multiply_row(self, x: Tensor, norm: StepNorm | None, residual: Tensor | None) -> Tensor:
        n, k = self.weight.shape
        out = x.new_empty(1, n)
        narrow = self.weight.element_size() == 1  # int8: half as many bytes are on their way in as many numbers
        block_n = 2 if narrow else 4 if self.gated or k > 4096 else 8
        while block_n > 1 and n < block_n * PROGRAMS:
            block_n //= 2
        one_row_linear[(-(-n // block_n),)](
            x,
            self.weight,
            self.up,
            x if self.bias is None else self.bias,
            x if self.up_bias is None else self.up_bias,
            x if self.scale is None else self.scale,
            x if self.up_scale is None else self.up_scale,
            x if norm is None else norm.gamma,
            x if norm is None or norm.beta is None else norm.beta,
            x if residual is None else residual,
            out,
            n,
            EPSILON=0.0 if norm is None else norm.epsilon,
            K=k,
            WIDTH=power_of_two(k),
            NORM="" if norm is None else norm.kind,
            HAS_BETA=norm is not None and norm.beta is not None,
            ACTIVATION=self.activation,
            GATED=self.gated,
            BIASED=self.bias is not None,
            SCALED=self.scale is not None,
            ADDS=residual is not None,
            BLOCK_N=block_n,
            BLOCK_K=min(2048 if narrow or k > 4096 else 1024, power_of_two(k)),
            PDL=bool(self.launch),
            num_warps=4,
            **self.launch,
        )
        return out

    def normalize(self, x: Tensor, norm: StepNorm) -> Tensor:
        out, width = torch.empty_like(x), x.shape[1]
        norm_rows[(len(x),)](
            x,
            norm.gamma,
            x if norm.beta is None else norm.beta,
            out,
            EPSILON=norm.epsilon,
            K=width,
            WIDTH=power_of_two(width),
            NORM=norm.kind,
            HAS_BETA=norm.beta is not None,
            PDL=bool(self.launch),
            num_warps=min(16, max(1, power_of_two(width) // 512)),
            **self.launch,
        )
        return out

    def multiply_rows(self, x: Tensor, residual: Tensor | None) -> Tensor:
        n, k = self.weight.shape
        rows, padded = len(x), max(16, power_of_two(len(x)))
        block_n, block_k, splits, stages = self.tiles(n, k)
        share = -(-k // (splits * block_k)) * block_k
        out = x.new_empty(rows, n)
        partial = (
            x.new_empty((1 + self.gated) * splits * padded * n, dtype=torch.float32) if splits > 1 else self.counters
        )
        few_rows_linear[(-(-n // block_n), splits)](
            x,
            self.weight,
            self.up,
            x if self.bias is None else self.bias,
            x if self.up_bias is None else self.up_bias,
            x if self.scale is None else self.scale,
            x if self.up_scale is None else self.up_scale,
            x if residual is None else residual,
            out,
            partial,
            self.counters,
            rows,
            N=n,
            K=k,
            ACTIVATION=self.activation,
            GATED=self.gated,
            BIASED=self.bias is not None,
            SCALED=self.scale is not None,
            ADDS=residual is not None,
            ROWS=padded,
            BLOCK_N=block_n,
            BLOCK_K=block_k,
            SHARE=share,
            SPLITS=splits,
            STAGES=stages,
            PDL=bool(self.launch),
            num_warps=4,
            **self.launch,
        )
        return out

    def tiles(self, n: int, k: int) -> tuple[int, int, int, int]:
        """Return the rows and columns of a tile, how many programs share a row, and how many tiles are on their way.

        The best of ten choices for 32 rows of the matrices of a model with 1.1 billion parameters, on an H200.
        """
        bytes_each = self.weight.element_size()
        block_n, block_k = 32 if self.gated or bytes_each == 1 else 64, 256 // max(2, bytes_each)
        splits = max(1, min(k // (2 * block_k), PROGRAMS // 2 // -(-n // block_n)))
        return block_n, block_k, 1 << (splits.bit_length() - 1), 4


class FusedFeedForward(FusedBranch):
    """A feed-forward of two maps, the first of them perhaps gated."""

    def __init__(self, step: FastStep, first: FusedLinear, down: FusedLinear) -> None:
        self.step, self.first, self.down = step, first, down

    def __call__(self, x: Tensor) -> Tensor:
        return self.step(x)

    def serves(self, x: Tensor) -> bool:
        return len(x) <= MOST_ROWS

    def residual(self, x: Tensor, norm: StepNorm) -> Tensor:
        return self.down(self.first(x, norm=norm), residual=x)


@jit
def activate(x, ACTIVATION: tl.constexpr):
    """Return the non-linearity of this name."""
    if ACTIVATION == "relu":
        x = tl.maximum(x, 0.0)
    elif ACTIVATION == "silu":
        x = x / (1.0 + tl.exp(-x))
    elif ACTIVATION == "gelu":
        x = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif ACTIVATION == "gelu_tanh":
        # tanh(y) = 1 - 2 / (exp(2y) + 1), which holds for exp(2y) = inf too
        y = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        x = 0.5 * x * (2.0 - 2.0 / (tl.exp(2.0 * y) + 1.0))
    return x


@jit
def one_row_linear(
    x,
    weight,
    up,
    bias,
    up_bias,
    scale,
    up_scale,
    gamma,
    beta,
    residual,
    out,
    N,
    EPSILON: tl.constexpr,
    K: tl.constexpr,
    WIDTH: tl.constexpr,
    NORM: tl.constexpr,
    HAS_BETA: tl.constexpr,
    ACTIVATION: tl.constexpr,
    GATED: tl.constexpr,
    BIASED: tl.constexpr,
    SCALED: tl.constexpr,
    ADDS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PDL: tl.constexpr,
):
    """Write BLOCK_N numbers of `residual + activation(norm(x) W + b)`, of one row; GATED: activation(gate) · up.

    An RMS norm is applied to the sums: its factor is the same for all of x. A layer norm needs the mean first.
    """
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    inside = n < N
    rows = n.to(tl.int64)[:, None] * K
    first_mask = inside[:, None] & (k < K)[None, :]
    # The first weights are on their way before this kernel may read what the one before it writes.
    ahead = tl.load(weight + rows + k[None, :], mask=first_mask, other=0)
    if GATED:
        up_ahead = tl.load(up + rows + k[None, :], mask=first_mask, other=0)
    if PDL:
        cuda.gdc_wait()
        cuda.gdc_launch_dependents()
    mean = 0.0
    deviation = 1.0
    if NORM == "layer":
        every = tl.arange(0, WIDTH)
        row = tl.load(x + every, mask=every < K, other=0.0).to(tl.float32)
        mean = tl.sum(row, 0) / K
        centred = tl.where(every < K, row - mean, 0.0)
        deviation = 1.0 / tl.sqrt_rn(tl.sum(centred * centred, 0) / K + EPSILON)
    total = tl.zeros((BLOCK_N, BLOCK_K), tl.float32)
    up_total = tl.zeros((BLOCK_N, BLOCK_K), tl.float32)
    squares = tl.zeros((BLOCK_K,), tl.float32)
    for first in tl.static_range(0, K, BLOCK_K):
        here = first + k
        there = here < K
        numbers = tl.load(x + here, mask=there, other=0.0).to(tl.float32)
        if NORM == "layer":
            numbers = (numbers - mean) * deviation * tl.load(gamma + here, mask=there, other=0.0).to(tl.float32)
            if HAS_BETA:
                numbers += tl.load(beta + here, mask=there, other=0.0).to(tl.float32)
        elif NORM == "rms":
            squares += numbers * numbers
            numbers = numbers * tl.load(gamma + here, mask=there, other=0.0).to(tl.float32)
        if first == 0:
            tile = ahead
        else:
            tile = tl.load(weight + rows + here[None, :], mask=inside[:, None] & there[None, :], other=0.0)
        total += tile.to(tl.float32) * numbers[None, :]
        if GATED:
            if first == 0:
                up_tile = up_ahead
            else:
                up_tile = tl.load(up + rows + here[None, :], mask=inside[:, None] & there[None, :], other=0.0)
            up_total += up_tile.to(tl.float32) * numbers[None, :]
    y = tl.sum(total, 1)  # once at the end: a reduction crosses threads
    if NORM == "rms":
        factor = 1.0 / tl.sqrt_rn(tl.sum(squares, 0) / K + EPSILON)
        y = y * factor
    if SCALED:
        y = y * tl.load(scale + n, mask=inside, other=0.0).to(tl.float32)
    if BIASED:
        y += tl.load(bias + n, mask=inside, other=0.0).to(tl.float32)
    y = activate(y, ACTIVATION)
    if GATED:
        u = tl.sum(up_total, 1)
        if NORM == "rms":
            u = u * factor
        if SCALED:
            u = u * tl.load(up_scale + n, mask=inside, other=0.0).to(tl.float32)
        if BIASED:
            u += tl.load(up_bias + n, mask=inside, other=0.0).to(tl.float32)
        y = y * u
    if ADDS:
        y += tl.load(residual + n, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + n, y.to(out.dtype.element_ty), mask=inside)


@jit
def norm_rows(
    x,
    gamma,
    beta,
    out,
    EPSILON: tl.constexpr,
    K: tl.constexpr,
    WIDTH: tl.constexpr,
    NORM: tl.constexpr,
    HAS_BETA: tl.constexpr,
    PDL: tl.constexpr,
):
    """Write the norm of one row."""
    every = tl.arange(0, WIDTH)
    there = every < K
    factor = tl.load(gamma + every, mask=there, other=0.0).to(tl.float32)
    if PDL:
        cuda.gdc_wait()
        cuda.gdc_launch_dependents()
    start = tl.program_id(0).to(tl.int64) * K
    row = tl.load(x + start + every, mask=there, other=0.0).to(tl.float32)
    if NORM == "layer":  # the mean in float32 first: E[x²] - E[x]² would cancel
        row = tl.where(there, row - tl.sum(row, 0) / K, 0.0)
    y = row / tl.sqrt_rn(tl.sum(row * row, 0) / K + EPSILON) * factor
    if HAS_BETA:
        y += tl.load(beta + every, mask=there, other=0.0).to(tl.float32)
    tl.store(out + start + every, y.to(out.dtype.element_ty), mask=there)


@jit(do_not_specialize=["rows"])
def few_rows_linear(
    x,
    weight,
    up,
    bias,
    up_bias,
    scale,
    up_scale,
    residual,
    out,
    partial,
    counters,
    rows,
    N: tl.constexpr,
    K: tl.constexpr,
    ACTIVATION: tl.constexpr,
    GATED: tl.constexpr,
    BIASED: tl.constexpr,
    SCALED: tl.constexpr,
    ADDS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SHARE: tl.constexpr,
    SPLITS: tl.constexpr,
    STAGES: tl.constexpr,
    PDL: tl.constexpr,
):
    """Write BLOCK_N numbers of up to ROWS rows of `residual + activation(x W + b)`, or of activation(gate) · up.

    A matrix with few rows has too few programs to keep all of the memory busy. Then SPLITS programs sum up SHARE
    numbers of each row; the last one to come to its end adds up the sums, in a fixed order, and does the rest.
    """
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    split = tl.program_id(1)
    row = tl.arange(0, ROWS)
    k = split * SHARE + tl.arange(0, BLOCK_K)
    inside, there = n < N, row < rows
    weights = weight + n.to(tl.int64)[:, None] * K + k[None, :]
    ups = up + n.to(tl.int64)[:, None] * K + k[None, :]
    numbers = x + row[None, :] * K + k[:, None]
    total = tl.zeros((BLOCK_N, ROWS), tl.float32)
    up_total = tl.zeros((BLOCK_N, ROWS), tl.float32)
    if PDL:
        cuda.gdc_wait()
        cuda.gdc_launch_dependents()
    for first in tl.range(0, SHARE, BLOCK_K, num_stages=STAGES):
        wide = first + k < K
        vectors = tl.load(numbers + first, mask=wide[:, None] & there[None, :], other=0.0)
        tile = tl.load(weights + first, mask=inside[:, None] & wide[None, :], other=0)
        total = tl.dot(tile.to(vectors.dtype), vectors, total, input_precision="ieee")
        if GATED:
            up_tile = tl.load(ups + first, mask=inside[:, None] & wide[None, :], other=0)
            up_total = tl.dot(up_tile.to(vectors.dtype), vectors, up_total, input_precision="ieee")
    done = True
    places = row[None, :] * N + n[:, None]
    mask = inside[:, None] & there[None, :]
    if SPLITS > 1:
        size: tl.constexpr = ROWS * N  # pyright: ignore[reportAssignmentType]
        tl.store(partial + split * size + places, total, mask=mask)
        if GATED:
            tl.store(partial + (SPLITS + split) * size + places, up_total, mask=mask)
        tl.debug_barrier()  # every thread's sums are written before one of them says so
        done = tl.atomic_add(counters + tl.program_id(0), 1) == SPLITS - 1
        if done:
            tl.store(counters + tl.program_id(0), 0)  # ready for the next launch, in a CUDA graph too
            total = tl.zeros((BLOCK_N, ROWS), tl.float32)
            up_total = tl.zeros((BLOCK_N, ROWS), tl.float32)
            for other in tl.static_range(SPLITS):
                # .cg: past the L1 cache, which may hold what other programs have written over by now.
                total += tl.load(partial + other * size + places, mask=mask, other=0.0, cache_modifier=".cg")
                if GATED:
                    theirs = partial + (SPLITS + other) * size + places
                    up_total += tl.load(theirs, mask=mask, other=0.0, cache_modifier=".cg")
    if done:
        if SCALED:
            total *= tl.load(scale + n, mask=inside, other=0.0).to(tl.float32)[:, None]
        if BIASED:
            total += tl.load(bias + n, mask=inside, other=0.0).to(tl.float32)[:, None]
        total = activate(total, ACTIVATION)
        if GATED:
            if SCALED:
                up_total *= tl.load(up_scale + n, mask=inside, other=0.0).to(tl.float32)[:, None]
            if BIASED:
                up_total += tl.load(up_bias + n, mask=inside, other=0.0).to(tl.float32)[:, None]
            total = total * up_total
        if ADDS:
            total += tl.load(residual + places, mask=mask, other=0.0).to(tl.float32)
        tl.store(out + places, total.to(out.dtype.element_ty), mask=mask)
