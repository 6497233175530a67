"""A beam search as a tree: every continuation it considered, its score, and what became of it."""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, TypedDict, cast, final

from clearhead.decoding import Beam, Hypothesis
from clearhead.decoding.generating import decode
from clearhead.decoding.hypotheses import ROOT, Candidates, Considered, Node
from clearhead.decoding.request import Model, check_request
from clearhead.decoding.session import Session
from clearhead.errors import OptionError
from clearhead.serve.budget import FLOAT, JSON_NUMBER, Cost
from clearhead.serve.edit_json import EditJson, changes_of, read_edits
from clearhead.serve.explorer import Explorer
from clearhead.serve.python_lines import load_lines, text_arguments
from clearhead.serve.questions.question import Question, bounded
from clearhead.serve.questions.run import one_step
from clearhead.serve.questions.trace import AskTrace, CandidateMessage
from clearhead.serve.traced import check_below
from clearhead.tracing.edited_decoding import EditedSession
from clearhead.tracing.edits import Change
from clearhead.tracing.rollout import mean_weight
from clearhead.tracing.stopping import check_stopped
from clearhead.training.answers import continued, token_names
from clearhead.training.run import Run
from clearhead.training.tasks.answering import Decoding
from clearhead.training.tracing import encode_inputs

GENERATED = 24
"""New tokens of a continued text, unless more are asked for."""


def request_of(run: Run, text: str, max_new: int | None) -> Decoding:
    """Return what decoding from a text begins with; raise OptionError where the run decodes nothing."""
    if run.task.target == "none":
        raise OptionError(one_step(run.task))
    decoding = run.task.decoding(encode_inputs(run, text).ids, max_new=max_new, usual=GENERATED)
    if decoding.prefix is not None:
        return decoding
    # The output continues the source, and the page asks for a trace of both together.
    context = run.task.context
    room = context - len(decoding.source)
    if room < 1:
        raise OptionError(f"the text fills the {context} tokens that the model reads; shorten it to go on from it")
    return replace(decoding, rules=replace(decoding.rules, max_new=min(room, decoding.rules.max_new)))


NodeState = Literal["live", "pruned", "ended", "best"]


class DecodeNode(TypedDict):
    id: int
    parent: int | None
    step: int
    token: int
    text: str
    log_prob: float
    total: float
    state: NodeState
    rank: int
    candidates: list[CandidateMessage]


class DecodeOutput(TypedDict):
    text: str
    score: float
    ids: list[int]
    ended: bool


class CrossWeights(TypedDict):
    step: int
    weight: list[list[float]]


class Decoded(TypedDict):
    nodes: list[DecodeNode]
    best: list[int]
    outputs: list[DecodeOutput]
    source_tokens: list[str]
    cross: list[CrossWeights] | None
    edits: list[EditJson]


@final
@dataclass(frozen=True, kw_only=True)
class AskDecode(Question[Decoded]):
    """A search with a beam, step by step, and where its best output looked in the source.

    With edits it is the changed model that is searched with, and looked into.
    """

    sent: ClassVar = True
    source: str
    beam: int = bounded(4, least=1, below=9)
    candidates: int = bounded(5, least=1, below=51)
    max_new: int | None = bounded(None, least=1)
    step: int | None = None
    edits: list[EditJson] = field(default_factory=list, metadata={"read": read_edits})

    def answer(self, explorer: "Explorer") -> Decoded:
        run = explorer.at(self.step)
        if self.max_new is not None:
            check_below("max_new", self.max_new, run.task.context + 1)
        request, changes = request_of(run, self.source, self.max_new), changes_of(self.edits)
        action = f"searching with a beam of {self.beam} for"
        check_search(explorer, request, changes, action, width=self.beam, candidates=self.candidates)
        grown = grow(run, request, width=self.beam, candidates=self.candidates, changes=changes)
        return {
            "nodes": grown.nodes,
            "best": grown.best,
            "outputs": grown.outputs(request),
            "source_tokens": token_names(run.tokenizer, request.source),
            "cross": cross(explorer, run, self.source, grown.hypotheses[0].tokens, self.edits),
            "edits": self.edits,
        }

    def python(self, explorer: "Explorer") -> list[str]:
        run, changes = explorer.at(self.step), changes_of(self.edits)
        if changes:  # the likeliest output alone: beam search of a changed model is the explorer's own
            traced = f"ch.trace(run, {text_arguments(self.source, None, changes)})"
            return [*load_lines(run), f"[{traced}.sides['decoder'].ids]"]
        method = f"ch.Beam(width={self.beam}, n_best={self.beam})"
        traced = f"ch.trace(run, {self.source!r}, method={method})"
        return [*load_lines(run), f"[beam.sides['decoder'].ids for beam in {traced}.beams]"]


def check_search(
    explorer: "Explorer", request: Decoding, changes: Sequence[Change], action: str, *, width: int, candidates: int
) -> None:
    """Check the cost of decoding with every step kept."""
    costs, new = explorer.costs, request.rules.max_new
    paired = len(costs.sides) > 1
    sizes = (len(request.source), new) if paired else (len(request.source) + new,)
    cost = costs.decoding(dict(zip(costs.sides, sizes, strict=True)), rows=width, new=new, changes=changes)
    answer_bytes = costs.tree(width=width, candidates=candidates, new=new)
    if paired:  # and where it looked in the source: weights of every layer, once as a matrix and once as JSON
        layers = len(costs.sides["decoder"].stack.blocks)
        answer_bytes += layers * new * len(request.source) * (JSON_NUMBER + 2 * FLOAT)
    action = f"{action} {new:,} tokens with {candidates} candidates each"
    explorer.budget.check(cost + Cost(memory=answer_bytes), action, "ask for fewer, or send a shorter text")


def cross(
    explorer: "Explorer", run: Run, source: str, tokens: Sequence[int], edits: list[EditJson]
) -> list[CrossWeights] | None:
    """Return for each token of an output how much each layer looked at each piece of the source."""
    if len(explorer.costs.sides) == 1:
        return None
    reached = [edit for edit, change in zip(edits, changes_of(edits), strict=True) if change.reaches(len(tokens))]
    request = AskTrace(source=source, target=list(tokens[:-1]), edits=reached, step=run.step)
    layers = [mean_weight(layer.cross) for layer in request.traced(explorer).trace.decoder if layer.cross]
    return [
        {"step": step, "weight": [weight[step - 1].tolist() for weight in layers]} for step in range(1, len(tokens) + 1)
    ]


@final
@dataclass(frozen=True, kw_only=True)
class Grown:
    """The tree of a search, node by node, and its outputs, the best first."""

    nodes: list[DecodeNode]
    best: list[int]
    hypotheses: list[Hypothesis]

    def outputs(self, request: Decoding) -> list[DecodeOutput]:
        return [
            {
                "text": continued(request.writes, request.before, hypothesis.tokens),
                "score": hypothesis.score,
                "ids": list(hypothesis.tokens),
                "ended": hypothesis.ended,
            }
            for hypothesis in self.hypotheses
        ]


def grow(run: Run, request: Decoding, *, width: int, candidates: int, changes: Sequence[Change] = ()) -> Grown:
    """Search with a beam, with the model changed as the changes say, and keep every continuation it looked at."""
    method = Beam(width=width, n_best=width)
    checked = check_request(cast(Model, run.model), [request.source], request.prefix, request.rules, candidates)
    tree = Tree(request, width)
    make_session = functools.partial(EditedSession, changes) if changes else Session
    [hypotheses] = decode(checked, method, request.rules, candidates, make_session=make_session, watcher=tree.watch)
    best = tree.path(hypotheses[0].tokens)
    for node_id in best:
        tree.nodes[node_id]["state"] = "best"
    return Grown(nodes=tree.nodes, best=best, hypotheses=hypotheses)


@final
class Tree:
    """A builder of nodes in the page's form. The root is what the output follows."""

    def __init__(self, request: Decoding, width: int) -> None:
        self.writes, self.rules, self.width = request.writes, request.rules, width
        self.nodes: list[DecodeNode] = []
        self.node_ids: dict[int, int] = {}
        self.kept: list[Node] = []
        self.root = self.add(ROOT, step=0, rank=0, state="best")

    def watch(self, step: Considered) -> None:
        check_stopped()
        live = {(id(node.parent), node.token): node for node in step.live}
        for rank, (total, beam, token) in enumerate(step.continuations):
            parent = step.beams[beam]
            node = live.get((id(parent), token))
            ends = rank < self.width and (token in self.rules.end or step.length == self.rules.max_new)
            state = "live" if node else "ended" if ends else "pruned"
            considered = node or Node(parent, token, total, step.shown[beam])
            self.add(considered, step=step.length, rank=rank, state=state)

    def add(self, node: Node, *, step: int, rank: int, state: NodeState) -> int:
        node_id, parent = len(self.nodes), node.parent
        self.node_ids[id(node)] = node_id
        self.kept.append(node)  # so that no other comes to have its id
        self.nodes.append(
            {
                "id": node_id,
                "parent": None if parent is None else self.node_ids[id(parent)],
                "step": step,
                "token": node.token,
                "text": "" if parent is None else token_names(self.writes, [node.token])[0],
                "log_prob": node.total - (0.0 if parent is None else parent.total),
                "total": node.total,
                "state": state,
                "rank": rank,
                "candidates": self.likeliest(node.candidates),
            }
        )
        return node_id

    def likeliest(self, candidates: Candidates) -> list[CandidateMessage]:
        names = token_names(self.writes, [token for token, _ in candidates])
        pairs = zip(candidates, names, strict=True)
        return [{"id": token, "text": name, "p": math.exp(log_prob)} for (token, log_prob), name in pairs]

    def path(self, tokens: Sequence[int]) -> list[int]:
        """Return the places of these tokens, one after another from the root, the root first."""
        node_ids = [self.root]
        children = {(node["parent"], node["token"]): node["id"] for node in self.nodes}
        for token in tokens:
            node_ids.append(children[node_ids[-1], token])
        return node_ids
