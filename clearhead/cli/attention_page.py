"""The demo's page for a browser: the attention maps of every block and head, in one file that needs no network."""

from collections.abc import Iterator, Sequence
from html import escape

from jaxtyping import Float
from torch import Tensor

from clearhead.cli.attention_map import readable
from clearhead.colours import ROLES
from clearhead.training.looking import CrossWeights, View, views

__all__ = ["attention_page"]

CELL, ROW, GAP, LABEL, HEAD = 30, 22, 22, 88, 96
"""In pixels: a cell's width and height, what lies between two maps, the names of rows, those of columns."""

STYLE = f"""
:root {{ color-scheme: light dark; }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }}
h1 {{ font-size: 1.5rem; }} h2 {{ font-size: 1.15rem; margin-top: 2.5rem; }}
figure {{ margin: 1rem 0; overflow-x: auto; }}
figcaption {{ font-size: 0.9rem; opacity: 0.75; }}
svg text {{ font: 12px ui-monospace, monospace; fill: currentColor; }}
svg .query {{ fill: {ROLES["query"]}; }} svg .key {{ fill: {ROLES["key"]}; }}
svg .cell {{ fill: {ROLES["weight"]}; }}
svg .frame {{ fill: none; stroke: currentColor; stroke-opacity: 0.3; }}
"""


def attention_page(looks: Sequence[CrossWeights], *, title: str, said: Sequence[str]) -> str:
    """The page: what is said in paragraphs, then for each translation the maps of all blocks. Always the same bytes."""
    parts = [
        "<!doctype html>",
        '<html lang="en">',
        f'<head><meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style></head>',
        f"<body><h1>{escape(title)}</h1>",
        *(f"<p>{escape(paragraph)}</p>" for paragraph in said),
        *(line for look in looks for line in figures(look)),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def figures(look: CrossWeights) -> Iterator[str]:
    yield f"<h2>{escape(joined(look.source))} → {escape(joined(look.target))}</h2>"
    for layer in range(len(look.layers)):
        yield "<figure>"
        yield maps(look, [view for view in views(look) if view.layer == layer])
        yield f"<figcaption>Cross-attention of decoder block {layer + 1} of {len(look.layers)}</figcaption></figure>"


def maps(look: CrossWeights, shown: Sequence[View]) -> str:
    """One drawing: the maps of these views side by side, the names of rows once."""
    across, down = CELL * len(look.source), ROW * len(look.target)
    width, height = LABEL + len(shown) * (across + GAP), HEAD + down + 4
    lines = [f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">']
    for i, piece in enumerate(look.target):
        y = HEAD + ROW * i + 15
        lines.append(f'<text class="query" x="{LABEL - 8}" y="{y}" text-anchor="end">{escape(readable(piece))}</text>')
    for n, view in enumerate(shown):
        left = LABEL + n * (across + GAP)
        lines += one_map(look, view.of(look), left)
        name = "mean" if view.head is None else f"head {view.head + 1}"
        lines.append(f'<text x="{left}" y="12">{name}</text>')
    return "\n".join([*lines, "</svg>"])


def one_map(look: CrossWeights, weight: Float[Tensor, "query key"], left: int) -> Iterator[str]:
    for j, piece in enumerate(look.source):
        x, y = left + CELL * j + CELL // 2, HEAD - 6
        yield f'<text class="key" x="{x}" y="{y}" transform="rotate(-45 {x} {y})">{escape(readable(piece))}</text>'
    for i, row in enumerate(weight.tolist()):
        for j, x in enumerate(row):
            said = f"{readable(look.target[i])} ← {readable(look.source[j])}: {x:.3f}"
            yield (
                f'<rect class="cell" x="{left + CELL * j}" y="{HEAD + ROW * i}" width="{CELL}" height="{ROW}" '
                f'fill-opacity="{x:.3f}"><title>{escape(said)}</title></rect>'
            )
    across, down = CELL * len(look.source), ROW * len(look.target)
    yield f'<rect class="frame" x="{left}" y="{HEAD}" width="{across}" height="{down}"/>'


def joined(pieces: Sequence[str]) -> str:
    """The text of pieces, but for the end token."""
    return "".join(pieces[:-1]).replace("▁", " ").strip()
