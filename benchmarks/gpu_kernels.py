"""Check and time the Triton kernels of linear and argmax attention on a CUDA GPU; about two minutes.

    python benchmarks/gpu_kernels.py            # everything
    python benchmarks/gpu_kernels.py linear     # one of them
    TRITON_INTERPRET=1 python benchmarks/gpu_kernels.py --smoke   # does the script run? tiny shapes, on a CPU

Parity is the norm of the difference over the norm of the float64 reference, on random inputs with NaN in the padding.
Times are medians between CUDA events; "call" is a whole eager `clearhead.attend`, queued behind others as in training,
and "alone" the same with the GPU idle before it. Kernels are also timed apart, by the profiler, for several tiles.
All of it is printed; the short table comes last.
"""

import argparse
import contextlib
import itertools
import multiprocessing
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import clearhead as ch
from clearhead.attention.kernels import linear_gpu
from clearhead.attention.kernels.linear_gpu import Options, Plan, Tile

M = ch.masks
SUMMARY: list[tuple[str, str]] = []


class Setting:
    """Where and how large: a GPU, or a CPU under Triton's interpreter to try the script."""

    def __init__(self, smoke: bool) -> None:
        self.smoke = smoke
        self.device = "cpu" if smoke else "cuda"

    def pick(self, whole, tiny):
        return tiny if self.smoke else whole


def note(name: str, text: str) -> None:
    SUMMARY.append((name, text))
    print(f"{name}: {text}", flush=True)


def sync(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def milliseconds(run, setting: Setting, *, alone: bool = False, repeats: int = 25) -> float:
    """Return the median time; `alone`: with the GPU idle before each call, so that Python's share shows."""
    if setting.smoke:
        begin = time.perf_counter()
        run()
        return (time.perf_counter() - begin) * 1e3
    for _ in range(3):
        run()
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
    torch.cuda.synchronize()
    for start, stop in events:
        start.record()
        run()
        stop.record()
        if alone:
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(stop) for start, stop in events)


def kernel_times(run, setting: Setting, names) -> dict[str, float]:
    """Return the milliseconds of each GPU kernel of that name in one run, by the profiler."""
    if setting.smoke:
        return dict.fromkeys(names, 0.0)
    repeats = 5
    for _ in range(2):
        run()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(repeats):
            run()
        torch.cuda.synchronize()
    found = dict.fromkeys(names, 0.0)
    for event in profile.key_averages():
        if event.key in found:
            found[event.key] += event.device_time_total / 1e3 / repeats
    return found


def error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    if not got.isfinite().all():
        return float("nan")
    return ((got.double() - wanted.double()).norm() / wanted.double().norm().clamp(min=1e-30)).item()


def ceilings(setting: Setting) -> None:
    if setting.smoke:
        return
    a = torch.randn(1 << 30, device="cuda", dtype=torch.float32)
    b = torch.empty_like(a)
    copy = milliseconds(lambda: b.copy_(a), setting, repeats=10)
    x, y = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    product = milliseconds(lambda: x @ y, setting, repeats=10)
    note("copy", f"{2 * a.numel() * 4 / copy / 1e9:.2f} TB/s")
    note("matmul", f"{2 * 8192**3 / product / 1e9:.0f} TFLOP/s")


def draw(setting: Setting, batch: int, heads: int, n: int, d: int, dtype=torch.bfloat16, *, inner: bool = True):
    """Return random vectors as a layer has them, `(batch, n, head, d)` in memory; or with the heads outside."""
    shape = (batch, n, heads, d) if inner else (batch, heads, n, d)
    made = torch.randn(shape, device=setting.device, dtype=dtype)
    return made.transpose(1, 2) if inner else made


def parity(setting: Setting, kernel: str, weighting, cases) -> None:
    """Compare outputs and gradients with the reference in float64."""
    for name, dtype, (n_query, n_key), (heads, kv_heads), (d, dv), mask, lengths in cases:
        batch = 3
        query = draw(setting, batch, heads, n_query, d, dtype)
        key, value = draw(setting, batch, kv_heads, n_key, d, dtype), draw(setting, batch, kv_heads, n_key, dv, dtype)
        if lengths is not None:
            lengths = torch.tensor(lengths, device=setting.device)
            hidden = torch.arange(n_key, device=setting.device) >= lengths.view(-1, 1, 1)
            key, value = (side.masked_fill(hidden.unsqueeze(-1), float("nan")) for side in (key, value))
            mask = M.padding(lengths) if mask is None else mask & M.padding(lengths)
        upstream = draw(setting, batch, heads, n_query, dv, dtype)
        found = []
        for precision, how in ((torch.float64, "reference"), (dtype, kernel)):
            inputs = [tensor.to(precision).detach().requires_grad_() for tensor in (query, key, value)]
            context = ch.attend(*inputs, weighting=weighting, mask=mask, kernel=how)
            gradients = torch.autograd.grad(context, inputs, upstream.to(precision), allow_unused=True)
            gradients = [torch.zeros_like(x) if g is None else g for x, g in zip(inputs, gradients, strict=True)]
            found.append([context.detach(), *gradients])
        errors = " ".join(f"{error(got, wanted):.1e}" for wanted, got in zip(*found, strict=True))
        note(f"parity {kernel} {name}", f"out dq dk dv {errors}")


def linear_cases(setting: Setting):
    bf16, fp32, fp16 = torch.bfloat16, torch.float32, torch.float16
    n, m, d = setting.pick((1000, 700, 64), (40, 30, 16))
    causal = M.causal()
    return [
        ("causal bf16", bf16, (n, n), (4, 4), (d, d), causal, None),
        ("causal padded grouped bf16", bf16, (n, n), (4, 2), (d, d), causal, [n, n // 2, 0]),
        ("cross padded bf16", bf16, (m, n), (4, 4), (d, d), None, [n, n // 3, 1]),
        ("more keys bf16", bf16, (m, n), (4, 4), (d, d), causal, None),
        ("more queries bf16", bf16, (n, m), (4, 4), (d, d), causal, None),
        ("d 128, 96 bf16", bf16, (n, n), (2, 2), setting.pick((128, 96), (20, 12)), causal, None),
        ("causal fp32", fp32, (n, n), (4, 4), (d, d), causal, [n, n // 2, 7]),
        ("d 128 fp32", fp32, (m, m), (2, 1), setting.pick((128, 128), (20, 12)), causal, None),
        ("causal fp16", fp16, (n, n), (4, 4), (d, d), causal, [n, n // 2, 7]),
        ("d 80 fp16", fp16, (m, m), (2, 1), setting.pick((80, 128), (20, 12)), causal, None),
    ]


TILES = {
    "c64 w4 s2": Tile(64, 4, 2),
    "c64 w4 s3": Tile(64, 4, 3),
    "c64 w4 s2 r168": Tile(64, 4, 2, 168),
    "c64 w4 s3 r168": Tile(64, 4, 3, 168),
    "c64 w4 s2 r128": Tile(64, 4, 2, 128),
    "c64 w8 s2": Tile(64, 8, 2),
    "c64 w8 s2 r128": Tile(64, 8, 2, 128),
    "c128 w8 s2": Tile(128, 8, 2),
    "c32 w4 s3": Tile(32, 4, 3),
}
LINEAR_PLANS = {
    **{f"{name}, segment 512": Plan.of(tile) for name, tile in TILES.items()},
    "c64 w4 s2, segment 256": Plan.of(TILES["c64 w4 s2"], segment=256),
    "c64 w4 s2, segment 1024": Plan.of(TILES["c64 w4 s2"], segment=1024),
    "c64 w4 s2, scanned": Plan.of(TILES["c64 w4 s2"], few=1),
    "c64 w4 s2, one part": Plan.of(TILES["c64 w4 s2"], split=False),
}
SMOKE_PLANS = {"c16": Plan.of(Tile(16), segment=32), "c16 scanned": Plan.of(Tile(16), segment=32, few=1)}
LINEAR_KERNELS = ("sum_keys", "scan", "attend", "sum_queries", "grad_query", "grad_key")
OPTIONS = Options(causal=True, normalised=True, map="elu")


def linear_once(setting: Setting, plan: Plan | None, tensors):
    query, key, value, upstream = tensors
    kept = linear_gpu.forward(query, key, value, None, OPTIONS, plan)
    return kept, linear_gpu.backward((query, key, value), None, OPTIONS, kept[1:], upstream, plan)


def warm_linear(name: str) -> str:
    """Compile one plan in a process of its own: Triton keeps what it compiled on disk, for all of them."""
    setting = Setting(smoke=False)
    for batch, n in ((2, 4096), (1, 65536)):
        tensors = [draw(setting, batch, 2, n, 64) for _ in range(4)]
        with contextlib.suppress(Exception):  # told when the plan is timed
            linear_once(setting, LINEAR_PLANS[name], tensors)
    return name


def linear(setting: Setting) -> None:
    weighting = ch.weighting.Kernelized()
    parity(setting, "linear", weighting, linear_cases(setting))
    shapes = setting.pick({"16x4k": (16, 4096), "1x64k": (1, 65536)}, {"2x64": (2, 64)})
    heads, width = setting.pick((16, 64), (2, 16))
    best: dict[tuple[str, str], tuple[float, str]] = {}
    for (shape, (batch, n)), (name, plan) in itertools.product(
        shapes.items(), setting.pick(LINEAR_PLANS, SMOKE_PLANS).items()
    ):
        tensors = [draw(setting, batch, heads, n, width) for _ in range(4)]
        try:
            times = kernel_times(lambda: linear_once(setting, plan, tensors), setting, LINEAR_KERNELS)
        except Exception as problem:  # a tile may not fit: the others are still worth their time
            print(f"linear {shape} {name}: {type(problem).__name__} {str(problem)[:200]}", flush=True)
            continue
        text = " ".join(f"{kernel} {1e3 * taken:.0f}" for kernel, taken in times.items())
        print(f"linear {shape} {name}: us {text} all {1e3 * sum(times.values()):.0f}", flush=True)
        for kernel, taken in times.items():
            best[shape, kernel] = min(best.get((shape, kernel), (1e9, "")), (taken, name))
    for shape in shapes:
        text = "; ".join(
            f"{kernel} {1e3 * best[shape, kernel][0]:.0f} ({best[shape, kernel][1]})" for kernel in LINEAR_KERNELS
        )
        note(f"best linear {shape}, us", text)
    for shape, (batch, n) in shapes.items():
        linear_calls(setting, shape, [draw(setting, batch, heads, n, width) for _ in range(4)])
    if not setting.smoke:
        long_linear(setting)


def linear_calls(setting: Setting, shape: str, tensors) -> None:
    """Time whole calls, forward and backward, by the kernel and by `chunked`; and check them against each other."""
    *inputs, upstream = tensors
    parts = {"weighting": ch.weighting.Kernelized(), "mask": M.causal()}
    for kernel in ("linear", "chunked"):
        leaves = [tensor.detach().requires_grad_() for tensor in inputs]
        call = lambda: ch.attend(*leaves, **parts, kernel=kernel)  # noqa: B023, E731
        with torch.no_grad():
            forward = milliseconds(call, setting), milliseconds(call, setting, alone=True)
        context = call()
        back = lambda: torch.autograd.grad(context, leaves, upstream, retain_graph=True)  # noqa: B023, E731
        backward = milliseconds(back, setting), milliseconds(back, setting, alone=True)
        both = milliseconds(lambda: torch.autograd.grad(call(), leaves, upstream), setting)  # noqa: B023
        note(
            f"{kernel} {shape} ms",
            f"forward call {forward[0]:.3f}, alone {forward[1]:.3f}; backward {backward[0]:.3f}, alone "
            f"{backward[1]:.3f}; both {both:.3f}",
        )
    with torch.no_grad():
        made = [
            ch.attend(*(x[:, :2].to(t) for x in inputs), **parts, kernel=k)
            for t, k in ((torch.float64, "chunked"), (inputs[0].dtype, "linear"))
        ]
    note(f"linear {shape} off float64", f"{error(made[1], made[0]):.1e}")


def long_linear(setting: Setting) -> None:
    """A million positions, forward and backward."""
    leaves = [draw(setting, 1, 8, 1_000_000, 64).requires_grad_() for _ in range(3)]
    parts = {"weighting": ch.weighting.Kernelized(), "mask": M.causal()}
    upstream = torch.randn_like(leaves[0])
    torch.cuda.reset_peak_memory_stats()
    run = lambda: torch.autograd.grad(ch.attend(*leaves, **parts, kernel="linear"), leaves, upstream)  # noqa: E731
    taken = milliseconds(run, setting, repeats=3)
    finite = all(bool(part.isfinite().all()) for part in run())
    peak = torch.cuda.max_memory_allocated() / 2**30
    note("linear n = 1,000,000, 8 heads, forward and backward", f"{taken:.2f} ms, finite {finite}, peak {peak:.1f} GiB")
    del upstream
    with torch.no_grad():
        few = [leaf[:, :1].float() for leaf in leaves]
        wanted = ch.attend(*few, **parts, kernel="chunked")
        got = ch.attend(*(leaf[:, :1] for leaf in leaves), **parts, kernel="linear")
    note(
        "linear n = 1,000,000 off chunked float32",
        f"{error(got[:, :, -1000:], wanted[:, :, -1000:]):.1e} in the last 1,000",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=["linear"])
    parser.add_argument("--smoke", action="store_true")
    arguments = parser.parse_args()
    setting = Setting(arguments.smoke)
    begin = time.perf_counter()
    torch.manual_seed(0)
    if not setting.smoke:
        with ProcessPoolExecutor(12, mp_context=multiprocessing.get_context("spawn")) as pool:
            jobs = [pool.submit(warm_linear, name) for name in LINEAR_PLANS] if "linear" in arguments.what else []
            for job in jobs:
                job.result()
        print(f"compiled after {time.perf_counter() - begin:.0f} s", flush=True)
        print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}", flush=True)
    ceilings(setting)
    if "linear" in arguments.what:
        linear(setting)
    print(f"\n=== summary, {time.perf_counter() - begin:.0f} s ===")
    for name, text in SUMMARY:
        print(f"{name}: {text}")


if __name__ == "__main__":
    main()
