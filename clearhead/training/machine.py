"""What of a machine a recipe leaves open: device, precision, threads; decided before training, and recorded."""

import os
from dataclasses import replace

import torch

from clearhead.devices import choose_device
from clearhead.errors import OptionError
from clearhead.training.recipe import Machine

__all__ = ["prepare_machine", "resolve_machine"]


def resolve_machine(machine: Machine) -> Machine:
    """Return the machine with nothing left open. OptionError for a precision that the device is not run in."""
    device = choose_device(machine.device)
    precision = machine.precision
    if precision == "auto":
        precision = "bfloat16" if device.type == "cuda" else "float32"
    if precision == "bfloat16" and device.type == "mps":
        raise OptionError("precision: bfloat16 is not offered on mps; take --precision float32, or auto")
    return replace(machine, device=str(device), precision=precision, threads=machine.threads or torch.get_num_threads())


def prepare_machine(machine: Machine) -> torch.device:
    """Set torch's threads and, where it is asked for, its deterministic mode. The same threads give the same bits."""
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
