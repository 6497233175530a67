"""What a device is and can do, in one place: which one `auto` takes, its widest float, its random numbers, its clock.

CPU and CUDA are tested. MPS, the GPU of a Mac, is untested: nothing here has one. What is known to be missing on it is
decided here, and tests check the decisions.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from clearhead.errors import OptionError, no_such
from clearhead.system import count_running

FLOATS = (torch.bfloat16, torch.float16, torch.float32)
"""Dtypes that models are computed in: kernels of their own take these."""
NO_FLOAT64 = frozenset({"mps"})
"""The kinds of device that have no float64."""
FOREACH = frozenset({"cpu", "cuda"})
"""The kinds of device on which gradients are clipped by one call for all; elsewhere torch decides how."""
DEVICES = ("auto", "cpu", "mps", "cuda")


def choose_device(name: str) -> torch.device:
    """Return the device of a name; `auto` is the first there is of cuda, mps and cpu. OptionError for one that is not.

    >>> choose_device("cpu")
    device(type='cpu')
    """
    if name == "auto":
        best = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
        return torch.device(best)
    try:
        device = torch.device(name)
    except RuntimeError:
        raise OptionError(f"device: {no_such(name, DEVICES, ', cuda:1 and so on')}") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise OptionError("device: there is no GPU that torch can use on this machine; take --device cpu, or auto")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise OptionError("device: torch finds no MPS, the GPU of a Mac, on this machine; take --device cpu, or auto")
    return device


def widest_float(device: torch.device) -> torch.dtype:
    """Return float64, for sums that must keep their digits; float32 where the device has no float64."""
    return torch.float32 if device.type in NO_FLOAT64 else torch.float64


def takes_foreach(device: torch.device) -> bool | None:
    """Return what to give torch as `foreach`: True if that is known to work; None leaves it to torch."""
    return True if device.type in FOREACH else None


def synchronize(device: torch.device) -> None:
    """Wait until the device has done what it was given; a CPU always has."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def seed_random(seed: int, device: torch.device) -> None:
    """Seed the CPU's random numbers and those of this device.

    `torch.manual_seed` does so for every kind of device there may be, and notes down a traceback for each that is not
    in use: two milliseconds of a training step under a profiler (torch 2.11, H200).
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        torch.cuda.default_generators[index].manual_seed(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)


def random_state(device: torch.device) -> Tensor:
    """Return the state of the device's random numbers."""
    if device.type == "cuda":
        return torch.cuda.get_rng_state(device)
    return torch.mps.get_rng_state() if device.type == "mps" else torch.get_rng_state()


def set_random_state(state: Tensor, device: torch.device) -> None:
    """Make the device draw on from this state."""
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    elif device.type == "mps":
        torch.mps.set_rng_state(state)
    else:
        torch.set_rng_state(state)


@contextlib.contextmanager
def fewer_threads_if_busy(device: torch.device) -> Iterator[None]:
    """Compute small steps with one thread where more threads want to run than the machine has cores.

    OpenMP's threads spin while they wait for each other. Where one has no core of its own, all of them wait for the
    scheduler at every operation, and decoding one sentence becomes several times slower than with a single thread.
    """
    threads = torch.get_num_threads()
    running = count_running() if device.type == "cpu" and threads > 1 else None
    if running is None or running <= (os.cpu_count() or 1):
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def on_device(tensor: Tensor) -> contextlib.AbstractContextManager[Any]:
    """Make the tensor's GPU the current one: Triton launches there."""
    if tensor.device.type != "cuda" or tensor.device.index == torch.cuda.current_device():
        return contextlib.nullcontext()
    return torch.cuda.device(tensor.device)
