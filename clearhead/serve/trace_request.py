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

__all__ = ["TraceRequest", "as_change", "changes_of", "read_edits", "weightings"]

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
    def of(asked: Params, step: int) -> "TraceRequest":
        """Read a request from a body; `step` is the checkpoint to use unless the body names another."""
        asked.only("source", "target", "edits", "step")
        edits = read_edits(asked)
        chosen = asked.maybe_whole("step")
        return TraceRequest(
            source=asked.text("source"),
            target=target_of(asked),
            edits=edits,
            step=step if chosen is None else chosen,
        )

    @property
    def id(self) -> str:
        """Return a key that is the same for the same request."""
        told = json.dumps([self.source, self.target, self.edits, self.step], sort_keys=True)
        return hashlib.blake2b(told.encode(), digest_size=12).hexdigest()

    @property
    def changes(self) -> list[Change]:
        return changes_of(self.edits)


def read_edits(asked: Params) -> list[dict[str, Any]]:
    """Return the edits of a request as they came, each checked."""
    edits = asked.objects("edits", most=MOST_EDITS)
    for one in edits:
        as_change(one)
    return [dict(one.values) for one in edits]


def changes_of(edits: Sequence[dict[str, Any]]) -> list[Change]:
    return [as_change(Params(one, f"edits[{place}]")) for place, one in enumerate(edits)]


def target_of(asked: Params) -> str | list[int] | None:
    """Return the target as text or ids; None for the model's own output."""
    found = asked.values.get("target")
    if found is None:
        return None
    if not isinstance(found, list):
        return asked.text("target")
    if not all(isinstance(token, int) and not isinstance(token, bool) and 0 <= token < 2**31 for token in found):
        raise asked.value_error("target", "expected text, or a list of token ids", found)
    return found


def weightings() -> Mapping[str, Weighting]:
    """Return what can be put in a weighting's place, by name."""
    return {**TABLE, "kernelized": Kernelized("elu")}


def as_change(one: Params) -> Change:
    """Return an edit of one value, or a swap of a site's weighting."""
    if "weighting" in one.values:
        one.only("at", "weighting")
        return Swap(at=one.text("at"), weighting=weightings()[one.one_of("weighting", tuple(weightings()))])
    one.only("at", "step", "head", "query", "key", "unit", "to", "times")
    times = one.values.get("times")
    return Edit(
        at=one.text("at"),
        step=one.text("step"),
        head=one.maybe_whole("head"),
        query=one.maybe_whole("query"),
        key=one.maybe_whole("key"),
        unit=one.maybe_whole("unit"),
        to=new_value(one),
        times=None if times is None else one.number("times"),
    )


def new_value(one: Params) -> float | bool | None:
    found = one.values.get("to")
    if found is None or isinstance(found, bool):
        if isinstance(found, bool) and one.values.get("step") != "allowed":
            raise OptionError(f"{one.where}: to is {found}, which is for `allowed`; give a number")
        return found
    return one.number("to")
