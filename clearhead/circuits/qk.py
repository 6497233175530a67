"""QK attribution: why a head looks where it looks. A score, split exactly over pairs of senders.

A score is bilinear in what the query and the key read: Σᵢ Σⱼ sᵢ W_Q W_Kᵀ sⱼ, where sᵢ is what sender i gives to the
query's place and sⱼ what sender j gives to the key's. Norms keep their statistics, so that they are linear; their betas
and the biases of the maps are a sender of their own. Rotary turns each part as it turns the whole. The bias of a
position (ALiBi, T5) is a term of its own.
"""

from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.attention.heads import WholeMap
from clearhead.attention.inputs import AttentionInputs
from clearhead.attention.layer import Attention
from clearhead.calls import public
from clearhead.circuits.edge_edits import KeptCalls
from clearhead.circuits.forward import Activations, freeze, run_graph
from clearhead.circuits.graph import Graph
from clearhead.circuits.texts import Texts
from clearhead.errors import OptionError
from clearhead.model.norms import FrozenNorm

BIAS = "bias"
"""The sender of what the maps and norms of a query or key add by themselves."""


class QKPair(NamedTuple):
    """What one pair of senders gives to a score."""

    query: str
    key: str
    value: float


@final
@public
@dataclass(frozen=True, kw_only=True, eq=False)
class QKAttribution:
    """A score of one head, for one query and one key, as a sum over pairs of senders and the position's bias.

    Attributes:
        query_senders: Names of the senders on the query's side.
        key_senders: Names of the senders on the key's side.
        pairs: What each pair adds.
        position: What the position's bias adds.

    >>> import torch, clearhead as ch
    >>> graph = ch.circuits.Graph(ch.presets.gpt2("tiny", vocabulary=20).build().eval())
    >>> texts = ch.circuits.Texts(tokens={"decoder": torch.tensor([[3, 1, 4]])})
    >>> ch.circuits.qk_attribution(graph, texts, at="decoder.1.attention", head=0, query=2, key=1).position
    0.0
    """

    query_senders: tuple[str, ...]
    key_senders: tuple[str, ...]
    pairs: Float[Tensor, "query_sender key_sender"]
    position: float

    @property
    def total(self) -> float:
        """Return the score that goes into the weighting."""
        return float(self.pairs.sum()) + self.position

    def ranked(self, most: int = 10) -> list[QKPair]:
        """Return the pairs that give the most, of either sign."""
        order = self.pairs.abs().flatten().argsort(descending=True)[:most].tolist()
        width = len(self.key_senders)
        return [
            QKPair(self.query_senders[n // width], self.key_senders[n % width], float(self.pairs.flatten()[n]))
            for n in order
        ]


@torch.no_grad()
@public
def qk_attribution(graph: Graph, texts: Texts, *, at: str, head: int, query: int, key: int) -> QKAttribution:
    """Split the score of one head between a query and a key over pairs of senders, in the first of the texts.

    Args:
        graph: The graph of the model.
        texts: The texts.
        at: Name of the attention.
        head: Number of the head.
        query: Place of the query.
        key: Place of the key.

    Returns:
        What each pair adds; the sum is the score.

    Raises:
        OptionError: If there is no such place, or the score is not a dot product.

    >>> import torch
    >>> from clearhead.circuits import Graph, Texts, qk_attribution
    >>> from clearhead.model import presets
    >>> graph = Graph(presets.gpt2("tiny", vocabulary=20).build().eval())
    >>> texts = Texts(tokens={"decoder": torch.tensor([[3, 1, 4]])})
    >>> found = qk_attribution(graph, texts, at="decoder.1.attention", head=0, query=2, key=1)
    >>> found.pairs.shape, found.query_senders[0]
    (torch.Size([9, 9]), 'decoder.embedding.token')
    """
    graph.names.check_site(at)
    layer = graph.names.sites[at]
    kept = KeptCalls()
    run = run_graph(graph, texts[:1], listener=kept, keep=True)
    call = kept.calls[at]
    check_bilinear(call)
    for name, index, size in (("head", head, call.n_heads), ("query", query, call.n_query), ("key", key, call.n_key)):
        if not 0 <= index < size:
            raise OptionError(f"{at}: there are {size} of {name}, counted from 0; came {index}")
    queries = split_heads(graph, run, call, at, "query")[:, :, query]
    keys = split_heads(graph, run, call, at, "key")[:, :, key]
    keys = keys.repeat_interleave(layer.shape.n_heads // layer.shape.n_kv_heads, 1)
    prepared = call.similarity.prepare(queries.transpose(0, 1).unsqueeze(0), keys.transpose(0, 1).unsqueeze(0))
    scores = call.similarity.score(*prepared) * call.scale
    bias = call.position.bias(call.cells(), queries.dtype)
    bias = torch.as_tensor(bias).broadcast_to(1, call.n_heads, call.n_query, call.n_key)[0, head, query, key]
    return QKAttribution(
        query_senders=(*graph.ports[f"{at}.query"].senders, BIAS),
        key_senders=(*graph.ports[f"{at}.key"].senders, BIAS),
        pairs=scores[0, head].detach(),
        position=float(bias),
    )


def split_heads(
    graph: Graph, run: Activations, call: AttentionInputs, at: str, role: str
) -> Float[Tensor, "sender head n d_head"]:
    """Return the queries or keys of all heads as a sum over senders, the last of which are biases."""
    port, layer = graph.ports[f"{at}.{role}"], graph.names.sites[at]
    parts = run.contribution(port)[:, 0, 0]
    parts = torch.cat([parts, torch.zeros_like(parts[:1])])
    for name in port.norms:
        parts = carry_parts(run.norms[name], parts)
    weight, bias = graph.matrices[port.name]
    mapped = torch.einsum("snd,hdw->shnw", parts, weight)
    mapped[-1] += bias.unsqueeze(1)
    mapped = norm_heads(layer, role, mapped)
    positions = call.positions
    places = positions.query if role == "query" else positions.key
    return layer.position.turn(mapped, places) if layer.position.turns else mapped


def carry_parts(frozen: FrozenNorm, parts: Tensor) -> Tensor:
    """Return the parts after a norm with its statistics kept; beta goes to the last of them."""
    scale = frozen.scale.reshape(-1, *frozen.scale.shape[-2:])[0] if frozen.scale.ndim > 2 else frozen.scale
    carried = FrozenNorm(scale, frozen.centered).carry(parts)
    if frozen.beta is not None:
        carried[-1] += frozen.beta
    return carried


def norm_heads(layer: Attention, role: str, mapped: Tensor) -> Tensor:
    """Return the parts of queries or keys after their own norm, if the layer has one, with its statistics kept."""
    head_map = getattr(layer, role)
    if not isinstance(head_map, WholeMap) or head_map.norm is None:
        return mapped
    heads = mapped.shape[1]
    rows = mapped.transpose(1, 2).flatten(2) if head_map.joint else mapped
    frozen = freeze(f"{role} norm", head_map.norm, rows.sum(0))
    carried = frozen.carry(rows)
    if frozen.beta is not None:
        carried[-1] += frozen.beta
    return carried.unflatten(-1, (heads, -1)).transpose(1, 2) if head_map.joint else carried


def check_bilinear(call: AttentionInputs) -> None:
    """Raise if the score of a sum is not the sum of the scores."""
    generator = torch.Generator().manual_seed(0)
    heads, width = call.n_heads, call.query.shape[-1]
    query, key = torch.randn(2, 1, heads, 2, width, generator=generator).to(call.query)
    query, key = (torch.cat([part, part.sum(2, keepdim=True)], 2) for part in (query, key))
    scores = call.similarity.score(*call.similarity.prepare(query, key))
    splits = (scores[:, :, 2] - scores[:, :, :2].sum(2), scores[..., 2] - scores[..., :2].sum(-1))
    if max(float(rest.abs().max()) for rest in splits) > 1e-3 * float(scores.abs().max()):
        raise OptionError(
            f"{type(call.similarity).__name__} is not bilinear: the score of a sum is not the sum of scores, so it "
            "cannot be split over pairs of senders; dot products can"
        )
