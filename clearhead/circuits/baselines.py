"""Methods that patch nothing: how much of the stream a sender makes, how large the weights are, and chance."""

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.circuits.graph import Graph
from clearhead.circuits.methods import Contrast, Method, Scores
from clearhead.circuits.ports import Port
from clearhead.model.outputs import ToClasses
from clearhead.registry import register


@final
@dataclass(frozen=True)
class InformationFlowRoutes(Method):
    """Information-flow routes: how near each sender's share is to the sum that a receiver reads, by the 1-norm.

    It looks at the clean texts alone. All receivers of a port, and so all heads of a layer, have the same numbers.

    >>> from clearhead.circuits import InformationFlowRoutes
    >>> method = InformationFlowRoutes()
    """

    def score(self, contrast: Contrast) -> Scores:
        run, graph = contrast.clean_run, contrast.graph
        scores = contrast.clean_value.new_zeros(len(contrast), len(graph.edges))
        for port in graph.ports.values():
            total, parts = run.inputs[port.name][0], run.contribution(port)[:, 0]
            near = (total.abs().sum(-1) - (total - parts).abs().sum(-1)).clamp(min=0)
            share = near / near.sum(0).clamp(min=1e-12)
            share = mean_over_places(share, contrast.clean.lengths.get(port.senders[0].partition(".")[0]))
            scores[:, port.edges] = share.T.unsqueeze(-1).expand(-1, -1, len(port.receivers)).flatten(1)
        return scores


def mean_over_places(
    values: Float[Tensor, "sender batch n"], lengths: Int[Tensor, "batch"] | None
) -> Float[Tensor, "sender batch"]:
    """Return the mean over the places of each text, padding left out."""
    if lengths is None:
        return values.mean(-1)
    inside = torch.arange(values.shape[-1], device=values.device) < lengths.unsqueeze(1)
    return (values * inside).sum(-1) / lengths


@final
@dataclass(frozen=True)
class WeightSize(Method):
    """The norm of the product of the matrices by which a sender writes and a receiver reads.

    >>> from clearhead.circuits import WeightSize
    >>> method = WeightSize()
    """

    by_pair: ClassVar[bool] = False

    def score(self, contrast: Contrast) -> Scores:
        return weight_products(contrast.graph).unsqueeze(0)


@final
@dataclass(frozen=True)
class Random(Method):
    """Random scores: the baseline of chance.

    Args:
        seed: Random seed.
    """

    by_pair: ClassVar[bool] = False
    seed: int = 0

    def score(self, contrast: Contrast) -> Scores:
        generator = torch.Generator().manual_seed(self.seed)
        return torch.rand(1, len(contrast.graph.edges), generator=generator)


@torch.no_grad()
def weight_products(graph: Graph) -> Tensor:
    """Return the Frobenius norm of writer times reader for every edge.

    Norms between them are left out, except a gamma of the same place, which belongs to the reader.
    """
    products = torch.zeros(len(graph.edges), dtype=next(graph.model.parameters()).dtype)
    writers = {sender: writer_matrix(graph, sender) for sender in graph.senders}
    for port in graph.ports.values():
        read = reader_matrices(graph, port)
        sizes = [torch.linalg.matrix_norm(writers[sender] @ read) for sender in port.senders]
        products[port.edges] = torch.stack(sizes).flatten().cpu()
    return products


def writer_matrix(graph: Graph, sender: str) -> Tensor:
    """Return what a sender can write, a row for each of its dimensions."""
    side, _, rest = sender.partition(".")
    part = graph.names.sides[side][1]
    if rest.startswith("embedding."):
        name = rest.partition(".")[2]
        if name == "token":
            return part.embedding.table * part.embedding.factor
        if name == "segment":
            assert part.embedding.segment is not None
            return part.embedding.segment
        assert part.embedding.position is not None
        places = getattr(part.embedding.position, "table", None)
        return part.embedding.position(64, 0).to(part.embedding.table) if places is None else places
    if ".head." in sender:
        at, _, head = sender.partition(".head.")
        return graph.matrices[at].weight[int(head)]
    if rest.endswith("feed_forward"):
        network = part.stack.blocks[int(rest.partition(".")[0])].feed_forward
        assert network is not None
        return network.down.weight.T
    if rest == "ngrams":
        return reader_matrices(graph, graph.ports[f"{side}.logits"])[0]
    return torch.eye(part.spec.d_model).to(part.embedding.table)  # the encoder's output and constants may be anything


def reader_matrices(graph: Graph, port: Port) -> Tensor:
    """Return what each receiver of a port reads, `(receiver, d_model, width)`."""
    if port.name in graph.matrices:
        return graph.matrices[port.name].weight
    side, _, rest = port.name.partition(".")
    part = graph.names.sides[side][1]
    if rest == "output":
        table = getattr(part.output, "table", None)
        return (torch.eye(part.spec.d_model).to(part.embedding.table) if table is None else table.T).unsqueeze(0)
    if rest == "logits":  # n-grams give logits as they are
        assert isinstance(part.output, ToClasses)
        return torch.eye(part.output.out.out_features).to(part.embedding.table).unsqueeze(0)
    network = part.stack.blocks[int(rest.partition(".")[0])].feed_forward
    assert network is not None
    first = [getattr(network, step.map) for step in network.steps if step.map and step.of == "x"]
    return torch.cat([module.weight for module in first]).T.unsqueeze(0)


register(InformationFlowRoutes, option="information-flow")
register(WeightSize, option="weights")
register(Random, option="random")
