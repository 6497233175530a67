"""Truth of a compiled program: which edges are there in the weights, and which can change an answer.

*Structural*: the product of the sender's writing and the receiver's reading matrix is not zero. Edges that carry the
compiler's constants alone (1 everywhere, 1 at the text, 1 at the sink) are a class of their own: no text changes them,
so they are tried, and graded, under zero ablation.

*Causal*: the edge carries, in one text, what its sender sends in another of the same length, and the decoded answer
changes at some place, for some pair of texts. All texts are tried, except those that cannot differ: of each sender
only the values that the receiver can tell apart.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Literal, final

import torch
from torch import Tensor

from clearhead.calls import public
from clearhead.circuits.baselines import reader_matrices, writer_matrix
from clearhead.circuits.forward import Activations, EdgeSource, Patch, run_graph
from clearhead.circuits.graph import Graph
from clearhead.circuits.patching import ZeroSource
from clearhead.circuits.ports import Parts, Port
from clearhead.circuits.texts import Texts
from clearhead.errors import ProgramError
from clearhead.rasp import Program, run
from clearhead.rasp.compiled_model import SURE, CompiledModel
from clearhead.rasp.spaces import HERE, ONE, SINK

Label = Literal["alone", "jointly", "never"]
ROWS = 4096
"""Patched texts in one pass."""
NEAR = 1e-4
"""Numbers and vectors that differ by less are the same."""


@dataclass(frozen=True, eq=False)
class InputBatch:
    """All texts of one length that a program is for, as the model takes them, and the interpreter's answers."""

    texts: Texts
    answers: list[list[Any]]

    def __len__(self) -> int:
        return len(self.answers)


def every_input(program: Program, compiled: CompiledModel) -> list[InputBatch]:
    """Return all texts that a program is for, by length; those for which the interpreter has no answer are left out."""
    found = []
    for length in range(1, program.length + 1):
        sources = [()] if program.source_vocabulary is None else product(program.source_vocabulary, repeat=length)
        texts = list(product(program.vocabulary, repeat=length))
        rows = [(text, source) if source else (text,) for source in sources for text in texts]
        known = [(row, answers) for row in rows if (answers := interpret(program, row)) is not None]
        if len(known) > 1:
            tensors = [torch.cat(column) for column in zip(*(compiled.tensors(*row) for row, _ in known), strict=True)]
            sides = [stack.spec.kind for stack in compiled.model.stacks]
            tokens = dict(zip(sides, tensors, strict=True))
            found.append(InputBatch(Texts(tokens=tokens), [answers for _, answers in known]))
    return found


def interpret(program: Program, row: tuple[Any, ...]) -> list[Any] | None:
    """Return what a program answers by its definition; None if it is not for this input, or means nothing."""
    if not program.fits(*row):
        return None
    try:
        return run(program.output, *row)
    except ProgramError:
        return None


@dataclass(frozen=True, eq=False)
class AnswerReader:
    """Reads logits as a program's answers: numbers of answers, -1 for none; of numeric programs the numbers."""

    columns: Tensor
    numeric: bool
    first: int

    @classmethod
    def of(cls, compiled: CompiledModel) -> "AnswerReader":
        columns = torch.tensor([compiled.ids[str(answer)] for answer in compiled.answers])
        return cls(columns, compiled.numeric, compiled.layouts["target"].offset)

    def __call__(self, logits: Tensor) -> Tensor:
        """Return the answers `(…, place)`, of logits `(…, place, vocabulary)`."""
        chosen = logits[..., self.first :, :][..., self.columns]
        if self.numeric:
            return (chosen[..., 0] / NEAR).round()
        best, index = chosen.max(-1)
        return torch.where(best > SURE, index, -1)

    def encode(self, answers: Sequence[Sequence[Any]], values: Sequence[Any]) -> Tensor:
        """Return the interpreter's answers in the same form; `values` are the answers that there may be."""
        if self.numeric:
            return (torch.tensor(answers) / NEAR).round()
        numbers = {value: number for number, value in enumerate(values)}
        return torch.tensor([[numbers.get(value, -1) for value in row] for row in answers])


@dataclass(frozen=True, eq=False)
class RowSource(EdgeSource):
    """What senders sent in some texts of a run: row i of a batch carries that of text `index[i]`."""

    run: Activations
    index: Tensor

    def contribution(self, port: Port, senders: Sequence[int] | None = None) -> Parts:
        parts = self.run.contribution(port, senders)
        return parts.expand(-1, -1, len(self.run.logits[0]), -1, -1)[:, :, self.index]


@dataclass(frozen=True, eq=False)
class Truth:
    """The truth about a compiled program's edges."""

    product: Tensor
    """True where writer times reader is not zero."""
    constant: Tensor
    """True where only the compiler's constants are carried."""
    alone: Tensor
    """True if the edge by itself can change an answer."""
    jointly: Tensor
    """True if it cannot by itself, and was found to with one other edge."""
    needed: Tensor
    """True where only constants are carried, and an answer changes without them: under zero ablation."""
    runs: int = field(default=0, kw_only=True)
    """Patched texts that were tried."""

    def label(self, edge: int) -> Label:
        return "alone" if self.alone[edge] else "jointly" if self.jointly[edge] else "never"

    @property
    def ranked(self) -> Tensor:
        """Return the edges that methods are graded on: with a product, and more than constants, alone or never."""
        return self.product & ~self.constant & ~self.jointly

    def of_constants(self) -> "Truth":
        """Return the truth about the edges that carry constants alone, as truth: those that are needed are true."""
        none = torch.zeros_like(self.constant)
        return Truth(self.constant, none, self.needed, none, none, runs=self.runs)

    def counts(self) -> dict[str, int]:
        """Return how many edges there are of each kind."""
        kinds = {
            "edges": torch.ones_like(self.product),
            "product": self.product,
            "constant": self.constant,
            "needed": self.needed,
            "alone": self.alone,
            "jointly": self.jointly,
            "never": self.ranked & ~self.alone,
        }
        return {name: int(mask.sum()) for name, mask in kinds.items()}


@torch.no_grad()
def structural_truth(graph: Graph, compiled: CompiledModel, turn: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return which edges have a product of weights that is not zero, and which of those carry constants alone.

    `turn` maps the stream to the compiler's directions, where they were changed (`x @ turn`).
    """
    names = [space.name for space in (ONE, HERE, SINK)]
    constant = torch.tensor([name in names for name in compiled.directions])
    products = torch.zeros(2, len(graph.edges), dtype=torch.bool)
    turn = torch.eye(len(constant)) if turn is None else turn
    back = torch.linalg.pinv(turn)
    for port in graph.ports.values():
        read = back.to(dtype := next(graph.model.parameters()).dtype) @ reader_matrices(graph, port)
        for row, sender in enumerate(port.senders):
            write = writer_matrix(graph, sender) @ turn.to(dtype)
            edges = slice(port.edges.start + row * port.shape[1], port.edges.start + (row + 1) * port.shape[1])
            products[0, edges] = (write @ read).abs().amax((1, 2)) > NEAR
            products[1, edges] = (write[:, ~constant] @ read[:, ~constant]).abs().amax((1, 2)) > NEAR
    return products[0], products[0] & ~products[1]


class CausalSearch:
    """Tries every edge with every value that its receiver can tell apart, in every text."""

    def __init__(self, graph: Graph, inputs: Sequence[InputBatch], decode: AnswerReader) -> None:
        self.graph, self.inputs, self.decode = graph, inputs, decode
        self.runs = [run_graph(graph, batch.texts, keep=True) for batch in inputs]
        self.answers = [decode(found.logits[0]) for found in self.runs]
        self.count = 0

    def values(self, edge: int) -> list[Tensor]:
        """Return, for each length, one text for each value of the edge's sender that its receiver can tell apart."""
        port = next(port for port in self.graph.ports.values() if port.edges.start <= edge < port.edges.stop)
        sender, receiver = divmod(edge - port.edges.start, port.shape[1])
        read = reader_matrices(self.graph, port)[receiver]
        found = []
        for run_of_length in self.runs:
            part = run_of_length.contribution(port, [sender])[0, 0] @ read
            _, first = torch.unique((part / NEAR).round().flatten(1), dim=0, return_inverse=True)
            order = torch.arange(len(first)).flip(0)
            found.append(torch.zeros(int(first.max()) + 1, dtype=torch.long).scatter(0, first[order], order))
        return found

    def tests(self, edge: int) -> list[tuple[int, Tensor]]:
        """Return, for each length, pairs of a text and another whose value the edge carries."""
        pairs = []
        for length, (batch, values) in enumerate(zip(self.inputs, self.values(edge), strict=True)):
            if len(values) > 1:
                pairs.append((length, torch.cartesian_prod(torch.arange(len(batch)), values)))
        return pairs

    def changed(self, length: int, pairs: Tensor, mask: Tensor, against: Tensor | None = None) -> Tensor:
        """Return whether the answer changes, for rows of pairs with masks of edges; or differs from other masks'."""
        found = []
        for rows, masks, others in zip(
            pairs.split(ROWS), mask.split(ROWS), (mask if against is None else against).split(ROWS), strict=True
        ):
            answers = self.patched(length, rows, masks)
            base = self.answers[length][rows[:, 0]] if against is None else self.patched(length, rows, others)
            found.append((answers != base).any(-1))
        return torch.cat(found)

    def patched(self, length: int, pairs: Tensor, mask: Tensor) -> Tensor:
        self.count += len(pairs)
        texts = self.inputs[length].texts.map(lambda rows: rows[pairs[:, 0]])
        patch = Patch(mask.unsqueeze(0), RowSource(self.runs[length], pairs[:, 1]))
        return self.decode(run_graph(self.graph, texts, patch=patch).logits[0])

    def alone(self, edges: Sequence[int], generator: torch.Generator, most_pairs: int | None = None) -> Tensor:
        """Return which of these edges can change an answer by themselves: a few pairs first, then all (or the most)."""
        found = torch.zeros(len(self.graph.edges), dtype=torch.bool)
        tests = {edge: self.tests(edge) for edge in edges}
        for most in (24, most_pairs):
            left = {edge: pairs for edge, pairs in tests.items() if not found[edge]}
            for length in range(len(self.inputs)):
                rows, owners = [], []
                for edge, pairs in left.items():
                    for at, every in pairs:
                        if at == length and not found[edge]:
                            some = (
                                every if most is None else every[torch.randperm(len(every), generator=generator)[:most]]
                            )
                            rows.append(some)
                            owners.append(torch.full((len(some),), edge))
                if rows:
                    owner = torch.cat(owners)
                    mask = torch.nn.functional.one_hot(owner, len(self.graph.edges)).bool()
                    found[owner[self.changed(length, torch.cat(rows), mask)]] = True
        return found

    def without(self, edges: Sequence[int]) -> Tensor:
        """Return which of these edges an answer needs: it changes, for some text, where the edge carries nothing."""
        found = torch.zeros(len(self.graph.edges), dtype=torch.bool)
        for batch, answers in zip(self.inputs, self.answers, strict=True):
            left = torch.tensor([edge for edge in edges if not found[edge]], dtype=torch.long)
            for part in left.split(max(1, ROWS // len(batch))) if len(left) else ():
                self.count += len(part) * len(batch)
                patch = Patch(torch.nn.functional.one_hot(part, len(found)).bool(), ZeroSource())
                changed = self.decode(run_graph(self.graph, batch.texts, patch=patch).logits) != answers
                found[part] |= changed.flatten(1).any(1)
        return found

    def jointly(self, edges: Sequence[int], others: Sequence[int], pairs: int, generator: torch.Generator) -> Tensor:
        """Return which of these edges change an answer beside another patched edge, on some pairs of long texts."""
        found = torch.zeros(len(self.graph.edges), dtype=torch.bool)
        length = len(self.inputs) - 1
        n = len(self.inputs[length])
        for edge in edges:
            beside = torch.tensor([other for other in others if other != edge])
            if not len(beside):
                continue
            rows = torch.randint(n, (len(beside) * pairs, 2), generator=generator)
            only = torch.nn.functional.one_hot(beside.repeat_interleave(pairs), len(self.graph.edges)).bool()
            both = only.clone()
            both[:, edge] = True
            found[edge] = bool(self.changed(length, rows, both, against=only).any())
        return found


def find_truth(
    graph: Graph,
    program: Program,
    compiled: CompiledModel,
    *,
    turn: Tensor | None = None,
    most_pairs: int | None = None,
    joint_pairs: int = 8,
    seed: int = 0,
) -> Truth:
    """Return the truth of a program, compiled exactly: `graph` is of the compiled model, or of one made of it.

    `most_pairs`: for each edge and length only so many pairs are tried, drawn at random; without it all are.
    `joint_pairs`: on how many pairs of texts two edges are tried together; what they find is a lower bound.
    """
    product, constant = structural_truth(graph, compiled, turn)
    search = CausalSearch(graph, every_input(program, compiled), AnswerReader.of(compiled))
    generator = torch.Generator().manual_seed(seed)
    candidates = (product & ~constant).nonzero().flatten().tolist()
    alone = search.alone(candidates, generator, most_pairs)
    varied = [edge for edge in candidates if any(len(values) > 1 for values in search.values(edge))]
    still = [edge for edge in varied if not alone[edge]]
    jointly = search.jointly(still, varied, joint_pairs, generator) if joint_pairs else torch.zeros_like(alone)
    needed = search.without(constant.nonzero().flatten().tolist())
    return Truth(product, constant, alone, jointly, needed, runs=search.count)


@final
@public
@dataclass(frozen=True, kw_only=True, eq=False)
class BenchSample:
    """A program that methods are graded on: a model that computes it, and the truth about that model's edges.

    Attributes:
        program: The program.
        compiled: Its model.
        graph: The model's graph.
        truth: Which edges are there, and which can change an answer.
    """

    program: Program
    compiled: CompiledModel
    graph: Graph
    truth: Truth
    source: EdgeSource | None = None
    """What patched edges carry; without it, what their senders send in another text."""

    @classmethod
    def of(cls, program: Program) -> "BenchSample":
        """Return a program compiled exactly, with its truth."""
        compiled = program.compile()
        graph = Graph(compiled.model)
        return cls(program=program, compiled=compiled, graph=graph, truth=find_truth(graph, program, compiled))

    @property
    def share(self) -> float:
        """Return how many of the graded edges are true."""
        return float(self.truth.alone[self.truth.ranked].float().mean()) if self.truth.ranked.any() else 0.0

    def keeps_answers(self) -> bool:
        """Check that the model gives the interpreter's answer to every input."""
        read = AnswerReader.of(self.compiled)
        return all(
            torch.equal(
                read(run_graph(self.graph, batch.texts).logits[0]), read.encode(batch.answers, self.compiled.answers)
            )
            for batch in every_input(self.program, self.compiled)
        )
