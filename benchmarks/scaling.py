"""Estimates of the estimator beside what is measured: steps on an H200, and 1 to 4 processes on a CPU.

    python -m benchmarks.scaling gpu       # beside the steps of benchmarks/results/gpu.md; nothing is run on a GPU
    python -m benchmarks.scaling cpu       # DDP and FSDP2 on gloo, 1, 2 and 4 processes: memory, bytes sent, time
    python -m benchmarks.scaling figures   # docs/figures/scaling/*.svg

On the CPU every process counts the bytes of its parameters, gradients and optimizer states, the most that lived during
a step, and its peak RSS; all processes together count what went over the loopback device. Times are processor time of a
process, of the step as of the products, copies and collectives that the estimate is made from, in the same run: so
other work on the machine does not count.
"""

import argparse
import json
import os
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from clearhead.model import presets
from clearhead.model.blocks import Block
from clearhead.model.presets import Size
from clearhead.model.sizes import Spec
from clearhead.training.losses import cross_entropy
from clearhead.training.reporting import memory_mb
from estimator.estimate import FORMS, GIB, Estimate, Form, Job, Rates, Workload
from estimator.plots import Panel, draw_panels
from estimator.step_cost import LiveBytes, example_inputs

MEASURED = {
    "GPT-2 124M, 32 x 1,024": (presets.gpt2("small", vocabulary=50_304, dropout=0.0), 1, 1024, 32, 549e3, 400e3),
    "base, 256 x 128": (presets.base(32_768), 128, 128, 256, 888e3, 513e3),
}
"""Model, lengths, sequences, and tokens a second of a compiled and of an eager (captured) step on one H200, from
benchmarks/results/gpu.md and docs/decisions/0010-every-number-and-the-gpu.md.
"""

SMALL: dict[str, tuple[Spec, int, int, int]] = {
    "decoder": (presets.gpt2(Size(4, 256, 4, 4, 1024), vocabulary=5003, length=64, dropout=0.0), 1, 64, 16),
    "encoder-decoder": (presets.classic(3001, size=Size(3, 192, 4, 4, 768), dropout=0.0), 48, 48, 16),
}
"""Models that two cores train: odd vocabularies, so that shards are padded. Lengths, and sequences of each process."""
STEPS, WARM_UPS = 4, 2


def check_gpu() -> list[dict[str, Any]]:
    """Return estimates beside measured steps on one GPU."""
    found = []
    for name, (spec, source, target, sequences, *speeds) in MEASURED.items():
        for compiled, speed in zip((True, False), speeds, strict=True):
            work = Workload(spec=spec, source=source, target=target, compiled=compiled)
            made = Job(workload=work, gpus=1, sequences=sequences, micro=sequences).estimate(FORMS[0])
            measured = sequences * target / speed
            error = made.time.total / measured - 1
            print(
                f"{name:24} {'compiled' if compiled else 'eager':9} measured {1e3 * measured:6.1f} ms, "
                f"estimated {1e3 * made.time.total:6.1f} ms, {100 * error:+.1f} %"
            )
            found.append({"name": name, "compiled": compiled, "measured": measured, "estimated": made.time.total})
    return found


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What one process measured."""

    parameters: int
    gradients: int
    optimizer: int
    peak: int
    rss_mb: int
    sent: int
    seconds: float
    tflops: float
    copy_gb_s: float
    sum_seconds: float
    gather_seconds: float
    scatter_seconds: float
    activations: int
    collective_bytes: list[int]
    """What an all-reduce, an all-gather and a reduce-scatter of the whole model sent, of all processes together."""


def loopback_bytes() -> int:
    """Return the bytes that went over the loopback device so far, of all processes of this machine's network."""
    for line in Path("/proc/net/dev").read_text(encoding="ascii").splitlines():
        if line.strip().startswith("lo:"):
            return int(line.split(":")[1].split()[8])
    raise RuntimeError("/proc/net/dev has no loopback device")


def local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor  # pyright: ignore[reportAttributeAccessIssue]


def stored(tensors: list[Tensor]) -> int:
    """Return the bytes of the storages behind tensors, each once."""
    storages = {one.untyped_storage()._cdata: one.untyped_storage().nbytes() for one in map(local, tensors)}
    return sum(storages.values())


def work_of(rank: int, processes: int, folder: str, name: str, parallel: str) -> None:
    """Train for a few steps as one of the processes; write what was measured."""
    warnings.simplefilter("ignore", FutureWarning)  # torch 2.13 has new names for what torch 2.11 knows by these
    torch.set_num_threads(1)
    torch.manual_seed(0)
    store = dist.FileStore(f"{folder}/store", processes)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=processes, timeout=timedelta(minutes=5))
    spec, source, target, sequences = SMALL[name]
    model = spec.build().train()
    run: nn.Module = model
    if parallel == "fsdp":
        mesh = init_device_mesh("cpu", (processes,))
        for block in [one for one in model.modules() if isinstance(one, Block)]:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    elif processes > 1:
        run = nn.parallel.DistributedDataParallel(model, broadcast_buffers=False, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    inputs, lengths = example_inputs(spec, sequences, source, target)

    def loss_of() -> Tensor:
        logits = run(*inputs, **lengths)
        return cross_entropy(
            logits.flatten(0, -2), torch.zeros(logits.shape[:-1], dtype=torch.int64).flatten()
        ).objective

    def step() -> None:
        loss_of().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=parallel == "fsdp")

    for _ in range(WARM_UPS):
        step()
    dist.barrier()
    left, whole = torch.ones(512, 512), torch.ones(1 << 24)
    target_of_copy = torch.empty_like(whole)
    product = processor_seconds(lambda: left @ left, 10)
    copying = processor_seconds(lambda: target_of_copy.copy_(whole), 3)
    trained = sum(one.numel() for one in model.parameters())
    flat = torch.zeros(trained // processes * processes)
    parts = [quickest_collective(kind, flat, processes) for kind in ("sum", "gather", "scatter")]
    each = [sent_by_collective(kind, flat, processes) for kind in ("sum", "gather", "scatter")]
    dist.barrier()
    time.sleep(0.2)
    before, started = loopback_bytes(), time.process_time()
    for _ in range(STEPS):
        step()
    seconds = (time.process_time() - started) / STEPS
    dist.barrier()
    sent = (loopback_bytes() - before) // STEPS
    held = [one.data for one in model.parameters()]
    live = LiveBytes([*map(local, held), *inputs])
    gradients = [one.grad for one in model.parameters() if one.grad is not None]
    for one in gradients:
        live.seen[local(one).untyped_storage()] = True
    with live:
        loss_of().backward()
    states = [one for state in optimizer.state.values() for one in state.values()]
    found = Measured(
        parameters=stored(held),
        gradients=stored([one.grad for one in model.parameters() if one.grad is not None]),
        optimizer=sum(local(one).numel() * one.element_size() for one in states),
        peak=live.most,
        rss_mb=memory_mb(torch.device("cpu")),
        sent=sent,
        seconds=seconds,
        tflops=2 * 512**3 / product / 1e12,
        copy_gb_s=8 * whole.numel() / copying / 1e9,
        sum_seconds=parts[0],
        gather_seconds=parts[1],
        scatter_seconds=parts[2],
        activations=saved_bytes(loss_of, model),
        collective_bytes=each,
    )
    (Path(folder) / f"{rank}.json").write_text(json.dumps(found.__dict__), encoding="ascii")
    dist.barrier()
    dist.destroy_process_group()


def processor_seconds(run: Callable[[], object], times: int) -> float:
    """Return the processor time of a call, the least of five rounds after one that warms up."""
    taken = []
    for _ in range(6):
        started = time.process_time()
        for _ in range(times):
            run()
        taken.append((time.process_time() - started) / times)
    return min(taken[1:])


def saved_bytes(loss_of: Callable[[], Tensor], model: nn.Module) -> int:
    """Return the bytes that autograd saves until the last block ends, by its own hooks, parameters left out."""
    *_, last = (one for one in model.modules() if isinstance(one, Block))
    done = []
    hook = last.register_forward_hook(lambda *_: done.append(True))
    own = {local(one).untyped_storage()._cdata for one in model.parameters()}
    found: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own and not done:
            found[storage._cdata] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = loss_of()
    total = sum(one.untyped_storage().nbytes() for one in found.values())
    hook.remove()
    loss.backward()
    return total


def collective(kind: str, flat: Tensor, processes: int) -> Callable[[], object]:
    """Return a call of a collective over the whole model, in float32."""
    part = torch.zeros(flat.numel() // processes)
    calls: dict[str, Callable[[], object]] = {
        "sum": lambda: dist.all_reduce(flat),
        "gather": lambda: dist.all_gather_into_tensor(flat, part),
        "scatter": lambda: dist.reduce_scatter_tensor(part, flat),
    }
    return calls[kind]


def quickest_collective(kind: str, flat: Tensor, processes: int) -> float:
    """Return the processor time of a collective."""
    return processor_seconds(collective(kind, flat, processes), 1)


def sent_by_collective(kind: str, flat: Tensor, processes: int) -> int:
    """Return the bytes that all processes together send in a collective."""
    call = collective(kind, flat, processes)
    dist.barrier()
    time.sleep(0.2)
    before = loopback_bytes()
    dist.barrier()
    for _ in range(STEPS):
        call()
    dist.barrier()
    time.sleep(0.2)
    return (loopback_bytes() - before) // STEPS


def check_cpu(counts: tuple[int, ...], names: list[str]) -> list[dict[str, Any]]:
    """Return estimates beside measured steps of processes on this machine."""
    measured = {}
    for name in names:
        for parallel in ("ddp", "fsdp"):
            for count in counts:
                with tempfile.TemporaryDirectory() as folder:
                    # Forked, since importing torch takes longer than the steps; so nothing is computed here before.
                    torch.multiprocessing.start_processes(
                        work_of, (count, folder, name, parallel), nprocs=count, start_method="fork"
                    )
                    measured[name, parallel, count] = [
                        Measured(**json.loads((Path(folder) / f"{rank}.json").read_text(encoding="ascii")))
                        for rank in range(count)
                    ]
                print(name, parallel, count, measured[name, parallel, count][0], flush=True)
    found = []
    for (name, parallel, _), ranks in measured.items():
        spec, source, target, sequences = SMALL[name]
        work = Workload(spec=spec, source=source, target=target, bfloat16=False, compiled=False)
        found.append(compare(name, work, Form(parallel=parallel), sequences, ranks))
        print(json.dumps(found[-1]), flush=True)
    return found


def compare(name: str, work: Workload, form: Form, sequences: int, ranks: list[Measured]) -> dict[str, Any]:
    """Return measured and estimated figures of a run side by side."""
    first, count = ranks[0], len(ranks)
    size = 4 * work.parameters
    # The rate of links that a gather of the whole model had, all processes at work; latency is part of it.
    share = (count - 1) / count
    link = 1e9 if count == 1 else size * share / first.gather_seconds / 1e9
    rates = Rates(
        matrix_tflops=min(one.tflops for one in ranks),
        copy_gb_s=min(one.copy_gb_s for one in ranks),
        memory_gib=16,
        link_gb_s=link,
        network_gb_s=link,
        gpus_per_node=max(count, 1),
        link_latency_us=0,
        network_latency_us=0,
        call_us=0,
        reserved_gib=0,
        on_cpu=True,
    )
    job = Job(workload=work, gpus=count, rates=rates, sequences=count * sequences, micro=sequences)
    made = job.estimate(form)
    estimated_peak = made.memory.activations + made.memory.working
    if form.parallel == "fsdp":
        estimated_peak += made.memory.copies + made.memory.buffers
    return {
        "model": name,
        "form": form.name,
        "processes": count,
        "parameters": [max(one.parameters for one in ranks), made.memory.parameters],
        "gradients": [max(one.gradients for one in ranks), made.memory.gradients],
        "optimizer": [max(one.optimizer for one in ranks), made.memory.optimizer],
        "peak": [max(one.peak for one in ranks), estimated_peak],
        "saved": [max(one.activations for one in ranks), made.memory.activations],
        "sent_all": [first.sent, made.communication.total * count],
        "seconds": [first.seconds, made.time.total],
        "compute": made.time.compute,
        "collectives": [first.sum_seconds, first.gather_seconds, first.scatter_seconds],
        "collective_bytes": dict(
            zip(("model", "sum", "gather", "scatter"), [size, *first.collective_bytes], strict=True)
        ),
        "traffic": work.pass_cost(form, sequences).traffic,
        "rss_mb": max(one.rss_mb for one in ranks),
        "rates": [rates.matrix_tflops, rates.copy_gb_s, link],
    }


COUNTS = tuple(2**power for power in range(3, 13))
FIGURES = Path(__file__).parents[1] / "docs/figures/scaling"
LLAMA = Workload(spec=presets.llama("7b"), source=1, target=4096)
BASE = Workload(spec=presets.base(37_000), source=128, target=128)


def curve(workload: Workload, form: Form, tokens: int | None, value: Callable[[Estimate], float]) -> dict[int, float]:
    """Return a value for each number of GPUs that has sequences enough, and that fits; tokens None: one each."""
    found: dict[int, float] = {}
    for gpus in COUNTS:
        sequences = gpus if tokens is None else tokens // workload.length
        if sequences >= gpus:
            made = Job(workload=workload, gpus=gpus, sequences=sequences).estimate(form)
            if made.fits or tokens is None:
                found[gpus] = value(made)
    return found


def draw_figures() -> list[Path]:
    """Draw the figures of estimator/README.md."""
    gib: Callable[[Estimate], float] = lambda one: one.memory.total / GIB  # noqa: E731
    limit = (139.0 - 4.0, "an H200, less 4 GiB")
    memory = [
        Panel(
            title=f"{name}, one sequence of {work.length:,} on each GPU",
            y="GiB on each GPU",
            curves={form.name: curve(work, form, None, gib) for form in FORMS},
            limit=limit,
        )
        for name, work in (("7 B decoder", LLAMA), ("base", BASE))
    ]
    speeds, costs = [], []
    for name, work, form, whole, batches in (
        ("7 B decoder", LLAMA, Form(parallel="fsdp"), 10**12, (2**20, 2**22, 2**24)),
        ("base", BASE, Form(parallel="ddp"), 10**10, (25_000, 400_000, 2**22)),
    ):

        def speed(one: Estimate, work: Workload = work) -> float:
            return one.sequences * work.length / one.time.total / one.gpus

        def hours(one: Estimate, whole: int = whole, work: Workload = work) -> float:
            return whole / (one.sequences * work.length) * one.time.total * one.gpus / 3600

        title = f"{name}, {form.parallel}"
        named = {f"{tokens:,} tokens a step": tokens for tokens in batches}
        speeds.append(
            Panel(
                title=title,
                y="tokens a second of each GPU",
                curves={label: curve(work, form, tokens, speed) for label, tokens in named.items()},
                logarithmic=False,
            )
        )
        costs.append(
            Panel(
                title=f"{title}, {whole:,} tokens",
                y="GPU hours",
                curves={label: curve(work, form, tokens, hours) for label, tokens in named.items()},
            )
        )
    FIGURES.mkdir(parents=True, exist_ok=True)
    drawn = {"memory.svg": memory, "speed.svg": speeds, "cost.svg": costs}
    for file, panels in drawn.items():
        draw_panels(panels, FIGURES / file)
        for panel in panels:
            print(file, panel.title, json.dumps(panel.curves))
    return [FIGURES / file for file in drawn]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("gpu", "cpu", "figures"))
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--models", nargs="+", choices=tuple(SMALL), default=list(SMALL))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if options.what == "figures":
        draw_figures()
        return
    found = check_gpu() if options.what == "gpu" else check_cpu(tuple(options.processes), options.models)
    if options.json:
        options.json.write_text(json.dumps(found, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
