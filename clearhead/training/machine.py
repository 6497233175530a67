"""What of a machine a recipe leaves open: device, precision, threads; decided before training, and recorded."""

import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import final

import torch

from clearhead.devices import choose_device
from clearhead.errors import OptionError
from clearhead.training.distributed import current_processes
from clearhead.training.recipe import Machine

TRIAL_SECONDS = 0.15
WORTH = 1.1
"""How much quicker more threads must be to be worth having."""
BUSY_SHARE = 0.6
"""A process that is given less than this share of the cores it asks for is on a busy machine."""
RECHECK_SECONDS = 60.0


def resolve_machine(machine: Machine) -> Machine:
    """Return the machine with nothing left open. OptionError for a precision that the device is not run in, and for
    keyed dropout where what is dropped is compiled or computed twice.
    """
    device = choose_device(machine.device)
    precision = machine.precision
    if precision == "auto":
        precision = "bfloat16" if device.type == "cuda" else "float32"
    if precision == "bfloat16" and device.type == "mps":
        raise OptionError("precision: bfloat16 is not offered on mps; take --precision float32, or auto")
    excluding = "--compile" if machine.compile else "--activation-checkpointing"
    excluded = machine.compile or machine.activation_checkpointing
    if machine.keyed_dropout and excluded:
        raise OptionError(f"keyed_dropout: is not offered with {excluding}; leave out one of the two")
    keyed = machine.keyed_dropout
    if keyed is None and current_processes().together:
        keyed = not excluded and device.type == "cpu"  # on a GPU it would form the weights that its kernels do not
    # Of all processes on this machine together, so that a resume with fewer of them has as many.
    threads = machine.threads or torch.get_num_threads() * current_processes().local_count
    return replace(machine, device=str(device), precision=precision, threads=threads, keyed_dropout=keyed)


def prepare_machine(machine: Machine) -> torch.device:
    """Set torch's threads and, where it is asked for, its deterministic mode.

    On the same processor and torch, the same threads give the same bits.
    """
    if machine.threads is not None:
        torch.set_num_threads(current_processes().threads(machine.threads))
    if machine.deterministic:
        # cuBLAS asks for one of two sizes of workspace, and says no without; it reads this when it is first used.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    device = torch.device(machine.device)
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    return device


def serving_threads(most: int) -> int:
    """Return how many threads serve at the moment: on a busy machine fewer may be quicker than all.

    Threads wait for each other at the end of every operation. One that has no core of its own holds up all the others.
    """
    best, best_speed = 1, 0.0
    count = most
    while count >= 1:
        speed = matmul_speed(count)
        if speed > WORTH * best_speed or (best > count and speed * WORTH > best_speed):
            best, best_speed = count, max(speed, best_speed)
        count //= 2
    return best


def matmul_speed(threads: int) -> float:
    """Return the FLOPs a second of products of matrices like those of a small model, with so many threads.

    It is the mean over a while, so it tells what a busy machine gives. The threads are then as they were.
    """
    before = torch.get_num_threads()
    left, right = torch.ones(1024, 128), torch.ones(128, 512)
    try:
        torch.set_num_threads(threads)
        (left @ right).relu()
        started, count = time.perf_counter(), 0
        while (seconds := time.perf_counter() - started) < TRIAL_SECONDS or count < 2:
            (left @ right).relu()
            count += 1
    finally:
        torch.set_num_threads(before)
    return 2 * left.numel() * right.shape[1] * count / seconds


def with_serving_threads(machine: Machine, log: Callable[[str], None]) -> Machine:
    """Return the machine with fewer threads where it is busy, if they may adapt, and log it; set them."""
    most = machine.threads or torch.get_num_threads()
    if not machine.adapt_threads or most < 2 or torch.device(machine.device).type != "cpu":
        return machine
    serving = serving_threads(most)
    if serving < most:
        log(f"the machine is busy: {serving} of {most} threads serve{'s' * (serving == 1)} best, and no more are used")
    torch.set_num_threads(serving)
    return replace(machine, threads=serving)


@final
class ThreadWatch:
    """Watches whether the machine has become busy, and lowers the number of threads to what serves."""

    def __init__(self, machine: Machine, log: Callable[[str], None]) -> None:
        self.machine, self.log = machine, log
        self.wall, self.work = time.perf_counter(), time.process_time()

    def look(self) -> None:
        """Compare wall time and processor time since the last look, at most once a minute."""
        wall, work = time.perf_counter() - self.wall, time.process_time() - self.work
        if not self.machine.adapt_threads or wall < RECHECK_SECONDS:
            return
        threads = torch.get_num_threads()
        if threads > 1 and work / wall / threads < BUSY_SHARE:
            self.machine = with_serving_threads(replace(self.machine, threads=threads), self.log)
        self.wall, self.work = time.perf_counter(), time.process_time()
