"""Parts of a user's own for tests: a module in a folder outside the project, and a registry that forgets it again."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from clearhead import registry

MINE = '''
from dataclasses import dataclass

import torch
from torch import nn

import clearhead as ch
from clearhead.model.feedforward import FeedForward, Network
from clearhead.model.norms import Norm
from clearhead.training.schedules import Schedule


@ch.register
@dataclass(frozen=True)
class TopK(ch.weighting.Weighting):
    """Softmax over the `count` best keys of a row. Ties with the last are kept."""

    count: int = 3

    def __post_init__(self):
        check_count(self.count)

    def weigh(self, masked, allowed):
        last = masked.topk(min(self.count, masked.shape[-1])).values[..., -1:]
        return ch.weighting.softmax_rows(masked.masked_fill(masked < last - 1e-5, float("-inf")), allowed)


def check_count(count):
    if count < 1:
        raise ValueError(f"count must be 1 or more; came {count}")


@ch.register
@dataclass(frozen=True)
class Warm(ch.weighting.Weighting):
    """Softmax with a temperature that each head learns."""

    start: float = 1.0

    def build(self, shape):
        return BuiltWarm(self.start, shape.n_heads)

    def weigh(self, masked, allowed):
        return ch.weighting.softmax_rows(masked / self.start, allowed)


class BuiltWarm(nn.Module, ch.weighting.Weighting):
    def __init__(self, start, n_heads):
        super().__init__()
        self.warmth = nn.Parameter(torch.full((n_heads, 1, 1), start))

    def weigh(self, masked, allowed):
        warmed = masked.masked_fill(~allowed, 0) / self.warmth
        return ch.weighting.softmax_rows(warmed.masked_fill(~allowed, float("-inf")), allowed)


@ch.register
@dataclass(frozen=True)
class Near(ch.positions.Position):
    """Takes the distance off each score, times a slope."""

    bias_kind = "fixed"
    slope: float = 0.1

    def bias(self, cells, dtype):
        return (-self.slope * (cells.query - cells.key).abs()).to(dtype)


@ch.register
@dataclass(frozen=True)
class Centred(Norm):
    """Takes the mean off, and divides by the mean size."""

    gain: float = 1.0

    def build(self, d_model):
        return BuiltCentred(self.gain, d_model)


class BuiltCentred(nn.Module):
    def __init__(self, gain, d_model):
        super().__init__()
        self.gain = nn.Parameter(torch.full((d_model,), gain))

    def forward(self, x):
        centred = x - x.mean(-1, keepdim=True)
        return self.gain * centred / (centred.abs().mean(-1, keepdim=True) + 1e-5)


@ch.register
@dataclass(frozen=True)
class Squared(FeedForward):
    """down(relu(up(x))²)."""

    def build(self, d_model):
        return BuiltSquared(d_model, self.d_ff)


class BuiltSquared(Network):
    def __init__(self, d_model, d_ff):
        super().__init__()
        self.up, self.down = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)

    def forward(self, x):
        return self.tap("out", self.down(torch.relu(self.up(x)).square()))


@ch.register
@dataclass(frozen=True, kw_only=True)
class Stairs(Schedule):
    """Falls by a factor four times."""

    factor: float = 0.5

    def after(self, step, total):
        return self.factor ** (4 * step // total)
'''
"""A module with a weighting, one with learned values, a position, a norm, a feed-forward and a schedule."""


def write_module(folder: Path, name: str = "mine", text: str = MINE) -> Path:
    path = folder / f"{name}.py"
    path.write_text(text, encoding="utf-8")
    return path


@contextlib.contextmanager
def registry_restored(*modules: str) -> Iterator[None]:
    """Forget on leaving every part that was registered meanwhile, and these modules."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.dict(registry.CLASSES))
        for tables in (registry.OPTIONS, registry.EXAMPLES):
            for table in tables.values():
                stack.enter_context(mock.patch.dict(table))
        try:
            yield
        finally:
            for name in modules:
                sys.modules.pop(name, None)
