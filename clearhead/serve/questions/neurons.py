"""The units of a feed-forward that add most at a token, with the words that each promotes."""

from dataclasses import asdict, dataclass
from typing import TypedDict, cast, final

from clearhead.serve.budget import FLOAT, Cost
from clearhead.serve.questions.question import TraceQuestion, bounded
from clearhead.serve.traced import Traced, check_below
from clearhead.tracing.neurons import LogitEffect, read_units, why_no_effect
from clearhead.tracing.trace import Candidate

MOST_UNITS = 64
ANSWERS = 5


class UnitEffect(TypedDict):
    """How much a unit adds to the logit of an answer at a token."""

    id: int
    text: str
    change: float


class NeuronUnit(TypedDict):
    """A hidden unit of a feed-forward at one token."""

    unit: int
    steps: dict[str, float]
    """The values that make it, the last of them its activation, `hidden`."""
    norm: float
    """The length of the vector that it adds to the output: its activation times its output weights."""
    share: float
    """How much of the output that vector is; all units and the bias make 1."""
    promotes: list[UnitEffect]
    suppresses: list[UnitEffect]


class Neurons(TypedDict):
    at: str
    token: int
    d_ff: int
    active: int
    """Units whose activation is above 0."""
    half: int
    """The fewest units whose norms are half of all norms."""
    bias: float
    units: list[NeuronUnit]
    formula: str
    """How the activation is made."""
    silent: str
    """Why no unit promotes an answer; "" where they do."""


@final
@dataclass(frozen=True, kw_only=True)
class AskNeurons(TraceQuestion[Neurons]):
    """The units of the feed-forward `at` that add most at a token."""

    at: str
    token: int = 0
    most: int = bounded(20, least=1, below=MOST_UNITS + 1)
    unit: int | None = None
    """A unit that is wanted wherever it ranks."""

    def answer_of(self, traced: Traced) -> Neurons:
        at, side = self.at, self.at.partition(".")[0]
        tokens = traced.lengths.get(side, 0)
        token = check_below("token", self.token, max(1, tokens))
        traced.check_box()
        costs, width = traced.costs, traced.trace.sides[side].d_model if tokens else 0
        # Its whole matrix, twice; a Jacobian; and the logits of every unit that is shown.
        memory = 2 * costs.hidden * width + 3 * width * width + (self.most + 1) * costs.logits
        traced.budget.check(Cost(memory=memory * FLOAT), f"the units of {at[:80]}", "ask for fewer units")
        also = [] if self.unit is None else [self.unit]
        view = read_units(traced.trace, at, token=token, most=self.most, also=also, answers=ANSWERS)
        names = traced.boxes.inner.names
        hidden = next(value for value in names.boxes[at].values if value.name == f"{at}.hidden")
        units = [
            {
                **asdict(neuron),
                "promotes": with_text(traced, neuron.promotes),
                "suppresses": with_text(traced, neuron.suppresses),
            }
            for neuron in view.units
        ]
        formula = hidden.formula.replace("{", "").replace("}", "")
        silent = why_no_effect(names, side)
        return cast(Neurons, {**asdict(view), "units": units, "formula": formula, "silent": silent})

    def python_of(self, traced: Traced) -> list[str]:
        return [f"trace.value('{self.at}.hidden', slice({self.token}, {self.token + 1}))[0]"]


def with_text(traced: Traced, effects: tuple[LogitEffect, ...]) -> list[UnitEffect]:
    named = traced.with_names([Candidate(effect.id, "", effect.change) for effect in effects])
    return [{"id": effect.id, "text": effect.text, "change": effect.log_prob} for effect in named]
