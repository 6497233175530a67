"""Recording: what a forward pass takes in and gives out at every attention and in the stream, while it runs as it does.

Of each attention the call is kept (queries, keys, values, mask, positions) and the context its kernel gave; between
them nothing is made that the kernel does not make, and from them every step can be rebuilt. Memory is a few times
layers x n x d_model, never n x n.

>>> import torch
>>> from clearhead.model import presets
>>> model = presets.gpt2("tiny", vocabulary=50).build().eval()
>>> with recording(model) as record:
...     _ = model(torch.randint(50, (1, 7)))
>>> [*record.sites][:2], record.sites["decoder.0.attention"].kernel
(['decoder.0.attention', 'decoder.1.attention'], 'fused')

Cancel long work from outside: loops over blocks of rows check whether anyone still waits for the result.

>>> with stopping_when(lambda: True):
...     check_stopped()
Traceback (most recent call last):
clearhead.tracing.recording.StoppedError: nobody waits for this any more
"""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, SupportsIndex, TypeVar, overload
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from clearhead.attention import kernels, reference
from clearhead.attention.inputs import AttentionInputs
from clearhead.attention.layer import Attention
from clearhead.calls import public
from clearhead.errors import PlaceError
from clearhead.taps import replacing, watching
from clearhead.tracing.edits import Change, Edit, apply_edits, apply_to_inputs, check_changes, step_tap
from clearhead.tracing.names import names_of

LEFT: ContextVar[Callable[[], bool] | None] = ContextVar("left", default=None)


class StoppedError(Exception):
    """Work was cancelled because nobody waits for its result. It is no fault, and no ClearheadError."""


@contextlib.contextmanager
def stopping_when(is_gone: Callable[[], bool]) -> Iterator[None]:
    """Make `check_stopped` raise in this context once `is_gone()` is true. Other threads are not affected."""
    before = LEFT.set(is_gone)
    try:
        yield
    finally:
        LEFT.reset(before)


def check_stopped() -> None:
    """Raise StoppedError where nobody waits for the result any more."""
    is_gone = LEFT.get()
    if is_gone is not None and is_gone():
        raise StoppedError("nobody waits for this any more")


@dataclass(frozen=True, kw_only=True)
class RecordedAttention:
    """An attention as it ran: its inputs, the kernel's context, and the changes made there.

    `context` is the kernel's own, before a change of the context.
    """

    call: AttentionInputs
    context: Tensor
    kernel: str
    projected: tuple[Tensor, Tensor] | None = None
    """Queries and keys as W_Q and W_K made them, before rotary; None if the position turns nothing."""
    why: str = ""
    """Why the reference ran, where a change required it."""
    changes: tuple[Change, ...] = ()


@dataclass
class Recording:
    """The values of a forward pass: attentions by the names of their sites, and the residual stream."""

    sites: dict[str, RecordedAttention] = field(default_factory=dict)
    stream: dict[str, Tensor] = field(default_factory=dict)
    projected: dict[tuple[str, str], Tensor] = field(default_factory=dict)
    """The last queries and keys before rotary, by the name of the site and `query` or `key`."""


@contextlib.contextmanager
@public
def recording(model: nn.Module, changes: Sequence[Change] = ()) -> Iterator[Recording]:
    """Record the first forward pass inside; with `changes`, of the changed model.

    Dropout of weights is left out, so that a training step can be rebuilt too. A second recording of the model, in
    another thread, waits for the end of the first; any other use of it there meets the changes, and is recorded.

    Args:
        model: The model.
        changes: Edits and swaps.

    Returns:
        A context manager that yields the recording.

    >>> import torch, clearhead as ch
    >>> model = ch.presets.gpt2("tiny", vocabulary=20).build().eval()
    >>> with ch.tracing.recording(model) as recorded:
    ...     _ = model(torch.tensor([[3, 1, 4]]))
    """
    names = names_of(model)
    check_changes(changes, names)
    record = Recording()
    projections = {
        f"{names.paths[name]}.{role}": (name, role)
        for name, layer in names.sites.items()
        if layer.position.turns
        for role in ("query", "key")
    }

    def edit(path: str, value: Tensor) -> Tensor:
        name = names.taps.get(path)
        return value if name is None else apply_edits(name, value, changes)

    # Detached, so that a recording does not hold the graph of a training step; and the first value of a name stays: a
    # model that is called again inside the context would mix two texts otherwise.
    def keep(path: str, value: Tensor) -> None:
        if path in projections:
            record.projected[projections[path]] = value.detach()
        name = names.stream.get(path)
        if name is not None:
            record.stream.setdefault(name, value.detach())

    # The runner is exchanged, and not the module: projections, positions and W_O run as they always do, and the kernel
    # is the one that the layer would have chosen. Only what passes between them is noted.
    with alone_with(model):
        before = {layer: layer.runner for layer in names.sites.values()}
        for name, layer in names.sites.items():
            site_changes = tuple(change for change in changes if change.at == name)
            layer.runner = functools.partial(run_recorded, record, name, layer, site_changes)
        try:
            with replacing(model, edit) if changes else contextlib.nullcontext(), watching(model, keep):
                yield record
        finally:
            for layer, runner in before.items():
                layer.runner = runner


LOCKS: WeakKeyDictionary[nn.Module, Any] = WeakKeyDictionary()
MAKING = threading.Lock()


def alone_with(model: nn.Module) -> AbstractContextManager[object]:
    """Return the lock of a model, for what notes or replaces values in its modules: it does so for every thread."""
    with MAKING:
        return LOCKS.setdefault(model, threading.RLock())


def run_recorded(
    record: Recording, name: str, layer: Attention, changes: tuple[Change, ...], call: AttentionInputs
) -> Tensor:
    check_stopped()
    call = apply_to_inputs(call.replace(dropout=0.0), changes)
    # A kernel never has scores or weights in memory: to change one of them, the reference has to form it.
    inner = [change for change in changes if isinstance(change, Edit) and not change.fused]
    if inner:
        kernel, context = "reference", changed_context(call, changes)
    else:
        kernel = kernels.kernel_for(layer.kernel, call).name
        context = kernels.run(kernel, call)
    steps = ", ".join(sorted({edit.step for edit in inner}))
    reason = f"an edit changes {steps}, which only the reference computes" if inner else ""
    before = (
        (record.projected[name, "query"], record.projected[name, "key"]) if (name, "key") in record.projected else None
    )
    passed = RecordedAttention(
        call=call.replace(query=call.query.detach(), key=call.key.detach(), value=call.value.detach()),
        context=context.detach(),
        kernel=kernel,
        projected=before,
        why=reason,
        changes=changes,
    )
    record.sites.setdefault(name, passed)
    return apply_edits(f"{name}.context", context, changes)


def changed_context(call: AttentionInputs, changes: Sequence[Change]) -> Tensor:
    """Return the context by the reference, its steps changed."""
    # In float32 and with every head written out, as a trace rebuilds it: else the two would differ by rounding.
    dtype = call.query.dtype
    call = call.to_float32().with_every_head()
    query, key = call.similarity.prepare(call.query, call.key)
    weighed = reference.weigh(call, query, key, tap=step_tap(changes, call))
    return reference.mix(call, weighed.weight, call.value).to(dtype)


Item = TypeVar("Item")


class Counted(list[Item]):
    """A list of the things called `what`; an index that is not there raises a PlaceError, which is an IndexError too.

    >>> Counted(["a", "b"], "decoder: layer")[7]
    Traceback (most recent call last):
    ...
    clearhead.errors.PlaceError: decoder: layer 7 is not there; there are 2, counted from 0
    """

    def __init__(self, items: Iterable[Item], what: str) -> None:
        super().__init__(items)
        self.what = what

    @overload
    def __getitem__(self, index: SupportsIndex) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> list[Item]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> Item | list[Item]:
        try:
            return super().__getitem__(index)
        except (IndexError, TypeError):
            raise PlaceError(f"{self.what} {index!r} is not there; there are {len(self)}, counted from 0") from None
