"""A survey of a trace: how much each head's weights say, and how near what is rebuilt is to what its kernel gave.

>>> import torch
>>> from clearhead.model import presets
>>> from clearhead.tracing.trace import trace_model
>>> made = trace_model(presets.gpt2("tiny", vocabulary=50).build().eval(), torch.randint(50, (1, 9)))
>>> found = survey(made)
>>> view = clearest(found)
>>> view.of(made).shape, found[view.site].off <= found[view.site].tolerance
(torch.Size([9, 9]), True)
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.devices import widest_float
from clearhead.tracing.site import TOLERANCE, Head, Site
from clearhead.tracing.trace import Trace


class View(NamedTuple):
    """A way to look at a trace: a site, and one of its heads or (None) the mean of them."""

    site: str
    head: int | None

    @property
    def opening(self) -> dict[str, int | str]:
        """Return the view as a page's data names it: what the page opens on."""
        return {"site": self.site, "head": "mean" if self.head is None else self.head}

    def of(self, trace: Trace) -> Float[Tensor, "query key"]:
        """Return the weights it shows."""
        heads = trace[self.site].head
        if self.head is not None:
            return heads[self.head].weight
        total = heads[0].weight
        for head in heads[1:]:  # one matrix at a time: a long text's are large
            total = total + head.weight
        return total / len(heads)


def views(sites: Sequence[Site]) -> list[View]:
    """Return every view of these sites: for each the mean, then its heads."""
    return [View(site.name, head) for site in sites for head in (None, *range(site.n_heads))]


@dataclass(frozen=True, kw_only=True)
class SiteSurvey:
    """The survey of one site."""

    information: list[float]
    """The information of each head, in bits."""
    off: float
    """The largest difference of a rebuilt context from the kernel's, over all heads and queries."""
    tolerance: float
    """The largest difference allowed."""


def survey(trace: Trace) -> dict[str, SiteSurvey]:
    """Return the survey of every site, read once, a block of rows at a time."""
    return {name: survey_site(site) for name, site in trace.sites.items()}


def survey_site(site: Site) -> SiteSurvey:
    looks = [Look(head) for head in site.head]
    return SiteSurvey(
        information=[information(look.weights()) for look in looks],
        off=max(look.off for look in looks),
        tolerance=TOLERANCE[site.recorded_context.dtype] * max(1.0, site.recorded_context.abs().max().item()),
    )


class Look:
    """A pass over a head's weights, which records how far their contexts are off."""

    def __init__(self, head: Head) -> None:
        self.head, self.off = head, 0.0

    def weights(self) -> Iterator[Float[Tensor, "query key"]]:
        head, start = self.head, 0
        context = head.site.recorded_context[head.index]
        for block in head.blocks(range(head.site.n_query)):
            stop = start + len(block.weight)
            self.off = max(self.off, (block.weight @ block.value - context[start:stop]).abs().max().item())
            start = stop
            yield block.weight


def clearest(surveys: Mapping[str, SiteSurvey]) -> View:
    """Return the head whose weights carry most information: sharp, and different in each row."""
    heads = [
        (bits, View(name, head)) for name, survey in surveys.items() for head, bits in enumerate(survey.information)
    ]
    return max(heads, key=lambda pair: pair[0])[1]


def information(blocks: Iterable[Float[Tensor, "_ key"]]) -> float:
    """Return how many bits the row of a map tells about its column: 0 if all rows are alike, log2(rows) at most.

    The map is given as blocks of rows. As in the entropy of `Readings`, a weight counts as its share of its row, and a
    row without weights not at all: the rows of some weightings do not sum to 1.

    >>> [information([torch.eye(4)]), information([torch.full((4, 4), 0.25)]), information([torch.eye(4)[:1]] * 4)]
    [2.0, 0.0, 0.0]
    >>> information([torch.eye(4) / 2, torch.zeros(2, 4)])
    2.0
    """
    n, rows, columns = 0, 0.0, None
    for block in blocks:
        weight = block.to(widest_float(block.device)).abs()
        sums = weight.sum(-1, keepdim=True)
        share = weight / torch.where(sums > 0, sums, 1)
        n += int((sums > 0).sum())
        rows += torch.special.entr(share).sum().item()
        columns = share.sum(0) if columns is None else columns + share.sum(0)
    if columns is None or not n:
        return 0.0
    return max(0.0, torch.special.entr(columns / n).sum().item() - rows / n) / math.log(2)
