"""Products of vectors with a matrix on a CPU: by MKL or by oneDNN, whichever is faster on this processor.

Torch multiplies float32 matrices by MKL, which uses AVX-512 on Intel's processors alone; on AMD's it stays with AVX2.
oneDNN, which is in torch too, uses what there is: on an AMD EPYC of 2024 (Zen 5) it multiplies 2.2 times as fast. So
large products there are oneDNN's, with gradients that are oneDNN's as well. The figures are in docs/decisions/0023.

Decoding multiplies a few rows with the same matrix again and again. A copy in another order is read from memory up to
three times as fast: one row by strips (`clearhead.attention.strips`), a few by oneDNN's blocks; `find_order` decides.
Copies are made when they are first needed (`PackedMatrix`), and kept for their module until its tensors change
(`find_matrix`). Without one, MKL reads a matrix two to four times as fast when it is the left factor and the rows are
the right one (`few_rows`); a single row is doubled for that, since for one it takes another routine.
docs/decisions/0006 has those figures.
"""

import functools
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast, final
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import functional as F

from clearhead.attention.modes import PLAIN, autocast_enabled, can_read
from clearhead.attention.strips import Strips, has_strips
from clearhead.system import machine_memory, use_large_pages

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
"""Of this machine's memory, copies take at most so much; further matrices are multiplied as they are."""


@final
class BlockedMatrix:
    """A matrix in oneDNN's order, in large pages, for products of a few rows without gradients."""

    def __init__(self, weight: Tensor) -> None:
        self.nbytes = weight.nbytes
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS)
        use_large_pages(torch.ops.mkldnn.data_ptr(self.packed), self.nbytes)

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise.default(x, self.packed, bias, "none", [], "")


Order = type[Strips] | type[BlockedMatrix]


def find_order(dtype: torch.dtype, rows: int) -> Order | None:
    """Return the order of a large matrix in which so many rows are multiplied fastest; None for the matrix as it is.

    This is the one place that decides.
    """
    if rows == 1 and has_strips(dtype):
        return Strips
    by_onednn = (dtype is torch.float32 and ONEDNN is not None) or (dtype is torch.bfloat16 and BF16)
    return BlockedMatrix if by_onednn else None


def can_pack(*weights: Tensor) -> bool:
    """Check whether matrices, side by side, are multiplied faster from a copy in another order.

    A small one stays in the cache, where its order hardly matters.
    """
    dtype = weights[0].dtype
    plain = all(type(one) in PLAIN and one.is_cpu and one.dtype is dtype for one in weights)
    ordered = dtype.is_floating_point and any(find_order(dtype, rows) is not None for rows in (1, ROWS))
    return plain and ordered and sum(one.numel() for one in weights) >= LARGE


class Copied(ABC):
    """A matrix with copies in other orders, for products without gradients. Each is made when it is first needed."""

    def __init__(self) -> None:
        self.copies: dict[Order, Strips | BlockedMatrix | None] = {}

    @abstractmethod
    def as_it_is(self) -> Tensor:
        """Return the matrix that copies are made of."""

    def find_copy(self, dtype: torch.dtype, rows: int) -> Strips | BlockedMatrix | None:
        """Return the copy for so many rows; None if the matrix is multiplied as it is, or there is no room for it."""
        order = find_order(dtype, rows)
        if order is None:
            return None
        if order not in self.copies:
            with CHANGING:
                if order not in self.copies:
                    weight = self.as_it_is()
                    self.copies[order] = order(weight) if has_room(weight.nbytes) else None
        return self.copies[order]


def has_room(n_bytes: int) -> bool:
    """Check whether a copy of so many bytes fits into the share of memory that copies may take."""
    kept = [
        copy for entries in MATRICES.values() for entry in entries.values() for copy in entry.matrix.copies.values()
    ]
    return sum(copy.nbytes for copy in kept if copy is not None) + n_bytes <= SHARE * machine_memory()


@final
class PackedMatrix(Copied):
    """Matrices with the same inputs, one below the other, for products of a few rows without gradients."""

    def __init__(self, weights: Sequence[Tensor]) -> None:
        super().__init__()
        self.weights = [one.detach() for one in weights]

    def __call__(
        self, x: Float[Tensor, "row d_in"], bias: Float[Tensor, "d_out"] | None = None
    ) -> Float[Tensor, "row d_out"]:
        copy = self.find_copy(x.dtype, len(x))
        if copy is not None:
            return copy(x, bias)
        return (few_rows if is_large(self.weight) else F.linear)(x, self.weight, bias)

    def as_it_is(self) -> Tensor:
        return self.weights[0] if len(self.weights) == 1 else torch.cat(self.weights)

    @functools.cached_property
    def weight(self) -> Tensor:
        """Return the matrix, kept for products that have no copy."""
        return self.as_it_is()


MatrixT = TypeVar("MatrixT", bound=Copied)


@final
@dataclass(frozen=True)
class CachedMatrix:
    """A matrix and the tensors it was made of, which are held so that their addresses are not used again."""

    stamp: object
    memory: list[Tensor]
    matrix: Copied


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
            MATRICES.setdefault(owner, {})[len(tensors)] = entry
    return cast(MatrixT, entry.matrix)


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
