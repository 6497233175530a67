"""The int8 products that torch has on a CPU, at the shapes of a decoding step: microseconds of each.

    python benchmarks/int8_products.py --threads 2

`F.linear` is float32; `by columns` is how Clearhead multiplies a few float32 rows (`clearhead.model.fast_step`). Then
torch's own: `int8pack` (weights alone are int8), `dynamic` (fbgemm, rows rounded together), `_int_mm` and `onednn`
(rows that are int8 already), `unpacked` (int8 codes to float32 in every call). Last `Int8Matrix`: three digits, and
one. Large matrices are taken in turn, so that they come from memory, as in a model.
"""

import argparse
import statistics
import time
import warnings
from collections.abc import Callable

import torch
from measure import table
from torch.nn import functional as F

from clearhead.model.fast_step import few_rows
from clearhead.model.int8_matmul import EXACT, ROUNDED, Int8Matrix, round_to_int8

SHAPES = [(128, 128), (128, 384), (128, 9_712), (512, 512), (512, 1_536), (512, 2_048), (2_048, 512), (512, 32_000)]
ROWS = (1, 5, 32, 160)
IN_MEMORY = 24_000_000
"""Numbers of all the matrices of a shape together."""


def microseconds(work: Callable[[int], object], copies: int, seconds: float) -> object:
    """Return the median time of the work on one matrix after another; what it cannot do is not a number."""
    try:
        work(0)
    except (RuntimeError, NotImplementedError):
        return "cannot"
    taken, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(taken) < 3:
        begin = time.perf_counter()
        work(len(taken) % copies)
        taken.append(time.perf_counter() - begin)
    return round(1e6 * statistics.median(taken))


def products(weights: list[torch.Tensor]) -> dict[str, Callable[[torch.Tensor, int], object]]:
    """Return the ways to multiply rows with one of these matrices."""
    codes, scales = zip(*(round_to_int8(one) for one in weights), strict=True)
    zeros = torch.zeros(len(codes[0]), dtype=torch.long)
    pairs = list(zip(codes, scales, strict=True))
    made = [torch._make_per_channel_quantized_tensor(one, scale.double(), zeros, 0) for one, scale in pairs]
    packed = [torch.ops.quantized.linear_prepack(one, None) for one in made]
    onednn = [torch.ops.onednn.qlinear_prepack(one.t(), None) for one in codes]
    exact, rounded = ([Int8Matrix(*pair, digits) for pair in pairs] for digits in (EXACT, ROUNDED))
    for one in (*exact, *rounded):
        one.unpacked = None  # small ones the same way, to compare
        one(weights[0][:1])  # packed
    own = zeros.int(), None, 1.0, 0, torch.float32, "none", [], ""
    return {
        "F.linear": lambda x, i: F.linear(x, weights[i]),
        "by columns": lambda x, i: few_rows(x, weights[i]),
        "int8pack": lambda x, i: torch.ops.aten._weight_int8pack_mm(x, codes[i], scales[i]),
        "dynamic": lambda x, i: torch.ops.quantized.linear_dynamic(x, packed[i], True),
        "_int_mm": lambda x, i: torch._int_mm(x.to(torch.int8), codes[i].t()),
        "onednn": lambda x, i: torch.ops.onednn.qlinear_pointwise(
            x.to(torch.uint8), 1.0, 0, onednn[i], scales[i], *own
        ),
        "unpacked": lambda x, i: F.linear(x, codes[i].float()) * scales[i],
        "three digits": lambda x, i: exact[i](x),
        "one digit": lambda x, i: rounded[i](x),
    }


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0.1, help="for each figure")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    warnings.simplefilter("ignore")  # torch's, of quantized tensors
    rows, names = [], []
    for d_in, d_out in SHAPES:
        copies = max(1, min(24, IN_MEMORY // (d_in * d_out)))
        ways = products([torch.randn(d_out, d_in) for _ in range(copies)])
        names = list(ways)
        for count in ROWS:
            x = torch.randn(count, d_in)
            found = [microseconds(lambda i, way=way, x=x: way(x, i), copies, asked.seconds) for way in ways.values()]
            rows.append([f"{d_in} to {d_out}", count, *found])
    print(table(f"Microseconds of a product, {asked.threads} threads", ["matrix", "rows", *names], rows))


if __name__ == "__main__":
    main()
