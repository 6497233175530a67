"""A request for a trace: the text, the changes inside the model, and the checkpoint to run."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from clearhead.attention.weighting import TABLE, Kernelized, Weighting
from clearhead.errors import OptionError
from clearhead.serve.params import Params
from clearhead.tracing.edits import Change, Edit, Swap

MOST_EDITS = 1000


@final
@dataclass(frozen=True, kw_only=True)
class TraceRequest:
    """A request for a trace, read and checked as far as it can be without a model."""

    source: str
    target: str | list[int] | None
    edits: list[dict[str, Any]]
    step: int

    @staticmethod
    def of(params: Params, step: int) -> "TraceRequest":
        """Read a request from a body; `step` is the checkpoint to use unless the body names another."""
        params.only("source", "target", "edits", "step")
        edits = read_edits(params)
        asked_step = params.maybe_whole("step")
        return TraceRequest(
            source=params.text("source"),
            target=target_of(params),
            edits=edits,
            step=step if asked_step is None else asked_step,
        )

    @property
    def id(self) -> str:
        """Return a key that is the same for the same request."""
        key = json.dumps([self.source, self.target, self.edits, self.step], sort_keys=True)
        return hashlib.blake2b(key.encode(), digest_size=12).hexdigest()

    @property
    def changes(self) -> list[Change]:
        return changes_of(self.edits)


def read_edits(params: Params) -> list[dict[str, Any]]:
    """Return the edits of a request as they came, each checked."""
    edits = params.objects("edits", most=MOST_EDITS)
    for edit in edits:
        as_change(edit)
    return [dict(edit.values) for edit in edits]


def changes_of(edits: Sequence[dict[str, Any]]) -> list[Change]:
    return [as_change(Params(edit, f"edits[{index}]")) for index, edit in enumerate(edits)]


def target_of(params: Params) -> str | list[int] | None:
    """Return the target as text or ids; None for the model's own output."""
    target = params.values.get("target")
    if target is None:
        return None
    if not isinstance(target, list):
        return params.text("target")
    if not all(isinstance(token, int) and not isinstance(token, bool) and 0 <= token < 2**31 for token in target):
        raise params.value_error("target", "expected text, or a list of token ids", target)
    return target


def weightings() -> Mapping[str, Weighting]:
    """Return what can be put in a weighting's place, by name."""
    return {**TABLE, "kernelized": Kernelized("elu")}


def as_change(edit: Params) -> Change:
    """Return an edit of one value, or a swap of a site's weighting."""
    if "weighting" in edit.values:
        edit.only("at", "weighting")
        return Swap(at=edit.text("at"), weighting=weightings()[edit.one_of("weighting", tuple(weightings()))])
    edit.only("at", "step", "head", "query", "key", "unit", "to", "times")
    times = edit.values.get("times")
    return Edit(
        at=edit.text("at"),
        step=edit.text("step"),
        head=edit.maybe_whole("head"),
        query=edit.maybe_whole("query"),
        key=edit.maybe_whole("key"),
        unit=edit.maybe_whole("unit"),
        to=new_value(edit),
        times=None if times is None else edit.number("times"),
    )


def new_value(edit: Params) -> float | bool | None:
    value = edit.values.get("to")
    if value is None or isinstance(value, bool):
        if isinstance(value, bool) and edit.values.get("step") != "allowed":
            raise OptionError(f"{edit.where}: to is {value}, which is for `allowed`; give a number")
        return value
    return edit.number("to")
