"""A head's weights as an SVG drawing: the map, and beside it arcs from each query to the keys it looks at."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final
from xml.sax.saxutils import escape

from clearhead.cli.attention_map import Weights, cut, readable
from clearhead.colours import INKS, ROLES

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
    """A drawing of weights: a title, a line below it, and the names of rows and columns. Properties are in pixels."""

    title: str
    said: str
    queries: Sequence[str]
    keys: Sequence[str]
    weight: Weights

    @property
    def left(self) -> float:
        """Return where the map begins: right of the names of queries."""
        return EDGE + names_width(self.queries) + 8

    @property
    def top(self) -> float:
        """Return where it begins: below the names of keys."""
        return TITLE + names_width(self.keys) + 16

    @property
    def right(self) -> float:
        return self.left + CELL * len(self.keys)

    @property
    def arcs(self) -> float:
        """Return where the arcs begin."""
        return self.right + GAP + names_width(self.queries)

    @property
    def size(self) -> tuple[float, float]:
        across = self.arcs + REACH + 8 + names_width(self.keys) + EDGE
        title_width = EDGE * 2 + max(len(self.title) * 9.5, len(self.said) * 7.0)
        return max(across, title_width), self.top + CELL * max(len(self.queries), len(self.keys)) + EDGE

    def row(self, index: int) -> float:
        """Return the middle of a row, of the map and of the names beside the arcs."""
        return self.top + CELL * (index + 0.5)

    def column(self, index: int) -> float:
        return self.left + CELL * (index + 0.5)

    def seen(self) -> Iterator[tuple[int, int, float]]:
        """Return the weights that are drawn, by query and key."""
        for query, key in (self.weight >= SEEN).nonzero().tolist():
            yield query, key, self.weight[query, key].item()


def draw_svg(drawing: Drawing) -> str:
    """Return the whole file, always the same for the same weights."""
    width, height = drawing.size
    label = escape_text(f"{drawing.title}. {drawing.said}").replace('"', "&quot;")
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
            f'height="{height:g}" role="img" aria-label="{label}">',
            f"<style>{STYLE}</style>",
            f'<rect width="{width:g}" height="{height:g}" fill="#ffffff"/>',
            text_element("title", EDGE, EDGE + 12, drawing.title),
            text_element("said", EDGE, EDGE + 34, drawing.said),
            *draw_map(drawing),
            *draw_arcs(drawing),
            "</svg>\n",
        ]
    )


def draw_map(drawing: Drawing) -> Iterator[str]:
    for i, query in enumerate(drawing.queries):
        yield text_element("query", drawing.left - 8, drawing.row(i) + 4, query, 'text-anchor="end"')
    for j, key in enumerate(drawing.keys):
        x, y = drawing.column(j) + 4, drawing.top - 8
        yield text_element("key", x, y, key, f'transform="rotate(-90 {x:g} {y:g})"')
    for i, j, weight in drawing.seen():
        x, y, shade = drawing.left + CELL * j, drawing.top + CELL * i, min(weight, 1)
        title = f"{readable(drawing.queries[i])} ← {readable(drawing.keys[j])}: {weight:.6g}"
        yield (
            f'<rect class="cell" x="{x:g}" y="{y:g}" width="{CELL:g}" height="{CELL:g}" fill-opacity="{shade:.4f}">'
            f"<title>{escape_text(title)}</title></rect>"
        )
    across, down = CELL * len(drawing.keys), CELL * len(drawing.queries)
    yield f'<rect class="frame" x="{drawing.left:g}" y="{drawing.top:g}" width="{across:g}" height="{down:g}"/>'


def draw_arcs(drawing: Drawing) -> Iterator[str]:
    start, end = drawing.arcs, drawing.arcs + REACH
    for i, query in enumerate(drawing.queries):
        yield text_element("query", start - 8, drawing.row(i) + 4, query, 'text-anchor="end"')
    for j, key in enumerate(drawing.keys):
        yield text_element("key", end + 8, drawing.row(j) + 4, key)
    for i, j, weight in drawing.seen():
        bend, y, z, shade = REACH / 2, drawing.row(i), drawing.row(j), min(weight, 1)
        yield (
            f'<path class="arc" d="M{start:g} {y:g}C{start + bend:g} {y:g} {end - bend:g} {z:g} {end:g} {z:g}" '
            f'stroke-width="{0.5 + 4 * shade:.2f}" stroke-opacity="{shade:.4f}"/>'
        )


def text_element(role: str, x: float, y: float, text: str, more: str = "") -> str:
    text = text if role in ("title", "said") else cut(readable(text), LONGEST)
    return f'<text class="{role}" x="{x:g}" y="{y:g}"{" " if more else ""}{more}>{escape_text(text)}</text>'


def names_width(names: Sequence[str]) -> float:
    return round(LETTER * max(min(len(readable(name)), LONGEST) for name in names), 1)


def escape_text(text: str) -> str:
    """Escape a text, and remove what XML cannot hold."""
    return escape(UNFIT.sub("\N{REPLACEMENT CHARACTER}", text))
