"""A feature map of a user's own that is given as logarithms: promised what the kernels do with it."""

from dataclasses import dataclass
from itertools import islice

import clearhead as ch
from clearhead.attention.grid import check, combinations, reasons


@dataclass(frozen=True)
class Exponential(ch.weighting.LogFeatures):
    def log_map(self, vectors):
        return vectors


def test_linear_is_promised_to_refuse_it_and_chunked_to_serve_it():
    own = {"weighting": ch.weighting.Kernelized(Exponential())}
    refused = list(islice(combinations("linear", own), 20))
    assert all("features come as logarithms" in reasons(one) for one in refused)
    served = [one for one in islice(combinations("chunked", own), 20) if not reasons(one)]
    assert served
    assert check(served[:5]).failures == []
