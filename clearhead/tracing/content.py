"""What a trace is made of beside its sites: tokens, answers; and the part of it that goes into a file."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, final

from torch import Tensor

from clearhead.tracing.edits import Change
from clearhead.tracing.origin import TraceOrigin
from clearhead.tracing.site import Site


class Candidate(NamedTuple):
    """A token (or a class) the model may answer with."""

    id: int
    text: str
    log_prob: float


@final
@dataclass(frozen=True, kw_only=True)
class Side:
    """The tokens of one side, as ids and as they are shown."""

    ids: list[int]
    tokens: list[str]
    n_layers: int
    d_model: int


class Answers:
    """What the model answers, made when asked for: from the last vectors, or as it was saved."""

    def __init__(self, make: Callable[[], list[list[Candidate]]]) -> None:
        self.make = make
        self.candidates: list[list[Candidate]] | None = None

    def __repr__(self) -> str:
        return "Answers(...)"

    @property
    def likeliest(self) -> list[list[Candidate]]:
        if self.candidates is None:
            self.candidates = self.make()
        return self.candidates


@final
@dataclass(frozen=True, kw_only=True)
class TraceContent:
    """The fields of a `Trace` that are saved: all but what its model makes again."""

    kind: str
    sides: Mapping[str, Side]
    sites: Mapping[str, Site]
    stream: Mapping[str, Tensor]
    task: str
    notes: tuple[str, ...]
    changes: tuple[Change, ...]
    answers: Answers
    origin: TraceOrigin
    all_names: tuple[str, ...]
