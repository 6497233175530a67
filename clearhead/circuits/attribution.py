"""Direct logit attribution: what each head, feed-forward and embedding adds to a logit by itself.

The output reads the sum of what the parts of the answering side wrote into the residual stream. With the statistics of
the norms on the way kept as they were (the last norm; in post-norm every norm after the part), that sum is taken apart
exactly: what the parts add up to is the logit, or the difference of two logits.

>>> import torch
>>> from clearhead.circuits import attribute_logits
>>> from clearhead.model import presets
>>> from clearhead.tracing import trace_model
>>> trace = trace_model(presets.gpt2("tiny", vocabulary=20).build().eval(), torch.randint(20, (1, 6)))
>>> found = attribute_logits(trace, place=-1, answer=3, other=7)
>>> list(found.parts)[:4]
['decoder.embedding.token', 'decoder.embedding.position', 'decoder.0.attention.head.0', 'decoder.0.attention.head.1']
>>> abs(sum(found.parts.values()) - found.total) < 1e-4
True
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.calls import public
from clearhead.circuits.forward import freeze, still
from clearhead.circuits.graph import Graph
from clearhead.devices import widest_float
from clearhead.errors import OptionError, PlaceError
from clearhead.model.norms import FrozenNorm
from clearhead.model.transformers import apply_output
from clearhead.notebook import Display, Matrix, heat_maps, paragraph
from clearhead.tracing.inner import InnerValues
from clearhead.tracing.site import head_outputs
from clearhead.tracing.trace import Trace, changes_output

EDITS = "edits"
"""The part of a logit that edits of the stream itself add: it belongs to no head and no feed-forward."""


@final
@public
@dataclass(frozen=True, kw_only=True)
class Attribution:
    """What each part of a model adds to the logit of `answer`, or to its difference from the logit of `other`.

    `parts` has, in the order of the forward pass: the embeddings; each head (`decoder.1.attention.head.3`); each
    feed-forward; `decoder.constant` (biases of W_O, betas of norms); and `decoder.output`: the output's bias and, if
    the output is not linear (BERT's transform, a cap on logits), what its linearization at this text leaves out. An
    edited model also has `edits`.

    Attributes:
        place: Token whose answer is attributed.
        answer: Number of the answer.
        other: Number of the other answer; None if there is none.
        total: The logit or the difference; the parts sum to it.
        parts: By part, what it adds.

    >>> import torch, clearhead as ch
    >>> trace = ch.tracing.trace_model(ch.presets.gpt2("tiny", vocabulary=20).build().eval(), torch.tensor([[3, 1, 4]]))
    >>> list(ch.circuits.attribute_logits(trace, answer=5).parts)[0]
    'decoder.embedding.token'
    """

    place: int
    answer: int
    other: int | None
    total: float
    parts: Mapping[str, float]
    names: tuple[str, str] = ("", "")
    """The answer and the other one in words."""

    @property
    def heads(self) -> dict[str, Float[Tensor, "head"]]:
        """Return what each head adds, by attention."""
        sites: dict[str, list[float]] = {}
        for name, value in self.parts.items():
            at, found, _ = name.rpartition(".head.")
            if found:
                sites.setdefault(at, []).append(value)
        return {at: torch.tensor(values, dtype=torch.float64) for at, values in sites.items()}

    @property
    def layers(self) -> dict[str, float]:
        """Return what each layer adds, its heads and its feed-forward together."""
        layers: dict[str, float] = {}
        for name, value in self.parts.items():
            layer = ".".join(name.split(".")[:2])
            if layer[-1].isdigit():
                layers[layer] = layers.get(layer, 0.0) + value
        return layers

    @property
    def what(self) -> str:
        """Say what is taken apart, in words."""
        answer, other = (
            name or str(number) for name, number in zip(self.names, (self.answer, self.other), strict=True)
        )
        difference = f" less that of {other!r}" if self.other is not None else ""
        return f"the logit of {answer!r}{difference} at place {self.place}: {self.total:+.3f}"

    def __repr__(self) -> str:
        return f"Attribution of {self.what}"

    def __str__(self) -> str:
        rows = sorted(self.parts.items(), key=lambda part: -abs(part[1]))
        width = max(map(len, self.parts))
        return "\n".join([self.what, *(f"  {name:<{width}} {value:+9.3f}" for name, value in rows)])

    @public
    def show(self) -> Display:
        """Return heads and feed-forwards by layer as a heat map: a notebook shows it, and `save` writes it."""
        rows = {name: row.tolist() for name, row in self.heads.items()}
        alone = {name: [value] for name, value in self.parts.items() if ".head." not in name}
        rows |= alone
        width = max(map(len, rows.values()))
        table = torch.full((len(rows), width), float("nan"))
        for number, values in enumerate(rows.values()):
            table[number, : len(values)] = torch.tensor(values)
        drawn = Matrix("what each part adds", table, [short(name) for name in rows], percent=False, hidden="nothing")
        return Display("Direct logit attribution", paragraph(self.what) + "".join(heat_maps([drawn])))

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        return self.show()._repr_html_()


def short(name: str) -> str:
    """Return a name of a part as it fits beside a map: `decoder.1.feed_forward` as `d1.ffn`."""
    side, *rest = name.split(".")
    words = {"attention": "attn", "feed_forward": "ffn", "embedding": "emb"}
    return ".".join(
        [side[0] + rest[0] if rest and rest[0].isdigit() else side[:3], *(words.get(w, w) for w in rest[1:])]
    )


@torch.no_grad()
@public
def attribute_logits(
    trace: Trace, *, place: int = -1, answer: int, other: int | None = None, graph: Graph | None = None
) -> Attribution:
    """Return what each part of a traced model adds to the logit of an answer, or to the difference of two.

    Args:
        trace: A trace with its model.
        place: Token of the answering side, from the end if negative; without effect for a class, which has no place.
        answer: Number of the answer.
        other: Number of another answer, to attribute the difference.
        graph: The graph of the trace's model, if you have it.

    Returns:
        The parts and what they add.

    >>> import torch, clearhead as ch
    >>> trace = ch.tracing.trace_model(ch.presets.gpt2("tiny", vocabulary=20).build().eval(), torch.tensor([[3, 1, 4]]))
    >>> found = ch.circuits.attribute_logits(trace, answer=5)
    >>> bool(abs(sum(found.parts.values()) - found.total) < 1e-4)
    True
    """
    inner, side = check_trace(trace), trace.answer_side
    part, wide = inner.names.sides[side][1], widest_float(next(inner.model.parameters()).device)
    assert part.spec.output is not None
    place = check_answers(inner, side, (answer, other), place)
    rows = slice(place, place + 1) if part.spec.output.by_position else slice(0, len(trace.sides[side].ids))
    last = inner.stream[inner.names.inputs[side, "output"]][rows]
    total, gradient = logit_gradient(inner, side, last, (answer, other))
    graph = Graph(inner.model) if graph is None else graph  # pyright: ignore[reportArgumentType]
    vectors = {name: vector.to(wide) for name, vector in read_parts(inner, graph, side, rows).items()}
    if trace.changes:
        vectors[EDITS] = last.to(wide) - sum(vectors.values())
    parts = {name: float((vector * gradient.to(wide)).sum()) for name, vector in vectors.items()}
    parts[f"{side}.output"] = total - float((last.to(wide) * gradient.to(wide)).sum())
    return Attribution(place=place, answer=answer, other=other, total=total, parts=parts)


def check_trace(trace: Trace) -> InnerValues:
    """Return the inner values of a trace; OptionError if its logits cannot be taken apart."""
    if trace.inner is None:
        raise OptionError("this trace was loaded without its model, which has the maps: Trace.load(path, model)")
    if trace.inner.names.sides[trace.answer_side][1].output is None:
        raise OptionError("this model gives vectors and answers nothing, so it has no logit to take apart")
    if changes_output(trace.answer_side, trace.changes):
        raise OptionError("an edit changes the output itself, which no part wrote: attribute without that edit")
    return trace.inner


def check_answers(inner: InnerValues, side: str, answers: tuple[int, int | None], place: int) -> int:
    """Return the place counted from 0; raise if it, or an answer, is not there."""
    n, output = len(inner.ids[side]), inner.names.sides[side][1].spec.output
    if not isinstance(place, int) or not -n <= place < n:
        raise PlaceError(f"place {place!r:.80}: there are {n} tokens, counted from 0, or from -1 at the end")
    count = inner.value(f"{side}.output.logits", slice(0, 1)).shape[-1]
    for answer in answers:
        if answer is not None and (not isinstance(answer, int) or not 0 <= answer < count):
            raise OptionError(f"answer {answer!r:.80}: expected the number of one of {count} answers, counted from 0")
    by_position = output is not None and output.by_position
    return place % n if by_position else 0


def logit_gradient(
    inner: InnerValues, side: str, last: Tensor, answers: tuple[int, int | None]
) -> tuple[float, Float[Tensor, "n d_model"]]:
    """Return the logit (less another one), and how it follows from the last vectors, `(n, d_model)`."""
    part = inner.names.sides[side][1]
    tokens = torch.tensor([inner.ids[side]], device=last.device)
    lengths = torch.tensor([len(last)], device=last.device)
    with torch.enable_grad(), torch.inference_mode(mode=False), still(inner.model, gradients=True):
        x = last.detach().clone().requires_grad_()
        logits = apply_output(part, x.unsqueeze(0), lengths, tokens).reshape(-1)
        answer, other = answers
        value = logits[answer] - (0.0 if other is None else logits[other])
        [gradient] = torch.autograd.grad(value, x)
    return value.item(), gradient


def read_parts(inner: InnerValues, graph: Graph, side: str, rows: slice) -> dict[str, Float[Tensor, "*n d_model"]]:
    """Return what of the output's input each sender wrote: by the graph's terms, through norms as they were."""
    norms: dict[str, FrozenNorm] = {}

    def carry(name: str, vector: Tensor) -> Tensor:
        if name not in norms:
            norm, norm_input = inner.names.norms[name]
            norms[name] = freeze(name, norm, inner.value(norm_input, rows))
        return norms[name].carry(vector)

    last = f"{side}.norm"
    parts: dict[str, Tensor] = {}
    vectors: dict[str, Tensor] = {}
    for site in (name for name in inner.sites if name.startswith(f"{side}.")):
        vectors |= read_heads(inner, site, rows)
    for term in graph.ports[f"{side}.output"].terms:
        vector = vectors[term.vector] if term.vector in vectors else read_vector(inner, term.vector, rows)
        for name in (*term.norms, *([last] if last in inner.names.norms else [])):
            vector = carry(name, vector)
        parts[term.sender] = parts[term.sender] + vector if term.sender in parts else vector
    beta = None if last not in norms else norms[last].beta
    if beta is not None:
        constant = f"{side}.constant"
        parts[constant] = parts[constant] + beta if constant in parts else beta
    return parts


def read_heads(inner: InnerValues, site: str, rows: slice) -> dict[str, Float[Tensor, "n d_model"]]:
    """Return what each head of an attention writes at some places, and the bias of W_O, by their names in the graph."""
    layer, context = inner.names.sites[site], inner.sites[site].context[:, rows]
    context = context.to(next(layer.parameters()).dtype)
    heads = {f"{site}.head.{head}": out for head, out in enumerate(head_outputs(layer, context))}
    return {**heads, f"{site}.bias": layer.output(torch.zeros_like(context).transpose(0, 1).flatten(1))}


def read_vector(inner: InnerValues, name: str, rows: slice) -> Float[Tensor, "*n d_model"]:
    """Return a vector that an embedding or a feed-forward writes at some places; a norm's beta, which has no places."""
    at, _, last = name.rpartition(".")
    if last == "beta":
        return inner.names.norms[at][0].beta  # pyright: ignore[reportReturnType]
    return inner.value(f"{name}.out" if last == "feed_forward" else name, rows)
