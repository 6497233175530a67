"""The origin of a trace: a fingerprint of its model, and the specs of its attentions."""

import functools
import hashlib
from collections.abc import Callable, Mapping
from typing import final

import torch
from torch import nn

from clearhead.errors import TraceError
from clearhead.model.blocks import AttentionSpec
from clearhead.tracing.names import Names, sides_of


def fingerprint(model: nn.Module) -> str:
    """Return a hash of a model's weights and their names."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


@final
class TraceOrigin:
    """The model of a trace, as far as the trace must know it."""

    def __init__(self, make: Callable[[], str], specs: Mapping[str, AttentionSpec]) -> None:
        self.make, self.specs = make, specs

    def __repr__(self) -> str:
        return "Origin(...)"

    @staticmethod
    def of(model: nn.Module) -> "TraceOrigin":
        parts = sides_of(model)
        specs = {}
        for name in Names(model).sites:
            side, layer, slot = name.split(".")
            specs[name] = getattr(parts[side][1].spec.blocks[int(layer)], slot)
        return TraceOrigin(lambda: fingerprint(model), specs)

    @functools.cached_property
    def fingerprint(self) -> str:
        return self.make()

    def check(self, model: nn.Module) -> None:
        """Raise TraceError where it is another model."""
        if fingerprint(model) != self.fingerprint:
            raise TraceError("this trace was not made from this model: their weights differ; take the run it is of")
