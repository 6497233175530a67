"""How long each token's vector is along the residual stream, and its cosine with the token's own embedding."""

from dataclasses import dataclass
from typing import TypedDict, final

from torch.nn import functional as F

from clearhead.errors import OptionError
from clearhead.serve.budget import FLOAT, JSON_NUMBER, Cost
from clearhead.serve.questions.question import TraceQuestion
from clearhead.serve.questions.run import SideName
from clearhead.serve.traced import TEXT, Traced


class StreamRow(TypedDict):
    name: str
    norm: list[float]
    cosine: list[float]


class Stream(TypedDict):
    """How long each position's vector is along the stream, and its cosine with the embedding."""

    rows: list[StreamRow]


@final
@dataclass(frozen=True, kw_only=True)
class AskStream(TraceQuestion[Stream]):
    """The residual stream of a side, value by value."""

    side: SideName

    def answer_of(self, traced: Traced) -> Stream:
        side, trace = self.side, traced.trace
        if side not in trace.sides:
            raise OptionError(f"side is {side!r}, and must be one of {', '.join(trace.sides)}")
        names = [name for name in trace.stream if name.startswith(f"{side}.")]
        numbers = 2 * JSON_NUMBER + trace.sides[side].d_model * FLOAT
        traced.budget.check(Cost(memory=len(names) * traced.lengths[side] * numbers), f"the stream of the {side}", TEXT)
        embedding = trace.value(f"{side}.embedding.token").float()
        values = [(name, trace.value(name).float()) for name in names]
        return {
            "rows": [
                {
                    "name": name,
                    "norm": value.norm(dim=-1).tolist(),
                    "cosine": F.cosine_similarity(value, embedding, dim=-1).tolist(),
                }
                for name, value in values
            ]
        }

    def python_of(self, traced: Traced) -> list[str]:
        names = f"for name in trace.stream if name.startswith('{self.side}.')"
        return [f"{{name: trace.value(name).norm(dim=-1) {names}}}"]
