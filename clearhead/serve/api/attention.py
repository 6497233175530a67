"""Attention weights in an answer: of the prompt and what was written, at the sites and heads that were asked for.

They are a trace's: the fused kernels run once over the whole text, and the weights are rebuilt from what they were
given, and checked against what they gave.
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.serve.bodies import AttentionBody, names_of_body
from clearhead.serve.costs import key_side, side_of
from clearhead.serve.errors import ApiError
from clearhead.serve.params import Params
from clearhead.tracing.names import Names
from clearhead.tracing.trace import trace_model
from clearhead.training.run import Run
from clearhead.training.tasks.base import TraceInputs

DIGITS = 7
"""Decimal places of weights as numbers; in base64 they are exact."""


@dataclass(frozen=True, kw_only=True)
class WeightsOptions:
    """The sites and heads whose weights are returned, and their form: lists of numbers, or base64 of float32."""

    sites: tuple[str, ...]
    heads: Mapping[str, tuple[int, ...]]
    base64: bool

    def count(self, lengths: Mapping[str, int]) -> int:
        """Return how many weights these are for texts of these lengths, by side."""
        return sum(len(self.heads[name]) * lengths[side_of(name)] * lengths[key_side(name)] for name in self.sites)

    def check(self, lengths: Mapping[str, int], most: int) -> None:
        """Raise ApiError 413 where there are too many."""
        if (count := self.count(lengths)) > most:
            message = (
                f"attention: {count:,} weights were asked for, and {most:,} are the most in one answer; name fewer "
                'sites or heads: {"sites": ["…"], "heads": [0]}'
            )
            raise ApiError(413, message, param="attention", code="attention_too_large")


def read_attention(params: Params, run: Run) -> WeightsOptions | None:
    """Return what the option `attention` asks for: nothing, everything (true), or the sites and heads that it names."""
    value = params.values.get("attention", False)
    if value is False:
        return None
    if value is not True and not isinstance(value, dict):
        raise params.value_error("attention", "expected true, or an object with sites and heads", value)
    n_heads = {name: layer.shape.n_heads for name, layer in Names(run.model).sites.items()}
    inner = Params(value if isinstance(value, dict) else {}, "attention", typed=True)
    inner.only(*names_of_body(AttentionBody))
    sites = inner.values.get("sites", list(n_heads))
    if not isinstance(sites, list) or not sites or not all(name in n_heads for name in sites if isinstance(name, str)):
        raise params.value_error("attention", f"sites must be some of {', '.join(n_heads)}", sites)
    if not all(isinstance(name, str) for name in sites) or len(set(sites)) < len(sites):
        raise params.value_error("attention", "sites must be names, each once", sites)
    heads = inner.values.get("heads")
    most = min(n_heads[name] for name in sites)
    if heads is not None and (
        not isinstance(heads, list) or not heads or not all(is_head(head, most) for head in heads)
    ):
        raise params.value_error("attention", f"heads must be a list of numbers from 0 to {most - 1}", heads)
    form = inner.one_of("encoding_format", ("float", "base64"), default="float")
    by_site = {name: tuple(range(n_heads[name])) if heads is None else tuple(heads) for name in sites}
    return WeightsOptions(sites=tuple(sites), heads=by_site, base64=form == "base64")


def is_head(value: object, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < most


def attention_of(run: Run, inputs: TraceInputs, attention_options: WeightsOptions, most: int) -> dict[str, Any]:
    """Return the tokens of each side, and the weights of each site: `[head][query][key]`."""
    sides = list(inputs.ids)
    attention_options.check({side: len(ids) for side, ids in inputs.ids.items()}, most)
    device = next(run.model.parameters()).device
    tokens = [torch.tensor([row], device=device) for row in inputs.ids.values()]
    segments = None if inputs.segments is None else torch.tensor([inputs.segments], device=device)
    trace = trace_model(run.model, *tokens, segments=segments, pieces=inputs.pieces)
    tables = []
    for name in attention_options.sites:
        heads = attention_options.heads[name]
        weight = torch.stack([trace[name].head[head].weight for head in heads])
        tables.append(
            {
                "site": name,
                "query": side_of(name),
                "key": key_side(name),
                "heads": list(heads),
                "shape": list(weight.shape),
                "weight": encode_base64(weight) if attention_options.base64 else as_numbers(weight),
            }
        )
    return {"tokens": {side: list(inputs.pieces[side]) for side in sides}, "sites": tables}


def as_numbers(values: Float[Tensor, "..."]) -> list[Any]:
    return values.double().round(decimals=DIGITS).tolist()


def encode_base64(values: Float[Tensor, "..."]) -> str:
    """Return numbers as base64 of little-endian float32, in order.

    >>> encode_base64(torch.tensor([1.0, -2.0]))
    'AACAPwAAAMA='
    """
    return base64.b64encode(values.float().cpu().contiguous().numpy().astype("<f4", copy=False).tobytes()).decode()
