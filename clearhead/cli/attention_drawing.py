"""A head's weights as an SVG drawing: the map, and beside it arcs from each query to the keys it looks at."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final
from xml.sax.saxutils import escape

from clearhead.cli.attention_map import Weights, cut, readable
from clearhead.colours import ROLES

__all__ = ["Drawing", "drawing"]

CELL, GAP, EDGE, TITLE = 24.0, 56.0, 24.0, 64.0
"""In pixels: a cell, what lies between map and arcs, the margin, the two lines at the top."""
LETTER = 7.3
"""A letter's width."""
LONGEST = 24
REACH = 220.0
"""From the queries to the keys, in the arcs."""
SEEN = 0.002
"""A weight below this is not drawn: it would not be seen."""
UNFIT = re.compile("[^ -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
INKS = {"query": "#0068a8", "key": "#825800"}
"""The colours of the roles as they are written with: dark enough to be read on white, as web/src/app.css has them."""
STYLE = (
    "text{font:12px ui-monospace,Menlo,Consolas,monospace;fill:#1b1d20}"
    ".title{font:600 16px system-ui,sans-serif}.said{font:13px system-ui,sans-serif;fill:#5a6068}"
    f".query{{fill:{INKS['query']}}}.key{{fill:{INKS['key']}}}"
    f".cell{{fill:{ROLES['weight']}}}.arc{{fill:none;stroke:{ROLES['weight']};stroke-linecap:round}}"
    ".frame{fill:none;stroke:#c9cdd2}"
)


@final
@dataclass(frozen=True, kw_only=True)
class Drawing:
    """What is drawn: a title, a line below it, the names of rows and columns, and the weights."""

    title: str
    said: str
    queries: Sequence[str]
    keys: Sequence[str]
    weight: Weights

    @property
    def left(self) -> float:
        """Return where the map begins: right of the names of queries."""
        return EDGE + widest(self.queries) + 8

    @property
    def top(self) -> float:
        """Return where it begins: below the names of keys."""
        return TITLE + widest(self.keys) + 16

    @property
    def right(self) -> float:
        return self.left + CELL * len(self.keys)

    @property
    def arcs(self) -> float:
        """Return where the arcs begin."""
        return self.right + GAP + widest(self.queries)

    @property
    def size(self) -> tuple[float, float]:
        across = self.arcs + REACH + 8 + widest(self.keys) + EDGE
        said = EDGE * 2 + max(len(self.title) * 9.5, len(self.said) * 7.0)
        return max(across, said), self.top + CELL * max(len(self.queries), len(self.keys)) + EDGE

    def row(self, place: int) -> float:
        """Return the middle of a row, of the map and of the names beside the arcs."""
        return self.top + CELL * (place + 0.5)

    def column(self, place: int) -> float:
        return self.left + CELL * (place + 0.5)

    def seen(self) -> Iterator[tuple[int, int, float]]:
        """Return the weights that are drawn, by query and key."""
        for query, key in (self.weight >= SEEN).nonzero().tolist():
            yield query, key, self.weight[query, key].item()


def drawing(one: Drawing) -> str:
    """Return the whole file, always the same for the same weights."""
    width, height = one.size
    label = clean(f"{one.title}. {one.said}").replace('"', "&quot;")
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
            f'height="{height:g}" role="img" aria-label="{label}">',
            f"<style>{STYLE}</style>",
            f'<rect width="{width:g}" height="{height:g}" fill="#ffffff"/>',
            named("title", EDGE, EDGE + 12, one.title),
            named("said", EDGE, EDGE + 34, one.said),
            *map_of(one),
            *arcs_of(one),
            "</svg>\n",
        ]
    )


def map_of(one: Drawing) -> Iterator[str]:
    for i, query in enumerate(one.queries):
        yield named("query", one.left - 8, one.row(i) + 4, query, 'text-anchor="end"')
    for j, key in enumerate(one.keys):
        x, y = one.column(j) + 4, one.top - 8
        yield named("key", x, y, key, f'transform="rotate(-90 {x:g} {y:g})"')
    for i, j, weight in one.seen():
        x, y, shade = one.left + CELL * j, one.top + CELL * i, min(weight, 1)
        told = f"{readable(one.queries[i])} ← {readable(one.keys[j])}: {weight:.6g}"
        yield (
            f'<rect class="cell" x="{x:g}" y="{y:g}" width="{CELL:g}" height="{CELL:g}" fill-opacity="{shade:.4f}">'
            f"<title>{clean(told)}</title></rect>"
        )
    across, down = CELL * len(one.keys), CELL * len(one.queries)
    yield f'<rect class="frame" x="{one.left:g}" y="{one.top:g}" width="{across:g}" height="{down:g}"/>'


def arcs_of(one: Drawing) -> Iterator[str]:
    start, end = one.arcs, one.arcs + REACH
    for i, query in enumerate(one.queries):
        yield named("query", start - 8, one.row(i) + 4, query, 'text-anchor="end"')
    for j, key in enumerate(one.keys):
        yield named("key", end + 8, one.row(j) + 4, key)
    for i, j, weight in one.seen():
        bend, y, z, shade = REACH / 2, one.row(i), one.row(j), min(weight, 1)
        yield (
            f'<path class="arc" d="M{start:g} {y:g}C{start + bend:g} {y:g} {end - bend:g} {z:g} {end:g} {z:g}" '
            f'stroke-width="{0.5 + 4 * shade:.2f}" stroke-opacity="{shade:.4f}"/>'
        )


def named(role: str, x: float, y: float, text: str, more: str = "") -> str:
    text = text if role in ("title", "said") else cut(readable(text), LONGEST)
    return f'<text class="{role}" x="{x:g}" y="{y:g}"{" " if more else ""}{more}>{clean(text)}</text>'


def widest(names: Sequence[str]) -> float:
    return round(LETTER * max(min(len(readable(name)), LONGEST) for name in names), 1)


def clean(text: str) -> str:
    """Escape a text, and remove what XML cannot hold."""
    return escape(UNFIT.sub("\N{REPLACEMENT CHARACTER}", text))
