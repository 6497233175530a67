"""The boxes of the model's diagram: their numbers for one token, the products behind one of them, and hidden units."""

from dataclasses import asdict, dataclass
from typing import TypedDict, cast

from clearhead.errors import OptionError
from clearhead.serve import boxes, params
from clearhead.serve.budget import FLOAT, Cost
from clearhead.serve.questions.question import TraceQuestion
from clearhead.serve.traced import Traced, check_below
from clearhead.tracing.neurons import LogitEffect, read_units, why_no_effect
from clearhead.tracing.trace import LIKELIEST, Candidate


class BoxNumbers(TypedDict):
    """The numbers of a box for one token, by name; what its values follow from is among them. null stands for −∞."""

    values: dict[str, list[float | None]]
    constants: dict[str, float]
    """Numbers of formulas that are no value of the trace: the scale of a head."""
    labels: dict[str, str]
    """What units of an output are called, the likeliest of them."""


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
        numbers = {name: boxes.as_list(value) for name, value in found}
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


class BoxTerms(TypedDict):
    """A number that a linear map makes: the sum of x · weight, and bias."""

    x: list[float]
    weight: list[float]
    bias: float
    value: float
    start: int
    """The place of the first x: in sliced heads, where the head's slice begins."""


@dataclass(frozen=True, kw_only=True)
class AskTerms(TraceQuestion[BoxTerms]):
    """The sum of products that one number of the value `name` is."""

    name: str
    unit: int
    row: int = 0
    head: int = 0

    def answer_of(self, traced: Traced) -> BoxTerms:
        traced.check_box()
        vector = traced.boxes.row(self.name, self.row, self.head)
        if self.unit >= len(vector):
            raise OptionError(f"{self.name}: there is no unit {self.unit}; there are {len(vector)}, counted from 0")
        per_head = traced.boxes.values[self.name].per_head
        unit = (self.head, self.unit) if per_head else (self.unit,)
        products = traced.boxes.inner.products(self.name, self.row, unit)
        return {
            "x": boxes.as_list(products.x),
            "weight": boxes.as_list(products.weight),
            "bias": products.bias,
            "start": products.start,
            "value": vector[self.unit].item(),
        }

    def python_of(self, traced: Traced) -> list[str]:
        place = f"{self.head}, 0" if traced.boxes.values[self.name].per_head else "0"
        return [f"trace.value({self.name!r}, slice({self.row}, {self.row + 1}))[{place}, {self.unit}]"]


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


@dataclass(frozen=True, kw_only=True)
class AskNeurons(TraceQuestion[Neurons]):
    """The units of the feed-forward `at` that add most at a token."""

    at: str
    token: int = 0
    most: int = params.bounded(20, least=1, below=MOST_UNITS + 1)
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
