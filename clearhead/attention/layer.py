"""`Attention`: the layer. Queries, keys and values from one, two or three sequences, and every part in its slot."""

from collections.abc import Callable, Sequence
from typing import cast, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from clearhead.attention import reference
from clearhead.attention.context_parallel import attend_split
from clearhead.attention.heads import HeadLayout, Heads, WholeMap, apply_linear, joinable, map_jointly
from clearhead.attention.inputs import AttentionInputs
from clearhead.attention.kernels import Choice, explain_choice, run
from clearhead.attention.mask_rules import Mask, as_mask
from clearhead.attention.modes import autocast_enabled
from clearhead.attention.parts import Division
from clearhead.attention.positions import NoPosition, Position
from clearhead.attention.reference import Steps
from clearhead.attention.request import AttentionOptions
from clearhead.attention.sequence_split import SequenceSplit
from clearhead.attention.similarity import Similarity
from clearhead.attention.weighting import Softmax, Weighting
from clearhead.calls import public
from clearhead.errors import DeviceError, DtypeError, OptionError, ShapeError
from clearhead.taps import Tapped

Queries = Float[Tensor, "... query d_model"]
Keys = Float[Tensor, "... key d_model"]
Runner = Callable[[AttentionInputs], Tensor]
"""Function that computes the context of a call."""


@final
@public
class Attention(Tapped):
    """Multi-head attention over inputs of width `d_model`, `(batch, n, d_model)` or `(n, d_model)`.

    Parts with learned values are built here, for this layer alone.

    Args:
        d_model: Width of the inputs and outputs.
        heads: A layout of heads, or a number, which stands for `Heads(number)`.
        similarity: How a query and a key are compared; the weighting's default if None.
        weighting: How scores become weights; softmax if None.
        position: How positions act on scores; no positions if None.
        mask: The layer's own mask. If a call has one too, a query attends only where both allow it.
        dropout: Share of weights set to 0 in training.
        kernel: Name of a kernel, or `auto`.

    Raises:
        OptionError: If a value is out of range, or the parts do not go together.

    >>> import torch, clearhead as ch
    >>> layer = ch.Attention(16, heads=ch.Heads(4, kv=2), mask=ch.masks.causal())
    >>> x, memory = torch.randn(2, 5, 16), torch.randn(2, 7, 16)
    >>> layer(x).shape, layer(x, memory).shape
    (torch.Size([2, 5, 16]), torch.Size([2, 5, 16]))
    >>> layer.explain(x).weight.shape
    torch.Size([2, 4, 5, 5])
    """

    runner: Runner | None = None
    """Runs each call in place of the layer's kernel: tracing records here, and edits change values here."""
    int8_cache = False
    """Whether decoding caches its keys and values as int8 (`clearhead.decoding.use_int8_cache`)."""

    def __init__(
        self,
        d_model: int,
        heads: HeadLayout | int = 8,
        *,
        similarity: Similarity | None = None,
        weighting: Weighting | None = None,
        position: Position | None = None,
        mask: Mask | None = None,
        dropout: float = 0.0,
        kernel: str = "auto",
    ) -> None:
        super().__init__()
        if d_model < 1:
            raise OptionError(f"Attention: d_model must be 1 or more; came {d_model}")
        layout = Heads(heads) if isinstance(heads, int) else heads
        if not isinstance(layout, HeadLayout):
            raise OptionError(f"Attention: heads must be a number, Heads(...) or SlicedHeads(...); came {heads!r}")
        weighting, position = weighting or Softmax(), position or NoPosition()
        AttentionOptions(similarity, weighting, position, mask, dropout, kernel)  # raises for what does not fit
        shape = layout.shape(d_model)
        self.d_model, self.dropout, self.kernel = d_model, dropout, kernel
        self.mask = as_mask(mask)
        self.weighting = weighting.build(shape)
        self.similarity = (similarity or weighting.similarity).build(shape)
        self.position = position.build(shape)
        self.query, self.key, self.value, self.output = layout.maps(d_model)
        self.shape, self.d_out = shape, layout.width(d_model)

    def extra_repr(self) -> str:
        """Return the sizes, and below them the parts without learned values; the others are modules themselves."""
        kv = "" if self.shape.n_kv_heads == self.shape.n_heads else f", kv={self.shape.n_kv_heads}"
        dropout = f", dropout={self.dropout}" if self.dropout else ""
        kernel = "" if self.kernel == "auto" else f", kernel={self.kernel!r}"
        sizes = f"d_model={self.d_model}, heads={self.shape.n_heads}{kv}, d_head={self.shape.d_head}{dropout}{kernel}"
        parts = {name: getattr(self, name) for name in ("similarity", "weighting", "mask", "position")}
        fixed = [f"{name}={part!r}" for name, part in parts.items() if not isinstance(part, nn.Module)]
        return f"{sizes}\n{', '.join(fixed)}"

    @public
    def forward(
        self,
        query_source: Queries,
        key_source: Keys | None = None,
        value_source: Keys | None = None,
        *,
        mask: Mask | Tensor | None = None,
        query_positions: Tensor | None = None,
        key_positions: Tensor | None = None,
        split: SequenceSplit | None = None,
    ) -> Float[Tensor, "... query d_out"]:
        """Return attention from one source, from two (the second gives keys and values) or from three.

        With a `split` the source is this process's part of a sequence, and the mask is that of the whole one.
        """
        sources = self.sources(query_source, key_source, value_source)
        dropout = self.dropout if self.training else 0.0
        call = self.call(sources, mask, (query_positions, key_positions), dropout, split)
        if split is not None:
            context = attend_split(self.kernel, call, split)
        else:
            context = run(self.kernel, call) if self.runner is None else self.runner(call)
        out = self.finish(context)
        return out if query_source.ndim == 3 else out.squeeze(0)

    def finish(self, context: Float[Tensor, "batch head query d_value"]) -> Float[Tensor, "batch query d_out"]:
        """Concatenate the heads' contexts and map them by W_O, if the layer has it."""
        context = self.tap("context", context)
        concat = self.tap("concat", context.transpose(1, 2).flatten(2))
        return self.tap("out", apply_linear(self.output, concat))

    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values by this layer's maps, not yet turned by their positions.

        With gradients on, plain maps of one source are one product, a few per cent faster than three; whatever else
        stands in their place (an adapter, a quantized map, a map with a hook) is called as the module it is.
        """
        maps = self.query, self.key, self.value
        if query is key is value and torch.is_grad_enabled() and joinable(maps):
            mapped = map_jointly(maps, query)
        else:
            mapped = self.query(query), self.key(key), self.value(value)
        return self.tap("query", mapped[0]), self.tap("key", mapped[1]), self.tap("value", mapped[2])

    @public
    def explain(
        self,
        query_source: Queries,
        key_source: Keys | None = None,
        value_source: Keys | None = None,
        *,
        mask: Mask | Tensor | None = None,
        query_positions: Tensor | None = None,
        key_positions: Tensor | None = None,
    ) -> Steps:
        """Return every step of `forward`, without dropout; no batch axis where the source has none."""
        sources = self.sources(query_source, key_source, value_source)
        steps = reference.steps(self.call(sources, mask, (query_positions, key_positions), 0.0))
        return steps if query_source.ndim == 3 else steps.without_batch()

    @public
    def which_kernel(
        self,
        query_source: Queries,
        key_source: Keys | None = None,
        value_source: Keys | None = None,
        *,
        mask: Mask | Tensor | None = None,
        query_positions: Tensor | None = None,
        key_positions: Tensor | None = None,
    ) -> Choice:
        """Return the kernel that `forward` would run, and why."""
        sources = self.sources(query_source, key_source, value_source)
        dropout = self.dropout if self.training else 0.0
        return explain_choice(self.kernel, self.call(sources, mask, (query_positions, key_positions), dropout))

    @property
    def uses_positions(self) -> bool:
        """True if positions matter: they rotate or bias, or the mask may depend on them."""
        return not isinstance(self.position, NoPosition) or bool(self.mask.kinds - {"none", "padding", "tensor"})

    @property
    def sums(self) -> bool:
        """True if keys and values may be summed before a query comes: in kernelized attention, by a kernel that can."""
        return self.weighting.form == "kernelized" and self.kernel in ("auto", "linear", "chunked", "recurrent")

    def sdpa_scale(self, can_join: Callable[[Sequence[nn.Module]], bool] = joinable) -> float | None:
        """Return the scale with which `scaled_dot_product_attention` alone computes this layer; None if it cannot.

        It can for a softmax of plain dot products, with maps that can be joined and no bias of a position.
        """
        fused = self.weighting.form == "softmax" and self.kernel in ("auto", "fused")
        dot = self.similarity.form == "dot" and type(self.similarity).prepare is Similarity.prepare
        scale = self.similarity.scale(self.shape.d_head)
        if not (fused and dot and isinstance(scale, float) and self.position.bias_kind == "none"):
            return None
        if type(self) is not Attention or not can_join((self.query, self.key, self.value)):
            return None
        equal = cast(WholeMap, self.value).linear.out_features == self.shape.n_kv_heads * self.shape.d_head
        return scale / self.weighting.temperature if equal else None

    def divide(self, count: int) -> dict[str, Division]:
        """Return how the maps are divided so that each of `count` processes has its share of the heads; OptionError if
        they cannot be. From then on the layer expects the weights of one process.
        """
        check_divisible(self, count)
        for head_map in (self.query, self.key, self.value):
            cast(WholeMap, head_map).divide_heads(count)
        maps: dict[str, Division] = {f"{name}.linear": "columns" for name in ("query", "key", "value")}
        return {**maps, "output": "rows"}

    @property
    def last(self) -> Tensor:
        """Last matrix of the layer: W_O, or the value map's if the layer has no W_O."""
        last = self.output.weight if isinstance(self.output, nn.Linear) else self.value.last
        assert isinstance(last, Tensor)
        return last

    def sources(self, query: Tensor, key: Tensor | None, value: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        key = query if key is None else key
        value = key if value is None else value
        # A quantized layer may have no parameters that are numbers: then torch itself says what does not fit.
        weight = next((parameter for parameter in self.parameters() if parameter.is_floating_point()), None)
        return (
            self.check_source("query", query, weight),
            self.check_source("key", key, weight),
            self.check_source("value", value, weight),
        )

    def call(
        self,
        sources: tuple[Tensor, Tensor, Tensor],
        mask: Mask | Tensor | None,
        positions: tuple[Tensor | None, Tensor | None],
        dropout: float,
        split: SequenceSplit | None = None,
    ) -> AttentionInputs:
        # Made for each call and not kept: a kernel, a mask or a part of a built layer may be replaced.
        joint_mask = self.mask if mask is None else self.mask & mask
        options = AttentionOptions(self.similarity, self.weighting, self.position, joint_mask, dropout, self.kernel)
        return options.inputs(self.project(*sources), positions, split)

    def check_source(self, name: str, source: Tensor, weight: Tensor | None) -> Tensor:
        """Return the source as `(batch, n, d_model)`; its device and dtype must be those of the layer's parameters."""
        if not isinstance(source, Tensor):
            raise OptionError(f"{name} source must be a torch tensor; came {type(source).__name__}")
        if source.ndim not in (2, 3) or source.shape[-1] != self.d_model:
            raise ShapeError(
                f"{name} source: expected (batch, n, {self.d_model}) or (n, {self.d_model}); came {tuple(source.shape)}"
            )
        if weight is not None and source.device != weight.device:
            raise DeviceError(f"{name} source is on {source.device} and the layer on {weight.device}; move one of them")
        if weight is not None and source.dtype != weight.dtype and not autocast_enabled(source):
            raise DtypeError(f"{name} source is {source.dtype} and the layer {weight.dtype}; convert one of them")
        return source if source.ndim == 3 else source.unsqueeze(0)


def check_divisible(layer: Attention, count: int) -> None:
    """Raise OptionError if the heads of a layer cannot be divided over processes that know nothing of each other's."""
    if layer.shape.n_heads % count or layer.shape.n_kv_heads % count:
        raise OptionError(
            f"tensor: {layer.shape.n_heads} heads, {layer.shape.n_kv_heads} of keys, cannot be divided over {count} "
            "processes; choose a number that divides both"
        )
    for name in ("query", "key", "value"):
        head_map = getattr(layer, name)
        if type(head_map) is not WholeMap or type(head_map.linear) is not nn.Linear or head_map.norm is not None:
            raise OptionError(
                f"tensor: the {name} map must be one plain linear map to all heads, without a norm; this layer has "
                f"{head_map!r}. Leave out tensor"
            )
    if type(layer.output) is not nn.Linear:
        raise OptionError(f"tensor: the heads meet in W_O, a plain linear map; this layer has {layer.output!r}")
    if layer.position.bias_kind != "none":
        raise OptionError(f"tensor: {layer.position!r} has a bias for each head, and is not divided; leave out tensor")
    for part in (layer.similarity, layer.weighting, layer.position):
        if isinstance(part, nn.Module) and next(part.parameters(), None) is not None:
            raise OptionError(f"tensor: {part!r} has learned values, and they are not divided; leave out tensor")
