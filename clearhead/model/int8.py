"""Linear maps whose weights are kept as int8: a quarter of float32's memory.

Each row of a weight is kept as whole numbers from -127 to 127 and one scale, its largest number divided by 127. Only
weights are rounded: inputs, sums and everything between the maps stay floating-point numbers. Tables of tokens and
positions, norms and biases are kept as they are.
"""

from collections.abc import Iterable, Mapping
from typing import final

import torch
from jaxtyping import Float, Int8
from torch import Tensor, nn
from torch.nn import functional as F

from clearhead.errors import OptionError
from clearhead.model.lora import replace_module

__all__ = ["CODES", "SCALE", "Int8Linear", "count_weights", "dequantize", "int8_maps", "quantize"]

CODES, SCALE = ".codes", ".scale"
"""How the names of the two tensors end that are kept instead of one `.weight`."""
STEPS, INT8 = 127, torch.int8


@final
class Int8Linear(nn.Linear):
    """A linear map whose weight is kept as int8 `codes` and a `scale` for each output. The bias keeps its name.

    It is a subclass, so training and the fast step of decoding do not read its weight as a plain map's: they call it.
    """

    codes: Int8[Tensor, "d_out d_in"]
    scale: Float[Tensor, "d_out"]

    def __init__(self, plain: nn.Linear) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features, self.bias = plain.in_features, plain.out_features, plain.bias
        weight = plain.weight.detach()
        scale = weight.abs().amax(1) / STEPS
        codes = torch.round(weight / scale.where(scale > 0, 1)[:, None]).clamp(-STEPS, STEPS).to(INT8)
        self.register_buffer("codes", codes)
        self.register_buffer("scale", scale)
        self.train(plain.training)

    @property
    def weight(self) -> Float[Tensor, "d_out d_in"]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The weight as floating-point numbers, made anew each time."""
        return self.codes.to(self.scale.dtype) * self.scale[:, None]

    def forward(self, input: Float[Tensor, "*place d_in"]) -> Float[Tensor, "*place d_out"]:
        # Codes up to 127 are exact in every float. Scaling the few outputs is cheaper than scaling the weight.
        product = F.linear(input, self.codes.to(input.dtype)) * self.scale
        return product if self.bias is None else product + self.bias

    def plain(self) -> nn.Linear:
        """Return a plain map with this map's rounded weight."""
        made = nn.Linear(self.in_features, self.out_features, bias=self.bias is not None, device="meta")
        made.weight, made.bias = nn.Parameter(self.weight), self.bias
        return made.train(self.training)


def quantize(model: nn.Module, names: Iterable[str] | None = None) -> nn.Module:
    """Replace the linear maps with these names, or all in the blocks, by int8 ones in place; return the model.

    Raises OptionError if a name is not that of a plain linear map.
    """
    if names is None:
        blocks = (one for one in model.named_modules() if "blocks" in one[0].split("."))
        names = [name for name, module in blocks if type(module) is nn.Linear]
    modules = dict(model.named_modules())
    for name in names:
        plain = modules.pop(name, None)
        if type(plain) is not nn.Linear:
            raise OptionError(f"{name} is no plain linear map, so its weight cannot be int8")
        replace_module(model, name, Int8Linear(plain))
    return model


def int8_maps(tensors: Mapping[str, Tensor]) -> list[str]:
    """Return the names of the int8 maps among the tensors of a model."""
    found = (name.removesuffix(CODES) for name, one in tensors.items() if name.endswith(CODES) and one.dtype is INT8)
    return [name for name in found if name + SCALE in tensors]


def count_weights(model: nn.Module) -> int:
    """Return how many parameters a model has, including those that are kept as int8."""
    maps = (one for one in model.modules() if isinstance(one, Int8Linear))
    return sum(one.numel() for one in model.parameters()) + sum(one.codes.numel() for one in maps)


def dequantize(model: nn.Module) -> nn.Module:
    """Replace every int8 map by a plain one with the rounded weight, in place; return the model."""
    for name, module in list(model.named_modules()):
        if isinstance(module, Int8Linear):
            replace_module(model, name, module.plain())
    return model
