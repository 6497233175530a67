"""Puts numbers and texts into a page: JSON without a "<", bytes as base64, tensors in a block, steps as differences."""

import base64
import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clearhead.training.reporting import replace_nonfinite

Tensors = Mapping[str, Tensor]
LEVELS = 1023
"""The numbers of a matrix's row are rounded to so many steps up to its largest one, and as many down: 11 bits."""
VECTOR_LEVELS = 32_767
"""Those of a vector (a norm, a bias) in 16 bits: they are few, and each changes every token."""


class PackedSteps(NamedTuple):
    """Weights of several steps in a page: which tensors there are, and a base64 line for the scales and each step."""

    tensors: dict[str, list[int]]
    lines: list[str]


def script_json(data: object) -> str:
    """Return JSON that can be inside a script: there is no "<" in it, so nothing ends the script."""
    text = json.dumps(replace_nonfinite(data), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def deflate(content: bytes) -> str:
    return base64.b64encode(zlib.compress(content, 6)).decode()


def pack_tensors(tensors: Tensors, dtype: torch.dtype) -> tuple[dict[str, Any], bytes]:
    """Return where each tensor lies in one block of bytes, little-endian and aligned to 4, and the block.

    What float16 does not hold exactly, as a product of two rounded matrices, is float32 in any case.
    """
    listed: dict[str, Any] = {}
    parts: list[bytes] = []
    offset = 0
    for name, value in tensors.items():
        stored_as = dtype if torch.equal(value.to(dtype).float(), value) else torch.float32
        array = value.to(stored_as).contiguous().numpy()
        content = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
        content += bytes(-len(content) % 4)
        listed[name] = {"shape": list(value.shape), "dtype": str(stored_as).removeprefix("torch."), "offset": offset}
        parts.append(content)
        offset += len(content)
    return listed, b"".join(parts)


def pack_steps(steps: Sequence[int], load: Callable[[int], Tensors]) -> PackedSteps:
    """Return the weights of these steps: whole numbers on a scale that all steps share, so that what a step changes
    little is small, and each step as its difference from the one before. `load` is asked twice for each.

    A tensor that some step does not have, as a bias that is zero, is zeros there.
    """
    scales: dict[str, Tensor] = {}
    shapes: dict[str, list[int]] = {}
    for step in steps:
        for name, value in load(step).items():
            shapes[name] = list(value.shape)
            scales[name] = torch.maximum(scale_of(value), scales.get(name, torch.zeros(1)))
    lines = [deflate(b"".join(scale.numpy().astype("<f4").tobytes() for scale in scales.values()))]
    before = np.zeros(sum(int(np.prod(shape)) for shape in shapes.values()), dtype=np.int16)
    for step in steps:
        tensors = load(step)
        now = np.concatenate(
            [levels(tensors.get(name, torch.zeros(shapes[name])), scale) for name, scale in scales.items()]
        )
        lines.append(deflate(difference(now, before)))
        before = now
    return PackedSteps(shapes, lines)


def scale_of(value: Tensor) -> Tensor:
    """Return what one level of each row stands for; of a vector, of all of it."""
    rows = value.flatten(1) if value.ndim > 1 else value.unsqueeze(0)
    most = LEVELS if value.ndim > 1 else VECTOR_LEVELS
    return rows.abs().amax(1) / most if rows.shape[1] else torch.zeros(len(rows))


def levels(value: Tensor, scale: Tensor) -> NDArray[np.int16]:
    rows = value.flatten(1) if value.ndim > 1 else value.unsqueeze(0)
    whole = (rows / scale.where(scale > 0, torch.ones(())).unsqueeze(1)).round()
    return whole.to(torch.int16).flatten().numpy()


def difference(now: NDArray[np.int16], before: NDArray[np.int16]) -> bytes:
    """Return a step's change of each level: small ones, up and down, as small numbers; all low bytes, then all high."""
    change = now - before  # wraps around, and so does the page when it adds
    folded = ((change << 1) ^ (change >> 15)).astype("<u2")
    return folded.view(np.uint8).reshape(-1, 2).T.tobytes()
