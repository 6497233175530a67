"""Models that are built for their shapes alone: whether a spec can be built, and which tensors it has.

>>> from clearhead.model import presets
>>> model = build_for_shapes(presets.gpt2("tiny", vocabulary=50))
>>> sum(parameter.numel() for parameter in model.parameters())
168832
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, final

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from clearhead.model.transformers import DecoderSpec, EncoderDecoderSpec, EncoderSpec

SMALL = 8_000_000
"""Numbers of a model up to which it is built for real to see its shapes, in a tenth of a second."""


@final
class TooManyNumbers(Exception):
    """More numbers were asked for than are allowed."""


@final
class Bounded(TorchFunctionMode):
    """Raise TooManyNumbers, before any memory is taken, where tensors of more than `limit` numbers in all are made."""

    def __init__(self, limit: int | float) -> None:
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


@final
class WithoutValues(TorchFunctionMode):
    """Within it, tensors are made on the meta device and never filled: what fills or scales one returns it as it is.

    To compute on that device, torch imports 880 modules at the first use, which takes most of a second.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        fills = name.endswith("_") and not name.endswith("__") and name != "requires_grad_"
        scales = func is torch.Tensor.mul and isinstance(args[1], int | float)
        if fills or scales:
            return args[0] if args else kwargs["tensor"]
        if func in (torch.rand, torch.randn):
            func, kwargs = torch.empty, {key: value for key, value in kwargs.items() if key != "generator"}
        if func in (torch.rand_like, torch.randn_like):
            return torch.empty(args[0].shape)
        if func is torch.arange:  # short, and computed with
            kwargs = {**kwargs, "device": "cpu"}
        return func(*args, **kwargs)


def build_for_shapes(spec: EncoderSpec | DecoderSpec | EncoderDecoderSpec) -> nn.Module:
    """Build a model for its shapes alone: with real weights where it is small, else on the meta device."""
    try:
        with torch.random.fork_rng(devices=[]), Bounded(SMALL):
            return spec.build()
    except TooManyNumbers:
        with torch.device("meta"), WithoutValues():
            return spec.build()
