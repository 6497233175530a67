"""Heads: the learned maps from a source to queries, keys and values, and from contexts back to the model's width.

Two readings of "multi-head", both in use: every head sees the whole input (`Heads`), or head i sees only its own slice
of it (`SlicedHeads`). The linear step W_O after the concatenation can be left out.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import InitVar, dataclass
from typing import NamedTuple, TypeGuard, final

import torch
from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules import module as torch_modules

from clearhead.attention import cpu_matmul
from clearhead.attention.parts import HeadShape, Norm
from clearhead.calls import CodeRepr
from clearhead.errors import OptionError
from clearhead.registry import kind, register

Source = Float[Tensor, "batch n d_model"]
PerHead = Float[Tensor, "batch head n d"]


class Maps(NamedTuple):
    """Learned maps of a layer: three from a source to per-head vectors, and W_O from the concatenated contexts."""

    query: nn.Module
    key: nn.Module
    value: nn.Module
    output: nn.Module


@kind("head layout")
class HeadLayout(CodeRepr, ABC):
    """Number of heads, their width, and which part of the input each of them sees."""

    @abstractmethod
    def shape(self, d_model: int) -> HeadShape:
        """Return the heads at this width; raise if they do not fit it."""

    @abstractmethod
    def width(self, d_model: int) -> int:
        """Return how many numbers the layer gives at each position."""

    @abstractmethod
    def maps(self, d_model: int) -> Maps:
        """Return new maps. Entries are normal with variance 1 / inputs: unit variance in, unit variance out."""


@final
@register
@dataclass(frozen=True)
class Heads(HeadLayout):
    """`count` heads that each read the full input.

    Args:
        count: Query heads.
        kv: Key and value heads, each shared by an equal group of query heads (1: one for all). As many as query heads
            if None.
        d_head: Width of a query and a key; d_model / count if None.
        d_value: Width of a value; `d_head` if None.
        value_rank: r makes the value map of each head V_down (d_model x r) then V_up (r x d_value).
        bias: Whether the maps have a bias.
        output: False leaves out W_O: the layer returns the concatenated heads.
        output_bias: Whether W_O has a bias; as `bias` if None.
        qk_norm: Norm of the queries and keys of each head, before positions rotate them.
        qk_norm_joint: Normalise the queries (and keys) of all heads together, as OLMo 2 does.

    Raises:
        OptionError: If a number is not positive, or heads cannot be divided.

    >>> import clearhead as ch
    >>> layer = ch.Attention(512, heads=ch.Heads(8, d_value=512, value_rank=16, output=False))
    >>> sum(p.numel() for p in layer.value.parameters()) == 8 * 2 * 512 * 16
    True
    """

    count: int
    kv: int | None = None
    d_head: int | None = None
    d_value: int | None = None
    value_rank: int | None = None
    bias: bool = False
    output: bool = True
    output_bias: bool | None = None
    qk_norm: Norm | None = None
    qk_norm_joint: bool = False

    def __post_init__(self) -> None:
        for name in ("count", "kv", "d_head", "d_value", "value_rank"):
            number = getattr(self, name)
            if number is not None and number < 1:
                raise OptionError(f"Heads: {name} must be 1 or more; came {number}")
        if self.kv is not None and self.count % self.kv:
            raise OptionError(f"Heads: kv must divide the {self.count} heads; came kv={self.kv}")

    def shape(self, d_model: int) -> HeadShape:
        if self.d_head is None and d_model % self.count:
            raise OptionError(
                f"Heads: {self.count} heads do not divide d_model = {d_model}; choose another count, or give d_head"
            )
        return HeadShape(
            n_heads=self.count, n_kv_heads=self.kv or self.count, d_head=self.d_head or d_model // self.count
        )

    def width(self, d_model: int) -> int:
        return d_model if self.output else self.count * (self.d_value or self.shape(d_model).d_head)

    def maps(self, d_model: int) -> Maps:
        shape = self.shape(d_model)
        d_value = self.d_value or shape.d_head
        width = self.count * d_value
        last_bias = self.bias if self.output_bias is None else self.output_bias
        joint = self.qk_norm_joint
        return Maps(
            query=WholeMap(d_model, shape.n_heads, shape.d_head, bias=self.bias, norm=self.qk_norm, joint=joint),
            key=WholeMap(d_model, shape.n_kv_heads, shape.d_head, bias=self.bias, norm=self.qk_norm, joint=joint),
            value=WholeMap(d_model, shape.n_kv_heads, d_value, bias=self.bias)
            if self.value_rank is None
            else LowRankMap(d_model, shape.n_kv_heads, self.value_rank, d_value, bias=self.bias),
            output=linear(width, d_model, bias=last_bias) if self.output else nn.Identity(),
        )


@final
@register
@dataclass(frozen=True)
class SlicedHeads(HeadLayout):
    """`count` heads; head i reads only slice i of the input, d_model / count wide, through square maps of that width.

    Args:
        count: Heads.
        bias: Whether the maps have a bias.
        output: False leaves out W_O.
        value_rank: r makes the value map of each head V_down (width x r) then V_up (r x width).
        kv: Refused: with shared keys a head would read a slice that belongs to another head.

    Raises:
        OptionError: If a number is not positive, or `kv` is given.

    >>> import clearhead as ch
    >>> layer = ch.Attention(512, heads=ch.SlicedHeads(8, value_rank=4))
    >>> sum(p.numel() for p in layer.value.parameters()) == 8 * 2 * 64 * 4
    True
    """

    count: int
    bias: bool = False
    output: bool = True
    value_rank: int | None = None
    kv: InitVar[int | None] = None

    def __post_init__(self, kv: int | None) -> None:
        for name in ("count", "value_rank"):
            number = getattr(self, name)
            if number is not None and number < 1:
                raise OptionError(f"SlicedHeads: {name} must be 1 or more; came {number}")
        if kv not in (None, self.count):
            raise OptionError(
                f"SlicedHeads: head i sees slice i alone, so heads cannot share keys and values; came kv={kv}. "
                f"Leave it out, or use Heads({self.count}, kv={kv}), whose heads see the whole input"
            )

    def shape(self, d_model: int) -> HeadShape:
        if d_model % self.count:
            raise OptionError(
                f"SlicedHeads: {self.count} slices do not divide d_model = {d_model}; choose another count"
            )
        return HeadShape(n_heads=self.count, n_kv_heads=self.count, d_head=d_model // self.count)

    def width(self, d_model: int) -> int:
        return d_model

    def maps(self, d_model: int) -> Maps:
        width = self.shape(d_model).d_head
        query, key = (SliceMap(self.count, width, bias=self.bias) for _ in range(2))
        value = (
            SliceMap(self.count, width, bias=self.bias)
            if self.value_rank is None
            else LowRankSliceMap(self.count, width, self.value_rank, bias=self.bias)
        )
        return Maps(query, key, value, linear(d_model, d_model, bias=self.bias) if self.output else nn.Identity())


def linear(d_in: int, d_out: int, *, bias: bool) -> nn.Linear:
    layer = nn.Linear(d_in, d_out, bias=bias)
    nn.init.normal_(layer.weight, std=d_in**-0.5)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


class WholeMap(nn.Module):
    """One linear map from the whole input to every head, and the norm of each head's vectors if there is one.

    `joint`: the norm is one of all heads together.
    """

    def __init__(
        self, d_model: int, n_heads: int, width: int, *, bias: bool, norm: Norm | None = None, joint: bool = False
    ) -> None:
        super().__init__()
        self.n_heads, self.joint = n_heads, joint
        self.linear = linear(d_model, n_heads * width, bias=bias)
        self.norm = None if norm is None else norm.build(n_heads * width if joint else width)

    def extra_repr(self) -> str:
        return f"heads={self.n_heads}, d_head={self.linear.out_features // self.n_heads}"

    @property
    def last(self) -> Tensor:
        return self.linear.weight

    def divide_heads(self, count: int) -> None:
        """Serve the weights of one of `count` processes: an equal share of the heads."""
        self.n_heads //= count

    def forward(self, source: Source) -> PerHead:
        return self.normed(self.map_linearly(source))

    def map_linearly(self, source: Source) -> PerHead:
        """Return the vectors of each head before their norm."""
        # Not einops: in decoding a map of one position takes no longer than einops takes to read its pattern.
        return apply_linear(self.linear, source).unflatten(-1, (self.n_heads, -1)).transpose(1, 2)

    def normed(self, vectors: PerHead) -> PerHead:
        """Return the vectors after their norm, in their dtype: under autocast a user's own norm may give float32."""
        if self.norm is None:
            return vectors
        if not self.joint:
            return self.norm(vectors).to(vectors.dtype)
        together = self.norm(vectors.transpose(1, 2).flatten(2)).to(vectors.dtype)
        return together.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)


def joinable(maps: Sequence[nn.Module]) -> TypeGuard[Sequence[WholeMap]]:
    """Check whether one product with the concatenated weights equals calling each of these maps.

    Then each is a `WholeMap` around a plain `nn.Linear`, without hooks or a forward of its own; the weights are plain
    tensors of one kind, all trained or all frozen; and all maps have a bias, or none has. It is asked for every call,
    which takes about 10 microseconds, since any of this may have changed since the last one.
    """
    weights, biases = [], []
    for head_map in maps:
        if type(head_map) is not WholeMap or is_hooked(head_map):
            return False
        linear = head_map.linear
        if type(linear) is not nn.Linear or is_hooked(linear):
            return False
        weights.append(linear.weight)
        biases.append(linear.bias)
    return alike(weights) and alike(biases)


def is_hooked(module: nn.Module) -> bool:
    """Check whether calling the module does more than its class's forward: hooks, or a forward of its own.

    (A parametrization is no hook, but shows in the type: it gives the module a class of its own.)
    """
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or "forward" in module.__dict__
        or torch_modules._global_forward_hooks
        or torch_modules._global_forward_pre_hooks
        or torch_modules._global_backward_hooks
        or torch_modules._global_backward_pre_hooks
    )


def apply_linear(module: nn.Module, x: Float[Tensor, "*place d_in"]) -> Float[Tensor, "*place d_out"]:
    """Return `module(x)`; a plain linear map multiplies by the library that is faster on this processor."""
    if cpu_matmul.ONEDNN is not None and type(module) is nn.Linear and not is_hooked(module):
        return cpu_matmul.multiply(x, module.weight, module.bias)
    return module(x)


def alike(tensors: Sequence[Tensor | None]) -> bool:
    """Check whether tensors can be concatenated: all None, or plain, of one dtype and device, trained alike.

    A subclass of Tensor (a quantized or sharded weight) is not plain: it has products of its own.
    """
    first, *rest = tensors
    if first is None:
        return all(tensor is None for tensor in rest)
    if type(first) not in (nn.Parameter, Tensor) or first.layout is not torch.strided:
        return False
    dtype, device, trained = first.dtype, first.device, first.requires_grad
    for tensor in rest:
        if tensor is None or type(tensor) is not type(first) or tensor.layout is not torch.strided:
            return False
        if tensor.dtype is not dtype or tensor.device != device:
            return False
        if tensor.requires_grad is not trained and torch.is_grad_enabled():
            return False
    return True


def map_jointly(maps: Sequence[WholeMap], source: Source) -> tuple[PerHead, ...]:
    """Return what each of some `joinable` maps makes of the same source, by one product."""
    weights: list[Tensor] = [head_map.linear.weight for head_map in maps]
    biases: list[Tensor] = [head_map.linear.bias for head_map in maps if head_map.linear.bias is not None]
    joint = cpu_matmul.multiply(source, torch.cat(weights), torch.cat(biases) if biases else None)
    parts = joint.split([weight.shape[0] for weight in weights], -1)
    return tuple(
        head_map.normed(part.unflatten(-1, (head_map.n_heads, -1)).transpose(1, 2))
        for head_map, part in zip(maps, parts, strict=True)
    )


class LowRankMap(nn.Module):
    """A map through `rank` numbers in each head: x V_down V_up."""

    @property
    def last(self) -> Tensor:
        return self.up

    def __init__(self, d_model: int, n_heads: int, rank: int, width: int, *, bias: bool) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.randn(n_heads, d_model, rank) * d_model**-0.5)
        self.up = nn.Parameter(torch.randn(n_heads, rank, width) * rank**-0.5)
        self.bias = nn.Parameter(torch.zeros(n_heads, 1, width)) if bias else None

    def extra_repr(self) -> str:
        (heads, d_model, rank), d_value = self.down.shape, self.up.shape[-1]
        return f"heads={heads}, d_model={d_model}, rank={rank}, d_value={d_value}, bias={self.bias is not None}"

    def forward(self, source: Source) -> PerHead:
        return map_up(self, self.map_down(source))

    def map_down(self, source: Source) -> PerHead:
        """Return the latent values: `rank` numbers for each head."""
        return einsum(source, self.down, "batch n d_model, head d_model rank -> batch head n rank")


class SliceMap(nn.Module):
    """A square map for each head, from its own slice of the input."""

    @property
    def last(self) -> Tensor:
        return self.weight

    def __init__(self, n_heads: int, width: int, *, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n_heads, width, width) * width**-0.5)
        self.bias = nn.Parameter(torch.zeros(n_heads, 1, width)) if bias else None

    def extra_repr(self) -> str:
        heads, d_slice, d_head = self.weight.shape
        return f"heads={heads}, d_slice={d_slice}, d_head={d_head}, bias={self.bias is not None}"

    def forward(self, source: Source) -> PerHead:
        slices = rearrange(source, "batch n (head d) -> batch head n d", head=self.weight.shape[0])
        mapped = einsum(slices, self.weight, "batch head n d, head d out -> batch head n out")
        return mapped if self.bias is None else mapped + self.bias.to(mapped.dtype)


class LowRankSliceMap(nn.Module):
    """A map through `rank` numbers for each head, from its own slice of the input: x V_down V_up."""

    @property
    def last(self) -> Tensor:
        return self.up

    def __init__(self, n_heads: int, width: int, rank: int, *, bias: bool) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.randn(n_heads, width, rank) * width**-0.5)
        self.up = nn.Parameter(torch.randn(n_heads, rank, width) * rank**-0.5)
        self.bias = nn.Parameter(torch.zeros(n_heads, 1, width)) if bias else None

    def extra_repr(self) -> str:
        (heads, d_slice, rank), d_value = self.down.shape, self.up.shape[-1]
        return f"heads={heads}, d_slice={d_slice}, rank={rank}, d_value={d_value}, bias={self.bias is not None}"

    def forward(self, source: Source) -> PerHead:
        return map_up(self, self.map_down(source))

    def map_down(self, source: Source) -> PerHead:
        """Return the latent values: `rank` numbers for each head, from its slice."""
        slices = rearrange(source, "batch n (head d) -> batch head n d", head=self.down.shape[0])
        return einsum(slices, self.down, "batch head n d, head d rank -> batch head n rank")


def map_up(low_rank: LowRankMap | LowRankSliceMap, latent: Float[Tensor, "batch heads n rank"]) -> PerHead:
    """Return the values of latent values, by V_up; one head's latent values are mapped by every head's V_up."""
    values = latent @ low_rank.up
    return values if low_rank.bias is None else values + low_rank.bias.to(values.dtype)


def columns_read(head_map: nn.Module, head: int) -> slice:
    """Return which numbers of a vector a head reads: its own slice in sliced heads, else all of them."""
    if not isinstance(head_map, SliceMap | LowRankSliceMap):
        return slice(None)
    _, width, _ = (head_map.weight if isinstance(head_map, SliceMap) else head_map.down).shape
    return slice(head * width, (head + 1) * width)
