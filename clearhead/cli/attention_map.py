"""Pictures of attention: a row for each query, a column for each key, the darker the greater the weight. One is for a
terminal, the other is SVG, with arcs beside the map.

No meaning hangs on colour: the terminal's shades are characters, and the greatest weight of each row stands beside it.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple, final
from xml.sax.saxutils import escape

from jaxtyping import Float
from rich.text import Text
from torch import Tensor
from torch.nn import functional as F

from clearhead.cli.screen import WIDTH, number
from clearhead.colours import INKS, ROLES
from clearhead.errors import ShapeError

SHADES = ((0.8, "█"), (0.5, "▓"), (0.3, "▒"), (0.1, "░"), (0.0, " "))
"""From which weight on each is shown."""
MARGIN, MOST = 2, 5
"""Columns on the left, and those of the greatest weight on the right."""
HALF = 0.5
LONGEST = 20
"""Columns of a row's name, at most."""
ROWS, COLUMNS = 28, 24
"""Largest map with a row and a column for each token; a larger one is pooled."""

Weights = Float[Tensor, "query key"]


def attention_map(queries: Sequence[str], keys: Sequence[str], weight: Weights) -> Iterator[Text]:
    """Return the map in lines of 80 columns at most; names too long for that are cut."""
    if weight.shape != (len(queries), len(keys)):
        raise ShapeError(
            f"weight: expected a row for each of {len(queries)} queries and a column for each of {len(keys)} keys; "
            f"came {tuple(weight.shape)}"
        )
    names = [cut(readable(query), LONGEST) for query in queries]
    label = MARGIN + max(map(len, names))
    widths = fit_widths([len(readable(key)) for key in keys], WIDTH - label - MOST)
    heads = (f" {cut(readable(key), width):^{width}}" for key, width in zip(keys, widths, strict=True))
    yield Text.assemble(" " * label, *((head, "key") for head in heads), (f" {'most':>{MOST - 1}}", "quiet"))
    for name, row in zip(names, weight.tolist(), strict=True):
        cells = ((f" {shade(x) * width}", "weight") for x, width in zip(row, widths, strict=True))
        most = f" {number(max(row)):>{MOST - 1}}"
        yield Text.assemble((f"{name:>{label}}", "query"), *cells, (most, "quiet"))


def pooled_map(queries: Sequence[str], keys: Sequence[str], weight: Weights) -> Iterator[Text]:
    """Return the map of any length: one that is too large has the largest of several weights in each of its places."""
    if len(queries) <= ROWS and len(keys) <= COLUMNS:
        yield from attention_map(queries, keys, weight)
        return
    across = WIDTH - LONGEST - MARGIN - MOST - 1
    height, width = -(-len(queries) // ROWS), -(-len(keys) // across)
    small = F.max_pool2d(weight.unsqueeze(0), (height, width), ceil_mode=True)[0]
    for i, row in enumerate(small.tolist()):
        name = cut(readable(queries[i * height]), LONGEST)
        most = f" {number(max(row)):>{MOST - 1}}"
        shades = "".join(map(shade, row))
        yield Text.assemble((f"{name:>{LONGEST + MARGIN}} ", "query"), (shades, "weight"), (most, "quiet"))
    yield Text(f"  Each place is the largest of up to {height} × {width} weights.", "quiet")


def legend() -> Text:
    """Return what the shades stand for."""
    shades = [(f"{character * 2} {least:g}", "weight") for least, character in reversed(SHADES) if least]
    parts = [part for shade in shades for part in ("   ", shade)]
    return Text.assemble(("  weight from", "quiet"), *parts)


def fit_widths(lengths: Sequence[int], room: int) -> list[int]:
    """Return the widths of columns that fit into this room with a space before each: the widest give way."""
    widths = [max(length, 4) for length in lengths]
    while sum(widths) + len(widths) > room:
        widest = max(range(len(widths)), key=widths.__getitem__)
        if widths[widest] == 1:
            raise ShapeError(f"a map of {len(lengths)} columns does not fit into {room} characters; look at fewer keys")
        widths[widest] -= 1
    return widths


def shade(weight: float) -> str:
    return next(character for least, character in SHADES if weight >= least)


def cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def readable(piece: str) -> str:
    """Return a piece without the sign for the space before it."""
    return piece.removeprefix("▁") or piece


class SwappedQueries(NamedTuple):
    """Two queries, the earlier first, that look at keys in the opposite order."""

    queries: tuple[str, str]
    keys: tuple[str, str]
    weights: tuple[float, float]


def swap(queries: Sequence[str], keys: Sequence[str], weight: Weights) -> SwappedQueries | None:
    """Return the clearest swap of words in a map, where both look there with half their weight or more; else None.

    Among equally clear pairs it is the one whose words are nearest.
    """
    most: list[float] = weight.amax(-1).tolist()
    best_key: list[int] = weight.argmax(-1).tolist()
    spoken = [
        i
        for i, query in enumerate(queries)
        if readable(query).isalpha() and readable(keys[best_key[i]]).isalpha() and most[i] >= HALF
    ]
    pairs = [(i, j) for i, j in combinations(spoken, 2) if best_key[i] > best_key[j]]
    if not pairs:
        return None
    i, j = max(pairs, key=lambda pair: (round(most[pair[0]] * most[pair[1]], 1), pair[0] - pair[1]))
    return SwappedQueries(
        queries=(readable(queries[i]), readable(queries[j])),
        keys=(readable(keys[best_key[i]]), readable(keys[best_key[j]])),
        weights=(most[i], most[j]),
    )


CELL, GAP, EDGE, TITLE = 24.0, 56.0, 24.0, 64.0
"""In pixels: a cell, what lies between map and arcs, the margin, the two lines at the top."""
LETTER = 7.3
"""A letter's width."""
LONGEST_LABEL = 24
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
    text = text if role in ("title", "said") else cut(readable(text), LONGEST_LABEL)
    return f'<text class="{role}" x="{x:g}" y="{y:g}"{" " if more else ""}{more}>{escape_text(text)}</text>'


def names_width(names: Sequence[str]) -> float:
    return round(LETTER * max(min(len(readable(name)), LONGEST_LABEL) for name in names), 1)


def escape_text(text: str) -> str:
    """Escape a text, and remove what XML cannot hold."""
    return escape(UNFIT.sub("\N{REPLACEMENT CHARACTER}", text))
