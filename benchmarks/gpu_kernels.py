"""Check and time the Triton kernels of linear and argmax attention on a CUDA GPU; about two minutes.

    python benchmarks/gpu_kernels.py            # everything
    python benchmarks/gpu_kernels.py linear     # one of them
    python benchmarks/gpu_kernels.py --parity   # compared only
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
from functools import partial
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import clearhead as ch
from clearhead.attention.kernels import argmax_gpu, linear_gpu
from clearhead.attention.kernels.linear_plan import LinearPlan, LinearTile, Options

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
        name = next((name for name in names if event.key == name or event.key.startswith(f"{name}_0")), None)
        if name is not None:
            found[name] += event.device_time_total / 1e3 / repeats
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


def draw(setting: Setting, batch: int, heads: int, n: int, d: int, *, dtype=torch.bfloat16):
    """Return random vectors as a layer has them: `(batch, n, head, d)` in memory."""
    return torch.randn((batch, n, heads, d), device=setting.device, dtype=dtype).transpose(1, 2)


def parity(setting: Setting, kernel: str, weighting, cases, *, ties: bool = False) -> None:
    """Compare outputs and gradients with the reference in float64; `ties`: queries and keys of few whole numbers."""
    for name, dtype, (n_query, n_key), (heads, kv_heads), (d, dv), form, n_keys in cases:
        mask, batch = form, 3
        query = draw(setting, batch, heads, n_query, d, dtype=dtype)
        key, value = (draw(setting, batch, kv_heads, n_key, width, dtype=dtype) for width in (d, dv))
        if ties:
            query, key = (side.clamp(-1.4, 1.4).round() for side in (query, key))
        if n_keys is not None:
            lengths = torch.tensor(n_keys, device=setting.device)
            hidden = torch.arange(n_key, device=setting.device) >= lengths.view(-1, 1, 1)
            key, value = (side.masked_fill(hidden.unsqueeze(-1), float("nan")) for side in (key, value))
            mask = M.padding(lengths) if mask is None else mask & M.padding(lengths)
        upstream = draw(setting, batch, heads, n_query, dv, dtype=dtype)
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
        ("causal whole chunks bf16", bf16, (1024, 1024), (4, 4), (d, d), causal, None),
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
    "c64 w4 s2": LinearTile(64, 4, 2),
    "c64 w4 s3": LinearTile(64, 4, 3),
    "c64 w4 s2 r168": LinearTile(64, 4, 2, 168),
    "c64 w4 s3 r168": LinearTile(64, 4, 3, 168),
    "c64 w4 s2 r128": LinearTile(64, 4, 2, 128),
    "c64 w8 s2": LinearTile(64, 8, 2),
    "c64 w8 s2 r128": LinearTile(64, 8, 2, 128),
    "c128 w8 s2": LinearTile(128, 8, 2),
    "c32 w4 s3": LinearTile(32, 4, 3),
}
LINEAR_PLANS = {
    **{f"{name}, segment 512": LinearPlan.of(tile) for name, tile in TILES.items()},
    "c64 w4 s2, segment 256": LinearPlan.of(TILES["c64 w4 s2"], segment=256),
    "c64 w4 s2, segment 1024": LinearPlan.of(TILES["c64 w4 s2"], segment=1024),
    "c64 w4 s2, scanned": LinearPlan.of(TILES["c64 w4 s2"], few=1),
    "c64 w4 s2, two parts": LinearPlan.of(TILES["c64 w4 s2"], split=True),
}
SMOKE_PLANS = {
    "c16": LinearPlan.of(LinearTile(16), segment=32),
    "c16 scanned": LinearPlan.of(LinearTile(16), segment=32, few=1),
}
LINEAR_KERNELS = ("sum_keys", "scan", "attend", "sum_queries", "grad_query", "grad_key")
OPTIONS = Options(causal=True, normalised=True, map="elu")


def linear_once(plan: LinearPlan | None, tensors):
    *inputs, upstream = tensors
    inputs = linear_gpu.LaunchInputs(*inputs, None)
    kept = linear_gpu.forward(inputs, OPTIONS, plan)
    return kept, linear_gpu.backward(inputs, OPTIONS, kept[1:], upstream, plan)


def warm_linear(name: str) -> str:
    """Compile one plan in a process of its own: Triton keeps what it compiled on disk, for all of them."""
    setting = Setting(smoke=False)
    for batch, n in ((2, 4096), (1, 65536)):
        tensors = [draw(setting, batch, 2, n, 64) for _ in range(4)]
        with contextlib.suppress(Exception):  # told when the plan is timed
            linear_once(LINEAR_PLANS[name], tensors)
    return name


def linear_parity(setting: Setting) -> None:
    parity(setting, "linear", ch.weighting.Kernelized(), linear_cases(setting))


def linear(setting: Setting) -> None:
    shapes = setting.pick({"16x4k": (16, 4096), "1x64k": (1, 65536)}, {"2x64": (2, 64)})
    heads, width = setting.pick((16, 64), (2, 16))
    best: dict[tuple[str, str], tuple[float, str]] = {}
    for (shape, (batch, n)), (name, plan) in itertools.product(
        shapes.items(), setting.pick(LINEAR_PLANS, SMOKE_PLANS).items()
    ):
        tensors = [draw(setting, batch, heads, n, width) for _ in range(4)]
        try:
            times = kernel_times(partial(linear_once, plan, tensors), setting, LINEAR_KERNELS)
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
    run = lambda: torch.autograd.grad(ch.attend(*leaves, **parts, kernel="linear"), leaves, upstream)  # noqa: E731, F821 (deleted below)
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


ARGMAX_TILES = {
    "64x64 w4 s3": argmax_gpu.ArgmaxTile(),
    "64x64 w4 s2": argmax_gpu.ArgmaxTile(stages=2),
    "64x64 w4 s4": argmax_gpu.ArgmaxTile(stages=4),
    "64x64 w4 s3 r168": argmax_gpu.ArgmaxTile(registers=168),
    "128x64 w8 s3": argmax_gpu.ArgmaxTile(rows=128, warps=8),
    "64x32 w4 s4 r168": argmax_gpu.ArgmaxTile(keys=32, stages=4, registers=168),
}


def argmax_tensors(setting: Setting, *, ties: bool = False):
    shape = setting.pick((4, 16, 4096, 128), (1, 2, 40, 16))
    tensors = [draw(setting, *shape) for _ in range(4)]
    return [side.clamp(-1.4, 1.4).round() for side in tensors[:2]] + tensors[2:] if ties else tensors


def argmax_task(ties: str = "first", gradient: str = "straight-through"):
    rule = ch.weighting.Argmax(ties=ties, gradient=gradient)
    return argmax_gpu.ArgmaxOptions(mask=M.causal(), scale=128**-0.5, rule=rule)


def argmax_once(tensors, tile, task):
    *inputs, upstream = tensors
    inputs = linear_gpu.LaunchInputs(*inputs, None)
    choice = argmax_gpu.choose(inputs, task, tile)
    return choice, argmax_gpu.backward_value(inputs, task, choice, upstream, tile)


def warm_argmax(name: str) -> str:
    setting = Setting(smoke=False)
    tensors = [draw(setting, 1, 2, 1024, 128) for _ in range(4)]
    for ties in ("first", "average") if name == "64x64 w4 s3" else ("first",):
        with contextlib.suppress(Exception):  # told when the tile is timed
            argmax_once(tensors, ARGMAX_TILES[name], argmax_task(ties))
    return name


def argmax_cases(setting: Setting, dtypes):
    n, m, d = setting.pick((1000, 700, 128), (40, 30, 16))
    causal = M.causal()
    for dtype in dtypes:
        name = str(dtype).removeprefix("torch.")
        yield f"causal padded grouped {name}", dtype, (n, n), (4, 2), (d, d), causal, [n, n // 2, 0]
        yield f"cross padded {name}", dtype, (m, n), (2, 2), (d // 2, d), None, [n, n // 3, 1]
        yield f"more queries, d 80 {name}", dtype, (n, m), (2, 1), setting.pick((80, 40), (10, 6)), causal, None


def argmax_parity(setting: Setting) -> None:
    every = (torch.bfloat16, torch.float32, torch.float16)
    for rule in ("first", "last", "average"):
        dtypes = every if rule == "first" else every[:1]
        for ties in (False, True):
            weighting, label = ch.weighting.Argmax(ties=rule), f"{rule} {'tied' if ties else 'random'}"
            cases = [(f"{label} {name}", *rest) for name, *rest in argmax_cases(setting, dtypes)]
            parity(setting, "argmax", weighting, cases, ties=ties)


def argmax(setting: Setting) -> None:
    best = {"choose": (1e9, ""), "sum_chosen": (1e9, "")}
    tensors = argmax_tensors(setting)
    smoke_tiles = {"16x16": argmax_gpu.ArgmaxTile(rows=16, keys=16)}
    for name, tile in setting.pick(ARGMAX_TILES, smoke_tiles).items():
        try:
            times = kernel_times(partial(argmax_once, tensors, tile, argmax_task()), setting, ("choose", "sum_chosen"))
        except Exception as problem:  # a tile may not fit: the others are still worth their time
            print(f"argmax {name}: {type(problem).__name__} {str(problem)[:200]}", flush=True)
            continue
        print(f"argmax {name}: us " + " ".join(f"{k} {1e3 * taken:.0f}" for k, taken in times.items()), flush=True)
        for kernel, taken in times.items():
            best[kernel] = min(best[kernel], (taken, name))
    note("best argmax, us", "; ".join(f"{kernel} {1e3 * taken:.0f} ({name})" for kernel, (taken, name) in best.items()))
    if setting.smoke:
        argmax_gpu.tile_for = lambda query: smoke_tiles["16x16"]
    for rule, gradient, ties in (
        ("first", "straight-through", False),
        ("first", "straight-through", True),
        ("first", "none", False),
        ("average", "straight-through", True),
    ):
        argmax_calls(setting, ch.weighting.Argmax(ties=rule, gradient=gradient), ties)
    softmax_beside(setting)


def argmax_calls(setting: Setting, weighting, ties: bool) -> None:
    *inputs, upstream = argmax_tensors(setting, ties=ties)
    leaves = [tensor.detach().requires_grad_() for tensor in inputs]
    call = lambda: ch.attend(*leaves, weighting=weighting, mask=M.causal(), kernel="argmax")  # noqa: E731
    with torch.no_grad():
        forward = milliseconds(call, setting), milliseconds(call, setting, alone=True)
    context = call()
    wanted = leaves if weighting.gradient != "none" else leaves[2:]
    back = lambda: torch.autograd.grad(context, wanted, upstream, retain_graph=True)  # noqa: E731
    backward = milliseconds(back, setting, repeats=15), milliseconds(back, setting, alone=True, repeats=15)
    name = f"argmax {weighting.ties}, {weighting.gradient}, {'tied' if ties else 'random'} ms"
    note(
        name,
        f"forward call {forward[0]:.3f}, alone {forward[1]:.3f}; backward {backward[0]:.3f}, alone {backward[1]:.3f}",
    )


def softmax_beside(setting: Setting) -> None:
    """torch's own softmax attention on the same shapes, by each of its kernels."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    if setting.smoke:
        return
    *inputs, upstream = argmax_tensors(setting)
    leaves = [tensor.detach().requires_grad_() for tensor in inputs]
    for backend in (None, SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION):
        with sdpa_kernel(backend) if backend else contextlib.nullcontext():
            try:
                call = lambda: scaled_dot_product_attention(*leaves, is_causal=True)  # noqa: E731
                forward = milliseconds(call, setting, repeats=15)
                context = call()
                back = lambda: torch.autograd.grad(context, leaves, upstream, retain_graph=True)  # noqa: B023, E731
                backward = milliseconds(back, setting, repeats=15)
            except RuntimeError as problem:
                print(f"softmax {backend}: {str(problem)[:200]}")
                continue
        name = backend.name if backend else "as torch picks"
        note(f"torch softmax, {name} ms", f"forward {forward:.3f}; backward {backward:.3f}")
    inputs = linear_gpu.LaunchInputs(*inputs, None)
    for backend in argmax_gpu.BACKENDS[:2]:
        argmax_gpu.BACKENDS[:] = [backend, *(other for other in argmax_gpu.BACKENDS if other != backend)]
        taken = milliseconds(lambda: argmax_gpu.softmax_gradients(inputs, argmax_task(), upstream), setting, repeats=15)
        note(f"straight-through dq, dk by {backend.name} ms", f"{taken:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=["linear", "argmax"])
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--parity", action="store_true", help="compare with the reference, and time nothing")
    arguments = parser.parse_args()
    setting = Setting(arguments.smoke)
    begin = time.perf_counter()
    torch.manual_seed(0)
    checks = {"linear": linear_parity, "argmax": argmax_parity}
    for what in arguments.what:
        checks[what](setting)
    if not arguments.parity:
        time_all(setting, arguments.what)
    print(f"\n=== summary, {time.perf_counter() - begin:.0f} s ===")
    for name, text in SUMMARY:
        print(f"{name}: {text}")


def time_all(setting: Setting, names: list[str]) -> None:
    begin = time.perf_counter()
    if not setting.smoke:
        with ProcessPoolExecutor(12, mp_context=multiprocessing.get_context("spawn")) as pool:
            jobs = [pool.submit(warm_linear, name) for name in LINEAR_PLANS if "linear" in names]
            jobs += [pool.submit(warm_argmax, name) for name in ARGMAX_TILES if "argmax" in names]
            for job in jobs:
                job.result()
        print(f"compiled after {time.perf_counter() - begin:.0f} s", flush=True)
        print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}", flush=True)
    ceilings(setting)
    if "linear" in names:
        linear(setting)
    if "argmax" in names:
        argmax(setting)


if __name__ == "__main__":
    main()
