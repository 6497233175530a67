"""What `attend` costs, beside torch's own attention in the same run.

    python benchmarks/attention.py                 # the CPU: overhead, linear against softmax, memory
    python benchmarks/attention.py --device cuda   # a GPU: overhead, cuDNN and flash beside it, linear against softmax
    python benchmarks/attention.py --quick         # smaller sizes, a minute in all

Times are medians of interleaved runs; memory is the peak a fresh process adds, read from the kernel.
"""

import argparse
import json
import math
import platform
import sys
from functools import partial

import torch
from measure import in_fresh_process, interleaved, peak_memory, table
from torch.nn import functional as F

import clearhead as ch

HEADS, WIDTH = 8, 64


def inputs(n: int, *, device: str = "cpu", dtype: torch.dtype = torch.float32, heads: int = HEADS, grad: bool = False):
    return [torch.randn(1, heads, n, WIDTH, device=device, dtype=dtype, requires_grad=grad) for _ in range(3)]


def overhead(sizes: list[int], device: str, dtype: torch.dtype) -> str:
    rows = []
    for n in sizes:
        q, k, v = inputs(n, device=device, dtype=dtype)
        lengths = torch.tensor([n - n // 8], device=device)
        allowed = (torch.arange(n, device=device) < lengths[:, None])[:, None, None, :]
        cases = {
            "none": (partial(ch.attend, q, k, v), partial(F.scaled_dot_product_attention, q, k, v)),
            "causal": (
                partial(ch.attend, q, k, v, mask=ch.masks.causal()),
                partial(F.scaled_dot_product_attention, q, k, v, is_causal=True),
            ),
            "padding": (
                partial(ch.attend, q, k, v, mask=ch.masks.padding(lengths)),
                partial(F.scaled_dot_product_attention, q, k, v, attn_mask=allowed),
            ),
        }
        for mask, (ours, theirs) in cases.items():
            found = interleaved({"attend": ours, "SDPA": theirs}, device=device)
            rows.append([n, mask, found["SDPA"] * 1e3, found["attend"] * 1e3, added(found["attend"], found["SDPA"])])
    return table("`attend` beside torch SDPA, forward", ["n", "mask", "SDPA ms", "attend ms", "added"], rows)


def added(ours: float, theirs: float) -> str:
    return f"{100 * (ours / theirs - 1):+.1f} %"


def linear(sizes: list[int], device: str, dtype: torch.dtype, softmax_to: int) -> str:
    rows = []
    for n in sizes:
        q, k, v = inputs(n, device=device, dtype=dtype)
        kernelized = partial(ch.attend, q, k, v, weighting=ch.weighting.Kernelized(), mask=ch.masks.causal())
        runs = {"linear": kernelized}
        if n <= softmax_to:
            runs["softmax"] = partial(F.scaled_dot_product_attention, q, k, v, is_causal=True)
        found = interleaved(runs, device=device, seconds=1.0)
        soft = found.get("softmax", math.nan)
        rows.append([n, found["linear"] * 1e3, found["linear"] / n * 1e9, soft * 1e3, soft / found["linear"]])
    header = ["n", "chunked linear ms", "ns a token", "softmax (SDPA) ms", "softmax / linear"]
    return table("Chunked linear against fused softmax, causal, forward", header, rows)


MEMORY = {
    "softmax, fused": {},
    "argmax": {"weighting": "argmax"},
    "additive": {"similarity": "additive"},
    "linear elu, causal": {"weighting": "linear elu", "mask": "causal"},
    "linear elu, padding": {"weighting": "linear elu", "mask": "padding"},
    "linear elu, prefix": {"weighting": "linear elu", "mask": "prefix"},
    "linear elu, document": {"weighting": "linear elu", "mask": "document"},
    "linear elu, window": {"weighting": "linear elu", "mask": "window"},
    "linear elu, cross": {"weighting": "linear elu"},
}
LONGEST = {"softmax, fused": 16384, "argmax": 16384, "additive": 8192}
"""Past these the time, which is quadratic, is too long to wait for."""


def memory(sizes: list[int]) -> str:
    rows = []
    for name, parts in MEMORY.items():
        for n in [n for n in sizes if n <= LONGEST.get(name, 65536)]:
            found = in_fresh_process(sys.argv[0], {"n": n, **parts})
            rows.append([name, n, found["megabytes"], n * n * 4 / 2**20, found["megabytes"] * 2**20 / n])
    header = ["attention, forward and backward, one head", "n", "peak MB", "n x n MB", "bytes a token"]
    return table("Memory measured in a fresh process", header, rows)


def one_case(case: dict[str, object]) -> None:
    """In a process of its own: what one attention, forward and backward, adds to the memory."""
    shape = ch.HeadShape(n_heads=1, n_kv_heads=1, d_head=WIDTH)
    options = {
        "similarity": ch.similarity.TABLE[case["similarity"]].build(shape) if "similarity" in case else None,
        "weighting": ch.weighting.TABLE[case.get("weighting", "softmax")],
    }

    def run(n: int) -> None:
        q, k, v = inputs(n, heads=1, grad=True)
        mask = ch.masks.TABLE[case.get("mask", "none")](ch.masks.Extent(1, 1, n, n, q.device))
        torch.autograd.grad(ch.attend(q, k, v, mask=mask, **options).sum(), (q, k, v))

    run(64)  # whatever torch allocates once
    print(json.dumps({"megabytes": peak_memory(lambda: run(case["n"]))}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    if arguments.case:
        return one_case(json.loads(arguments.case))
    cpu = arguments.device == "cpu"
    dtype = torch.float32 if cpu else torch.bfloat16
    where = (
        f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads"
        if cpu
        else torch.cuda.get_device_name()
    )
    print(f"torch {torch.__version__}, {where}, batch 1, {HEADS} heads of {WIDTH}, {dtype}\n")
    with torch.no_grad():
        sizes = [64, 256, 512, 1024] if arguments.quick else [64, 256, 512, 1024, 2048, 4096]
        print(overhead(sizes, arguments.device, dtype), flush=True)
        sizes = [1024, 2048, 4096] if arguments.quick else [1024, 2048, 4096, 8192, 16384, 32768, 65536]
        print(linear(sizes, arguments.device, dtype, softmax_to=16384 if cpu else 65536), flush=True)
    if cpu:
        print(memory([2048, 4096] if arguments.quick else [2048, 8192, 16384, 65536]), flush=True)
    return None


if __name__ == "__main__":
    main()
