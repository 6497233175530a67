"""Pages of attention weights for notebooks: tokens along both sides, a head chooser, numbers under the pointer.

A page is one HTML document without anything from elsewhere. A notebook shows it in a frame of its own, so that several
on one page cannot clash, and it works when the notebook is opened again without Python. The explorer's own page is
ten times as large as most of these, which is too much for the output of every cell: so this one is written by hand.
"""

import base64
import html
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.files import write_text

__all__ = ["HeadWeights", "Page", "SiteWeights", "page_of"]

NUMBERS = 1 << 17
"""The most numbers in a page: some 700 kB."""
SIDE = 256
"""The most rows or columns of a matrix in a page."""
LEAST = 1024
"""Every head has at least this many numbers (or all of its own): of hundreds of heads only the first are shown."""
CELLS = 40_000_000
"""The number of weights computed for one page: a second or two."""
NAMES = 4096
"""Of more tokens than these a page has only the numbers of their places."""

TEMPLATE = Path(__file__).with_name("notebook.html")
"""The page. TITLE and "DATA" stand for its title and its weights."""

HeadWeights = Callable[[int], Float[Tensor, "row column"]]
"""Gives the weights of a head at a level, each the largest of 2^level x 2^level, NaN where all are masked."""


@final
@dataclass(frozen=True, kw_only=True)
class SiteWeights:
    """What a page needs of an attention: its tokens, and the weights of the heads to choose from."""

    name: str
    queries: Sequence[str]
    keys: Sequence[str]
    heads: dict[int, HeadWeights]

    @property
    def cost(self) -> int:
        return len(self.heads) * len(self.queries) * len(self.keys)

    def level_within(self, numbers: int) -> int:
        """Return the finest level at which a head has no more numbers than these."""
        level = 0
        while True:
            rows, columns = (math.ceil(len(side) / (1 << level)) for side in (self.queries, self.keys))
            if max(rows, columns) <= SIDE and rows * columns <= max(numbers, 1):
                return level
            level += 1

    def to_json(self, numbers: int) -> dict[str, object]:
        level = self.level_within(numbers)
        weights = torch.stack([weights(level) for weights in self.heads.values()]).float().cpu().contiguous()
        names = [list(side) if len(side) <= NAMES else [] for side in (self.queries, self.keys)]
        return {
            "name": self.name,
            "heads": list(self.heads),
            "pool": 1 << level,
            "n_query": len(self.queries),
            "n_key": len(self.keys),
            "rows": weights.shape[1],
            "columns": weights.shape[2],
            "queries": names[0],
            "keys": names[1],
            "numbers": base64.b64encode(weights.numpy().astype("<f4").tobytes()).decode(),
        }


@final
@dataclass(frozen=True)
class Page:
    """A page of attention weights: a notebook shows it where it is the last value of a cell; `save` writes it."""

    title: str
    document: str
    height: int

    def __repr__(self) -> str:
        return f"Page({self.title}; {len(self.document):,} bytes: a notebook shows it, save(path) writes it)"

    def _repr_html_(self) -> str:
        """Return the page in a frame that can reach nothing outside of it, below a line that says what it is."""
        return (
            f"<p>{html.escape(self.title)}</p>"
            f'<iframe sandbox="allow-scripts" style="width:100%;height:{self.height}px;border:0" '
            f'title="{html.escape(self.title)}" srcdoc="{html.escape(self.document)}"></iframe>'
        )

    def save(self, path: str | Path) -> None:
        """Write the page as an HTML file, for the browser."""
        write_text(Path(path), self.document)


def page_of(title: str, sites: Sequence[SiteWeights], *, first: int = 0, notes: Sequence[str] = ()) -> Page:
    """Return the page of these attentions; of many or long ones, of as many as it can hold, and it says so.

    `first` is the one that is shown first.
    """
    fitting = fitting_sites(sites, first)
    per_head = NUMBERS // max(1, sum(len(site.heads) for site in fitting))
    all_notes = list(notes)
    if len(fitting) < len(sites):
        n_left_out = len(sites) - len(fitting)
        all_notes.append(
            f"{n_left_out} more of its {len(sites)} attentions are left out: trace.show(site=NAME) shows one"
        )
    maps = [site.to_json(per_head) for site in fitting]
    data = {"title": title, "maps": maps, "first": fitting.index(sites[first]), "notes": all_notes}
    # "<" could end the script that the data stands in.
    data_json = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    template = TEMPLATE.read_text(encoding="utf-8")
    document = template.replace("TITLE", html.escape(title), 1).replace('"DATA"', data_json, 1)
    return Page(title, document, max(map(height_of, fitting)))


def fitting_sites(sites: Sequence[SiteWeights], first: int) -> list[SiteWeights]:
    """Return the site to show first, and as many of the others as are computed quickly and leave room for detail."""
    indices, cost, numbers = [first], sites[first].cost, floor_of(sites[first])
    for index, site in enumerate(sites):
        if index == first:
            continue
        cost, numbers = cost + site.cost, numbers + floor_of(site)
        if cost > CELLS or numbers > NUMBERS:
            break
        indices.append(index)
    return [sites[index] for index in sorted(indices)]


def floor_of(site: SiteWeights) -> int:
    """Return the least numbers that a page has of a site."""
    return len(site.heads) * min(LEAST, len(site.queries) * len(site.keys))


def height_of(site: SiteWeights) -> int:
    """Return the pixels that its map takes: the script draws cells of the same size."""
    cell = min(26, 440 / len(site.queries), 640 / len(site.keys))
    names = 7.3 * max(map(len, site.keys)) if cell >= 12 else 30
    chooser = 96 if len(site.heads) > 1 else 0
    return round(len(site.queries) * cell + min(140, names) + chooser + 150)
