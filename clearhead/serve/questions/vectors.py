"""All vectors of a head in one role, or of one value of the residual stream."""

from dataclasses import dataclass
from typing import Literal, final

from clearhead.errors import OptionError
from clearhead.serve.budget import FLOAT, Cost
from clearhead.serve.questions.question import Matrix, TraceQuestion
from clearhead.serve.traced import TEXT, Traced, name_heads

VectorRole = Literal["query", "key", "value", "context"]


@final
@dataclass(frozen=True, kw_only=True)
class AskVectors(TraceQuestion[Matrix]):
    """A row for each token: of a head (`site`, `head`, `role`), or of the stream (`name`)."""

    site: str | None = None
    head: int | None = None
    role: VectorRole | None = None
    name: str | None = None

    def answer_of(self, traced: Traced) -> Matrix:
        return self.of_head(traced) if self.name is None else self.of_stream(traced, self.name)

    def python_of(self, traced: Traced) -> list[str]:
        if self.name is not None:
            return [f"trace.value({self.name!r})"]
        return [f"trace[{self.site!r}].head[{self.head}].{self.role}"]

    def of_stream(self, traced: Traced, name: str) -> Matrix:
        if name not in traced.trace.stream:
            names = ", ".join(traced.trace.stream)
            raise OptionError(f"there is no {name[:80]!r} in this trace's stream; there are {names}")
        vectors = traced.trace.stream[name]
        traced.budget.check(Cost(memory=3 * vectors.numel() * FLOAT), f"all vectors of {name}", TEXT)
        return vectors

    def of_head(self, traced: Traced) -> Matrix:
        if self.site is None or self.head is None or self.role is None:
            missing = [name for name in ("site", "head", "role") if getattr(self, name) is None]
            raise OptionError(f"{missing[0]} is missing: ask for site, head and role, or for the name of a stream")
        head = traced.head(self.site, self.head)
        site = head.site
        numbers = max(site.n_query, site.n_key) * max(site.d_head, site.d_value) + site.recorded_context.numel()
        traced.budget.check(Cost(memory=3 * numbers * FLOAT), f"all vectors of {name_heads([head])}", TEXT)
        return getattr(head, self.role)
