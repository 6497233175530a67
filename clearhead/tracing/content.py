"""What a trace is made of beside its sites: tokens, answers, a fingerprint of its model and the specs of its
attentions; and the part of it that goes into a file.
"""

import functools
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from clearhead.errors import TraceError
from clearhead.model.blocks import AttentionSpec
from clearhead.tracing.edits import Change
from clearhead.tracing.names import Names, sides_of
from clearhead.tracing.site import Site


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


class Candidate(NamedTuple):
    """A token (or a class) the model may answer with."""

    id: int
    text: str
    log_prob: float


@final
@dataclass(frozen=True, kw_only=True)
class Side:
    """The tokens of one side, as ids and as they are shown."""

    ids: list[int]
    tokens: list[str]
    n_layers: int
    d_model: int


class Answers:
    """What the model answers, made when asked for: from the last vectors, or as it was saved."""

    def __init__(self, make: Callable[[], list[list[Candidate]]]) -> None:
        self.make = make
        self.candidates: list[list[Candidate]] | None = None

    def __repr__(self) -> str:
        return "Answers(...)"

    @property
    def likeliest(self) -> list[list[Candidate]]:
        if self.candidates is None:
            self.candidates = self.make()
        return self.candidates


@final
@dataclass(frozen=True, kw_only=True)
class TraceContent:
    """The fields of a `Trace` that are saved: all but what its model makes again."""

    kind: str
    sides: Mapping[str, Side]
    sites: Mapping[str, Site]
    stream: Mapping[str, Tensor]
    task: str
    notes: tuple[str, ...]
    changes: tuple[Change, ...]
    answers: Answers
    origin: TraceOrigin
    all_names: tuple[str, ...]
