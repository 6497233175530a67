"""LoRA: low-rank adapters beside frozen linear maps.

A map W becomes W + (alpha / rank) · up · down. W stays as it is; `down` (rank x inputs) starts at random and `up`
(outputs x rank) at zero, so that the model starts out unchanged. `merge_adapters` adds the product to W, which gives
back a plain model: nothing is slower than before.

Several adapters can serve one batch: each row is computed with its own, or with none. The weights are there once;
adapters of a map are stacked, with zeros for rows that have none.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, dataclass
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from clearhead.attention.cpu_matmul import multiply
from clearhead.calls import CodeRepr
from clearhead.errors import OptionError
from clearhead.options import check_declared, option

MAPS = ("query", "key", "value", "output", "up", "down", "gate")
"""The linear maps of a block that can have an adapter: those of attention, then those of the feed-forward."""
ALL = "all"
"""The name that stands for every map there is."""
DOWN, UP = "adapter_down", "adapter_up"


@dataclass(frozen=True, kw_only=True)
class Lora(CodeRepr):
    """Adapters of this `rank` beside these `maps` of every block; `alpha` None is twice the rank.

    >>> Lora(rank=8).scale
    2.0
    """

    rank: int = option(
        MISSING,
        "LoRA: train adapters of this rank next to frozen weights, at the full rate.",
        word="lora",
        takes="RANK",
        least=1,
    )
    maps: tuple[str, ...] = option(
        ("query", "value"),
        f"lora: maps with adapters: {', '.join(MAPS)} or {ALL}.  [default: query,value]",
        word="lora_maps",
        takes="NAMES",
        names=(*MAPS, ALL),
        several=True,
    )
    alpha: float | None = option(
        None, "lora: adapters are scaled by X / RANK.  [default: twice the rank]", word="lora_alpha", takes="X", above=0
    )

    def __post_init__(self) -> None:
        check_declared(self)
        if wrong := [name for name in self.maps if name not in (*MAPS, ALL)] or ([] if self.maps else ["none"]):
            raise OptionError(f"Lora: there is no map {wrong[0]!r}; there are {', '.join(MAPS)}, or {ALL}")

    @property
    def scale(self) -> float:
        """Return the factor of an adapter's product."""
        return 2.0 if self.alpha is None else self.alpha / self.rank


class AdaptedLinear(nn.Linear):
    """A linear map with an adapter beside its weight. The weight and the bias keep their names.

    It is a subclass, so that neither training nor the fast step of decoding takes it for a plain map: both call it.
    """

    def __init__(self, plain: nn.Linear, rank: int, scale: float) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features, self.scale = plain.in_features, plain.out_features, scale
        self.weight, self.bias = plain.weight, plain.bias
        like = {"dtype": plain.weight.dtype, "device": plain.weight.device}
        self.adapter_down = nn.Parameter(torch.randn(rank, plain.in_features, **like) * plain.in_features**-0.5)
        self.adapter_up = nn.Parameter(torch.zeros(plain.out_features, rank, **like))

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, rank={len(self.adapter_down)}, scale={self.scale:g}"

    def forward(self, input: Float[Tensor, "*place d_in"]) -> Float[Tensor, "*place d_out"]:
        mapped = multiply(input, self.weight, self.bias)
        return mapped + multiply(multiply(input, self.adapter_down), self.adapter_up) * self.scale

    @torch.no_grad()
    def merge(self) -> nn.Linear:
        """Return a plain map with the adapter added to a copy of the weight. The sum is made in float64."""
        merged = nn.Linear(self.in_features, self.out_features, bias=self.bias is not None, device="meta")
        exact = self.adapter_up.double() @ self.adapter_down.double() * self.scale
        merged.weight = nn.Parameter((self.weight.double() + exact).to(self.weight.dtype))
        merged.bias = self.bias
        return merged.train(self.training)


def linear_maps(model: nn.Module) -> Iterator[tuple[str, str, nn.Linear]]:
    """Yield the plain linear maps in the blocks of a model: what each is for, its full name, and the map."""
    for name, module in model.named_modules():
        steps = name.split(".")
        use = steps[-2] if steps[-1] == "linear" else steps[-1]
        if type(module) is nn.Linear and use in MAPS and "blocks" in steps:
            yield use, name, module


def add_adapters(model: nn.Module, lora: Lora) -> nn.Module:
    """Put an adapter beside each of the maps that `lora` names, in place; return the model.

    Raises OptionError if the model has no such map, or one that is narrower than the rank.
    """
    maps = list(linear_maps(model))
    available = [name for name in MAPS if any(use == name for use, _, _ in maps)]
    chosen = available if ALL in lora.maps else lora.maps
    if missing := [name for name in chosen if name not in available]:
        raise OptionError(
            f"Lora: no block of this model has a plain linear map for {missing[0]}; choose from {', '.join(available)}"
        )
    for use, name, plain in maps:
        if use in chosen:
            least = min(plain.weight.shape)
            if lora.rank > least:
                raise OptionError(
                    f"Lora: a rank of {lora.rank} is too large for {name}, {plain.in_features} to "
                    f"{plain.out_features}: choose {least} or less"
                )
            replace_module(model, name, AdaptedLinear(plain, lora.rank, lora.scale))
    return model


def merge_adapters(model: nn.Module) -> nn.Module:
    """Replace every adapted map by a plain one that gives the same, in place; return the model."""
    for name, module in list(model.named_modules()):
        if isinstance(module, AdaptedLinear):
            replace_module(model, name, module.merge())
    return model


def replace_module(model: nn.Module, name: str, new: nn.Module) -> None:
    parent, _, leaf = name.rpartition(".")
    cast(nn.Module, model.get_submodule(parent))._modules[leaf] = new


def is_adapter(name: str) -> bool:
    """Return whether a tensor with this name is an adapter's.

    >>> is_adapter("stack.blocks.0.attention.query.linear.adapter_up"), is_adapter("embedding.table")
    (True, False)
    """
    return name.rpartition(".")[2] in (DOWN, UP)


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

    The other models then have this one's weights: their memory is freed. Raises OptionError if a model has other
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
    """Return what chooses the adapters of a model's rows; None if it has none to choose from."""
    return next((module.switch for module in model.modules() if isinstance(module, SharedLinear)), None)
