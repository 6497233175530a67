"""What notebooks show: tokens, heat maps, bars and facts as HTML, for Steps, runs and traces alike.

The pictures are SVG without a script, so they are there in a notebook that is opened again, in the HTML that nbconvert
writes, and on paper. Ground and ink follow Jupyter's or VS Code's theme by their CSS variables, and elsewhere the
system's light or dark. Cells are a role's colour, more or less opaque, which is legible on either ground.
"""

import base64
import html
import math
import re
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.calls import public
from clearhead.colours import ROLES
from clearhead.errors import TraceError
from clearhead.files import write_text

NUMBERED = 10
"""The most columns of a map that has a number in each cell."""
NAMED = 48
"""The most rows or columns that are named, and drawn as cells with a tooltip; larger maps are one image."""
CELLS = 12_000
"""The most cells with a tooltip in one display, some 1 MB: more maps than that are images too."""
LONGEST = 14
"""The most characters of a token beside a map."""
UNFIT = re.compile("[^ -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML cannot hold, such as half of a surrogate pair."""
OPAQUE = 0.8
"""Opacity of the largest value: what is written on it stays legible."""

STYLE = """<style>
.clearhead{--ch-ground:var(--jp-layout-color0,var(--vscode-editor-background,#fff));
--ch-ink:var(--jp-content-font-color1,var(--vscode-editor-foreground,#1d1c1a))}
@media (prefers-color-scheme:dark){.clearhead{
--ch-ground:var(--jp-layout-color0,var(--vscode-editor-background,#191b1e));
--ch-ink:var(--jp-content-font-color1,var(--vscode-editor-foreground,#ecebe6))}}
@media print{.clearhead{--ch-ground:#fff;--ch-ink:#000}.clearhead figure{break-inside:avoid}
.clearhead details::details-content{content-visibility:visible;height:auto}}
.clearhead{background:var(--ch-ground);color:var(--ch-ink);padding:10px 12px;overflow-x:auto;
font:14px/1.45 var(--jp-content-font-family,var(--vscode-font-family,system-ui,sans-serif))}
.clearhead p{margin:0 0 8px}
.clearhead svg{color:inherit;overflow:visible;max-width:none}
.clearhead svg text{fill:currentColor;font:12px ui-monospace,Menlo,"DejaVu Sans Mono",monospace}
.clearhead rect:hover{stroke:currentColor;stroke-width:1.5}
.clearhead .ch-flow{display:flex;flex-wrap:wrap;align-items:end;gap:14px;margin-bottom:8px}
.clearhead .ch-step{display:flex;align-items:center;gap:14px}
.clearhead figure{margin:0}
.clearhead figcaption,.clearhead .ch-arrow{font-size:13px}
.clearhead .ch-arrow{text-align:center;max-width:9em;line-height:1.25}
.clearhead .ch-arrow b{display:block;font-size:20px;font-weight:400}
.clearhead .ch-token{display:inline-block;font:13px ui-monospace,Menlo,"DejaVu Sans Mono",monospace;
border-bottom:3px solid;padding:0 3px;margin:0 3px 4px 0;white-space:pre}
.clearhead dl{display:grid;grid-template-columns:max-content 1fr;gap:2px 14px;margin:0}
.clearhead dt{opacity:.75;font-weight:400}.clearhead dd{margin:0}
.clearhead code{background:none;color:inherit;padding:0}
.clearhead summary{cursor:pointer;margin-bottom:6px}
</style>"""


@dataclass(frozen=True)
class Display:
    """HTML with a title: a notebook shows it where it is the last value of a cell; `save` writes it as a page."""

    title: str
    body: str

    def __repr__(self) -> str:
        return f"Display({self.title}: a notebook shows it, save(path) writes it)"

    def _repr_html_(self) -> str:
        """Return what a notebook shows; it can have the focus, as it scrolls where it is wider than the notebook."""
        title = html.escape(self.title)
        frame = f'<div class="clearhead" role="group" aria-label="{title}" tabindex="0">'
        return f"{frame}{STYLE}<p><b>{title}</b></p>{self.body}</div>"

    @public
    def save(self, path: str | Path) -> None:
        """Write it as an HTML file, which any browser opens and prints."""
        head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(self.title)}</title>'
        ground = '<body style="margin:0;color-scheme:light dark">'
        try:
            write_text(Path(path), f"{head}{ground}{self._repr_html_()}</body></html>\n")
        except OSError as error:
            raise TraceError(f"{path}: cannot be written ({error})") from None


class Matrix(NamedTuple):
    """A matrix to draw: NaN where there is no number, as where a mask hides it. `pool`: each cell is the largest of so
    many rows and columns. Rows and columns without names have their numbers.
    """

    name: str
    values: Float[Tensor, "row column"]
    rows: Sequence[str] = ()
    columns: Sequence[str] = ()
    role: str = "weight"
    pool: int = 1
    percent: bool = True
    hidden: str = "masked"


def paragraph(text: str) -> str:
    return f"<p>{html.escape(text)}</p>"


def token_line(label: str, tokens: Sequence[str], role: str, *, most: int = 200) -> str:
    """Return tokens in a line, each underlined in the colour of a role; of a long text the end is left out."""
    chips = "".join(
        f'<bdi class="ch-token" style="border-color:{ROLES[role]}">{html.escape(spell(token))}</bdi>'
        for token in tokens[:most]
    )
    more = f" … {len(tokens) - most:,} more" if len(tokens) > most else ""
    return f"<p>{html.escape(label)} {chips}{more}</p>"


def facts(rows: Mapping[str, str | Sequence[str]]) -> str:
    """Return names and what there is to say of each; a list is code, a line for each."""
    items = (
        f"<dt>{html.escape(name)}</dt><dd>{html.escape(text) if isinstance(text, str) else code_lines(text)}</dd>"
        for name, text in rows.items()
    )
    return f"<dl>{''.join(items)}</dl>"


def code_lines(lines: Sequence[str]) -> str:
    return "<br>".join(f"<code>{html.escape(line)}</code>" for line in lines)


def bars(rows: Sequence[tuple[str, Sequence[tuple[str, float]]]], *, label: str) -> str:
    """Return what a model answers at each place: a line for each, with its likeliest answers and their probabilities.

    A row is the place's token and its answers. Each bar is as long as the probability, of 60 pixels.
    """
    names = [cut(spell(name)) for name, _ in rows]
    x = 8 * max(map(len, names), default=0) + 24
    drawn = [text_at(x - 18, 20 * i + 14, name, anchor="end") for i, name in enumerate(names)]
    drawn += [text_at(x - 12, 20 * i + 14, "→") for i in range(len(rows))]
    for j in range(max((len(answers) for _, answers in rows), default=0)):
        column = [(i, *answers[j]) for i, (_, answers) in enumerate(rows) if j < len(answers)]
        texts = [f"{cut(spell(answer))} {percent(share)}" for _, answer, share in column]
        for (i, answer, share), text in zip(column, texts, strict=True):
            tip = f"<title>{html.escape(f'{names[i]} → {spell(answer)}: {share:.4%}')}</title>"
            place = f'x="{x + 8}" y="{20 * i + 5}" width="{max(1.0, 60 * share):.1f}" height="11"'
            drawn.append(f'<rect {place} fill="{ROLES["context"]}">{tip}</rect>')
            drawn.append(text_at(x + 74, 20 * i + 14, text))
        x += 8 * max(map(len, texts)) + 86
    return picture(x, 20 * len(rows) + 4, "".join(drawn), html.escape(label))


def flow(parts: Iterable[str]) -> str:
    """Return parts side by side, on more lines where they do not fit."""
    return f'<div class="ch-flow">{"".join(parts)}</div>'


def step(label: str, drawn: str) -> str:
    """Return a picture after an arrow that says what leads to it; the two stay on one line."""
    return f'<div class="ch-step"><div class="ch-arrow"><b>→</b>{html.escape(label)}</div>{drawn}</div>'


def heat_maps(matrices: Sequence[Matrix]) -> list[str]:
    """Return a picture of each: with a tooltip for each cell, if all of them together have no more than `CELLS`."""
    live = sum(matrix.values.numel() for matrix in matrices) <= CELLS
    return [heat_map(matrix, live=live) for matrix in matrices]


def heat_map(matrix: Matrix, *, live: bool = True) -> str:
    """Return a matrix as a figure. Its largest number is the most opaque; negative ones have the colour of queries."""
    body, width, height = draw_map(matrix, live=live)
    largest = f", each cell the largest of {matrix.pool} × {matrix.pool}" if matrix.pool > 1 else ""
    title = html.escape(f"{matrix.name}: {' rows x '.join(map(str, matrix.values.shape))} columns{largest}")
    reach = f", up to {percent(largest_of(matrix.values))}" if matrix.percent else ""
    caption = f"<figcaption>{html.escape(matrix.name)}{reach}{largest}</figcaption>"
    return f"<figure>{caption}{picture(width, height, body, title)}</figure>"


def svg_file(matrix: Matrix, said: str) -> str:
    """Return a matrix as an SVG file: black on white, below its name and a line of text."""
    body, width, height = draw_map(matrix)
    lines = [f'<rect width="100%" height="100%" fill="#fff"/>{text_at(12, 22, matrix.name)}', text_at(12, 40, said)]
    across = max(width, 8 * max(len(matrix.name), len(said))) + 24
    label = html.escape(f"{matrix.name}. {said}")
    drawn = picture(across, height + 64, f'{"".join(lines)}<g transform="translate(12,52)">{body}</g>', label)
    return UNFIT.sub("\N{REPLACEMENT CHARACTER}", drawn) + "\n"


def draw_map(matrix: Matrix, *, live: bool = True) -> tuple[str, int, int]:
    """Return a matrix as a part of a picture, with its width and height; `live`: each cell says its number."""
    values = matrix.values.detach().float().cpu()
    n_rows, n_columns = values.shape
    numbered = n_columns <= NUMBERED and not matrix.percent
    named = max(n_rows, n_columns) <= NAMED and matrix.pool == 1
    cell = (42, 22) if numbered else (side := cell_size(n_rows, n_columns), side)
    rows, columns = (side_names(names, n) for names, n in ((matrix.rows, n_rows), (matrix.columns, n_columns)))
    left = 8 * max(map(len, rows), default=0) + 8 if named else 8
    upright = not numbered and max(map(len, columns), default=0) > 2
    top = (8 * max(map(len, columns), default=0) + 8 if upright else 20) if named else 8
    draw = draw_cells if named and live else draw_image
    inside = draw(matrix, values, cell, numbered=numbered)
    width, height = cell[0] * n_columns, cell[1] * n_rows
    frame = f'<rect width="{width}" height="{height}" fill="none" stroke="currentColor" stroke-opacity=".35"/>'
    labels = draw_names(rows, columns, cell, upright=upright) if named else ""
    return f'<g transform="translate({left},{top})">{inside}{frame}{labels}</g>', left + width + 2, top + height + 2


def draw_cells(matrix: Matrix, values: Tensor, cell: tuple[int, int], *, numbered: bool) -> str:
    """Return a rectangle for each number, with a tooltip; a stroke across each cell that has none."""
    rows, columns = (side_names(names, n) for names, n in zip(matrix[2:4], values.shape, strict=True))
    (width, height), largest = cell, largest_of(values)
    drawn, strokes = [], []
    for i, row in enumerate(values.tolist()):
        for j, value in enumerate(row):
            x, y = width * j, height * i
            place = f"{rows[i]} → {columns[j]}: "
            if not math.isfinite(value):
                strokes.append(f"M{x} {y + height}l{width} {-height}")
                tip, fill = place + matrix.hidden, 'fill-opacity="0"'
            else:
                share = OPAQUE * abs(value) / largest
                tip = place + (f"{value:.4%}" if matrix.percent else f"{value:.4g}")
                fill = f'fill="{colour_of(matrix, value)}" fill-opacity="{share:.3f}"'
            title = f"<title>{html.escape(tip)}</title>"
            drawn.append(f'<rect x="{x}" y="{y}" width="{width}" height="{height}" {fill}>{title}</rect>')
            if numbered and math.isfinite(value):
                digits = f"{value:.{2 if abs(value) < 10 else 1 if abs(value) < 100 else 0}f}"
                drawn.append(text_at(x + width // 2, y + 15, digits, anchor="middle", dead=True))
    across = f'<path d="{"".join(strokes)}" stroke="currentColor" stroke-opacity=".4"/>' if strokes else ""
    return "".join(drawn) + across


def draw_image(matrix: Matrix, values: Tensor, cell: tuple[int, int], *, numbered: bool) -> str:
    """Return all cells as one image: a role's colour, more or less transparent; grey where there is no number."""
    finite = values.isfinite()
    share = torch.where(finite, values, 0) / largest_of(values)
    positive, negative = (torch.tensor(channels(ROLES[role])) for role in (matrix.role, "query"))
    pixels = torch.where((share < 0).unsqueeze(-1), negative, positive)
    pixels = torch.where(finite.unsqueeze(-1), pixels, 128)
    opacity = torch.where(finite, 255 * OPAQUE * share.abs(), 70).round().long()
    data = png(torch.cat([pixels, opacity.unsqueeze(-1)], -1).to(torch.uint8))
    height, width = values.shape
    return (
        f'<image width="{cell[0] * width}" height="{cell[1] * height}" preserveAspectRatio="none" '
        f'style="image-rendering:pixelated" href="data:image/png;base64,{base64.b64encode(data).decode()}"/>'
    )


def draw_names(rows: Sequence[str], columns: Sequence[str], cell: tuple[int, int], *, upright: bool) -> str:
    width, height = cell
    drawn = [text_at(-5, height * i + height // 2 + 4, name, anchor="end") for i, name in enumerate(rows)]
    for j, name in enumerate(columns):
        x = width * j + width // 2
        turned = f' transform="rotate(-90 {x + 4} -5)"' if upright else ""
        drawn.append(text_at(x + 4 if upright else x, -5, name, anchor="start" if upright else "middle", more=turned))
    return "".join(drawn)


def picture(width: int, height: int, inside: str, title: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{title}" width="{width}" '
        f'height="{height}" viewBox="0 0 {width} {height}">{inside}</svg>'
    )


def text_at(x: int, y: int, text: str, *, anchor: str = "start", more: str = "", dead: bool = False) -> str:
    """Return a text in a picture. `dead`: the pointer goes through it, to the tooltip of the cell below."""
    through = ' pointer-events="none"' if dead else ""
    return (
        f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="currentColor" font-family="monospace" font-size="12"'
        f"{through}{more}>{html.escape(text)}</text>"
    )


def cell_size(n_rows: int, n_columns: int) -> int:
    return max(2, min(22, 440 // max(n_rows, 1), 560 // max(n_columns, 1)))


def side_names(names: Sequence[str], n: int) -> list[str]:
    return [cut(spell(name)) for name in names] if names else [str(index) for index in range(n)]


def spell(token: str) -> str:
    """Return a token as it is shown: ∅ if it is empty, a dot for a space before it, ⏎ for the end of a line."""
    shown = token.replace("\n", "⏎")
    return "∅" if not shown else f"·{shown[1:]}" if shown[0] in " \u2581" else shown


def cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def percent(share: float) -> str:
    return f"{share:.1%}" if share >= 0.0005 or share == 0 else "<0.1%"


def largest_of(values: Tensor) -> float:
    finite = values[values.isfinite()].abs()
    return float(finite.max()) if finite.numel() and finite.max() > 0 else 1.0


def colour_of(matrix: Matrix, value: float) -> str:
    return ROLES["query" if value < 0 else matrix.role]


def channels(colour: str) -> list[int]:
    return [int(colour[i : i + 2], 16) for i in (1, 3, 5)]


def png(pixels: Tensor) -> bytes:
    """Return red, green, blue and opacity `(row, column, 4)` as a PNG file."""
    height, width, _ = pixels.shape

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + row.numpy().tobytes() for row in pixels)  # before each row: it is not filtered
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b"")
