"""One page that holds a whole trace: the built page with the numbers put into it. It opens from disk, offline.

The weights of every head are kept in 8 bits. Of chosen sites queries, keys and values are kept as they are, and the
page does their arithmetic again; the others show their weights alone. The boxes of the model's diagram have their
numbers for as many tokens of each side as fit, from the last one back. web/src/lib/embedded.ts reads what is made here.
"""

import base64
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from clearhead.errors import OptionError, RunError
from clearhead.serve.boxes import Boxes
from clearhead.serve.curves import Curves
from clearhead.serve.questions.heads import AskReadings
from clearhead.serve.questions.run import SideName, run_facts
from clearhead.serve.questions.stream import AskLens, AskStream
from clearhead.serve.questions.trace import meta_of
from clearhead.serve.traced import Traced
from clearhead.tracing.arithmetic import angles_of
from clearhead.tracing.site import Head, Site
from clearhead.tracing.survey import SiteSurvey, View
from clearhead.training.metrics import replace_nonfinite

TEMPLATE = Path(__file__).parent / "static" / "page.html"
"""The page without numbers, as `make web` builds it."""
PLACE = '<script type="application/json" id="clearhead-data">'
"""The tag after which the numbers go."""
ROOM = 5_000_000
"""The most bytes of a page, where nobody says which sites are to be exact."""
BOXES = 1_000_000
"""The most of these bytes for the numbers of the boxes."""
WIDEST = 4096
"""A value with more numbers than this for a token, as the logits of a large vocabulary, is left out of the boxes."""
SPARE = 1_000
"""Bytes left over for what holds the exact sites together."""
VERSION = 1
DIGITS = 6
"""Digits of numbers that are drawn, and never computed with."""


class Page(NamedTuple):
    """A page, and the sites that it has every number of."""

    text: str
    exact: list[str]


def is_built() -> bool:
    return TEMPLATE.is_file()


def check_built() -> None:
    """Raise RunError where the page without a trace is not built."""
    read_template(TEMPLATE, PLACE)


def page_of(
    traced: Traced, surveys: Mapping[str, SiteSurvey], *, view: View, exact: Sequence[str] | None = None
) -> Page:
    """Return the page of a trace, which opens on the view. `exact` None is the site of the view, then the clearest
    others, while there is room.
    """
    before, after = read_template(TEMPLATE, PLACE)
    sites = None if exact is None else exact_sites(traced, exact)
    data = page_data(traced, view)
    if sites is None:
        sites = dict(
            fit_sites(traced, surveys, view, ROOM - len((before + script_json(data) + after).encode()) - SPARE)
        )
    return Page(before + script_json({**data, "exact": sites}) + after, list(sites))


def read_template(file: Path, *tags: str) -> list[str]:
    """Return the text of a built page in pieces, cut after each of these tags: what goes there goes between them."""
    if not file.is_file():
        raise RunError(f"the page is not built: there is no {file}; run `make web`")
    pieces = [file.read_text(encoding="utf-8")]
    for tag in tags:
        before, tag_found, after = pieces.pop().partition(tag)
        if not tag_found:
            raise RunError(f"{file}: has no place for the numbers; run `make web`")
        pieces += [before + tag_found, after]
    return pieces


def page_data(traced: Traced, view: View) -> dict[str, Any]:
    """Return the page's data, all but the exact numbers."""
    trace, run, of = traced.trace, traced.run, traced.request.id
    return {
        "version": VERSION,
        "run": run_facts(run, Curves(run.folder.metrics)) | {"path": run.folder.path.name, "opening": view.opening},
        "meta": meta_of(traced),
        # A byte for each weight: weight × 255.
        "weights": {
            name: pack(torch.stack([(head.weight.clamp(0, 1) * 255).round().to(torch.uint8) for head in site.head]))
            for name, site in trace.sites.items()
        },
        "allowed": {name: bits for name, site in trace.sites.items() if (bits := mask_of(site)) is not None},
        "readings": round_numbers(AskReadings(trace=of).answer_of(traced)),
        "lens": round_numbers(AskLens(trace=of).answer_of(traced)) if trace.candidates else None,
        "stream": {
            side: round_numbers(AskStream(trace=of, side=cast(SideName, side)).answer_of(traced))
            for side in trace.sides
        },
        "boxes": box_numbers(traced.boxes),
    }


def box_numbers(boxes: Boxes) -> dict[str, Any]:
    """Return the numbers of the boxes: of each side those shared by all tokens, and of some tokens all but heads' own.

    Vectors of a token lie one after another, as wide as `widths` says. The last tokens come first, of all sides.
    """
    by_side = {side: side_numbers(boxes, side) for side in boxes.trace.sides}
    numbers = {
        side: {
            "shared": {name: floats(value) for name, value in shared.items()},
            "widths": {name: value.shape[-1] for name, value in per_token.items()},
            "tokens": {},
        }
        for side, (shared, per_token) in by_side.items()
    }
    room = BOXES - sum(len(vector) for side in numbers.values() for vector in side["shared"].values())
    for back in range(max(len(side.ids) for side in boxes.trace.sides.values())):
        for side, (_, per_token) in by_side.items():
            token = len(boxes.trace.sides[side].ids) - 1 - back
            if token < 0 or not per_token:
                continue
            vectors = floats(torch.cat([value[token].float().flatten() for value in per_token.values()]))
            room -= len(vectors)
            if room < 0:
                return numbers
            numbers[side]["tokens"][str(token)] = vectors
    return numbers


def side_numbers(boxes: Boxes, side: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the values of a side that no head has for itself: one vector for all tokens, and one for each."""
    inner, shared, per_token, sections = boxes.inner, {}, {}, {}
    for box in inner.names.boxes.values():
        if box.side != side:
            continue
        if box.section not in sections:
            sections = {box.section: inner.section(box)}  # one at a time: together they may be large
        for value in box.values:
            if value.per_head:
                continue
            section = sections[box.section]
            numbers = section[value.name] if value.name in section else inner.value(value.name)
            if numbers.shape[-1] <= WIDEST:
                (shared if value.rows in ("none", "whole") else per_token)[value.name] = numbers
    return shared, per_token


def allowed_of(site: Site) -> Bool[Tensor, "head query key"]:
    return torch.stack([head.allowed(0, site.n_query) for head in site.head])


def mask_of(site: Site) -> str | None:
    """Return where its queries may attend, once for all heads if they are alike; None where nothing is masked."""
    allowed = allowed_of(site)
    if bool(allowed.all()):
        return None
    shared = bool((allowed == allowed[:1]).all())
    return bits(allowed[:1] if shared else allowed)


def turn_of_site(site: Site) -> dict[str, Any]:
    """Return queries and keys before rotary, for each head, and the angles of every place."""
    call = site.call
    assert site.projected is not None
    queries, keys = site.projected
    group = len(queries) // len(keys)
    return {
        "query": floats(queries),
        "key": floats(keys.repeat_interleave(group, 0)),
        "pairs": call.position.pairs(site.d_head),
        **{
            f"{role}_{kind}": numbers
            for role, side in zip(("query", "key"), call.positions.sides, strict=True)
            for kind, numbers in (
                ("positions", side.flatten().tolist()),
                ("angles", floats(angles_of(call, side.flatten(), site.d_head))),
            )
        },
    }


def exact_site(site: Site) -> dict[str, Any]:
    """Return the numbers that the page needs for a site's arithmetic, with queries and keys as they are compared."""
    heads = site.head
    allowed = allowed_of(site)
    bias = torch.stack([bias_of(head) for head in heads]).masked_fill(~allowed, 0)
    products = site.similarity.form in ("dot", "features")
    arithmetic = site.weighting.page_arithmetic
    return {
        "query": floats([head.prepared[0][0, head.call_index] for head in heads]),
        "key": floats([head.prepared[1][0, head.call_index] for head in heads]),
        "value": floats([head.value for head in heads]),
        "plain": all(torch.equal(head.prepared[0][0, head.call_index], head.query) for head in heads),
        "scale": [head.scale for head in heads],
        "weighting": arithmetic,
        **({"bias": floats(bias)} if bias.any() else {}),
        **({} if allowed.all() else {"allowed": bits(allowed)}),
        **({} if products else {"score": floats([head.score for head in heads])}),
        **({} if arithmetic is not None else {"weight": floats([head.weight for head in heads])}),
        **({} if site.projected is None else {"turn": turn_of_site(site)}),
    }


def bias_of(head: Head) -> Float[Tensor, "query key"]:
    """Return what the position adds to each scaled score."""
    call = head.call
    bias = torch.as_tensor(call.position.bias(call.cells(), call.query.dtype)).detach()
    return bias.broadcast_to(1, call.n_heads, call.n_query, call.n_key)[0, head.call_index]


def exact_sites(traced: Traced, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the sites that are to be exact; OptionError where one cannot be."""
    for name in names:
        if traced.trace[name].is_edited:
            raise OptionError(f"{name}: a page cannot hold its arithmetic, which an edit changed; name another site")
    return {name: exact_site(traced.trace[name]) for name in names}


def fit_sites(
    traced: Traced, surveys: Mapping[str, SiteSurvey], view: View, room: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield sites while there is room: first the site that the view shows, then the clearest ones."""
    for name in sorted(surveys, key=lambda name: (name != view.site, -max(surveys[name].information))):
        site = traced.trace[name]
        if site.is_edited:  # the page's arithmetic would give what the site gave without the edit
            continue
        numbers = exact_site(site)
        room -= len(script_json({name: numbers}))
        if room < 0:
            return
        yield name, numbers


def floats(vectors: Sequence[Tensor] | Tensor) -> str:
    """Return vectors as float32, head by head."""
    stacked = vectors if isinstance(vectors, Tensor) else torch.stack(list(vectors))
    return pack(stacked.detach().to("cpu", torch.float32))


def bits(allowed: Bool[Tensor, "head query key"]) -> str:
    """Return a bit for each, the lowest of a byte first."""
    return deflate(np.packbits(allowed.cpu().numpy(), bitorder="little").tobytes())


def pack(numbers: Tensor) -> str:
    array = numbers.cpu().contiguous().numpy()
    return deflate(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes())


def deflate(content: bytes) -> str:
    return base64.b64encode(zlib.compress(content, 9)).decode()


def round_numbers(value: object) -> Any:
    """Return the value with its numbers rounded: they are drawn, and never computed with."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {name: round_numbers(inner) for name, inner in value.items()}
    return [round_numbers(inner) for inner in value] if isinstance(value, list) else value


def script_json(data: object) -> str:
    """Return JSON that can be inside a script: there is no "<" in it, so nothing ends the script."""
    text = json.dumps(replace_nonfinite(data), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")
