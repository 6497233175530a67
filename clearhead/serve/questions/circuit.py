"""A circuit: which edges of the model make it answer this text otherwise than another, and what one of them does."""

from dataclasses import dataclass, replace
from itertools import islice, pairwise, product
from typing import Literal, TypedDict

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.circuits.circuit import Faithfulness, choose
from clearhead.circuits.graph import Graph, node_of
from clearhead.circuits.methods import Contrast, find_method, score_edges
from clearhead.circuits.metrics import LogitDifference
from clearhead.circuits.patching import patch_edges
from clearhead.circuits.truth import Truth, find_truth
from clearhead.errors import OptionError, ShapeError
from clearhead.experiments import patching, rasp_run, tracing
from clearhead.rasp import PROGRAMS
from clearhead.serve.budget import FLOAT, JSON_OBJECT, Cost
from clearhead.serve.curves import Curves
from clearhead.serve.program import contrast_program, load_program
from clearhead.serve.questions.question import TraceQuestion
from clearhead.serve.questions.run import examples
from clearhead.serve.traced import TEXT, Traced
from clearhead.tracing.recording import check_stopped

MOST_EDGES = 600
"""Edges that are sent, the most important first."""
CANDIDATES = 6
LONGEST = 100
"""Tokens of a text for which another one to compare it with is looked for."""
BROKEN = "\N{REPLACEMENT CHARACTER}"
TRIED = 60
"""Texts that are tried where none to compare with is given."""
SIZES = 28
"""Sizes of circuits whose faithfulness is measured, about."""
AT_ONCE = 8
"""Circuits in one call, after each of which it can be cancelled."""
PASSES = 40
"""Forward passes that a method with gradients takes the time of, for one pair of texts."""
MOST_INPUTS = 300
"""Inputs of a program that are tried for the truth, and pairs of them for each edge."""

EdgeTruth = Literal["alone", "jointly", "never"]


class CircuitEdge(TypedDict):
    sender: str
    receiver: str
    score: float
    """By how much the metric changes if the edge is patched, as the method finds it."""
    first: int
    """The number of the first of `sizes` whose circuit has it; as many as there are sizes for an edge of none."""
    truth: EdgeTruth | None
    """Of a compiled program: whether it can change an answer, by trying; `never` for what is not even read."""


class CircuitMessage(TypedDict):
    """A circuit; one without nodes if no text was given to compare with, and none was found."""

    against: str
    answers: list[str]
    """The answer to the text, and the answer to the other one."""
    clean: float
    """What is measured, in the text as it is; for programs the log-probability of its answers."""
    other: float
    nodes: list[str]
    """Everything that writes into the residual stream or reads from it, in the order of the forward pass."""
    of: int
    edges: list[CircuitEdge]
    sizes: list[int]
    faithfulness: list[float]
    """By size: how much of the difference is left if all other edges carry what they carry in the other text."""
    completeness: list[float]
    """By size: 1 less the faithfulness of all that is not in the circuit."""
    true: int | None
    """How many edges can change an answer of the program."""


NO_CIRCUIT = CircuitMessage(
    against="",
    answers=[],
    clean=0.0,
    other=0.0,
    nodes=[],
    of=0,
    edges=[],
    sizes=[],
    faithfulness=[],
    completeness=[],
    true=None,
)


class ChangedAnswer(TypedDict):
    text: str
    before: float
    after: float


class PatchedEdge(TypedDict):
    before: float
    after: float
    """What is measured while this edge alone carries what it carries in the other text."""
    other: float
    answers: list[ChangedAnswer]
    """The likeliest answers, and their probabilities before and after; of a program its answers at each place."""


@dataclass(frozen=True, kw_only=True)
class AskCircuit(TraceQuestion[CircuitMessage]):
    """The edges by which the model answers this text otherwise than the text `against`, the strongest first."""

    against: str | None = None
    """As long as this text, with another answer; without it one is looked for by changing a token."""
    method: str = "eap-ig"
    """A name of `clearhead circuits bench`."""

    def answer_of(self, traced: Traced) -> CircuitMessage:
        method = find_method(self.method)
        against = suggest_text(traced) if self.against is None else self.against
        if against is None:
            return NO_CIRCUIT
        found = contrast_of(traced, against)
        contrast, graph = found.contrast, found.contrast.graph
        passes = len(graph.edges) if self.method.startswith("exact") else PASSES
        check_cost(traced, graph, passes + 2 * SIZES)
        scores = score_edges(method, contrast, progress=lambda done, of: check_stopped()).cpu().mean(0)
        masks = growing_circuits(graph, scores.abs())
        if not len(masks):
            raise OptionError(f"{self.method} finds no path from the tokens to the output: all its scores there are 0")
        sizes = masks.sum(1).tolist()
        first = torch.where(masks.any(0), masks.int().argmax(0), len(sizes)).tolist()
        faithfulness = Faithfulness(contrast)
        kept, left = (measure(faithfulness, part) for part in (masks, ~masks))
        truth = truth_of(traced, graph)
        found_edges = masks[-1].nonzero().flatten().tolist()
        order = sorted(found_edges, key=lambda number: (first[number], -abs(float(scores[number]))))
        true = [] if truth is None else (truth.alone | truth.jointly).nonzero().flatten().tolist()
        return {
            "against": against,
            "answers": found.answers,
            "clean": float(contrast.clean_value.mean()),
            "other": float(contrast.other_value.mean()),
            "nodes": list(dict.fromkeys([*graph.senders, *map(node_of, graph.receivers)])),
            "of": len(graph.edges),
            "edges": [
                {
                    "sender": graph.edges[number].sender,
                    "receiver": graph.edges[number].receiver,
                    "score": float(scores[number]),
                    "first": first[number],
                    "truth": None if truth is None else truth.label(number),
                }
                for number in dict.fromkeys([*order[:MOST_EDGES], *true])
            ],
            "sizes": sizes,
            "faithfulness": kept,
            "completeness": [1 - value for value in left],
            "true": None if truth is None else len(true),
        }

    def python_of(self, traced: Traced) -> list[str]:
        edges = len(traced.graph.edges)
        against = suggest_text(traced) if self.against is None else self.against
        if against is None:
            raise OptionError("type a text to compare with first: as long as this one, with another answer")
        return [
            *contrast_lines(traced, against),
            f"ch.circuits.find_circuit(contrast, method={self.method!r}, edges={edges}).edges",
        ]


@dataclass(frozen=True, kw_only=True)
class AskEdge(TraceQuestion[PatchedEdge]):
    """What becomes of the answer while one edge carries what it carries in the text `against`."""

    against: str
    edge: str
    """As `sender -> receiver`."""

    def answer_of(self, traced: Traced) -> PatchedEdge:
        found = contrast_of(traced, self.against)
        contrast, graph = found.contrast, found.contrast.graph
        mask = graph.select([self.edge])
        check_cost(traced, graph, 1)
        logits = patch_edges(graph, contrast.clean, mask, contrast.source)
        return {
            "before": float(contrast.clean_value.mean()),
            "after": float(contrast.metric(logits[None])[0].mean()),
            "other": float(contrast.other_value.mean()),
            "answers": changed_answers(traced, contrast, logits),
        }

    def python_of(self, traced: Traced) -> list[str]:
        return [
            *contrast_lines(traced, self.against),
            f"mask = contrast.graph.select([{self.edge!r}])",
            "contrast.patched(mask[None]).mean()",
        ]


@dataclass(frozen=True)
class NamedContrast:
    contrast: Contrast
    answers: list[str]


def contrast_of(traced: Traced, against: str) -> NamedContrast:
    """Return the contrast of a trace's text with another, made once for each."""
    if traced.trace.changes:
        raise OptionError("a circuit is found in the model as it was trained: take the edits out first")
    traced.budget.check(traced.costs.trace(traced.lengths), "a circuit of this text", TEXT)
    return traced.once(f"contrast {against}", lambda: make_contrast(traced, against))


def make_contrast(traced: Traced, against: str) -> NamedContrast:
    run, text = traced.run, traced.request.source
    if answers_at_places(traced):
        program = load_program(run)
        assert program is not None
        contrast = contrast_program(run, text, against)
        logits = [found.logits[0, 0] for found in (contrast.clean_run, contrast.other_run)]
        answers = [" ".join(program.read(row[program.places(row)])) for row in logits]
        if answers[0] == answers[1]:
            raise OptionError(f"{text!r:.60} has the same answers as {against!r:.60}: nothing to compare")
        return NamedContrast(contrast, answers)
    found = patching.contrast_texts(run, [text], [against])
    return NamedContrast(found.contrast, list(found.answers[0]))


def answers_at_places(traced: Traced) -> bool:
    """Return whether the run is a compiled program that answers at each token of its text."""
    program = load_program(traced.run)
    return program is not None and traced.run.step == 0 and traced.run.task.target != "writes"


def suggest_text(traced: Traced) -> str | None:
    """Return a text with one other token and another answer; None if none is found, and for a long text.

    Tokens of the run's examples are tried, then any.
    """
    return traced.once("suggested", lambda: find_text(traced))


def find_text(traced: Traced) -> str | None:
    run = traced.run
    if max(traced.lengths.values()) > LONGEST:
        return None
    side, ids = next((name, side.ids) for name, side in traced.trace.sides.items())
    tokenizer = next(iter(run.task.tokenizers.values()))
    texts = [example["source"] for example in examples(run, Curves(run.folder.metrics))]
    known = [token for text in texts for token in tracing.encode_inputs(run, text).ids[side]]
    # A token that was made of others, as words are, comes late in the vocabulary.
    pool = [
        token
        for token in dict.fromkeys([*known, *ids, *reversed(range(tokenizer.vocabulary))])
        if token not in tokenizer.special
    ]
    places = [place for place, token in enumerate(ids) if token not in tokenizer.special]
    for token, place in islice(product(pool, places), TRIED):
        check_stopped()
        text = tokenizer.decode([*ids[:place], token, *ids[place + 1 :]])
        if BROKEN in text and BROKEN not in traced.request.source:
            continue  # half of a letter was replaced, where tokens are bytes
        try:
            contrast_of(traced, text)
        except (OptionError, ShapeError):
            continue
        return text
    return None


def contrast_lines(traced: Traced, against: str) -> list[str]:
    text = traced.request.source
    if answers_at_places(traced):
        given = "from clearhead.serve.program import contrast_program"
        made = f"contrast = contrast_program(run, {text!r}, {against!r})"
    else:
        given = "from clearhead.experiments.patching import contrast_texts"
        made = f"contrast = contrast_texts(run, [{text!r}], [{against!r}]).contrast"
    return [given, "", made]


def check_cost(traced: Traced, graph: Graph, passes: int) -> None:
    """Check the cost of so many passes along the graph, which keeps what every sender sends."""
    forward = traced.costs.forward(traced.lengths)
    kept = len(graph.senders) * sum(traced.lengths.values()) * traced.costs.hidden * FLOAT
    memory = forward.memory + 3 * kept + MOST_EDGES * JSON_OBJECT
    traced.budget.check(Cost(cells=passes * forward.cells, memory=memory), f"{passes:,} passes along the graph", TEXT)


def sizes_of(edges: int) -> list[int]:
    """Return sizes of circuits, from one edge to all: each at first, then further and further apart."""
    grown = [round(edges ** (step / SIZES)) for step in range(SIZES + 1)]
    apart = [later if later > before else before + 1 for before, later in pairwise([0, *grown])]
    return sorted({min(edges, size) for size in (*range(1, 9), *apart, edges)} - {0})


def growing_circuits(graph: Graph, sizes: Tensor) -> Tensor:
    """Return circuits as `find_circuit` finds them, each a mask of its edges, from the smallest that is a path."""
    found = [choose(graph, sizes, count) for count in sizes_of(len(graph.edges))]
    counts = [int(mask.sum()) for mask in found]
    return torch.stack(
        [mask for before, count, mask in zip([0, *counts], counts, found, strict=False) if count > before]
    )


def measure(faithfulness: Faithfulness, masks: Tensor) -> list[float]:
    """Return the faithfulness of each circuit, a few at a time."""
    found: list[float] = []
    for part in masks.split(AT_ONCE):
        check_stopped()
        found += faithfulness(part)
    return found


def truth_of(traced: Traced, graph: Graph) -> Truth | None:
    """Return which edges of a compiled program can change an answer; None where that is not known."""
    program = load_program(traced.run)
    known = None if program is None else PROGRAMS.get(program.program)
    if known is None or traced.run.step != 0:
        return None

    def find() -> Truth | None:
        compiled = rasp_run.compile_for_task(known).compiled
        weights = zip(compiled.model.parameters(), traced.model.parameters(), strict=True)
        if not all(torch.equal(one, two.cpu()) for one, two in weights):
            return None
        words, length = len(known.vocabulary) * len(known.source_vocabulary or "?"), known.length
        while length > 2 and words**length > MOST_INPUTS:
            length -= 1
        shorter = replace(known, length=length, example=())
        try:
            return find_truth(graph, shorter, compiled, most_pairs=MOST_INPUTS)
        except IndexError:  # it has no input as short as that
            return None

    return traced.once("truth", find)


def changed_answers(traced: Traced, contrast: Contrast, logits: Float[Tensor, "1 ..."]) -> list[ChangedAnswer]:
    """Return the likeliest answers where the answers are compared, before and after; of a program one a place."""
    metric, before = contrast.metric, contrast.clean_run.logits[0]
    if not isinstance(metric, LogitDifference):
        program = load_program(traced.run)
        assert program is not None
        read = [program.read(row[0][program.places(row[0])]) for row in (before, logits)]
        return [
            {"text": f"{one} → {two}" if one != two else one, "before": 1.0, "after": float(one == two)}
            for one, two in zip(*read, strict=True)
        ]
    place = None if metric.place is None else int(metric.place)
    rows = torch.stack([(row[0] if place is None else row[0, place]).softmax(-1) for row in (before, logits)])
    best = rows.amax(0).argsort(descending=True)[:CANDIDATES].tolist()
    names = traced.run.task.answer_names(best)
    return [
        {"text": name, "before": float(rows[0, number]), "after": float(rows[1, number])}
        for name, number in zip(names, best, strict=True)
    ]
