"""Every number of a box of the model's diagram for one token."""

from dataclasses import dataclass
from typing import TypedDict, final

from clearhead.serve.boxes import as_list
from clearhead.serve.questions.question import TraceQuestion
from clearhead.serve.traced import Traced, check_below
from clearhead.tracing.trace import LIKELIEST, Candidate


class BoxNumbers(TypedDict):
    """The numbers of a box for one token, by name; what its values follow from is among them. null stands for −∞."""

    values: dict[str, list[float | None]]
    constants: dict[str, float]
    """Numbers of formulas that are no value of the trace: the scale of a head."""
    labels: dict[str, str]
    """What units of an output are called, the likeliest of them."""


@final
@dataclass(frozen=True, kw_only=True)
class AskBox(TraceQuestion[BoxNumbers]):
    """Every number of a box for one token (and, of keys and values, one key) in one head, by name."""

    box: str
    token: int = 0
    key: int = 0
    head: int = 0

    def answer_of(self, traced: Traced) -> BoxNumbers:
        traced.check_box()
        box = traced.boxes.box(self.box)
        token = check_below("token", self.token, traced.lengths[box.side])
        found = traced.boxes.of_box(box, token=token, key=self.key, head=self.head)
        numbers = {name: as_list(value) for name, value in found}
        site = traced.trace.sites.get(self.box)
        probability = numbers.get(f"{traced.trace.answer_side}.output.probability")
        return {
            "values": {name: [*vector] for name, vector in numbers.items()},
            "constants": {} if site is None else {"scale": site.head[self.head].scale},
            "labels": {} if probability is None else labels(traced, probability),
        }

    def python_of(self, traced: Traced) -> list[str]:
        names = [value.name for value in traced.boxes.box(self.box).values]
        rows = f"slice({self.token}, {self.token + 1})"
        return [f"{{name: trace.value(name, {rows}) for name in {names}}}"]


def labels(traced: Traced, probability: list[float]) -> dict[str, str]:
    """Return the words of the likeliest units."""
    best = sorted(range(len(probability)), key=lambda unit: -probability[unit])[:LIKELIEST]
    named = traced.with_names([Candidate(unit, "", 0.0) for unit in best])
    return {str(candidate.id): candidate.text for candidate in named}
