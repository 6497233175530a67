"""Recurrent: kernelized attention one position at a time, on a state of fixed size. The form that decoding uses."""

from typing import ClassVar

import torch
from einops import rearrange
from jaxtyping import Bool
from torch import Tensor

from clearhead.attention.inputs import AttentionInputs, KernelFacts
from clearhead.attention.kernels.base import Context, Kernel
from clearhead.attention.kernels.linear import State, features, in_order, kernelized, may_see


class Recurrent(Kernel):
    name: ClassVar[str] = "recurrent"
    summary: ClassVar[str] = "kernelized attention one position at a time, as in decoding"

    def refusal(self, facts: KernelFacts) -> str | None:
        if facts.weighting != "kernelized":
            return "it keeps a running sum in place of the keys, which works only in kernelized attention"
        if facts.dropout:
            return "dropout leaves out weights, and here they are never formed"
        if facts.masks <= {"none", "padding"}:
            return None
        if others := facts.masks - {"causal", "document", "padding"}:
            return f"its running sum cannot forget keys: it cannot do {', '.join(sorted(others))}"
        if "causal" not in facts.masks:
            return "document: it has seen no later key when it comes to a query; with causal it can"
        if not facts.aligned:
            return f"{', '.join(sorted(facts.masks))}: it goes through the keys in order, and positions were given"
        return None

    def notes(self, facts: KernelFacts) -> tuple[str, ...]:
        return ("one step after another for each position: for whole sequences `chunked` is faster",)

    def run(self, call: AttentionInputs) -> Context:
        dtype = call.query.dtype
        call = features(call.to_float32().with_every_head())
        return (one_by_one(call) if in_order(call) else at_the_end(call)).to(dtype)


def one_by_one(call: AttentionInputs) -> Context:
    """Return the context of each query on the keys up to its own; zeros before the first key."""
    first, keeps, state = call.n_key - call.n_query, same_document(call), State.before(call)
    contexts = []
    for position in range(min(0, first), call.n_key):
        if position >= 0:
            column = slice(position, position + 1)
            state = state.keep_rows(keeps[:, position]).add(call.key[:, :, column], call.value[:, :, column])
        if position >= first:
            row = slice(position - first, position - first + 1)
            contexts.append(state.read(call.query[:, :, row], kernelized(call)))
    return torch.cat(contexts, dim=2)


def at_the_end(call: AttentionInputs) -> Context:
    """Return the context of every query on all keys."""
    state = State.before(call)
    for position in range(call.n_key):
        column = slice(position, position + 1)
        state = state.add(call.key[:, :, column], call.value[:, :, column])
    return state.read(call.query, kernelized(call))


def same_document(call: AttentionInputs) -> Bool[Tensor, "batch_or_1 key"]:
    """Check for each position whether its key is of the same document as the one before it."""
    key = rearrange(call.positions.key, "n -> 1 n")
    documents = [term for term in call.mask.terms if term.kind == "document"]
    return may_see(call, documents, key, key - 1) if documents else torch.ones_like(key, dtype=torch.bool)
