"""Products of vectors with a matrix on a CPU: by MKL or by oneDNN, whichever is faster on this processor.

Torch multiplies float32 matrices by MKL, which uses AVX-512 on Intel's processors alone; on AMD's it stays with AVX2.
oneDNN, which is in torch too, uses what there is: on an AMD EPYC of 2024 (Zen 5) it multiplies 2.2 times as fast. So
large products there are oneDNN's, with gradients that are oneDNN's as well. The figures are in docs/decisions/0023.

Decoding multiplies a few rows with the same matrix again and again. oneDNN reads it from memory up to three times as
fast in an order of its own, so a matrix is packed when it is first multiplied (`PackedMatrix`), and kept for its module
until its tensors change (`find_matrix`). MKL reads a matrix two to four times as fast when it is the left factor and
the rows are the right one (`few_rows`); a single row is doubled for that, since for one it takes another routine.
docs/decisions/0006 has those figures.
"""

import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, final
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import functional as F

from clearhead.attention.modes import PLAIN, autocast_enabled, can_read
from clearhead.system import machine_memory

LEAST = 1 << 20
"""Multiplications from which oneDNN pays: each of its calls takes 8 µs more than one of MKL's."""


def find_onednn() -> Callable[..., Any] | None:
    """Return oneDNN's linear map, an operator of torch, if this processor multiplies faster with it than with MKL."""
    name = str(torch.cpu.get_capabilities().get("cpu_name", ""))
    avx512 = torch.backends.cpu.get_cpu_capability() == "AVX512"
    operator = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch.backends.mkldnn.is_available() else None
    return operator.default if operator is not None and avx512 and "AMD" in name else None


ONEDNN = find_onednn()


def which_product() -> str:
    """Say which library multiplies large float32 matrices here, and why."""
    if ONEDNN is None:
        return "products on this CPU: torch's own (MKL)"
    return "products on this CPU: oneDNN, since MKL leaves AVX-512 unused on processors that are not Intel's"


def multiply(
    x: Float[Tensor, "*place d_in"], weight: Float[Tensor, "d_out d_in"], bias: Float[Tensor, "d_out"] | None = None
) -> Float[Tensor, "*place d_out"]:
    """Return `F.linear(x, weight, bias)`, with gradients of any order, by the faster library."""
    if ONEDNN is None or not serves(x, weight):
        return F.linear(x, weight, bias)
    if torch.is_grad_enabled() and any(one is not None and one.requires_grad for one in (x, weight, bias)):
        return OneDNNLinear.apply(x, weight, bias)
    return ONEDNN(x, weight, bias, "none", [], "")


def serves(x: Tensor, weight: Tensor) -> bool:
    """Check whether oneDNN may multiply: plain float32 matrices of some size, and nothing but autograd looks on."""
    if not can_read(x) or type(weight) not in PLAIN or x.ndim < 2 or x.numel() * weight.shape[0] < LEAST:
        return False
    if x.dtype is not torch.float32 or weight.dtype is not torch.float32 or autocast_enabled(x):
        return False
    return forward_ad._current_level < 0 and not torch._C._len_torch_dispatch_stack()


class OneDNNLinear(torch.autograd.Function):
    """A linear map whose forward and backward products are oneDNN's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        assert ONEDNN is not None
        ctx.save_for_backward(x, weight)
        return ONEDNN(x, weight, bias, "none", [], "")

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        columns = grad.flatten(0, -2).t()
        return (
            multiply(grad, weight.t()) if needs_x else None,
            multiply(columns, x.flatten(0, -2).t()) if needs_weight else None,
            columns.sum(1) if needs_bias else None,
        )


FEWEST, FEW, MANY = 8, 64, 256
Map = tuple[Tensor, Tensor | None]
"""A matrix and a bias."""

WIDE, LARGE = 256, 1 << 17
"""Least width and number of entries for which it pays: below, copying the result back takes longer."""


def is_large(weight: Float[Tensor, "d_out d_in"]) -> bool:
    return weight.device.type == "cpu" and weight.shape[1] >= WIDE and weight.numel() >= LARGE


def few_rows(
    x: Float[Tensor, "row d_in"], weight: Float[Tensor, "d_out d_in"], bias: Float[Tensor, "d_out"] | None = None
) -> Float[Tensor, "row d_out"]:
    """Return `F.linear(x, weight, bias)` for a large matrix, without gradients."""
    rows = x.shape[0]
    if ONEDNN is not None and serves(x, weight):
        return multiply(x, weight, bias)
    if rows > FEW or (rows == 1 and weight.shape[1] > weight.shape[0]):
        return F.linear(x, weight, bias)
    columns = (x.expand(2, -1).contiguous() if rows == 1 else x).T
    return as_columns(columns, weight, bias).T[:rows].contiguous()


def through(
    x: Float[Tensor, "row d_model"], up: Map, activate: Callable[[Tensor], Tensor], down: Map
) -> Float[Tensor, "row d_model"]:
    """Return `down(activate(up(x)))` for two large matrices; with more rows, hidden values stay columns."""
    rows = x.shape[0]
    if not FEWEST < rows <= MANY:
        return few_rows(activate(few_rows(x, *up)), *down)
    hidden = activate(as_columns(x.T, *up))
    return F.linear(hidden.T, *down) if rows > FEW else as_columns(hidden, *down).T.contiguous()


def as_columns(columns: Float[Tensor, "d_in row"], weight: Tensor, bias: Tensor | None) -> Float[Tensor, "d_out row"]:
    return weight @ columns if bias is None else torch.addmm(bias.unsqueeze(1), weight, columns)


BF16 = bool(torch.cpu.get_capabilities().get("avx512_bf16")) and torch.backends.cpu.get_cpu_capability() == "AVX512"
"""Whether this processor multiplies bfloat16 numbers, which any of oneDNN's products does then."""
ROWS = 8
"""The rows that a matrix is packed for; oneDNN chooses the same order for more, and a slower one for a single row."""
SHARE = 0.25
"""Of this machine's memory, packed copies take at most so much; further matrices are multiplied as they are."""


def can_pack(*weights: Tensor) -> bool:
    """Check whether matrices, side by side, are multiplied faster if they are packed.

    A small one stays in the cache, where its order hardly matters.
    """
    dtypes = ((torch.float32,) if ONEDNN is not None else ()) + ((torch.bfloat16,) if BF16 else ())
    plain = all(type(one) in PLAIN and one.is_cpu and one.dtype is weights[0].dtype for one in weights)
    return plain and weights[0].dtype in dtypes and sum(one.numel() for one in weights) >= LARGE


@final
class PackedMatrix:
    """Matrices with the same inputs, one below the other, for products of a few rows without gradients.

    They are packed when they are first multiplied.
    """

    def __init__(self, weights: Sequence[Tensor]) -> None:
        self.weight = weights[0].detach() if len(weights) == 1 else torch.cat([one.detach() for one in weights])
        self.packed: Tensor | None = None
        self.packed_bytes = 0

    def __call__(
        self, x: Float[Tensor, "row d_in"], bias: Float[Tensor, "d_out"] | None = None
    ) -> Float[Tensor, "row d_out"]:
        if self.packed is None:
            with CHANGING:
                if self.packed is None:
                    self.packed = self.weight = self.pack()  # several, side by side, are not needed any more
        return torch.ops.mkldnn._linear_pointwise.default(x, self.packed, bias, "none", [], "")

    def pack(self) -> Tensor:
        """Return the matrix in oneDNN's order; as it is if the copies that there are take their share of memory."""
        room = SHARE * machine_memory()
        kept = [entry.matrix for matrices in MATRICES.values() for entry in matrices.values()]
        taken = sum(one.packed_bytes for one in kept if isinstance(one, PackedMatrix))
        if taken + self.weight.nbytes > room:
            return self.weight
        self.packed_bytes = self.weight.nbytes
        return torch.ops.mkldnn._reorder_linear_weight(self.weight, ROWS)


MatrixT = TypeVar("MatrixT")


@final
@dataclass(frozen=True)
class CachedMatrix:
    """A packed matrix and the tensors it was made of, which are held so that their addresses are not used again."""

    stamp: object
    memory: list[Tensor]
    matrix: Any


MATRICES: WeakKeyDictionary[nn.Module, dict[int, CachedMatrix]] = WeakKeyDictionary()
"""The matrices that were made last for a module, by how many tensors they are made of. They are kept here, so that
modules are copied and saved without them."""
CHANGING = threading.Lock()
"""Held while MATRICES is changed, and while a matrix is packed: models are decoded in several threads."""


def find_matrix(owner: nn.Module, tensors: Sequence[Tensor], kind: Hashable, make: Callable[[], MatrixT]) -> MatrixT:
    """Return the matrix that `make` has made of these tensors for a module, anew once one of them has been replaced or
    written to, or another kind is asked for.
    """
    stamp = kind, [stamp_of(tensor) for tensor in tensors]
    with CHANGING:
        entry = MATRICES.setdefault(owner, {}).get(len(tensors))
    if entry is None or entry.stamp != stamp:
        entry = CachedMatrix(stamp, [tensor.detach() for tensor in tensors], make())
        with CHANGING:
            MATRICES[owner][len(tensors)] = entry
    return entry.matrix


def find_packed(owner: nn.Module, weights: Sequence[Tensor]) -> PackedMatrix:
    """Return a module's weights as a packed matrix. Their values are looked at, once a decoding: a fused optimizer,
    NumPy and what goes by `.data` write to a tensor without counting, and in inference mode nothing is counted.
    """
    values = tuple(map(checksum, weights))
    return find_matrix(owner, weights, (PackedMatrix, values), lambda: PackedMatrix(weights))


def forget(model: nn.Module) -> None:
    """Let go of the matrices that were made for a model's modules, whose weights are about to change."""
    with CHANGING:
        for module in model.modules():
            MATRICES.pop(module, None)


def checksum(weight: Tensor) -> int:
    """Return a number that is another one for other values: a hash of the sums of each row's bits, as whole numbers.

    It takes as long as to read the matrix once. To pack it takes ten times as long.
    """
    rows, begin = weight.detach(), weight.storage_offset()
    whole = rows.is_contiguous() and all(n * rows.itemsize % 8 == 0 for n in (begin, rows.shape[1]))
    bits = rows.view(torch.int64) if whole else rows.double()
    return hash(bits.sum(1).numpy().tobytes())


def stamp_of(tensor: Tensor) -> tuple[int, int]:
    """Return a tensor's address and version counter; a tensor made in inference mode has no counter, and gets 0."""
    return tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version
