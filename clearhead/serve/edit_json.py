"""Edits inside a model as a request sends them, and as the package has them."""

from collections.abc import Mapping, Sequence
from typing import NotRequired, TypedDict, cast

from clearhead.attention.weighting import TABLE, Kernelized, Weighting
from clearhead.errors import OptionError
from clearhead.serve.params import Params
from clearhead.tracing.edits import Change, Edit, Swap

MOST_EDITS = 1000


class StepEdit(TypedDict):
    """A change of one step of one site: a head off is {step: "context", head, times: 0}."""

    at: str
    step: str
    head: NotRequired[int | None]
    query: NotRequired[int | None]
    key: NotRequired[int | None]
    unit: NotRequired[int | None]
    to: NotRequired[float | bool | None]
    times: NotRequired[float | None]


class WeightingEdit(TypedDict):
    """One weighting in place of another."""

    at: str
    weighting: str


EditJson = StepEdit | WeightingEdit


def read_edits(params: Params) -> list[EditJson]:
    """Return the edits of a request as they came, each checked."""
    edits = params.objects("edits", most=MOST_EDITS)
    for edit in edits:
        as_change(edit)
    return cast(list[EditJson], [dict(edit.values) for edit in edits])


def changes_of(edits: Sequence[EditJson]) -> list[Change]:
    return [as_change(Params(edit, f"edits[{index}]")) for index, edit in enumerate(edits)]


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
