"""Products of floating-point rows with an int8 matrix on a CPU, at the speed of integer arithmetic.

torch's fbgemm multiplies whole numbers much faster than floats are multiplied, but it wants the rows as whole numbers
too. So each row is divided by its largest number and written in digits: 63 · x / largest, rounded, is the first; the
rest, 126 times as large and rounded again, the second; and so on. The digits are multiplied as rows of their own, and
their products summed. With three digits a row is exact to 1 in 2 million of its largest number: that is float32's own
accuracy, and only weights are rounded. With one digit the rows are rounded to 7 bits, which is what is usually called
dynamic quantization, and takes a third of the time where there are many rows.

A digit is at most 63, so that fbgemm's sums of two products (at most 2 · 127 · 127, with the offset that makes a digit
unsigned) fit the 16 bits that AVX2 has for them. With 8-bit rows they may not, and would be cut off silently.

A row's digits depend on that row alone, and sums of whole numbers are exact: a row gives the same bits in every batch.
A row by itself is multiplied with the codes as they are, in float32 (`clearhead.attention.strips`), which reads them
faster; only its rounding differs. Small matrices, and large ones with many rows, are unpacked to float32 and multiplied
as such: that is faster too, and the bits are then those of float32 products.
Figures and what else was tried: docs/decisions/0006-decoding.md.
"""

import threading
import warnings
from typing import Any, final

import torch
from jaxtyping import Float, Int8
from torch import Tensor

from clearhead.attention.cpu_matmul import LARGE, BlockedMatrix, Copied, multiply
from clearhead.attention.modes import autocast_enabled, can_read
from clearhead.attention.strips import Strips
from clearhead.devices import FLOATS

INT8, STEPS = torch.int8, 127

EXACT, ROUNDED = 3, 1
"""Digits of a row: float32's accuracy, or 7 bits."""
LARGEST, OFFSET = 63, 64
"""The largest digit, and what is added to make digits unsigned."""
BASE = 2 * LARGEST
FEW = 64
"""Up to this many rows three digits are faster than unpacking the matrix to float32."""
MOST_PACKED = 1 << 14
"""Rows of a matrix that are packed together. Products of all of a vocabulary at once would be fresh memory each time,
which is faulted in page by page."""
UNPACKED = 1 << 18
"""Numbers of a matrix that are unpacked at a time: they stay in the cache until they are multiplied."""
SMALLEST = 1e-30
"""What rows are divided by at least: a digit of a number below could not be written as a float32."""
PACKING = threading.Lock()


def round_to_int8(weight: Float[Tensor, "d_out d_in"]) -> tuple[Int8[Tensor, "d_out d_in"], Float[Tensor, "d_out"]]:
    """Return whole numbers from -127 to 127, and a scale for each row that makes the weight of them.

    The scale has the weight's dtype. What is divided by it is at least float32: in bfloat16 127.5 would be 128.
    """
    wide = weight.to(torch.promote_types(weight.dtype, torch.float32))
    scale = (wide.abs().amax(1) / STEPS).to(weight.dtype)
    divisor = scale.where(scale > 0, 1).to(wide.dtype)
    return torch.round(wide / divisor[:, None]).clamp(-STEPS, STEPS).to(INT8), scale


@final
class Int8Matrix(Copied):
    """A matrix of int8 `codes` with a `scale` for each row, for products without gradients; packed when first used.

    `digits` is `EXACT` or `ROUNDED`: whether rows that it is multiplied with keep their accuracy, or are rounded.
    """

    def __init__(self, codes: Int8[Tensor, "d_out d_in"], scale: Float[Tensor, "d_out"], digits: int = EXACT) -> None:
        super().__init__()
        self.codes, self.scale, self.digits = codes, scale, digits
        powers = [float(LARGEST * BASE**i) for i in range(digits)]
        self.powers = torch.tensor(powers).view(digits, 1, 1)
        self.weights = torch.tensor([1 / power for power in powers])
        self.packed: list[tuple[slice, Any]] = []
        self.unpacked = codes.float() * self.scale[:, None] if codes.numel() < LARGE else None

    def __call__(
        self,
        x: Float[Tensor, "row d_in"],
        bias: Float[Tensor, "d_out"] | None = None,
        out: Float[Tensor, "row d_out"] | None = None,
    ) -> Float[Tensor, "row d_out"]:
        """Return the product of float32 rows with the matrix, plus the bias; a large one may be written to `out`."""
        if self.unpacked is not None:
            return multiply(x, self.unpacked, bias)
        if len(x) == 1 and (strips := self.find_copy(torch.int8, 1)) is not None:
            return self.multiply_row(strips, x, bias)
        if MULTIPLY is None or not x.numel() or (self.digits > 1 and len(x) > FEW):
            return self.unpack_and_multiply(x, bias)
        if not self.packed:
            self.packed = [(part, pack(self.codes[part], self.scale[part])) for part in split_rows(len(self.codes))]
        largest = x.abs().amax(1, keepdim=True).clamp_min_(SMALLEST)
        digits = x / largest if self.digits == 1 else self.write_digits(x, largest)
        if len(self.packed) == 1:
            product = self.multiply(digits, self.packed[0][1])
            return product.mul_(largest) if bias is None else torch.addcmul(bias, product, largest)
        output = x.new_empty(len(x), len(self.codes)) if out is None else out
        for part, packed in self.packed:
            torch.mul(self.multiply(digits, packed), largest, out=output[:, part])
        return output if bias is None else output.add_(bias)

    def as_it_is(self) -> Tensor:
        return self.codes

    def multiply_row(
        self, strips: Strips | BlockedMatrix, x: Float[Tensor, "1 d_in"], bias: Tensor | None
    ) -> Float[Tensor, "1 d_out"]:
        """Return the product of a single row, which is not written in digits, unless it is rounded to one."""
        scale = self.scale
        if self.digits == ROUNDED:
            step = x.abs().amax().clamp_min_(SMALLEST).div_(LARGEST)
            x, scale = (x / step).round_(), scale * step
        product = strips(x)
        return product.mul_(scale) if bias is None else torch.addcmul(bias, product, scale)

    def write_digits(self, x: Tensor, largest: Float[Tensor, "row 1"]) -> Float[Tensor, "rows d_in"]:
        """Return the first digits of all rows, then the second and the third."""
        rounded = x.new_zeros(self.digits + 1, *x.shape)  # a zero, then the row with one digit, two digits, three
        torch.mul(x, self.powers / largest, out=rounded[1:]).round_()
        return torch.sub(rounded[1:], rounded[:-1], alpha=BASE).flatten(0, 1)

    def multiply(self, digits: Float[Tensor, "rows d_in"], packed: Any) -> Float[Tensor, "row d_part"]:
        """Return the product of rows in digits, or of rows up to 1 that are rounded to one digit."""
        if self.digits == 1:
            return MULTIPLY(digits, 1 / LARGEST, OFFSET, packed)
        products = MULTIPLY(digits, 1.0, OFFSET, packed)
        return torch.mv(products.view(self.digits, -1).T, self.weights).view(len(digits) // self.digits, -1)

    def unpack_and_multiply(self, x: Tensor, bias: Tensor | None) -> Float[Tensor, "row d_out"]:
        """Return the product in float32, with some rows of the matrix at a time."""
        output = x.new_empty(len(x), len(self.codes))
        step = max(1, UNPACKED // max(1, self.codes.shape[1]))
        room = x.new_empty(step, self.codes.shape[1])
        for first in range(0, len(self.codes), step):
            codes = self.codes[first : first + step]
            output[:, first : first + step] = multiply(x, room[: len(codes)].copy_(codes))
        return output.mul_(self.scale) if bias is None else torch.addcmul(bias, output, self.scale)


def find_product() -> Any:
    """Return fbgemm's product of float rows, rounded by a given scale, with a packed int8 matrix; None without it."""
    name = "linear_with_input_q_dq_qweight_dq_output_fp32"
    has_fbgemm = "fbgemm" in torch.backends.quantized.supported_engines
    return getattr(torch.ops.quantized, name).default if has_fbgemm and hasattr(torch.ops.quantized, name) else None


MULTIPLY = find_product()


def split_rows(n: int) -> list[slice]:
    """Return the rows of a matrix in equal parts of at most `MOST_PACKED`."""
    step = -(-n // -(-n // MOST_PACKED))
    return [slice(first, min(first + step, n)) for first in range(0, n, step)]


def can_multiply(x: Tensor, *trained: Tensor | None) -> bool:
    """Check that a product with an `Int8Matrix` will do: on a CPU, no gradient asked for, nothing traced by torch."""
    if not can_read(x) or x.dtype not in FLOATS or autocast_enabled(x):
        return False
    return not (
        torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in (x, *trained))
    )


def pack(codes: Int8[Tensor, "d_out d_in"], scale: Float[Tensor, "d_out"]) -> Any:
    """Return the matrix in fbgemm's order. torch packs for the engine that is chosen for the whole process."""
    zeros = torch.zeros(len(codes), dtype=torch.long)
    with PACKING, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that quantized tensors will go; this one is gone at once
        matrix = torch._make_per_channel_quantized_tensor(codes, scale.double(), zeros, 0)  # pyright: ignore[reportPrivateImportUsage]
        engine = torch.backends.quantized.engine
        torch.backends.quantized.engine = "fbgemm"
        try:
            return torch.ops.quantized.linear_prepack(matrix, None)
        finally:
            torch.backends.quantized.engine = engine
