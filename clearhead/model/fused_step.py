"""Products of a decoding step on a GPU with what stands around them: norm, activation, gate and residual.

`FusedLinear` is one map, or a gate and the map it gates. A branch of a block that is made of them (`FusedBranch`) takes
the norm before it and the residual after it into its own kernels, so that a block of a language model is five kernels
for one row. The kernels are in `fused_step_triton.py`; docs/decisions/0010 has what they were measured at.
"""

import functools
import importlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, cast, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from clearhead.compiling import missing_triton
from clearhead.model.fast_step import DecodingModule, FastStep, StepNorm, fast_step_of, has_own_step, plain_linear

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
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
    plain = weight.dtype in DTYPES and weight.is_contiguous() and not torch.is_grad_enabled()
    return plain and missing_triton(weight.device.type) is None


def can_fuse(maps: Sequence[nn.Module]) -> bool:
    """Check for plain linear maps of one dtype whose matrices these kernels read."""
    if not all(map(plain_linear, maps)):
        return False
    weights = [cast(nn.Linear, part).weight for part in maps]
    return all(can_fuse_weight(weight) and weight.dtype is weights[0].dtype for weight in weights)


@final
class FusedLinear:
    """A linear map of one or a few rows with all that stands around it, as one kernel; two with a norm of several rows.

    `up` makes it a gate: activation(weight x) · (up x).
    """

    def __init__(
        self,
        weight: Float[Tensor, "d_out d_in"],
        bias: Float[Tensor, "d_out"] | None = None,
        *,
        up: nn.Linear | None = None,
        activation: str = "",
    ) -> None:
        self.weight, self.bias, self.activation = weight, bias, activation
        self.up = weight if up is None else up.weight
        self.up_bias = None if up is None else up.bias
        self.gated = up is not None
        self.kernels = importlib.import_module("clearhead.model.fused_step_triton")
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

    def multiply_row(self, x: Tensor, norm: StepNorm | None, residual: Tensor | None) -> Tensor:
        n, k = self.weight.shape
        out = x.new_empty(1, n)
        block_n = 4 if self.gated or k > 4096 else 8
        while block_n > 1 and n < block_n * PROGRAMS:
            block_n //= 2
        self.kernels.one_row_linear[(-(-n // block_n),)](
            x,
            self.weight,
            self.up,
            x if self.bias is None else self.bias,
            x if self.up_bias is None else self.up_bias,
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
            ADDS=residual is not None,
            BLOCK_N=block_n,
            BLOCK_K=min(2048 if k > 4096 else 1024, power_of_two(k)),
            PDL=bool(self.launch),
            num_warps=4,
            **self.launch,
        )
        return out

    def normalize(self, x: Tensor, norm: StepNorm) -> Tensor:
        out, width = torch.empty_like(x), x.shape[1]
        self.kernels.norm_rows[(len(x),)](
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
        self.kernels.few_rows_linear[(-(-n // block_n), splits)](
            x,
            self.weight,
            self.up,
            x if self.bias is None else self.bias,
            x if self.up_bias is None else self.up_bias,
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
        block_n, block_k = 32 if self.gated else 64, 256 // self.weight.element_size()
        splits = max(1, min(k // (2 * block_k), PROGRAMS // 2 // -(-n // block_n)))
        return block_n, block_k, 1 << (splits.bit_length() - 1), 4


@final
class FusedFeedForward(FusedBranch):
    """A feed-forward of two maps, the first of them perhaps gated."""

    def __init__(self, step: FastStep, first: FusedLinear, down: nn.Linear) -> None:
        self.step, self.first, self.down = step, first, FusedLinear(down.weight, down.bias)

    def __call__(self, x: Tensor) -> Tensor:
        return self.step(x)

    def serves(self, x: Tensor) -> bool:
        return len(x) <= MOST_ROWS

    def residual(self, x: Tensor, norm: StepNorm) -> Tensor:
        return self.down(self.first(x, norm=norm), residual=x)
