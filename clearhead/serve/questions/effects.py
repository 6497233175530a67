"""What the answers lose without each head of a site."""

from dataclasses import dataclass
from typing import TypedDict, final

from clearhead.serve.budget import Cost
from clearhead.serve.questions.question import TraceQuestion
from clearhead.serve.traced import TEXT, Traced
from clearhead.tracing.head_metrics import effects


class HeadEffect(TypedDict):
    head: int
    change: float
    kl: float


class Effects(TypedDict):
    effects: list[HeadEffect]


@final
@dataclass(frozen=True, kw_only=True)
class AskEffects(TraceQuestion[Effects]):
    """What the answers lose without each head of a site."""

    site: str

    def answer_of(self, traced: Traced) -> Effects:
        site, changes = traced.trace[self.site], traced.trace.changes
        forward = traced.costs.forward(traced.lengths, changes)
        cost = Cost(cells=forward.cells * (1 + site.n_heads), memory=2 * forward.memory)
        traced.budget.check(cost, f"running the model without each head of {site.name}", TEXT)
        found = traced.once(
            f"effects {site.name}",
            lambda: effects(traced.model, traced.logits, site.name, site.n_heads, changes),
        )
        return {
            "effects": [{"head": effect.head, "change": effect.change, "kl": effect.divergence} for effect in found]
        }

    def python_of(self, traced: Traced) -> list[str]:
        n_heads = traced.trace[self.site].n_heads
        return [
            "import torch",
            "tokens = [torch.tensor([side.ids]) for side in trace.sides.values()]",
            "def forward(edits):",
            "    with ch.tracing.recording(run.model, edits):",
            "        return run.model(*tokens)",
            f"ch.tracing.effects(run.model, forward, {self.site!r}, {n_heads}, trace.changes)",
        ]
