"""What of a machine a recipe leaves open: device, precision, threads; settled before training, and recorded."""

import os
from dataclasses import replace

import torch

from clearhead.errors import OptionError
from clearhead.training.recipe import Machine

__all__ = ["chosen_device", "prepare_machine", "settled"]


def chosen_device(name: str) -> torch.device:
    """`auto` is a GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise OptionError(f"device: there is no {name!r}; there are auto, cpu, cuda and cuda:1 and so on") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise OptionError("device: there is no GPU that torch can use on this machine; take --device cpu, or auto")
    return device


def settled(machine: Machine) -> Machine:
    """The same with nothing left open."""
    device = chosen_device(machine.device)
    precision = machine.precision
    if precision == "auto":
        precision = "bfloat16" if device.type == "cuda" else "float32"
    return replace(machine, device=str(device), precision=precision, threads=machine.threads or torch.get_num_threads())


def prepare_machine(machine: Machine) -> torch.device:
    """Sets torch's threads and, where it is asked for, its deterministic mode. The same threads give the same bits."""
    if machine.threads is not None:
        torch.set_num_threads(machine.threads)
    if machine.deterministic:
        # cuBLAS asks for one of two sizes of workspace, and says no without; it reads this when it is first used.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    device = torch.device(machine.device)
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    return device
