"""Check a file of weights against a model's spec before either takes memory.

A spec from a stranger can ask for any size. What it asks for is compared with the names and shapes in the file's
header, which no one can make large without a large file.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from safetensors import SafetensorError, safe_open

from clearhead.errors import ClearheadError, RunError
from clearhead.model.int8 import CODES, SCALE
from clearhead.model.shapes import build_for_shapes
from clearhead.model.sizes import Spec
from clearhead.model.spec_json import counts_in
from clearhead.serialization import check_regular
from clearhead.training.checkpoints import named_tensors


class TensorInfo(NamedTuple):
    """A tensor in a header: its dtype as safetensors calls it, and its shape."""

    dtype: str
    shape: tuple[int, ...]


Header = Mapping[str, TensorInfo]
FLOATS = {"F64", "F32", "F16", "BF16"}


def read_header(path: Path) -> dict[str, TensorInfo]:
    """Return the tensors of a safetensors file without reading them; RunError where it is none."""
    try:
        check_regular(path)
        with safe_open(path, framework="pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
            return {name: TensorInfo(part.get_dtype(), tuple(part.get_shape())) for name, part in slices.items()}
    except (OSError, SafetensorError) as error:
        raise RunError(f"{path}: cannot be read ({error})") from None


def with_float_weights(header: Header, where: str) -> dict[str, TensorInfo]:
    """Return a header with one float weight in place of each pair of int8 codes and scales, as a spec has it.

    Raises RunError where there is not a scale for each row of codes.
    """
    float_header = dict(header)
    for name, info in header.items():
        stem = name.removesuffix(CODES)
        if stem != name and info.dtype == "I8" and stem + SCALE in header:
            scale = header[stem + SCALE]
            if scale.shape != info.shape[:1] or scale.dtype not in FLOATS:
                raise RunError(
                    f"{where}: {stem}{SCALE} must have a number for each of the {info.shape[0]} rows of {name}"
                )
            del float_header[name], float_header[stem + SCALE]
            float_header[f"{stem}.weight"] = TensorInfo(scale.dtype, info.shape)
    return float_header


def check_shapes(spec: Spec, header: Header, where: str) -> None:
    """Raise RunError where the weights of a file do not fit the spec's model. It takes almost no memory."""
    blocks = sum(len(stack.blocks) for stack in spec.stacks)
    if blocks > len(header):
        raise RunError(f"{where}: the model has {blocks:,} blocks, and the file only {len(header):,} tensors")
    largest = max((size for info in header.values() for size in info.shape), default=0)
    for name, count in counts_in(spec):
        if count > largest:
            raise RunError(f"{where}: the model has a {name} of {count:,}, and no tensor in the file is so large")
    try:
        expected = named_tensors(build_for_shapes(spec))
    except (ClearheadError, RuntimeError, OverflowError, TypeError) as error:
        raise RunError(f"{where}: the model cannot be built ({str(error).splitlines()[0]})") from None
    if expected.keys() != header.keys():
        odd = sorted(expected.keys() ^ header.keys())
        raise RunError(f"{where}: its tensors are not this model's; they differ in {', '.join(odd[:3])}")
    for name, tensor in expected.items():
        if tuple(tensor.shape) != header[name].shape:
            raise RunError(f"{where}: {name} is {header[name].shape} and should be {tuple(tensor.shape)}")
        if tensor.is_floating_point() != (header[name].dtype in FLOATS):
            raise RunError(f"{where}: {name} is of {header[name].dtype} and should be {tensor.dtype}")
