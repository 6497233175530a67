"""Lines of Python by which a reader gets the numbers of the page: what every question begins with."""

from collections.abc import Sequence

from clearhead.tracing.edits import Change, Edit
from clearhead.training.run import Run


def load_lines(run: Run) -> list[str]:
    """Return the lines that load a run, with the weights of the step that is looked at."""
    return ["import clearhead as ch", "", f"run = ch.load({str(run.folder.path)!r}, step={run.step})"]


def text_arguments(source: str, target: str | Sequence[int] | None = None, changes: Sequence[Change] = ()) -> str:
    """Return a text as calls of `ch` take it: the source, its target, and the edits."""
    given = "" if target is None else f", {target!r}"
    edits = f", edits=[{', '.join(map(edit_code, changes))}]" if changes else ""
    return f"{source!r}{given}{edits}"


def edit_code(change: Change) -> str:
    """Return a change as the expression that makes it.

    >>> from clearhead.tracing.edits import Edit
    >>> edit_code(Edit(at="decoder.1.cross", step="context", head=3, times=0.0))
    "ch.Edit(at='decoder.1.cross', step='context', head=3, times=0.0)"
    """
    if isinstance(change, Edit):
        return f"ch.{change!r}"
    return f"ch.Swap(at={change.at!r}, weighting=ch.weighting.{change.weighting!r})"


def keywords(**given: object) -> str:
    """Return the keyword arguments that are given, to stand after other arguments."""
    return "".join(f", {name}={value!r}" for name, value in given.items() if value is not None)


def head_code(site: str, head: int | str, value: str) -> str:
    """Return a value of a head of a trace, or its mean over the heads."""
    if head == "mean":
        return f"sum(head.{value} for head in trace[{site!r}].head) / len(trace[{site!r}].head)"
    return f"trace[{site!r}].head[{head}].{value}"
