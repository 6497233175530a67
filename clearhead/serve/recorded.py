"""The saved page of one text: the live page opened on that text, or, where the model cannot be in it, recorded answers.

A model is left out if it is large, has a part that the page cannot compute, or read something that is not one text.
Then the page holds what the explorer answers about this trace: the weights of every head in 8 bits, thumbnails,
readings, logit lens and residual stream. web/src/lib/recorded.ts reads them.
"""

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, cast

import torch

from clearhead.errors import OptionError
from clearhead.experiments.tracing import encode_inputs
from clearhead.model.int8 import count_weights
from clearhead.serve.live import VERSION, LivePage, PinnedText, live_page, page_facts
from clearhead.serve.packing import deflate, script_json
from clearhead.serve.questions.heads import AskReadings
from clearhead.serve.questions.question import TraceQuestion, name_of
from clearhead.serve.questions.run import Opening, SideName
from clearhead.serve.questions.stream import AskLens, AskStream
from clearhead.serve.questions.trace import meta_of
from clearhead.serve.questions.weights import AskThumbs, AskTile
from clearhead.serve.traced import Traced
from clearhead.tracing.site import TILE, Site
from clearhead.tracing.survey import View

LIVE = 5_000_000
"""Up to so many parameters the model is in the page: 10 MB of weights."""
MOST_WEIGHTS = 100_000_000
"""The most weights of a text's heads that are recorded."""
DIGITS = 6
"""Digits of numbers that are drawn, and never computed with."""


class SavedPage(NamedTuple):
    """A page of one text, and why the model is not in it; None where it is."""

    page: LivePage
    reason: str | None


def saved_page(traced: Traced, view: View) -> SavedPage:
    """Return the page of a trace, which opens on the view. OptionError where there are too many weights to record."""
    run, request = traced.run, traced.request
    opening = cast(Opening, view.opening | ({} if request.target is None else {"target": request.target}))
    pinned = PinnedText({"source": request.source}, opening)
    try:
        check_text(traced)
        return SavedPage(live_page(run, pinned, most=LIVE), None)
    except OptionError as reason:
        return SavedPage(recorded_page(traced, pinned), str(reason))


def check_text(traced: Traced) -> None:
    """Raise OptionError where the trace is not what a page makes of the request: its tokens are others."""
    run, request = traced.run, traced.request
    if request.target is None and run.task.target == "writes":
        return  # the page writes the model's own output, as the trace has it
    read = encode_inputs(run, request.source, request.target).ids
    if read != {name: list(side.ids) for name, side in traced.trace.sides.items()}:
        raise OptionError("a page that runs by itself reads one text, and this trace is of something else")


def recorded_page(traced: Traced, pinned: PinnedText) -> LivePage:
    weights = sum((site.n_heads + 1) * site.n_query * site.n_key for site in traced.trace.sites.values())
    if weights > MOST_WEIGHTS:
        raise OptionError(
            f"the heads have {weights:,} weights for this text, and a page holds {MOST_WEIGHTS:,} at most: save a "
            "shorter text, or open the run with `clearhead look`"
        )
    data = {
        "version": VERSION,
        "dtype": "uint8",
        "run": page_facts(traced.run, pinned),
        "answers": {"trace": meta_of(traced), **dict(record(traced))},
    }
    return LivePage(script_json(data), "", count_weights(traced.run.model), data["dtype"])


def record(traced: Traced) -> Iterator[tuple[str, object]]:
    """Yield the answers that the views Model, Heads and Head ask for, by question and what is asked."""
    trace, of = traced.trace, traced.request.id
    if trace.candidates:
        yield named(AskLens(trace=of), traced)
    for side in trace.sides:
        yield named(AskStream(trace=of, side=cast(SideName, side)), traced)
    for name, site in trace.sites.items():
        yield named(AskReadings(trace=of, site=name), traced)
        yield named(AskThumbs(trace=of, site=name), traced)
        for level, row, column in tile_places(site):
            for head in ("mean", *range(site.n_heads)):
                for step in ("weight", "allowed"):
                    tile = AskTile(trace=of, site=name, head=head, step=step, level=level, row=row, column=column)
                    yield named(tile, traced)


def tile_places(site: Site) -> Iterator[tuple[int, int, int]]:
    """Yield level, row and column of every tile, from single cells to the level at which one tile shows all."""
    level, rows, columns = 0, 2, 2
    while rows * columns > 1:
        rows, columns = (math.ceil(n / (TILE << level)) for n in (site.n_query, site.n_key))
        yield from ((level, row, column) for row in range(rows) for column in range(columns))
        level += 1


def named(question: TraceQuestion[Any], traced: Traced) -> tuple[str, object]:
    return answer_name(name_of(type(question)), vars(question)), pack(question.answer_of(traced))


def answer_name(question: str, asked: Mapping[str, Any]) -> str:
    """Return the name of an answer: the question and what it asks, but for zeros and what does not choose numbers."""
    words = {word: value for word, value in asked.items() if value and word not in ("trace", "rows")}
    return f"{question} {json.dumps(words, sort_keys=True, separators=(',', ':'))}"


def pack(answer: object) -> object:
    """Return an answer as the page holds it: numbers with six digits, weights as bytes (weight × 255)."""
    match answer:
        case torch.Tensor():
            *heads, rows, columns = answer.shape
            drawn = answer if answer.dtype == torch.uint8 else (answer.clamp(0, 1) * 255).round().to(torch.uint8)
            size = {"rows": rows, "columns": columns} | ({"heads": heads[0]} if heads else {})
            return {**size, "bytes": deflate(drawn.cpu().contiguous().numpy().tobytes())}
        case float():
            return float(f"{answer:.{DIGITS}g}")
        case dict():
            return {name: pack(inner) for name, inner in answer.items()}
        case list() | tuple():
            return [pack(inner) for inner in answer]
        case _:
            return answer
