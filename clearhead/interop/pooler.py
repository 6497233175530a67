"""The pooler of an imported encoder: a map that its vectors do not pass through, kept so that an export has it again.

BERT and RoBERTa without an output are saved with one. Nothing here computes with it; it lies in the run folder in a
file of its own, and goes back bit by bit.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from clearhead.errors import RunError

FILE = "pooler.safetensors"
NAMES = {"pooler.dense.weight": 2, "pooler.dense.bias": 1}
"""Its tensors, and how many axes each has."""


def is_pooler(name: str) -> bool:
    """Return whether a tensor of this name, with or without the prefix of its model, is the pooler's."""
    return name.endswith(tuple(NAMES))


def write_pooler(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write the tensors of a pooler, by the names they have in a bare model, into a run folder."""
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / FILE)


def read_pooler(folder: Path, d_model: int) -> dict[str, Tensor]:
    """Return the pooler in a run folder, as float32: nothing where there is none; RunError where it does not fit."""
    path = folder / FILE
    if not path.is_file():
        return {}
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise RunError(f"{path}: cannot be read ({error}); remove it to go on without the pooler") from None
    shapes = {name: list(tensor.shape) for name, tensor in tensors.items()}
    if shapes != {name: [d_model] * n for name, n in NAMES.items()}:
        raise RunError(f"{path}: is no pooler of {d_model} numbers; remove it to go on without")
    return {name: tensor.to(torch.float32) for name, tensor in tensors.items()}
