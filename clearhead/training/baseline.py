"""The line to beat: a simple model, fitted in seconds before the training, that a Transformer is compared with."""

from abc import ABC, abstractmethod
from typing import Any

from clearhead.model.sizes import Spec
from clearhead.model.wide import ToNgramLogits


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
