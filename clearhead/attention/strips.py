"""Products of a single row with a matrix on a CPU, at the speed of memory: the matrix lies in strips.

One row uses each weight once, so a product takes as long as reading the matrix. torch's products read it at a third to
two thirds of the speed of a plain sum; its bags of embeddings do better. A bag with weights is a sum of rows of a
table, each times a number: a product of a vector with a matrix that lies transposed. fbgemm compiles that sum for this
processor (AVX2 or AVX-512), adds in float32, and fetches rows ahead. So the outputs of a matrix are cut into strips of
two or four cache lines, a bag gives the outputs of one strip, and the strips lie one after another.

Two things help: rows are read from several places in turn, since a core reads several streams faster than one; and the
memory has large pages, since otherwise a core also waits for page tables. docs/decisions/0006 has the figures, and what
else was tried.
"""

import contextlib
import functools
import mmap
import threading
from typing import NamedTuple, final

import torch
from jaxtyping import Float, Int32, UInt8
from torch import Tensor
from torch.nn import functional as F

from clearhead.system import LARGE_PAGE


class StripLayout(NamedTuple):
    """How strips lie: how many outputs each has, and from how many places their rows are read in turn."""

    width: int
    streams: int


LAYOUTS = {torch.float32: StripLayout(32, 6), torch.bfloat16: StripLayout(64, 6), torch.int8: StripLayout(256, 4)}
"""The fastest of those that were tried."""
ROWS_AT_ONCE = 1 << 17
"""Rows of strips that a call reads, if the matrix has so many. Each needs its number of the vector and its index, which
stay in the cache if they are so few."""
ZERO = 128
"""What stands for 0 among codes, which are unsigned for fbgemm."""
CODE_STEP = torch.tensor([1.0, -ZERO]).view(torch.uint8)
"""What fbgemm makes numbers of a row of codes by, and has at its end: a factor and an offset."""


FBGEMM = "fbgemm" in torch.backends.quantized.supported_engines
"""Whether torch has fbgemm on this processor: without it a bag is many small operations."""


def has_strips(dtype: torch.dtype) -> bool:
    """Check whether a matrix of this dtype can lie in strips here."""
    return FBGEMM and dtype in LAYOUTS


@final
class Strips:
    """A matrix in strips, for products of a single row without gradients. Codes of int8 are multiplied as they are."""

    def __init__(self, weight: Tensor) -> None:
        (self.d_out, d_in), (width, streams) = weight.shape, LAYOUTS[weight.dtype]
        every = -(-self.d_out // width)
        n_parts = -(-every * d_in // ROWS_AT_ONCE)
        self.codes, self.n_strips = weight.dtype is torch.int8, -(-every // n_parts)
        self.dtype = torch.float32 if self.codes else weight.dtype
        self.reading = find_reading(self.n_strips, d_in, streams)
        step = self.n_strips * width
        self.parts = [self.lay(weight[first : first + step], width) for first in range(0, self.d_out, step)]

    def lay(self, weight: Tensor, width: int) -> Tensor:
        """Return some outputs of the matrix as a table of strips, in the order in which their rows are read."""
        padded = F.pad(weight, (0, 0, 0, self.n_strips * width - len(weight)))
        rows = padded.view(self.n_strips, width, -1).transpose(1, 2).reshape(-1, width)
        if self.codes:
            unsigned = (rows.short() + ZERO).to(torch.uint8)
            rows = torch.cat([unsigned, CODE_STEP.expand(len(rows), -1)], 1)
        table = LARGE_PAGES.take(self.reading.n_rows * rows[0].nbytes).view(rows.dtype).view(self.reading.n_rows, -1)
        return table.index_copy_(0, self.reading.indices.long(), rows)

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    def __call__(
        self, x: Float[Tensor, "1 d_in"], bias: Float[Tensor, "d_out"] | None = None
    ) -> Float[Tensor, "1 d_out"]:
        indices, bags, _ = self.reading
        numbers = x.to(self.dtype).expand(self.n_strips, -1).reshape(-1)
        add = sum_codes if self.codes else sum_rows
        sums = [add(part, indices, bags, numbers) for part in self.parts]
        product = (sums[0] if len(sums) == 1 else torch.cat(sums)).view(1, -1)
        if product.shape[1] > self.d_out:
            product = product[:, : self.d_out]
        return product if bias is None else product + bias


def sum_rows(table: Tensor, indices: Tensor, bags: Tensor, numbers: Tensor) -> Float[Tensor, "bag width"]:
    """Return the sum of each bag's rows, each times its number."""
    return torch.ops.aten._embedding_bag_forward_only.default(table, indices, bags, False, 0, False, numbers)[0]


def sum_codes(table: Tensor, indices: Tensor, bags: Tensor, numbers: Tensor) -> Float[Tensor, "bag width"]:
    """Return the same of a table of codes."""
    product = torch.ops.quantized.embedding_bag_byte_rowwise_offsets.default
    return product(table, indices, bags, per_sample_weights=numbers)


class StripOrder(NamedTuple):
    """Which row of a table is read when: `indices`; where a bag begins: `bags`; and how many rows the table has."""

    indices: Int32[Tensor, "row"]
    bags: Int32[Tensor, "bag"]
    n_rows: int


@functools.lru_cache(maxsize=64)
def find_reading(n_strips: int, d_in: int, streams: int) -> StripOrder:
    """Return the order in which rows are read from several places in turn.

    The places are an odd number of rows apart: at a power of two they would share a few lines of the cache.
    """
    step = torch.arange(n_strips * d_in, dtype=torch.int32)
    apart = -(-len(step) // streams) | 1
    indices = step % streams * apart + step // streams
    return StripOrder(indices, torch.arange(n_strips, dtype=torch.int32) * d_in, apart * streams)


@final
class LargePages:
    """Memory in large pages where the system gives them on request (Linux), handed out front to back.

    Matrices are smaller than a page of 2 MiB or not a multiple of it, so they share mappings. One is freed when nothing
    of it is in use.
    """

    LINE = 64

    def __init__(self, mapped: int = 1 << 26) -> None:
        """`mapped`: bytes that are mapped together at least; what nobody takes of them costs no memory."""
        self.mapped, self.free, self.lock = mapped, torch.empty(0, dtype=torch.uint8), threading.Lock()

    def take(self, n_bytes: int) -> UInt8[Tensor, "byte"]:
        """Return so many bytes, from the beginning of a cache line on."""
        whole = -(-n_bytes // self.LINE) * self.LINE
        with self.lock:
            if len(self.free) < whole:
                self.free = self.map(max(whole, self.mapped))
            taken, self.free = self.free[:n_bytes], self.free[whole:]
        return taken

    def map(self, n_bytes: int) -> UInt8[Tensor, "byte"]:
        advice: int | None = getattr(mmap, "MADV_HUGEPAGE", None)
        if advice is None:
            return torch.empty(n_bytes, dtype=torch.uint8)
        memory = mmap.mmap(-1, n_bytes + LARGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError):  # a kernel without large pages
            memory.madvise(advice)
        with torch.inference_mode(False):  # else nobody outside of inference mode could write to it
            every = torch.frombuffer(memory, dtype=torch.uint8)
        first = -every.data_ptr() % LARGE_PAGE
        return every[first : first + n_bytes]


LARGE_PAGES = LargePages()
