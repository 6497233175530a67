"""A trace in a notebook: its tokens, and every head as a small picture of its weights."""

import base64
import html
import struct
import zlib
from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from clearhead.colours import ROLES
from clearhead.tracing.site import TILE, Head, Site

__all__ = ["thumbnail", "to_html"]

SIDE = 48
"""The largest number of pixels on a side of a picture."""
CELLS = 40_000_000
"""The number of weights computed for one display: a second or two."""


def to_html(sites: Sequence[Site], tokens: Mapping[str, Sequence[str]], notes: Sequence[str]) -> str:
    """Return a table of sites and heads; of a long text, of as many as are computed quickly."""
    left, rows = CELLS, []
    for site in sites:
        cost = site.n_heads * site.n_query * site.n_key
        if cost > left:
            rest = len(sites) - len(rows)
            rows.append(f"<tr><td colspan=2>and {rest} more: ask for them by name, or use the explorer</td></tr>")
            break
        left -= cost
        rows.append(f"<tr><td style='text-align:left'><code>{site.name}</code></td><td>{pictures(site)}</td></tr>")
    texts = "".join(
        f"<p><b>{name}</b> {' '.join(f'<code>{html.escape(token)}</code>' for token in side[:200])}</p>"
        for name, side in tokens.items()
    )
    said = "".join(f"<p>{html.escape(note)}</p>" for note in notes)
    return f"<div>{texts}{said}<table>{''.join(rows)}</table></div>"


def pictures(site: Site) -> str:
    return "".join(
        f"<img src='data:image/png;base64,{base64.b64encode(picture(head)).decode()}' width={SIDE} height={SIDE} "
        f"style='image-rendering:pixelated;display:inline;margin:1px' alt='head {head.index}' "
        f"title='{site.name}, head {head.index}'>"
        for head in site.head
    )


def thumbnail(head: Head, side: int = SIDE) -> UInt8[Tensor, "row column"]:
    """Return the weights as bytes, 255 the largest possible, at most `side` on a side: the largest of each square."""
    n = max(head.site.n_query, head.site.n_key)
    level = max(0, -(-n // side) - 1).bit_length()
    size = TILE << level
    assert n <= size
    weight = head.tile("weight", level, 0, 0)
    return (weight.clamp(0, 1) * 255).round().to(torch.uint8)


def picture(head: Head) -> bytes:
    """Return the thumbnail as a PNG, from white to the colour of weights."""
    shade = thumbnail(head).float().unsqueeze(-1) / 255
    colour = torch.tensor([int(ROLES["weight"][i : i + 2], 16) for i in (1, 3, 5)], device=shade.device)
    return png(255 + (colour - 255) * shade)


def png(colours: Float[Tensor, "row column 3"]) -> bytes:
    """Return a PNG file of these colours, 0 to 255."""
    rows, columns, _ = colours.shape
    numbers = colours.round().to(torch.uint8).cpu().numpy()
    lines = b"".join(b"\0" + row.tobytes() for row in numbers)
    header = struct.pack(">IIBBBBB", columns, rows, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
