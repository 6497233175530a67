"""Small pictures of all heads of a site."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from clearhead.serve.budget import FLOAT, Cost
from clearhead.serve.costs import rows_cost
from clearhead.serve.questions.question import Thumbs, TraceQuestion, bounded
from clearhead.serve.traced import TEXT, Traced
from clearhead.tracing.site import Head

THUMB = 48
"""The most rows and columns of a thumbnail."""
MOST_SHADE, MASKED = 254, 255
"""Bytes of a thumbnail: of weight 1, and of a masked place."""
SAMPLED = 8
"""The most rows that a row of a thumbnail is made of: of a long text the others are left out."""


@final
@dataclass(frozen=True, kw_only=True)
class AskThumbs(TraceQuestion[Thumbs]):
    """Head by head, row by row: 254 × √weight; 255 where all keys are masked.

    With `weighted` it is ‖w · v · W_O‖ in place of the weight, as a share of the largest of all heads.
    """

    turn: ClassVar = "weights"
    site: str
    weighted: int = bounded(0, below=2)

    def answer_of(self, traced: Traced) -> Thumbs:
        site = traced.trace[self.site]
        rows = min(site.n_query, THUMB * SAMPLED)
        # rows of a head are held at once with their mask, before they are made small
        cost = rows_cost(site.head, rows) + Cost(memory=rows * site.n_key * 3 * FLOAT)
        traced.budget.check(cost, f"the thumbnails of {site.name}", TEXT)
        return traced.once(f"thumbs {site.name} {self.weighted}", lambda: shade(site.head, weighted=self.weighted == 1))

    def python_of(self, traced: Traced) -> list[str]:
        return [f"[head.{'weighted' if self.weighted else 'weight'} for head in trace[{self.site!r}].head]"]


def shade(heads: Sequence[Head], *, weighted: bool) -> Thumbs:
    """Return the small maps of heads as bytes: 254 times the square root, so that small weights of a long text differ.

    It is 255 where every key of the square is masked.
    """
    values = torch.stack([small_map(head, weighted=weighted) for head in heads])
    most = values.max().clamp(min=1e-30) if weighted else 1.0
    shades = ((values / most).clamp(0, 1).sqrt() * MOST_SHADE).round()
    return shades.masked_fill(values == float("-inf"), MASKED).to(torch.uint8)


def small_map(head: Head, *, weighted: bool) -> Float[Tensor, "row column"]:
    """Return the head's weights, small: the largest of each square, of a long text from a few rows of it."""
    n_query, n_key = head.site.n_query, head.site.n_key
    height, width = -(-n_query // THUMB), -(-n_key // THUMB)
    if height <= SAMPLED:
        bands = [torch.cat([rows.weight for rows in head.blocks(range(n_query))])]
        allowed = [head.allowed(0, n_query)]
    else:
        starts = range(0, n_query, height)
        bands = [head.rows(start, start + SAMPLED).weight for start in starts]
        allowed = [head.allowed(start, min(start + SAMPLED, n_query)) for start in starts]
        height = SAMPLED
    norms = head.site.value_norms[head.index] if weighted else torch.ones(())
    small = [
        F.max_pool2d(
            (band * norms).masked_fill(~may, float("-inf"))[None], (min(height, len(band)), width), ceil_mode=True
        )[0]
        for band, may in zip(bands, allowed, strict=True)
    ]
    return torch.cat(small)
