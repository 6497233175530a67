"""How a model's weights are kept in memory, by name: what `ch.load(run, dtype=...)` and `--dtype` choose from."""

from collections.abc import Callable, Mapping

from torch import nn

from clearhead.errors import OptionError, no_such
from clearhead.model.int8 import Int8Linear, dequantize, quantize, quantize_output, round_inputs
from clearhead.model.int8_matmul import ROUNDED


def to_int8(model: nn.Module) -> nn.Module:
    """Round the linear maps of the blocks and the output over the vocabulary to int8, in place; return the model."""
    return quantize_output(quantize(model.float()))


DTYPES: Mapping[str, Callable[[nn.Module], nn.Module]] = {
    "float32": lambda model: dequantize(model).float(),
    "bfloat16": lambda model: dequantize(model).bfloat16(),
    "int8": to_int8,
    "int8-dynamic": lambda model: round_inputs(to_int8(model)),
}
"""What makes a model so, in place, by name. `int8` rounds weights alone; `int8-dynamic` rounds what they are multiplied
with as well, to 7 bits, which is faster for batches on a CPU."""


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
            return "int8-dynamic" if module.digits == ROUNDED else "int8"
    return str(next(iter(model.parameters())).dtype).removeprefix("torch.")
