"""Several LoRA adapters beside one model: each row of a batch is computed with its own, or with none.

The weights are there once. Adapters of a map are stacked, with zeros for rows that have none, so that rows of different
adapters are one batch.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from clearhead.errors import OptionError
from clearhead.model.lora import AdaptedLinear, replace_module


@final
class AdapterSwitch:
    """Says which adapter each row has, for all maps of a model: 0 is none. Outside of `use` all rows have none."""

    def __init__(self) -> None:
        self.rows: Int[Tensor, "row"] | None = None

    @contextlib.contextmanager
    def use(self, rows: Int[Tensor, "row"]) -> Iterator[None]:
        self.rows = rows
        try:
            yield
        finally:
            self.rows = None


@final
class SharedLinear(nn.Linear):
    """A linear map with adapters of every row's choice beside its weight. The weight and the bias keep their names."""

    def __init__(self, plain: nn.Linear, adapters: Sequence[AdaptedLinear | None], switch: AdapterSwitch) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features, self.switch = plain.in_features, plain.out_features, switch
        self.weight, self.bias = plain.weight, plain.bias
        rank = max(len(adapter.adapter_down) for adapter in adapters if adapter is not None)
        self.downs: Float[Tensor, "adapter rank d_in"]
        self.ups: Float[Tensor, "adapter d_out rank"]
        downs = plain.weight.new_zeros(1 + len(adapters), rank, plain.in_features)
        ups = plain.weight.new_zeros(1 + len(adapters), plain.out_features, rank)
        for number, adapter in enumerate(adapters, 1):
            if adapter is not None:
                own = len(adapter.adapter_down)
                downs[number, :own] = adapter.adapter_down.detach()
                ups[number, :, :own] = adapter.adapter_up.detach() * adapter.scale
        self.register_buffer("downs", downs, persistent=False)
        self.register_buffer("ups", ups, persistent=False)

    def forward(self, input: Float[Tensor, "row *n d_in"]) -> Float[Tensor, "row *n d_out"]:
        output, rows = super().forward(input), self.switch.rows
        if rows is None:
            return output
        inner = torch.bmm(input.reshape(len(rows), -1, self.in_features), self.downs[rows].mT)
        return output + torch.bmm(inner, self.ups[rows].mT).view_as(output)


def share_adapters(model: nn.Module, adapted: Sequence[nn.Module]) -> AdapterSwitch:
    """Put the adapters of models with the same weights beside this model's maps, in place: number i + 1 is the i-th's.

    The other models then have this one's weights: their memory is freed. Raises OptionError where a model has other
    weights than this one, or no adapters.
    """
    switch, plain = AdapterSwitch(), dict(model.named_modules())
    for number, other in enumerate(adapted, 1):
        check_same_weights(model, other, number)
        for name, parameter in model.named_parameters():
            other.get_parameter(name).data = parameter.data
    named = [
        {name: module for name, module in other.named_modules() if isinstance(module, AdaptedLinear)}
        for other in adapted
    ]
    for name in dict.fromkeys(name for modules in named for name in modules):
        base = plain[name]
        if type(base) is not nn.Linear:
            raise OptionError(f"adapters stand beside plain weights, and {name} is a {type(base).__name__}")
        replace_module(model, name, SharedLinear(base, [modules.get(name) for modules in named], switch))
    return switch


def check_same_weights(model: nn.Module, other: nn.Module, number: int) -> None:
    own, theirs = model.state_dict(), other.state_dict()
    if not any(isinstance(module, AdaptedLinear) for module in other.modules()):
        raise OptionError(f"adapter {number}: its model has no LoRA adapters; load it with merge=False")
    wrong = next((name for name in own if name not in theirs or not torch.equal(own[name], theirs[name])), None)
    if wrong is not None:
        raise OptionError(f"adapter {number}: its {wrong} is not that of the model that it should stand beside")


def find_switch(model: nn.Module) -> AdapterSwitch | None:
    """Return what chooses the adapters of a model's rows; None where it has none to choose from."""
    return next((module.switch for module in model.modules() if isinstance(module, SharedLinear)), None)
