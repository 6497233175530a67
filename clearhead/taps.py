"""Taps: every inner value of a model has a name, given where it is made, and can be watched or replaced there.

Nothing is recorded unless someone watches: `tap` returns what it was given, and a compiled graph shows nothing of it.

>>> import torch, clearhead as ch
>>> from clearhead.taps import watching
>>> layer, seen = ch.Attention(8, heads=2), {}
>>> with watching(layer, lambda name, value: seen.setdefault(name, value)):
...     _ = layer(torch.randn(1, 3, 8))
>>> list(seen)
['query', 'key', 'value', 'context', 'concat', 'out']
"""

import contextlib
import functools
from collections.abc import Callable, Iterator

from torch import Tensor, nn

__all__ = ["Tapped", "Watcher", "watching"]

Watcher = Callable[[str, Tensor], Tensor]
"""Given the path of a value and the value; what it returns goes on in its place."""


class Tapped(nn.Module):
    """A module whose inner values have names."""

    watcher: Watcher | None = None

    def tap(self, name: str, value: Tensor) -> Tensor:
        return value if self.watcher is None else self.watcher(name, value)


@contextlib.contextmanager
def watching(model: nn.Module, watcher: Watcher) -> Iterator[None]:
    """Shows the watcher every named value made inside, by its path: `decoder.stack.blocks.1.cross.context`.

    With checkpointing values are made again in the backward pass: let that end inside too.
    """
    tapped = [(path, module) for path, module in model.named_modules() if isinstance(module, Tapped)]
    for path, module in tapped:
        module.watcher = functools.partial(under, watcher, f"{path}." if path else "")
    try:
        yield
    finally:
        for _, module in tapped:
            module.watcher = None


def under(watcher: Watcher, prefix: str, name: str, value: Tensor) -> Tensor:
    return watcher(prefix + name, value)
