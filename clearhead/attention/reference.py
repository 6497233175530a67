"""The definition of attention: the plainest arithmetic, every step by name. Every kernel is held to it.

`weight = weighting(similarity(query, key) + bias, mask)`, `context = weight @ value`.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor

from clearhead.attention.inputs import AttentionInputs, Visibility
from clearhead.attention.similarity import Scores
from clearhead.attention.steps_display import describe_steps, draw_steps
from clearhead.notebook import Display

Tap = Callable[[str, Tensor], Tensor]
"""Takes a step's name and value, and returns the value that goes on in its place."""


def leave_unchanged(name: str, value: Tensor) -> Tensor:
    return value


@dataclass(frozen=True, kw_only=True)
class ScoreWeights:
    """From scores to weights, for all the rows of a call or a block of them."""

    score: Scores
    scaled: Scores
    """The score times the similarity's scale."""
    masked: Scores
    """`scaled`, plus the position's bias if it has one; where not allowed `weighting.blocked`, -inf or 0."""
    weight: Scores


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Every inner value of one attention call, by the names that traces and pictures use too.

    Attributes:
        key: After rotary positions.
        value: What is mixed.
        score: Similarity of each query and key.
        weight: The masked scores as weights.
        context: The values, weighted: the result.

    >>> import torch, clearhead as ch
    >>> steps = ch.explain(torch.eye(2), torch.eye(2), torch.eye(2))
    >>> bool(torch.allclose(steps.weight @ steps.value, steps.context))
    True
    """

    query: Float[Tensor, "*batch_head query d_head"]
    """As it meets the keys: after rotary."""
    key: Float[Tensor, "*batch_head key d_head"]
    value: Float[Tensor, "*batch_head key d_value"]
    score: Float[Tensor, "*batch_head query key"]
    scaled: Float[Tensor, "*batch_head query key"]
    """The score times the similarity's scale."""
    masked: Float[Tensor, "*batch_head query key"]
    """`scaled`, plus the position's bias if it has one; where not allowed `weighting.blocked`, -inf or 0."""
    weight: Float[Tensor, "*batch_head query key"]
    context: Float[Tensor, "*batch_head query d_value"]

    def __repr__(self) -> str:
        return describe_steps(vars(self))

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        return self.show()._repr_html_()

    def show(self) -> Display:
        """Return the steps of the first head as a picture: a notebook shows it, and `save` writes it."""
        return draw_steps(vars(self))

    def without_batch(self) -> "Steps":
        """Return the steps of the only batch row."""
        return Steps(**{field.name: getattr(self, field.name)[0] for field in fields(self)})


def steps(call: AttentionInputs) -> Steps:
    """Return all steps of a call, in float32 or better; the context in the dtype of the inputs."""
    dtype = call.query.dtype
    call = call.to_float32().with_every_head()
    allowed = call.mask.allowed(call.cells())
    if not call.unmasked:
        call = call.zero_hidden(Visibility.of(allowed))
    query, key = call.similarity.prepare(call.query, call.key)
    weighed = weigh(call, query, key)
    return Steps(
        query=call.query,
        key=call.key,
        value=call.value,
        score=weighed.score,
        scaled=weighed.scaled,
        masked=weighed.masked,
        weight=weighed.weight,
        context=mix(call, weighed.weight, call.value).to(dtype),
    )


def weigh(
    call: AttentionInputs, query: Tensor, key: Tensor, rows: slice | None = None, tap: Tap = leave_unchanged
) -> ScoreWeights:
    """Return the weights of a block of rows, from its prepared queries and keys; `tap` may replace each step."""
    cells = call.cells(rows)
    allowed = tap("allowed", call.mask.allowed(cells))
    score = tap("score", call.similarity.score(query, key))
    scaled = tap("scaled", score * call.scale)
    biased = scaled + call.position.bias(cells, score.dtype)
    masked = tap("masked", torch.where(allowed, biased, call.weighting.blocked))
    weight = tap("weight", call.weighting.weigh(masked, allowed))
    return ScoreWeights(score=score, scaled=scaled, masked=masked, weight=weight)


def mix(call: AttentionInputs, weight: Scores, value: Tensor) -> Float[Tensor, "batch head query d_value"]:
    """Return the weighted sum of the values, after dropout on the weights if there is any."""
    weight = torch.dropout(weight, call.dropout, train=call.dropout > 0)
    return einsum(weight, value, "batch head query key, batch head key d -> batch head query d")
