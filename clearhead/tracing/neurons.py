"""Feed-forward units of one token: how strongly each is on, what it adds to the output, and which answers it promotes.

>>> import torch
>>> from clearhead.model import presets
>>> from clearhead.tracing.trace import trace_model
>>> _ = torch.manual_seed(0)
>>> model = presets.gpt2("tiny", vocabulary=50).build().eval()
>>> made = trace_model(model, torch.randint(50, (1, 6)))
>>> found = read_units(made, "decoder.0.feed_forward", token=5, most=3)
>>> len(found.units), round(sum(unit.share for unit in read_units(made, found.at, token=5, most=512).units), 4)
(3, 1.0)
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from clearhead.errors import OptionError
from clearhead.model.arrangements import BranchConnection
from clearhead.model.lora import AdaptedLinear
from clearhead.model.outputs import ToVocabulary
from clearhead.tracing.inner import InnerValues
from clearhead.tracing.names import Names
from clearhead.tracing.trace import Trace

ROWS = 1024
"""Rows of a map's matrix that are made at a time, where it is no plain linear layer."""


class LogitEffect(NamedTuple):
    """An answer that a unit makes likelier or less likely: its id, and how much the unit adds to its logit."""

    id: int
    change: float


@dataclass(frozen=True, kw_only=True)
class Unit:
    """One hidden unit at one token.

    `steps` are the values that make it, by name, the last of them `hidden`, its activation. It adds `hidden` times its
    column of the down map to the output: `norm` is the length of that vector, and `share` how much of the output it is
    (its dot product with the output, over the output's with itself: all units and the bias together make 1).
    """

    unit: int
    steps: dict[str, float]
    norm: float
    share: float
    promotes: tuple[LogitEffect, ...]
    suppresses: tuple[LogitEffect, ...]


@dataclass(frozen=True, kw_only=True)
class TokenUnits:
    """The units of a feed-forward at one token, those that add the longest vectors first."""

    at: str
    token: int
    d_ff: int
    active: int
    """Units whose activation is above 0."""
    half: int
    """The fewest units whose norms sum to half of all units' norms."""
    bias: float
    """The share of the output that is the down map's bias."""
    units: tuple[Unit, ...]


def feed_forwards(names: Names) -> list[str]:
    """Return the feed-forwards whose output is a linear map of hidden units, in order."""
    maps = names.maps
    candidates = [name for name, box in names.boxes.items() if box.kind == "feed_forward"]
    return [at for at in candidates if f"{at}.out" in maps and maps[f"{at}.out"].of == f"{at}.hidden"]


def why_no_units(names: Names) -> str | None:
    """Say why there are no hidden units to see in a model; None if there are."""
    if feed_forwards(names):
        return None
    if any(box.kind == "feed_forward" for box in names.boxes.values()):
        return "its feed-forward is a part of your own that names no step `hidden` from which a linear map makes `out`"
    return "its layers have attention only, and no feed-forward"


@torch.no_grad()
def read_units(
    trace: Trace, at: str, *, token: int, most: int, also: Sequence[int] = (), answers: int = 5
) -> TokenUnits:
    """Return the `most` units of a feed-forward that add most to its output at a token, and those of `also`.

    `answers` is how many answers a unit promotes and how many it suppresses. What a unit adds to a logit is the
    derivative of the logit by the unit, times its activation, with the later layers left out: the norms that stand
    between are then linear maps, their Jacobians at this token.
    """
    inner = trace.inner
    if inner is None:
        raise OptionError("this trace was loaded without its model, which makes the units: Trace.load(path, model)")
    available = feed_forwards(inner.names)
    if at not in available:
        raise OptionError(f"there is no feed-forward with units called {at[:80]!r}; there are {', '.join(available)}")
    values = inner.section(inner.names.boxes[at], slice(token, token + 1))
    hidden, out = values[f"{at}.hidden"][0].float(), values[f"{at}.out"][0].float()
    wrong = [unit for unit in also if not 0 <= unit < len(hidden)]
    if wrong:
        raise OptionError(f"{at}: there is no unit {wrong[0]}; there are {len(hidden)}, counted from 0")
    added = hidden.unsqueeze(1) * matrix_of(inner.names.maps[f"{at}.out"].apply, values[f"{at}.hidden"][0])
    norms, size = added.norm(dim=1), (out @ out).item()
    shares = added @ out / size if size else torch.zeros_like(hidden)
    order = norms.argsort(descending=True, stable=True)
    units = list(dict.fromkeys([*order[:most].tolist(), *also]))
    changes = logit_changes(inner, at, token, added[units])
    steps = [value.name for value in inner.names.boxes[at].values if values[value.name].shape[-1] == len(hidden)]
    reached = norms[order].double().cumsum(0)
    return TokenUnits(
        at=at,
        token=token,
        d_ff=len(hidden),
        active=int((hidden > 0).sum()),
        half=int((reached < reached[-1] / 2).sum()) + 1 if reached[-1] else 0,
        bias=1 - shares.sum().item() if size else 0.0,
        units=tuple(
            Unit(
                unit=unit,
                steps={name.rpartition(".")[2]: values[name][0, unit].item() for name in steps if name != f"{at}.out"},
                norm=norms[unit].item(),
                share=shares[unit].item(),
                promotes=extremes(None if changes is None else changes[index], answers, largest=True),
                suppresses=extremes(None if changes is None else changes[index], answers, largest=False),
            )
            for index, unit in enumerate(units)
        ),
    )


def matrix_of(down: Callable[[Tensor], Tensor], like: Float[Tensor, "d_ff"]) -> Float[Tensor, "d_ff d_model"]:
    """Return the matrix of a linear map, a row for each unit: what it adds to the output when its activation is 1."""
    if isinstance(down, nn.Linear) and type(down) is not AdaptedLinear:
        return down.weight.detach().T.float()
    # A map with an adapter, or one of the user's own, is known by what it does.
    zero = down(torch.zeros(1, 1, len(like), dtype=like.dtype, device=like.device))[0]
    unit = torch.eye(len(like), dtype=like.dtype, device=like.device)
    return torch.cat([down(rows.unsqueeze(0))[0] - zero for rows in unit.split(ROWS)]).float()


def logit_changes(
    inner: InnerValues, at: str, token: int, added: Float[Tensor, "unit d_model"]
) -> Float[Tensor, "unit answer"] | None:
    """Return how much each of some vectors, added to a feed-forward's output at a token, adds to every logit.

    None if the logits of a token do not follow from its own vector.
    """
    side, number, _ = at.split(".")
    part = inner.names.sides[side][1]
    if why_no_effect(inner.names, side):
        return None
    output = part.output
    assert isinstance(output, ToVocabulary)
    around: BranchConnection = part.stack.blocks[int(number)].around_feed_forward
    inputs = [value[token] for value in inner.inputs_of(side, number, "feed_forward")]
    out = inner.value(f"{at}.out", slice(token, token + 1))[0]
    with torch.enable_grad(), torch.inference_mode(mode=False):
        # A copy for each number of the result: then one backward pass makes the whole Jacobian.
        copies = out.clone().expand(len(out), 1, -1).clone().requires_grad_()
        x, *block_input = (value.clone().expand(len(out), 1, -1) for value in inputs)
        vectors = around(x, lambda _: copies, *block_input)
        for module in (part.stack.norm, output.transform):
            vectors = vectors if module is None else module(vectors)
        [jacobian] = torch.autograd.grad(vectors[:, 0].diagonal().sum(), copies)
    last = added.to(jacobian.dtype) @ jacobian[:, 0].T
    changes = (last * output.factor) @ output.table.detach().T
    if output.cap is None:
        return changes
    logits = inner.value(f"{side}.output.logits", slice(token, token + 1))[0]
    return changes * (1 - (logits / output.cap).square()).to(changes.dtype)  # the derivative of cap · tanh(x / cap)


def why_no_effect(names: Names, side: str) -> str:
    """Say why the units of a side have no answers that they promote; "" if they have."""
    if side != list(names.sides)[-1]:
        return "the output reads the decoder, and this is the encoder"
    part = names.sides[side][1]
    if not isinstance(part.output, ToVocabulary):
        return "the output does not give every token its own logits"
    return ""


def extremes(changes: Float[Tensor, "answer"] | None, count: int, *, largest: bool) -> tuple[LogitEffect, ...]:
    """Return the answers whose logits change most in one direction; none that do not change in it."""
    if changes is None:
        return ()
    values, ids = changes.topk(min(count, len(changes)), largest=largest)
    pairs = zip(ids.tolist(), values.tolist(), strict=True)
    return tuple(LogitEffect(answer, value) for answer, value in pairs if (value > 0 if largest else value < 0))
