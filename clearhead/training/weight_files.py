"""Check a file of weights against a model's spec before either takes memory.

A spec from a stranger can ask for any size. What it asks for is compared with the names and shapes in the file's
header, which no one can make large without a large file.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, final

import torch
from safetensors import SafetensorError, safe_open
from torch import nn
from torch.overrides import TorchFunctionMode

from clearhead.errors import ClearheadError, RunError
from clearhead.model.sizes import Spec
from clearhead.model.spec_json import counts_in
from clearhead.model.transformers import EncoderDecoderSpec
from clearhead.serialization import check_regular
from clearhead.training.checkpoints import named_tensors

__all__ = ["Header", "TensorInfo", "check_shapes", "read_header"]


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
            return {name: TensorInfo(one.get_dtype(), tuple(one.get_shape())) for name, one in slices.items()}
    except (OSError, SafetensorError) as error:
        raise RunError(f"{path}: cannot be read ({error})") from None


def check_shapes(spec: Spec, header: Header, where: str) -> None:
    """Raise RunError where the weights of a file do not fit the spec's model. It takes almost no memory."""
    stacks = (spec.encoder, spec.decoder) if isinstance(spec, EncoderDecoderSpec) else (spec,)
    blocks = sum(len(stack.blocks) for stack in stacks)
    if blocks > len(header):
        raise RunError(f"{where}: the model has {blocks:,} blocks, and the file only {len(header):,} tensors")
    largest = max((size for one in header.values() for size in one.shape), default=0)
    for name, count in counts_in(spec):
        if count > largest:
            raise RunError(f"{where}: the model has a {name} of {count:,}, and no tensor in the file is so large")
    try:
        expected = named_tensors(build_small(spec, header) or build_on_meta(spec))
    except (ClearheadError, RuntimeError, OverflowError, TypeError) as error:
        raise RunError(f"{where}: the model cannot be built ({str(error).splitlines()[0]})") from None
    if expected.keys() != header.keys():
        odd = sorted(expected.keys() ^ header.keys())
        raise RunError(f"{where}: its tensors are not this model's; they differ in {', '.join(odd[:3])}")
    for name, one in expected.items():
        if tuple(one.shape) != header[name].shape:
            raise RunError(f"{where}: {name} is {header[name].shape} and should be {tuple(one.shape)}")
        if one.is_floating_point() != (header[name].dtype in FLOATS):
            raise RunError(f"{where}: {name} is of {header[name].dtype} and should be {one.dtype}")


SMALL = 8_000_000
"""Numbers in a file up to which its model is built for real to see its shapes, in a tenth of a second.

The meta device would need torch._dynamo and sympy for it, and these take two seconds to import.
"""


@final
class TooManyNumbers(Exception):
    """More numbers were asked for than a file has."""


@final
class Bounded(TorchFunctionMode):
    """Raise TooManyNumbers, before any memory is taken, where tensors of more than `limit` numbers in all are made."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.left = limit

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in (torch.empty, torch.zeros, torch.ones, torch.rand, torch.randn):
            size = kwargs.get("size", args)
            self.left -= math.prod(size[0] if len(size) == 1 and isinstance(size[0], Sequence) else size)
            if self.left < 0:
                raise TooManyNumbers
        return func(*args, **kwargs)


def build_small(spec: Spec, header: Header) -> nn.Module | None:
    """Build the spec's model for real where the file is small; None where it is not, or the model has more in it."""
    numbers = sum(math.prod(one.shape) for one in header.values())
    if numbers > SMALL:
        return None
    try:
        with torch.random.fork_rng(devices=[]), Bounded(2 * numbers + SMALL):
            return spec.build()
    except TooManyNumbers:
        return None


def build_on_meta(spec: Spec) -> nn.Module:
    """Build the spec's model without memory for its numbers."""
    with torch.device("meta"):
        return spec.build()
