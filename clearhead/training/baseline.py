"""The line to beat: a simple model, fitted in seconds before the training, that a Transformer is compared with."""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

from clearhead.model.sizes import Spec
from clearhead.model.wide import ToNgramLogits

Fitted = TypeVar("Fitted")
MARGIN = 1.3
"""A larger share is thought to take so many times as long as the pilot's time says."""


class Baseline(ABC):
    """A fitted simple model with its score on the dev records."""

    @abstractmethod
    def announce(self) -> str:
        """Return the line that is printed before a Transformer is trained."""

    @abstractmethod
    def as_json(self) -> dict[str, Any]:
        """Return what baseline.json keeps, for the comparison at the end."""

    def wide_part(self) -> ToNgramLogits | None:
        """Return the model as a wide part of a Transformer's output; None if it cannot be one."""
        return None

    def joined(self, spec: Spec) -> Spec:
        """Return the spec of a model with this one as a part of it; as it is if it has no place for one."""
        return spec


def fit_in_time(fit: Callable[[float, float], Fitted], *, pilot: float, seconds: float) -> Fitted:
    """Return `fit(share, seconds)` for the largest share of the data that there is time for.

    A `pilot` share is fitted first, as quickly as can be. How long that took says how large the share can be; it is
    above 1 if there is time for more than all of the data.
    """
    if pilot >= 1 or math.isinf(seconds):
        return fit(math.inf, seconds)
    began = time.perf_counter()
    fitted = fit(pilot, 0.0)
    taken = time.perf_counter() - began
    share = pilot * (seconds - taken) / (MARGIN * taken)
    return fit(share, seconds - taken) if share > 2 * pilot else fitted
