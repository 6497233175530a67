"""Edits: changes to what happens inside a model, by name, for head ablation and activation patching.

>>> import clearhead as ch
>>> ch.Edit(at="decoder.1.cross", step="context", head=3, times=0.0)         # ablate that head
Edit(at='decoder.1.cross', step='context', head=3, times=0.0)
>>> ch.Edit(at="encoder.0.attention", step="score", query=2, key=5, to=4.0).fused
False

`query`, `key` and `value`, a head's `context`, the weighting, and the residual stream are changed beside the fast
kernels; what is made between the keys and the weights exists only in the reference, which then runs that layer.
"""

import functools
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NoReturn, final

import torch
from torch import Tensor, nn

from clearhead.attention.inputs import AttentionInputs
from clearhead.attention.parts import HeadShape
from clearhead.attention.reference import Tap, leave_unchanged
from clearhead.attention.request import check_kernelized, check_kind
from clearhead.attention.weighting import Weighting
from clearhead.calls import CodeRepr, public
from clearhead.errors import OptionError, PlaceError, ShapeError
from clearhead.model.arrangements import BranchConnection
from clearhead.tracing.names import CONCAT, Names, list_near

ALL_ROWS = slice(None)
OUTSIDE = ("query", "key", "value", "context")
"""Steps that are a kernel's input or output."""
INSIDE = ("allowed", "score", "scaled", "masked", "weight")
"""Steps that only the reference makes."""


SITE = re.compile(r"(encoder|decoder)\.\d+\.(attention|cross)")
"""The name of an attention."""


def site_steps() -> list[str]:
    """Return the names of all values at an attention and in the connection around it, those of a user's own too."""
    connections = [BranchConnection]
    for cls in connections:  # it grows meanwhile, by the classes derived from each
        connections += cls.__subclasses__()
    around = {step.out for cls in connections for step in cls.steps if step.out}
    mapped = [f"{before}_{role}" for before in ("mapped", "projected") for role in ("query", "key")]
    return [*OUTSIDE, *INSIDE, CONCAT, "out", *sorted(around - {"out"}), *mapped, "latent_value"]


@final
@public
@dataclass(frozen=True, kw_only=True)
class Edit(CodeRepr):
    """A change of one value inside a model: set it with `to`, or multiply it by `times`.

    `at` is a site (`decoder.1.cross`) and `step` one of its steps; or together they name a value of the residual
    stream: `at="decoder.1.cross", step="residual"`. Leave out `head`, `query`, `key` or `unit` to change all of them.

    Args:
        at: Site, or the beginning of a value's name.
        step: Step of the site, such as `weight` or `context`, or the end of the name. `allowed` is the mask: True where
            the query may attend.
        head: Number of the head.
        query: Row along the queries; for contexts and values of the stream, the place of the token.
        key: Column along the keys; for keys and values, the place of the token.
        unit: One number of a vector: `at="encoder.0.feed_forward", step="hidden", unit=17`.
        to: The new value.
        times: Factor for the old value.

    Raises:
        OptionError: If not exactly one of `to` and `times` is given, or there is no such step.
        PlaceError: If a number is negative.

    >>> import clearhead as ch
    >>> ch.Edit(at="decoder.1.cross", step="context", head=2, to=0)
    Edit(at='decoder.1.cross', step='context', head=2, to=0)
    """

    at: str
    step: str
    head: int | None = None
    query: int | None = None
    key: int | None = None
    unit: int | None = None
    to: float | bool | Tensor | None = None
    times: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.at, str) or not isinstance(self.step, str):
            names = f"{self.at!r:.80}, {self.step!r:.80}"
            raise OptionError(f"Edit: at and step are names, as 'decoder.1.cross', 'context'; came {names}")
        if SITE.fullmatch(self.at) and self.step not in site_steps():
            steps = site_steps()
            raise OptionError(f"there is no {self.name!r}; {list_near(self.step, steps)}")
        for axis in ("head", "query", "key", "unit"):
            index = getattr(self, axis)
            if index is not None and (not isinstance(index, int) or index < 0):
                raise PlaceError(f"{self.name}: {axis} is counted from 0, in whole numbers; came {index!r:.80}")
        if (self.to is None) == (self.times is None):
            raise OptionError(f"{self.name}: an edit has either `to`, a new value, or `times`, a factor; give one")
        if self.step == "allowed" and not isinstance(self.to, bool | Tensor):
            raise OptionError(f"{self.name}: what is allowed is set `to` True or False; came {self.to!r}")
        for field, number in (("to", self.to), ("times", self.times)):
            if not isinstance(number, int | float | Tensor | None):
                raise OptionError(f"{self.name}: `{field}` must be a number or a tensor; came {number!r:.80}")

    @property
    def name(self) -> str:
        return f"{self.at}.{self.step}"

    @property
    def fused(self) -> bool:
        """Return whether the fast kernels can run with this edit."""
        return self.step not in INSIDE

    def apply(self, value: Tensor, rows: slice = ALL_ROWS) -> Tensor:
        """Return the changed value; `rows` are the rows of the query axis that it holds."""
        value = value.clone()
        region = self.region(value, rows)
        if region is None:
            return value
        part = value[region]
        value[region] = self.new_value(part) if self.times is None else part * self.times
        return value

    def new_value(self, part: Tensor) -> Tensor:
        new = torch.as_tensor(self.to, device=part.device).to(part.dtype)
        try:
            return new.expand(part.shape)
        except RuntimeError:
            raise ShapeError(
                f"{self.name}: the new value has shape {tuple(new.shape)}, and what it replaces {tuple(part.shape)}"
            ) from None

    def region(self, value: Tensor, rows: slice) -> tuple[int | slice, ...] | None:
        """Return the index of the part of a value that changes; None if it is not in these rows."""
        every = slice(None)
        first = rows.start or 0
        unit = every if self.step in INSIDE else self.check_place(self.unit, value.shape[-1], "unit")
        if value.ndim == 2 and self.step != "position":  # one vector of a whole sequence: (batch, d)
            return every, unit
        if value.ndim < 4:  # (batch, n, d), or (n, d) of positions
            return *(every,) * (value.ndim - 2), self.check_place(self.query, value.shape[-2], "position"), unit
        head = self.check_place(self.head, value.shape[1], "head")
        if self.step in ("key", "value"):
            return every, head, self.check_place(self.key, value.shape[2], "key"), unit
        if self.query is not None and not first <= self.query < first + value.shape[2]:
            if rows == every:
                self.raise_outside(self.query, value.shape[2], "query")
            return None
        query = every if self.query is None else self.query - first
        last = unit if self.step in OUTSIDE else self.check_place(self.key, value.shape[3], "key")
        return every, head, query, last

    def reaches(self, n_target: int) -> bool:
        """Return whether a target of `n_target` tokens has the places that this edit names on the decoder's side."""
        if not self.at.startswith("decoder."):
            return True
        own_key = self.key if self.at.endswith(".attention") else None
        return all(index is None or index < n_target for index in (self.query, own_key))

    def check_place(self, index: int | None, size: int, axis: str) -> int | slice:
        if index is None:
            return slice(None)
        return index if 0 <= index < size else self.raise_outside(index, size, axis)

    def raise_outside(self, index: int, size: int, axis: str) -> NoReturn:
        raise PlaceError(f"{self.name}: {axis} {index} is changed, and there are {size}, counted from 0")


@final
@public
@dataclass(frozen=True, kw_only=True)
class Swap(CodeRepr):
    """Another weighting for one site.

    A weighting that learns values (random features) gets the values with which it would start training.

    Args:
        at: Site, `decoder.1.cross`.
        weighting: The weighting to use there.

    >>> import clearhead as ch
    >>> ch.Swap(at="decoder.1.cross", weighting=ch.weighting.Sparsemax())
    Swap(at='decoder.1.cross', weighting=Sparsemax())
    """

    at: str
    weighting: Weighting

    def __post_init__(self) -> None:
        check_kind("weighting", self.weighting, Weighting, "clearhead.weighting.Argmax()")

    def reaches(self, n_target: int) -> bool:
        return True

    def apply(self, call: AttentionInputs) -> AttentionInputs:
        position = call.position
        if self.weighting.form == "kernelized":
            check_kernelized(None, position)
        shape = HeadShape(n_heads=call.n_heads, n_kv_heads=call.key.shape[1], d_head=call.query.shape[-1])
        takes_over = "kernelized" in (self.weighting.form, call.weighting.form)
        similarity = self.weighting.similarity.build(shape) if takes_over else call.similarity
        return call.replace(weighting=self.weighting.build(shape), similarity=similarity)


Change = Edit | Swap


class TextChange(ABC):
    """A change that is not one of a value, as that of an edge: for each text that is read it is turned into edits."""

    @abstractmethod
    def edits_for(self, model: nn.Module, tokens: Sequence[Tensor], segments: Tensor | None = None) -> list[Edit]:
        """Return the edits that make the change while these token ids are read, `(row, n)` for each side."""


def changes_for(
    changes: Sequence[Change | TextChange],
    model: nn.Module,
    tokens: Sequence[Tensor],
    segments: Tensor | None = None,
) -> list[Change]:
    """Return the changes for a text, those that depend on it as edits."""
    check_listed(changes)
    of_text = [change for change in changes if isinstance(change, TextChange)]
    if of_text and len(changes) > 1:
        raise OptionError(
            f"a {type(of_text[0]).__name__} sets what it finds in the model without other changes: give it alone, with "
            f"all its edges; came {len(changes)} changes"
        )
    if of_text:
        return list(of_text[0].edits_for(model, tokens, segments))
    return [change for change in changes if not isinstance(change, TextChange)]


def check_listed(changes: object) -> None:
    if not isinstance(changes, Sequence):
        raise OptionError(f"changes: expected a list of clearhead.Edit and clearhead.Swap; came {changes!r:.80}")


def check_changes(changes: Sequence[Change | TextChange], names: Names) -> None:
    """Raise OptionError for a change that names something this model does not have."""
    check_listed(changes)
    tapped = set(names.taps.values())
    for change in changes:
        if isinstance(change, TextChange):
            continue
        if not isinstance(change, Edit | Swap):
            raise OptionError(f"a change is a clearhead.Edit or a clearhead.Swap; came {change!r}")
        if isinstance(change, Edit) and change.name in tapped:
            continue
        if isinstance(change, Edit) and change.name in names.box_of and change.at not in names.sites:
            raise OptionError(
                f"{change.name} cannot be changed: it is worked out, or learned, and nothing is made of it by itself; "
                "change what goes in there, or what comes out"
            )
        names.check_site(change.at)
        if isinstance(change, Edit) and change.step not in OUTSIDE + INSIDE:
            raise OptionError(
                f"{change.name!r} is not in this model, or cannot be changed; {', '.join((*OUTSIDE, *INSIDE))} can"
            )
        heads = names.sites[change.at].shape.n_heads
        if isinstance(change, Edit) and change.head is not None:
            heads = heads if change.step not in ("key", "value") else names.sites[change.at].shape.n_kv_heads
            change.check_place(change.head, heads, "head")


def apply_to_inputs(call: AttentionInputs, changes: Sequence[Change]) -> AttentionInputs:
    """Return the inputs with queries, keys, values and weighting as the changes have them."""
    for change in changes:
        if isinstance(change, Swap):
            call = change.apply(call)
        elif change.step in ("query", "key", "value"):
            call = call.replace(**{change.step: change.apply(getattr(call, change.step))})
    return call


def step_tap(changes: Sequence[Change], call: AttentionInputs, rows: slice = ALL_ROWS) -> Tap:
    """Return a tap by which the reference changes its steps between keys and weights, in these rows of the call."""
    inner = [change for change in changes if isinstance(change, Edit) and not change.fused]
    if call.share is not None and call.share.n_head is not None:
        inner = [replace(edit, head=None) for edit in inner if edit.head in (None, call.share.head)]
    if not inner:
        return leave_unchanged
    n_query = len(range(*rows.indices(call.n_query)))
    shape = (call.query.shape[0], call.n_heads, n_query, call.n_key)
    return functools.partial(edit_step, inner, shape, rows)


def edit_step(edits: Sequence[Edit], shape: tuple[int, ...], rows: slice, name: str, value: Tensor) -> Tensor:
    for edit in edits:
        if edit.step == name:
            value = edit.apply(value.broadcast_to(shape), rows)
    return value


def apply_edits(name: str, value: Tensor, changes: Sequence[Change]) -> Tensor:
    """Return a value after the edits of its name."""
    for change in changes:
        if isinstance(change, Edit) and change.name == name:
            value = change.apply(value, ALL_ROWS)
    return value
