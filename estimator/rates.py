"""Measuring what this machine can do, for estimates of training: matrix products, copies, memory, and links.

On a machine without a GPU the links are gloo's between two processes, as they are in training there.
"""

import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing

from estimator.estimate import Rates

PRODUCT = {"cpu": 1024, "cuda": 8192}
"""Width of the square matrices that are multiplied."""
COPIED = {"cpu": 1 << 27, "cuda": 1 << 31}
"""Bytes that are copied."""
ROUNDS = 5
PROCESSES = 2
"""Processes that sum numbers with each other, to measure the link between them."""
SENT = 1 << 24
"""Bytes that two processes sum."""


def measure_rates(bfloat16: bool) -> Rates:
    """Return the rates of this machine; on one with a GPU, the link is the default's, since it takes two to measure."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    tflops, copied = measure_device(device, bfloat16=bfloat16)
    if device.type == "cuda":
        memory = torch.cuda.get_device_properties(device).total_memory / 2**30
        return Rates(matrix_tflops=tflops, copy_gb_s=copied, memory_gib=memory)
    rate, latency = measure_link()
    return Rates(
        matrix_tflops=tflops,
        copy_gb_s=copied,
        memory_gib=free_memory() / 2**30,
        link_gb_s=rate,
        network_gb_s=rate,
        link_latency_us=latency,
        network_latency_us=latency,
        reserved_gib=0.0,
        on_cpu=True,
    )


def measure_device(device: torch.device, *, bfloat16: bool) -> tuple[float, float]:
    """Return the TFLOP/s of a product of large matrices, and the GB/s of a copy, bytes read and written."""
    n = PRODUCT[device.type]
    matrix = torch.ones(n, n, device=device, dtype=torch.bfloat16 if bfloat16 else torch.float32)
    product = quickest(lambda: matrix @ matrix, device)
    source = torch.ones(COPIED[device.type] // 4, device=device)
    target = torch.empty_like(source)
    copy = quickest(lambda: target.copy_(source), device)
    return 2 * n**3 / product / 1e12, 2 * 4 * source.numel() / copy / 1e9


def quickest(run: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of the quickest of some calls, after one that warms up."""
    seconds = []
    for _ in range(ROUNDS + 1):
        started = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - started)
    return min(seconds[1:])


def measure_link() -> tuple[float, float]:
    """Return the GB/s that each of some processes sends in a gloo all-reduce, and the microseconds of a small one."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(time_sums, (PROCESSES, folder), nprocs=PROCESSES)  # pyright: ignore[reportPrivateImportUsage]
        large, small = map(float, (Path(folder) / "seconds").read_text(encoding="ascii").split())
    sent = 2 * (PROCESSES - 1) / PROCESSES * SENT
    return sent / max(large - small, 1e-9) / 1e9, 1e6 * small / (2 * (PROCESSES - 1))


def time_sums(rank: int, processes: int, folder: str) -> None:
    """Time a large and a small all-reduce; rank 0 writes both."""
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", processes)  # pyright: ignore[reportPrivateImportUsage]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=processes, timeout=timedelta(minutes=2))
    sums = [torch.ones(SENT // 4), torch.ones(1)]
    seconds = [quickest(lambda tensor=tensor: dist.all_reduce(tensor.zero_()), torch.device("cpu")) for tensor in sums]
    if rank == 0:
        (Path(folder) / "seconds").write_text(" ".join(map(str, seconds)), encoding="ascii")
    dist.destroy_process_group()


def free_memory() -> int:
    """Return the bytes that programs can still have, by Linux; 8 GiB where it does not say."""
    meminfo = Path("/proc/meminfo")
    lines = meminfo.read_text(encoding="ascii").splitlines() if meminfo.exists() else []
    available = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")]
    return available[0] if available else 8 * 2**30
