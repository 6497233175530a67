"""The feed-forward view: the units of a layer at a token, with the words that each promotes."""

from dataclasses import asdict
from typing import Any

from clearhead.serve.budget import FLOAT, Cost
from clearhead.serve.params import Params
from clearhead.serve.traced import Traced
from clearhead.tracing.neurons import Effect, read_units, why_no_effect
from clearhead.tracing.trace import Candidate

MOST_UNITS = 64
ANSWERS = 5


def neurons_view(traced: Traced, params: Params) -> dict[str, Any]:
    """Return the units of a feed-forward that add most at a token; `unit` is shown too, wherever it ranks."""
    at, side = params.text("at"), params.text("at").partition(".")[0]
    tokens = traced.lengths.get(side, 0)
    token = params.integer("token", below=max(1, tokens), default=0)
    most = params.integer("most", least=1, below=MOST_UNITS + 1, default=20)
    unit = params.maybe_whole("unit")
    traced.check_box()
    costs, width = traced.costs, traced.trace.sides[side].d_model if tokens else 0
    # Its whole matrix, twice; a Jacobian; and the logits of every unit that is shown.
    memory = 2 * costs.hidden * width + 3 * width * width + (most + 1) * costs.logits
    traced.budget.check(Cost(memory=memory * FLOAT), f"the units of {at[:80]}", "ask for fewer units")
    view = read_units(traced.trace, at, token=token, most=most, also=[] if unit is None else [unit], answers=ANSWERS)
    names = traced.boxes.inner.names
    hidden = next(value for value in names.boxes[at].values if value.name == f"{at}.hidden")
    return {
        **asdict(view),
        "units": [
            {
                **asdict(neuron),
                "promotes": with_text(traced, neuron.promotes),
                "suppresses": with_text(traced, neuron.suppresses),
            }
            for neuron in view.units
        ],
        "formula": hidden.formula.replace("{", "").replace("}", ""),
        "silent": why_no_effect(names, side),
    }


def with_text(traced: Traced, effects: tuple[Effect, ...]) -> list[dict[str, Any]]:
    named = traced.with_names([Candidate(effect.id, "", effect.change) for effect in effects])
    return [{"id": effect.id, "text": effect.text, "change": effect.log_prob} for effect in named]
