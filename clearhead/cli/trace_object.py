"""The JSON of `clearhead trace --json`: what the terminal shows, and the weights at full precision."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from clearhead.attention.reference import Steps
from clearhead.cli.trace_page import SurveyedTrace, WrittenFile
from clearhead.tracing.site import Head
from clearhead.training.metrics import replace_nonfinite

MOST_NUMBERS = 100_000
"""The most weights that are given where nobody says which: a few MB of text."""
STEPS = ("query", "key", "value", "score", "scaled", "masked", "weight", "context")


def as_object(
    looked: SurveyedTrace, files: Mapping[str, WrittenFile], *, site: str | None, head: str | None
) -> dict[str, Any]:
    """Return the whole trace for a program; heads count from 0, the mean is null, and so is -inf."""
    meta = looked.traced.meta()
    heads, limited = given_weights(looked, site, head)
    weights: dict[str, dict[str, Any]] = {}
    for head_trace in heads:
        weights.setdefault(head_trace.site.name, {})[str(head_trace.index)] = head_trace.weight.tolist()
    return {
        "run": str(looked.traced.run.folder.path),
        "task": looked.trace.task,
        **{name: meta[name] for name in ("source", "target", "step", "kind", "notes", "answer", "sides")},
        "sites": [{**facts, **asdict(looked.surveys[facts["name"]])} for facts in meta["sites"]],
        "shown": {"site": looked.view.site, "head": looked.view.head, **shown_steps(looked)},
        "weight": weights,
        "limited": limited,
        "candidates": meta["candidates"],
        "files": {kind: {"path": str(file.path), "bytes": file.size} for kind, file in files.items()},
    }


def shown_steps(looked: SurveyedTrace) -> dict[str, Any]:
    """Return every step of the head that is shown; of a mean the weights, which is all it has."""
    if looked.view.head is None:
        return {"weight": looked.weight.tolist()}
    steps: Steps = looked.site.head[looked.view.head].rows()
    return {name: replace_nonfinite(getattr(steps, name).tolist()) for name in STEPS}


def given_weights(looked: SurveyedTrace, site: str | None, head: str | None) -> tuple[list[Head], str | None]:
    """Return the heads whose weights are given: those asked for, or all of them if they are not too many."""
    sites = [looked.trace[site]] if site else list(looked.trace.sites.values())
    heads = [head_trace for attention in sites for head_trace in attention.head]
    if head is not None:
        return [head_trace for head_trace in heads if looked.view.head in (None, head_trace.index)], None
    numbers = sum(head_trace.site.n_query * head_trace.site.n_key for head_trace in heads)
    if numbers <= MOST_NUMBERS:
        return heads, None
    note = f"{numbers:,} weights are too many for JSON: those of {looked.name} are given; --site and --head give others"
    return [looked.site.head[looked.view.head or 0]], note
