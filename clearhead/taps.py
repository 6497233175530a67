"""Taps: every inner value of a model has a name, given where it is made, and can be watched or replaced there.

`watching` shows each value and changes nothing. `replacing` puts another value in its place. Without either, `tap`
returns what it was given, and a compiled graph has no trace of it.

>>> import torch, clearhead as ch
>>> layer, seen = ch.Attention(8, heads=2), {}
>>> with ch.watching(layer, seen.setdefault):
...     _ = layer(torch.randn(1, 3, 8))
>>> list(seen)
['query', 'key', 'value', 'context', 'concat', 'out']
>>> with ch.replacing(layer, lambda name, value: value * 0 if name == "context" else value):
...     print(layer(torch.randn(1, 3, 8)).abs().max().item())
0.0
"""

import contextlib
import functools
from collections.abc import Callable, Iterator

from torch import Tensor, nn

from clearhead.calls import public
from clearhead.errors import OptionError, ShapeError

Observe = Callable[[str, Tensor], object]
"""Takes the path of a value and the value. What it returns is ignored."""

Replace = Callable[[str, Tensor], Tensor]
"""Takes the path of a value and the value, and returns the tensor that goes on in its place."""


class Tapped(nn.Module):
    """A module whose inner values have names."""

    replacers: tuple[Replace, ...] = ()
    observers: tuple[Observe, ...] = ()

    def tap(self, name: str, value: Tensor) -> Tensor:
        """Return the value, replaced by every `replacing` around this call, and show it to every `watching`."""
        for replace in self.replacers:
            value = replace(name, value)
        for observe in self.observers:
            observe(name, value)
        return value

    @property
    def tapped(self) -> bool:
        """True if anyone watches or replaces its values."""
        return bool(self.replacers or self.observers)


@contextlib.contextmanager
@public
def watching(model: nn.Module, observe: Observe) -> Iterator[None]:
    """Call `observe(path, value)` for every named value made inside: `decoder.stack.blocks.1.cross.context`.

    It cannot change the result: what `observe` returns is ignored. (The value is the model's own tensor; do not write
    into it.) Contexts may be nested; every observer sees the value after all replacements. With activation
    checkpointing, values are made again in the backward pass, so keep it inside the block.

    Args:
        model: The model to watch.
        observe: Called with the path and the value.

    >>> import torch, clearhead as ch
    >>> names = []
    >>> model = ch.presets.gpt2("tiny", vocabulary=20).build().eval()
    >>> with ch.watching(model, lambda path, value: names.append(path)):
    ...     _ = model(torch.tensor([[3, 1, 4]]))
    >>> any(name.endswith("attention.context") for name in names)
    True
    """

    def under(prefix: str, name: str, value: Tensor) -> None:
        observe(prefix + name, value)

    with attach(model, "observers", under):
        yield


@contextlib.contextmanager
@public
def replacing(model: nn.Module, replace: Replace) -> Iterator[None]:
    """Put `replace(path, value)` in the place of every named value made inside the `with` block.

    Nested contexts are applied in the order in which they were opened, each to the result of the one before it.

    Args:
        model: The model to watch.
        replace: Returns a tensor of the same shape: `value` itself leaves it unchanged.

    Raises:
        OptionError: If `replace` returns None, as a forgotten `return` does.
        ShapeError: If it returns another shape.

    >>> import torch, clearhead as ch
    >>> model = ch.presets.gpt2("tiny", vocabulary=20).build().eval()
    >>> tokens = torch.tensor([[3, 1, 4]])
    >>> with ch.replacing(model, lambda path, value: value * 0 if path.endswith("attention.context") else value):
    ...     changed = model(tokens)
    >>> torch.equal(changed, model(tokens))
    False
    """

    def under(prefix: str, name: str, value: Tensor) -> Tensor:
        new = replace(prefix + name, value)
        if not isinstance(new, Tensor):
            raise OptionError(
                f"replacing {prefix + name!r}: the function must return the tensor that goes on (the value itself to "
                f"leave it as it is); it returned {'None' if new is None else type(new).__name__}. "
                "To look on without replacing, use watching"
            )
        if new.shape != value.shape:
            raise ShapeError(
                f"replacing {prefix + name!r}: expected a tensor of shape {tuple(value.shape)}; "
                f"the function returned {tuple(new.shape)}"
            )
        return new

    with attach(model, "replacers", under):
        yield


@contextlib.contextmanager
def attach(model: nn.Module, slot: str, under: Callable[[str, str, Tensor], object]) -> Iterator[None]:
    """Add a function to the `replacers` or `observers` of every tapped module; take out that one alone at the end."""
    if not isinstance(model, nn.Module):
        raise OptionError(f"model: expected a layer or a model, an nn.Module; came {type(model).__name__}")
    tapped = [
        (module, functools.partial(under, f"{path}." if path else ""))
        for path, module in model.named_modules()
        if isinstance(module, Tapped)
    ]
    # By their dictionaries: torch's own way to set an attribute takes longer than the rest of this.
    for module, function in tapped:
        module.__dict__[slot] = (*getattr(module, slot), function)
    try:
        yield
    finally:
        for module, function in tapped:
            remaining = tuple(tap_function for tap_function in getattr(module, slot) if tap_function is not function)
            if remaining:
                module.__dict__[slot] = remaining
            else:
                del module.__dict__[slot]
