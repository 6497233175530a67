"""Linear maps whose weights are kept as int8, a quarter of float32's memory; and all the ways that weights are kept in
memory, by name (`DTYPES`).

Each row of a weight is kept as whole numbers from -127 to 127 and one scale, its largest number divided by 127. Only
weights are rounded: inputs, sums and everything between the maps stay floating-point numbers, unless `quantize` is told
to round inputs too. Tables of positions, norms and biases are kept as they are. On a CPU the products are those of
`clearhead.model.int8_matmul`.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import final

import torch
from jaxtyping import Float, Int8
from torch import Tensor, nn
from torch.nn import functional as F

from clearhead.attention.cpu_matmul import find_matrix
from clearhead.calls import public
from clearhead.errors import OptionError, no_such
from clearhead.model import int8_matmul, lora
from clearhead.model.fast_step import FastStep, StepMatrix, SteppedLinear, join_matrices, multiply_by
from clearhead.model.fused_step import FusedLinear
from clearhead.model.int8_matmul import ROUNDED, Int8Matrix
from clearhead.model.outputs import ToNgramLogits, ToVocabulary

CODES, SCALE = ".codes", ".scale"
"""How the names of the two tensors end that are kept instead of one `.weight`."""


@final
class Int8Linear(SteppedLinear):
    """A linear map whose weight is stored as int8 `codes` and a `scale` for each output. The bias keeps its name.

    It is not a subclass of `nn.Linear`, so training calls it instead of reading its weight.

    Args:
        plain: The map to store.

    >>> import torch
    >>> from clearhead.model import Int8Linear
    >>> Int8Linear(torch.nn.Linear(8, 4))(torch.randn(2, 8)).shape
    torch.Size([2, 4])
    """

    codes: Int8[Tensor, "d_out d_in"]
    scale: Float[Tensor, "d_out"]
    digits: int = int8_matmul.EXACT

    def __init__(self, plain: nn.Linear) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features, self.bias = plain.in_features, plain.out_features, plain.bias
        codes, scale = int8_matmul.round_to_int8(plain.weight.detach())
        self.register_buffer("codes", codes)
        self.register_buffer("scale", scale)
        self.train(plain.training)

    @property
    def weight(self) -> Float[Tensor, "d_out d_in"]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Return the weight as floating-point numbers, made anew each time."""
        return self.codes.to(self.scale.dtype) * self.scale[:, None]

    def forward(self, input: Float[Tensor, "*place d_in"]) -> Float[Tensor, "*place d_out"]:
        if self.codes.is_cpu and int8_matmul.can_multiply(input, self.bias):
            bias = None if self.bias is None else self.bias.float()
            rows = self.matrix()(input.reshape(-1, self.in_features).float(), bias)
            return rows.view(*input.shape[:-1], self.out_features).to(input.dtype)
        # Codes up to 127 are exact in every float. Scaling the few outputs is cheaper than scaling the weight.
        product = F.linear(input, self.codes.to(input.dtype)) * self.scale
        return product if self.bias is None else product + self.bias

    def matrix(self, others: Sequence["Int8Linear"] = ()) -> int8_matmul.Int8Matrix:
        """Return this map's matrix for products on a CPU, with the matrices of others below it."""
        codes, scales = zip(*((linear.codes, linear.scale) for linear in (self, *others)), strict=True)
        return find_matrix(
            self,
            [*codes, *scales],
            self.digits,
            lambda: Int8Matrix(join_tensors(codes), join_tensors(scales).float(), self.digits),
        )

    @property
    def step_kind(self) -> Hashable:
        if self.codes.is_cpu and self.scale.dtype is not torch.float32:
            return None
        return self.codes.device.type, self.digits, self.bias is None

    @property
    def step_matrix(self) -> StepMatrix:
        return StepMatrix(self.codes, self.bias, self.scale)

    def join_step(self, others: Sequence[nn.Module] = ()) -> FastStep:
        maps = [self, *(linear for linear in others if isinstance(linear, Int8Linear))]
        if not self.codes.is_cpu:
            return FusedLinear(join_matrices([linear.step_matrix for linear in maps])).multiply_many
        biases: list[Tensor] = [linear.bias for linear in maps if linear.bias is not None]
        matrix, bias = self.matrix(maps[1:]), torch.cat(biases) if biases else None
        if matrix.unpacked is not None:
            return multiply_by(matrix.unpacked, bias)
        return lambda x: matrix(x, bias)

    def plain(self) -> nn.Linear:
        """Return a plain map with this map's rounded weight."""
        linear = nn.Linear(self.in_features, self.out_features, bias=self.bias is not None, device="meta")
        linear.weight, linear.bias = nn.Parameter(self.weight), self.bias
        return linear.train(self.training)


def join_tensors(tensors: Sequence[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))


def quantize(model: nn.Module, names: Iterable[str] | None = None) -> nn.Module:
    """Replace the linear maps with these names, or all in the blocks, by int8 ones in place; return the model.

    Maps that share a weight with them are replaced too, and share its codes: a tensor is saved once, by its first name.
    Raises OptionError if a name is not that of a plain linear map.
    """
    if names is None:
        names = [
            name for name, module in model.named_modules() if "blocks" in name.split(".") and type(module) is nn.Linear
        ]
    modules, weights = dict(model.named_modules()), set[Tensor]()
    for name in names:
        plain = modules.get(name)
        if type(plain) is not nn.Linear:
            raise OptionError(f"{name} is no plain linear map, so its weight cannot be int8")
        weights.add(plain.weight)
    replacements, first = dict[nn.Module, nn.Module](), dict[Tensor, Int8Linear]()
    for plain in modules.values():
        if type(plain) is nn.Linear and plain.weight in weights:
            rounded = replacements[plain] = Int8Linear(plain)
            shared = first.setdefault(plain.weight, rounded)
            rounded.codes, rounded.scale = shared.codes, shared.scale
    return replace_everywhere(model, replacements)


def replace_everywhere(model: nn.Module, replacements: Mapping[nn.Module, nn.Module]) -> nn.Module:
    """Replace modules in place, at every name that each of them has; return the model."""
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if module in replacements:
            lora.replace_module(model, name, replacements[module])
    return model


@torch.no_grad()
def quantize_output(model: nn.Module) -> nn.Module:
    """Round the tables of outputs over a vocabulary to int8, in place, and multiply by them as such on a CPU.

    The table stays a float table of the rounded numbers, so that an embedding that shares it reads the same ones.
    """
    for module in model.modules():
        if isinstance(module, ToVocabulary) and module.int8_digits is None:
            codes, scale = int8_matmul.round_to_int8(module.table)
            module.table.copy_(codes.to(scale.dtype) * scale[:, None])
            module.int8_digits = int8_matmul.EXACT
    return model


@public
def round_inputs(model: nn.Module) -> nn.Module:
    """Let int8 maps round their inputs to 7 bits on a CPU, each row by its largest number.

    Args:
        model: A model with int8 maps.

    Returns:
        The same model.

    >>> import torch
    >>> from clearhead.model import Int8Linear, round_inputs
    >>> model = round_inputs(torch.nn.Sequential(Int8Linear(torch.nn.Linear(8, 4))))
    """
    for module in model.modules():
        if isinstance(module, Int8Linear):
            module.digits = int8_matmul.ROUNDED
        elif isinstance(module, ToVocabulary) and module.int8_digits is not None:
            module.int8_digits = int8_matmul.ROUNDED
    return model


def int8_maps(tensors: Mapping[str, Tensor]) -> list[str]:
    """Return the names of the int8 maps among the tensors of a model."""
    names = (
        name.removesuffix(CODES)
        for name, tensor in tensors.items()
        if name.endswith(CODES) and tensor.dtype is int8_matmul.INT8
    )
    return [name for name in names if name + SCALE in tensors]


def count_weights(model: nn.Module) -> int:
    """Return how many parameters a model has, including those that are kept as int8 and those of a wide part."""
    codes = {module.codes for module in model.modules() if isinstance(module, Int8Linear)}
    parts = (module for module in model.modules() if isinstance(module, ToNgramLogits))
    wide = [tensor for part in parts for tensor in part.weights().values()]
    return sum(tensor.numel() for tensor in (*model.parameters(), *codes, *wide))


def dequantize(model: nn.Module) -> nn.Module:
    """Replace every int8 map by a plain one with the rounded weight, in place; return the model."""
    replacements, weights = dict[nn.Module, nn.Module](), dict[Tensor, Tensor]()
    for module in model.modules():
        if isinstance(module, ToVocabulary):
            module.int8_digits = None
        if isinstance(module, Int8Linear):
            plain = replacements[module] = module.plain()
            plain.weight = weights.setdefault(module.codes, plain.weight)  # shared where the codes were
    return replace_everywhere(model, replacements)


def to_int8(model: nn.Module) -> nn.Module:
    """Round the linear maps of the blocks and the output over the vocabulary to int8, in place; return the model."""
    return quantize_output(quantize(model.float()))


DTYPES: Mapping[str, Callable[[nn.Module], nn.Module]] = {
    "float32": lambda model: dequantize(model).float(),
    "bfloat16": lambda model: dequantize(model).bfloat16(),
    "int8": to_int8,
    "int8-dynamic": lambda model: round_inputs(to_int8(model)),
    "int8-bfloat16": lambda model: quantize(model.bfloat16()),
}
"""What makes a model so, in place, by name. `int8` rounds weights alone; `int8-dynamic` rounds what they are multiplied
with as well, to 7 bits, which is faster for batches on a CPU. `int8-bfloat16` is the one for a GPU: the maps of the
blocks are int8, and everything else is bfloat16."""


def check_dtype(name: str | None) -> None:
    """Raise OptionError for a name that is not in `DTYPES`; None, weights as they were saved, is fine."""
    if name is not None and name not in DTYPES:
        raise OptionError(f"dtype: {no_such(name, DTYPES)}")


def dtype_name(model: nn.Module) -> str:
    """Return how a model's weights are kept, by its name in `DTYPES`; another dtype by torch's name.

    >>> dtype_name(nn.Linear(2, 2).bfloat16())
    'bfloat16'
    """
    for module in model.modules():
        if isinstance(module, Int8Linear):
            if module.scale.dtype is torch.bfloat16:
                return "int8-bfloat16"
            return "int8-dynamic" if module.digits == ROUNDED else "int8"
    return str(next(iter(model.parameters())).dtype).removeprefix("torch.")
