"""Small pictures of all heads of a site."""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import UInt8
from torch import Tensor
from torch.nn import functional as F

from clearhead.serve.budget import FLOAT, Cost
from clearhead.serve.costs import rows_cost
from clearhead.serve.questions.question import Thumbs, TraceQuestion
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
    """Head by head, row by row: 254 × √weight; 255 where all keys are masked."""

    site: str

    def answer_of(self, traced: Traced) -> Thumbs:
        site = traced.trace[self.site]
        rows = min(site.n_query, THUMB * SAMPLED)
        # rows of a head are held at once with their mask, before they are made small
        cost = rows_cost(site.head, rows) + Cost(memory=rows * site.n_key * 3 * FLOAT)
        traced.budget.check(cost, f"the thumbnails of {site.name}", TEXT)
        return traced.once(f"thumbs {site.name}", lambda: torch.stack([thumb(head) for head in site.head]))


def thumb(head: Head) -> UInt8[Tensor, "row column"]:
    """Return the head's weights, small: the largest of each square, of a long text from a few rows of it.

    A byte is 254 times the square root of the weight, so that small weights of a long text differ too. It
    is 255 where every key of the square is masked.
    """
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
    small = [
        F.max_pool2d(band.masked_fill(~may, float("-inf"))[None], (min(height, len(band)), width), ceil_mode=True)[0]
        for band, may in zip(bands, allowed, strict=True)
    ]
    largest = torch.cat(small)
    shade = (largest.clamp(0, 1).sqrt() * MOST_SHADE).round()
    return shade.masked_fill(largest == float("-inf"), MASKED).to(torch.uint8)
