"""A circuit: the edges that a method finds most important for an answer, and its card, which says how good it is."""

import bisect
import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from pathlib import Path
from typing import NamedTuple, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from clearhead.calls import public
from clearhead.circuits.graph import Edge, Graph, node_of
from clearhead.circuits.methods import Contrast, Progress, find_method, score_edges
from clearhead.errors import OptionError

SIZES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Shares of all edges at which MIB measures faithfulness."""
LEAST = 0.01
"""An edge of a circuit counts where faithfulness changes by this much without it."""
DRAWS = 20
"""Samples of pairs by which stability is measured."""


class ScoredEdge(NamedTuple):
    """An edge of a circuit, and by how much the metric changes where it is patched."""

    edge: Edge
    score: float


@final
@public
@dataclass(frozen=True, kw_only=True, eq=False)
class Circuit:
    """Edges of a graph: the chosen ones, and the scores by which they were chosen.

    Attributes:
        graph: The graph.
        scores: A row for each pair of texts.
        chosen: True for the edges of the circuit.
        method: Name of the method.

    >>> import torch, clearhead as ch
    >>> from clearhead.circuits import Circuit, Graph
    >>> graph = Graph(ch.presets.gpt2("tiny", vocabulary=20).build().eval())
    >>> chosen = torch.arange(len(graph.edges)) < 3
    >>> int(Circuit(graph=graph, scores=chosen[None].float(), chosen=chosen).chosen.sum())
    3
    """

    graph: Graph
    scores: Float[Tensor, "pair edge"]
    chosen: Bool[Tensor, "edge"]
    method: str = ""

    @property
    def mean(self) -> Float[Tensor, "edge"]:
        return self.scores.mean(0)

    @property
    def edges(self) -> list[ScoredEdge]:
        """Return the chosen edges, the most important first."""
        mean = self.mean
        numbers = self.chosen.nonzero().flatten().tolist()
        ordered = sorted(numbers, key=lambda number: -abs(float(mean[number])))
        return [ScoredEdge(self.graph.edges[number], float(mean[number])) for number in ordered]

    @property
    def nodes(self) -> list[str]:
        """Return senders of chosen edges, and the nodes of their receivers."""
        return list(dict.fromkeys(name for edge, _ in self.edges for name in (edge.sender, node_of(edge.receiver))))


@public
def find_circuit(
    contrast: Contrast,
    *,
    method: str = "eap-ig",
    edges: int = 40,
    progress: Progress | None = None,
    checkpoint: Path | None = None,
) -> Circuit:
    """Return up to `edges` edges: the most important, by the size of the mean over pairs, that form paths.

    An edge counts only if it is on a path of chosen edges from an embedding to the output. Any other changes nothing
    (except norms on the way): its sender is as in the other texts, or nothing reads its receiver.

    Args:
        contrast: Pairs of texts and a metric.
        method: Name of the method.
        edges: Most edges.
        progress: Called with how much is done.
        checkpoint: File from which a search that was interrupted continues, with the same result.

    Returns:
        The circuit.

    Raises:
        OptionError: If no path has that few edges, or the graph has fewer.

    >>> import torch, clearhead as ch
    >>> from clearhead.circuits import Contrast, Graph, LogitDifference, Texts, find_circuit, make_card
    >>> _ = torch.manual_seed(0)
    >>> graph = Graph(ch.presets.gpt2("tiny", vocabulary=20).build().eval())
    >>> clean, other = (Texts(tokens={"decoder": torch.tensor([row])}) for row in ([3, 1, 4], [3, 2, 4]))
    >>> last = LogitDifference(answer=torch.tensor([5]), other=torch.tensor([6]), place=torch.tensor([2]))
    >>> contrast = Contrast(graph, clean, other, last)
    >>> circuit = find_circuit(contrast, method="eap", edges=20)
    >>> int(circuit.chosen.sum()) <= 20
    True
    """
    graph = contrast.graph
    if not 0 < edges <= len(graph.edges):
        raise OptionError(f"edges: this graph has {len(graph.edges)}; came {edges}")
    scores = score_edges(find_method(method), contrast, progress=progress, checkpoint=checkpoint).cpu()
    sizes = scores.mean(0).abs()
    chosen = choose(graph, sizes, edges)
    if not chosen.any():
        more = (count for count in range(edges, len(sizes) + 1) if choose(graph, sizes, count).any())
        least = next(more, None)
        if least is None:
            raise OptionError(f"{method} finds no path from the embeddings to the output: all its scores there are 0")
        raise OptionError(f"edges: no {edges} edges make a path to the output by these scores; ask for {least} or more")
    return Circuit(graph=graph, scores=scores, chosen=chosen, method=method)


def choose(graph: Graph, sizes: Float[Tensor, "edge"], count: int) -> Bool[Tensor, "edge"]:
    """Return a mask of up to so many edges, the largest that make paths from the embeddings to the output."""
    order = order_from_output(graph, sizes)
    while order and sizes[order[-1]] == 0:
        order.pop()  # edges that the method found to do nothing, and after which no other comes

    def first(taken: int) -> Bool[Tensor, "edge"]:
        mask = torch.zeros(len(graph.edges), dtype=torch.bool)
        mask[order[:taken]] = True
        return on_a_path(graph, mask)

    low, high = min(count, len(order)), min(2 * count, len(order))
    while high < len(order) and int(first(high).sum()) <= count:
        low, high = high, min(2 * high, len(order))
    # The more are taken, the more are on a path.
    return first(low - 1 + bisect.bisect_right(range(low, high + 1), count, key=lambda taken: int(first(taken).sum())))


def order_from_output(graph: Graph, sizes: Float[Tensor, "edge"]) -> list[int]:
    """Return the numbers of edges in the order in which a circuit takes them: always the largest that leads to it.

    It begins at the output, and goes on from whatever sends to what it has, as `apply_greedy` of EAP-IG's code does.
    """
    incoming: dict[str, list[int]] = {receiver: [] for receiver in graph.receivers}
    for number, edge in enumerate(graph.edges):
        incoming[edge.receiver].append(number)
    values, order, heap, reached = sizes.tolist(), [], [], set()

    def reach(receivers: Iterable[str]) -> None:
        for receiver in receivers:
            if receiver not in reached:  # heads of a group share their key and value
                reached.add(receiver)
                for number in incoming[receiver]:
                    heapq.heappush(heap, (-values[number], number))

    reach(graph.last)
    while heap:
        _, number = heapq.heappop(heap)
        order.append(number)
        reach(graph.inputs[graph.edges[number].sender])
    return order


def on_a_path(graph: Graph, chosen: Bool[Tensor, "edge"]) -> Bool[Tensor, "edge"]:
    """Return those of the chosen edges that are on a path of chosen edges, from an embedding to the output."""
    numbers = chosen.nonzero().flatten().tolist()
    edges = [graph.edges[number] for number in numbers]
    fed: set[str] = set()  # receivers that a path from an embedding reaches; ports come in the model's order
    for edge in edges:
        if not graph.inputs[edge.sender] or any(receiver in fed for receiver in graph.inputs[edge.sender]):
            fed.add(edge.receiver)
    leads = set(graph.last)
    for edge in reversed(edges):
        if edge.receiver in leads:
            leads.update(graph.inputs[edge.sender])
    mask = torch.zeros_like(chosen)
    for number, edge in zip(numbers, edges, strict=True):
        inputs = graph.inputs[edge.sender]
        mask[number] = edge.receiver in leads and (not inputs or any(receiver in fed for receiver in inputs))
    return mask


def top(values: Float[Tensor, "edge"], count: int) -> Bool[Tensor, "edge"]:
    """Return a mask of the highest values, on paths or not; of equal ones, the first."""
    mask = torch.zeros(len(values), dtype=torch.bool)
    mask[values.argsort(descending=True, stable=True)[:count]] = True
    return mask


@final
@public
@dataclass(frozen=True, kw_only=True)
class CircuitCard:
    """How good a circuit is, in the field's figures.

    Attributes:
        edges: Number of its edges.
        of: Number of edges of the graph.
        faithfulness: The share of the metric's difference between clean and other texts that is left if every edge
            outside the circuit is patched: 1 like the full model, 0 like the other texts.
        cpr: MIB's area under faithfulness over circuits of growing size, edges ranked by how much they help; higher is
            better.
        cmd: MIB's area between faithfulness and 1, edges ranked by size; lower is better.

    >>> import dataclasses
    >>> from clearhead.circuits import CircuitCard
    >>> [field.name for field in dataclasses.fields(CircuitCard)][:3]
    ['edges', 'of', 'faithfulness']
    """

    edges: int
    of: int
    faithfulness: float
    cpr: float
    cmd: float
    completeness: float
    """1 less the faithfulness of all that is not in the circuit: 1 if nothing of the answer is left without it."""
    minimality: float
    """The share of its edges without which its faithfulness changes by 0.01 or more."""
    stability: float | None
    """The mean Jaccard index of circuits of resampled pairs; None for one pair, or a method that has no pairs."""
    specificity: float | None = None
    """1 less the Jaccard index with another task's circuit; None where none was given."""

    @property
    def says(self) -> str:
        """Return in a sentence what faithfulness and completeness mean together."""
        keeps, needed = self.faithfulness >= 0.5, self.completeness >= 0.5
        if self.faithfulness > 1.2:
            return "These edges give the answer more than the whole model does: edges outside them work against it."
        if keeps and needed:
            return "These edges by themselves make the answer, and without them it is lost."
        if keeps:
            return "These edges by themselves make the answer, but others make it too if these are patched (a backup)."
        if needed:
            return "Without these edges the answer is lost, but by themselves they do not make it: ask for more edges."
        return "These edges neither make the answer by themselves nor is it lost without them: ask for more edges."

    def rows(self) -> list[tuple[str, str, str]]:
        """Return each figure with its name and what it means."""
        optional = lambda value: "-" if value is None else f"{value:.2f}"  # noqa: E731
        return [
            ("edges", f"{self.edges} of {self.of}", f"{self.edges / self.of:.1%}"),
            ("faithfulness", f"{self.faithfulness:.2f}", "1: as the whole model; 0: as the other text"),
            ("CPR", f"{self.cpr:.2f}", "area under faithfulness at MIB's sizes; higher is better"),
            ("CMD", f"{self.cmd:.2f}", "area between faithfulness and 1; lower is better"),
            ("completeness", f"{self.completeness:.2f}", "1: nothing of the answer is left without it"),
            ("minimality", f"{self.minimality:.2f}", "share of edges that faithfulness needs"),
            ("stability", optional(self.stability), "Jaccard index over resampled texts; 0.8 is proposed as enough"),
            ("specificity", optional(self.specificity), "1: no edge shared with the other circuit"),
        ]


@public
def make_card(contrast: Contrast, circuit: Circuit, *, unlike: Circuit | None = None) -> CircuitCard:
    """Return the card of a circuit, measured on these pairs of texts.

    Args:
        contrast: Pairs of texts and a metric.
        circuit: The circuit.
        unlike: The circuit of another task, for specificity.

    Returns:
        The card.

    >>> import torch, clearhead as ch
    >>> from clearhead.circuits import Contrast, Graph, LogitDifference, Texts, find_circuit, make_card
    >>> _ = torch.manual_seed(0)
    >>> graph = Graph(ch.presets.gpt2("tiny", vocabulary=20).build().eval())
    >>> clean, other = (Texts(tokens={"decoder": torch.tensor([row])}) for row in ([3, 1, 4], [3, 2, 4]))
    >>> last = LogitDifference(answer=torch.tensor([5]), other=torch.tensor([6]), place=torch.tensor([2]))
    >>> contrast = Contrast(graph, clean, other, last)
    >>> circuit = find_circuit(contrast, method="eap", edges=20)
    >>> make_card(contrast, circuit).of == len(graph.edges)
    True
    """
    faithfulness = Faithfulness(contrast)
    chosen, mean = circuit.chosen, circuit.mean
    counts = [int(share * len(mean)) for share in SIZES]
    # A helpful edge is one whose loss lowers the metric.
    by_help, by_size = ([top(values, count) for count in counts] for values in (-mean, mean.abs()))
    numbers = chosen.nonzero().flatten()
    without = chosen & ~torch.nn.functional.one_hot(numbers, len(chosen)).bool()
    own, rest, *found = faithfulness(torch.stack([chosen, ~chosen, *by_help, *by_size, *without]))
    helped, sized, smaller = found[: len(SIZES)], found[len(SIZES) : 2 * len(SIZES)], found[2 * len(SIZES) :]
    return CircuitCard(
        edges=len(numbers),
        of=len(chosen),
        faithfulness=own,
        cpr=area(helped),
        cmd=area([abs(1 - value) for value in sized]),
        completeness=1 - rest,
        minimality=sum(abs(own - value) >= LEAST for value in smaller) / max(1, len(smaller)),
        stability=stability(circuit),
        specificity=None if unlike is None else 1 - jaccard(chosen, unlike.chosen),
    )


class Faithfulness:
    """Measures circuits on pairs of texts: (m(circuit) - m(nothing)) / (m(all) - m(nothing)), of means over pairs."""

    def __init__(self, contrast: Contrast) -> None:
        self.contrast = contrast
        none = torch.zeros_like(contrast.only)
        whole, nothing = contrast.patched(torch.stack([none, ~none]))
        self.nothing, self.difference = float(nothing.mean()), float((whole - nothing).mean())
        if abs(self.difference) < 1e-6 * max(1.0, abs(self.nothing)):
            raise OptionError(
                "the metric is the same for the clean texts and the others, so no circuit can be measured on them: "
                "choose texts with different answers"
            )

    def __call__(self, circuits: Bool[Tensor, "variant edge"]) -> list[float]:
        """Return the faithfulness of circuits, each a mask of its edges."""
        values = self.contrast.patched(~circuits).mean(1)
        return ((values - self.nothing) / self.difference).tolist()


def area(values: Sequence[float]) -> float:
    """Return the area under values at MIB's sizes, by trapezoids."""
    points = zip(SIZES, values, strict=True)
    return sum((x2 - x1) * (y1 + y2) / 2 for (x1, y1), (x2, y2) in pairwise(points))


def stability(circuit: Circuit, *, seed: int = 0) -> float | None:
    """Return the mean Jaccard index of two circuits as large as this one, each of pairs drawn anew."""
    scores, count = circuit.scores, int(circuit.chosen.sum())
    if len(scores) < 2:
        return None
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(len(scores), (DRAWS, len(scores)), generator=generator)
    circuits = [choose(circuit.graph, scores[rows].mean(0).abs(), count) for rows in drawn]
    found = [jaccard(one, two) for one, two in combinations(circuits, 2)]
    return sum(found) / len(found)


def jaccard(one: Bool[Tensor, "edge"], two: Bool[Tensor, "edge"]) -> float:
    """Return how many edges two circuits share, of those that either has."""
    return int((one & two).sum()) / max(1, int((one | two).sum()))
