"""Installing: a design into a head of a model, trained or not, and kept there while the rest is trained.

>>> import torch
>>> from clearhead.craft.fitting import fit_content
>>> from clearhead.model import presets
>>> _ = torch.manual_seed(0)
>>> model, texts = presets.gpt2("tiny", vocabulary=50, length=32).build(), torch.randint(50, (16, 32))
>>> same = fit_content(model, texts, at="decoder.0.attention")
>>> put = install(model, same, at="decoder.0.attention", head=3)
>>> print(put)
same token in head 3 of decoder.0.attention; it is kept as it is
>>> put.measure(torch.randint(50, (4, 32))).right > 0.9
True
"""

import math
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import final

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from clearhead.attention.heads import WholeMap
from clearhead.attention.layer import Attention
from clearhead.attention.similarity import Dot, ScaledDot
from clearhead.calls import public
from clearhead.craft.design import Design, write_head
from clearhead.craft.fitting import own_texts
from clearhead.craft.sharpness import Measured, measure_sharpness
from clearhead.errors import OptionError
from clearhead.tracing.names import Names
from clearhead.tracing.trace import trace_model

Region = tuple[slice, ...]
FROZEN: "weakref.WeakKeyDictionary[Attention, dict[int, Frozen]]" = weakref.WeakKeyDictionary()
"""The frozen heads of each layer: one that is designed anew is no longer kept as it was."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Installed:
    """A design that was written into a head. Freezing ends with this process: a saved model has the weights only.

    Attributes:
        model: The model.
        at: Name of the attention.
        head: Number of the head.
        design: The design.
        frozen: What keeps the numbers unchanged while the rest is trained; None if nothing does.

    >>> import torch, clearhead as ch
    >>> model = ch.presets.gpt2("tiny", vocabulary=20, length=8).build().eval()
    >>> design = ch.craft.fit_position(model, torch.randint(20, (4, 8)), at="decoder.0.attention", offset=-1)
    >>> ch.craft.install(model, design, at="decoder.0.attention", head=0).head
    0
    """

    model: nn.Module = field(repr=False)
    at: str
    head: int
    design: Design
    frozen: "Frozen | None" = None

    def __str__(self) -> str:
        state = "may learn" if self.frozen is None else "is kept as it is"
        return f"{self.design.name} in head {self.head} of {self.at}; it {state}"

    def measure(self, *tokens: Int[Tensor, "batch _"]) -> Measured:
        """Measure how sharp the head is on texts: each goes through the model, and its head is read from a trace."""
        ids = own_texts(self.model, self.at, tokens).cpu()
        texts = []
        for row in range(len(ids)):
            head = trace_model(self.model, *(side[row : row + 1] for side in tokens))[self.at].head[self.head]
            masked = head.masked.cpu()
            targets = self.design.asked.targets(ids[row], ids[row], masked > -math.inf)
            texts.append((masked, head.weight.cpu(), targets))
        return measure_sharpness(texts)

    def release(self) -> None:
        """Let the head learn from here on."""
        if self.frozen is not None:
            self.frozen.release()


@public
def install(model: nn.Module, design: Design, *, at: str, head: int, frozen: bool = True) -> Installed:
    """Write a design into a head: its slices of W_Q and W_K, and of W_V and W_O if the design has them.

    W_Q is multiplied by √d_head, because the layer divides by it.

    Args:
        model: The model.
        design: The design.
        at: Name of the attention.
        head: Number of the head.
        frozen: Keep these numbers while the rest is trained, by any optimizer of torch and with weight decay, until
            `release()` or another design.

    Returns:
        What was installed.
    """
    names = Names(model)
    names.check_site(at)
    layer = names.sites[at]
    check_fits(layer, design, at, head)
    factor = layer.similarity.scale(layer.shape.d_head)
    assert isinstance(factor, float)
    regions: dict[str, Region] = {**write_head(layer, head, design, scale=design.scale / factor)}
    regions |= clear_biases(layer, head, regions)
    frozen_heads = FROZEN.setdefault(layer, {})
    if head in frozen_heads:
        frozen_heads.pop(head).release()
    if frozen:
        frozen_heads[head] = Frozen(layer, regions)
    return Installed(model=model, at=at, head=head, design=design, frozen=frozen_heads.get(head))


def check_fits(layer: Attention, design: Design, at: str, head: int) -> None:
    shape = layer.shape
    if not 0 <= head < shape.n_heads:
        raise OptionError(f"{at} has heads 0 to {shape.n_heads - 1}; came {head}")
    if shape.n_kv_heads != shape.n_heads:
        raise OptionError(
            f"{at}: {shape.n_heads} query heads share {shape.n_kv_heads} of keys and values, so no head has keys "
            "of its own to design; choose a model where each has"
        )
    maps = (layer.query, layer.key, layer.value)
    if not all(isinstance(head_map, WholeMap) for head_map in maps) or not isinstance(layer.output, nn.Linear):
        raise OptionError(f"{at}: a design goes into heads that see the whole input and end with W_O (ch.Heads)")
    if not isinstance(layer.similarity, Dot | ScaledDot):
        raise OptionError(f"{at}: scores must be dot products, and are {type(layer.similarity).__name__}")
    if design.inputs.d_model != layer.d_model:
        raise OptionError(
            f"{at} reads {layer.d_model} numbers, and {design.name} is designed for {design.inputs.d_model}; "
            "fit one to this model, by fit_position or fit_content"
        )
    d_value = layer.output.in_features // shape.n_heads
    wide = 0 if design.w_v is None else design.w_v.shape[1]
    if design.d_head > shape.d_head or wide > d_value:
        raise OptionError(
            f"{at}: a head has {shape.d_head} numbers for queries and keys and {d_value} for values, and "
            f"{design.name} needs {design.d_head} and {wide}"
        )


@torch.no_grad()
def clear_biases(layer: Attention, head: int, regions: Mapping[str, Region]) -> dict[str, Region]:
    """Set the biases of what was written to 0, and return where; W_O's is of all heads, and stays."""
    cleared: dict[str, Region] = {}
    for name in ("query", "key", "value"):
        linear = getattr(layer, name).linear
        if linear.bias is not None and f"{name}.linear.weight" in regions:
            region = regions[f"{name}.linear.weight"][:1]
            linear.bias[region] = 0
            cleared[f"{name}.linear.bias"] = region
    return cleared


class Frozen:
    """Keeps slices of a layer's parameters: their gradient is zeroed, and after each optimiser step they are restored.

    A gradient of zero is not enough: weight decay, and momentum from before, move parameters without it.
    """

    def __init__(self, layer: Attention, regions: Mapping[str, Region]) -> None:
        saved = {name: layer.get_parameter(name)[region].detach().clone() for name, region in regions.items()}
        layer_ref = weakref.ref(layer)  # a model that is dropped is not kept for this
        self.handles = [
            register_optimizer_step_post_hook(lambda *_: restore_slices(layer_ref(), regions, saved)),
            *(
                layer.get_parameter(name).register_hook(make_gradient_hook(region))
                for name, region in regions.items()
                if layer.get_parameter(name).requires_grad
            ),
        ]
        weakref.finalize(layer, self.handles[0].remove)

    def release(self) -> None:
        for handle in self.handles:
            handle.remove()


def make_gradient_hook(region: Region) -> Callable[[Tensor], Tensor]:
    """Return a hook that zeroes the gradient in a region."""

    def zero_region(gradient: Tensor) -> Tensor:
        changed = gradient.clone()
        changed[region] = 0
        return changed

    return zero_region


@torch.no_grad()
def restore_slices(layer: Attention | None, regions: Mapping[str, Region], saved: dict[str, Tensor]) -> None:
    """Write the kept values back into a layer, on its present device and in its dtype."""
    if layer is None:
        return
    for name, region in regions.items():
        parameter = layer.get_parameter(name)
        saved[name] = saved[name].to(parameter)
        parameter[region] = saved[name]
