"""A circuit: the edges that a method finds most important for an answer, and its card, which says how good it is."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
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
    """Edges of a graph: those chosen, and the scores by which they were, a row for each pair of texts."""

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
    contrast: Contrast, *, method: str = "eap-ig", edges: int = 40, progress: Progress | None = None
) -> Circuit:
    """Return the edges that a method finds most important, so many of them, by the size of the mean over pairs."""
    if not 0 < edges <= len(contrast.graph.edges):
        raise OptionError(f"edges: this graph has {len(contrast.graph.edges)}; came {edges}")
    scores = score_edges(find_method(method), contrast, progress=progress).cpu()
    return Circuit(graph=contrast.graph, scores=scores, chosen=top(scores.mean(0).abs(), edges), method=method)


def top(values: Float[Tensor, "edge"], count: int) -> Bool[Tensor, "edge"]:
    """Return a mask of the highest values; of equal ones, the first."""
    mask = torch.zeros(len(values), dtype=torch.bool)
    mask[values.argsort(descending=True, stable=True)[:count]] = True
    return mask


@final
@public
@dataclass(frozen=True, kw_only=True)
class CircuitCard:
    """How good a circuit is, in figures that the field uses.

    *Faithfulness* is the share of the metric's difference between clean and other texts that is left if every edge
    outside the circuit is patched: 1 as the whole model, 0 as the other texts. `cpr` and `cmd` are MIB's areas over
    circuits of growing size: under faithfulness, edges ranked by how much they help (higher is better), and between
    faithfulness and 1, ranked by size (lower is better).
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
    """Return the card of a circuit, measured on these pairs of texts. `unlike` is the circuit of another task."""
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
        stability=stability(circuit.scores, len(numbers)),
        specificity=None if unlike is None else 1 - jaccard(chosen, unlike.chosen),
    )


@final
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


def stability(scores: Float[Tensor, "pair edge"], count: int, *, seed: int = 0) -> float | None:
    """Return the mean Jaccard index of two circuits of so many edges, each of pairs drawn anew."""
    if len(scores) < 2:
        return None
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(len(scores), (DRAWS, len(scores)), generator=generator)
    circuits = [top(scores[rows].mean(0).abs(), count) for rows in drawn]
    found = [jaccard(one, two) for one, two in combinations(circuits, 2)]
    return sum(found) / len(found)


def jaccard(one: Bool[Tensor, "edge"], two: Bool[Tensor, "edge"]) -> float:
    """Return how many edges two circuits share, of those that either has."""
    return int((one & two).sum()) / max(1, int((one | two).sum()))
