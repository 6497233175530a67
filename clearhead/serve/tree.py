"""The tree of a beam search: every continuation it considered, its score, and what became of it."""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast, final

from clearhead.decoding import Beam, Hypothesis
from clearhead.decoding.generating import decode
from clearhead.decoding.hypotheses import ROOT, Candidates, Considered, Node
from clearhead.decoding.request import Model, check_request
from clearhead.decoding.session import Session
from clearhead.errors import OptionError
from clearhead.serve.program import load_program
from clearhead.tracing.edited_decoding import EditedSession
from clearhead.tracing.edits import Change
from clearhead.tracing.stopping import check_stopped
from clearhead.training.answers import continued, token_names
from clearhead.training.run import Run
from clearhead.training.tasks.answering import Decoding
from clearhead.training.tasks.base import Task
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


def why_no_decoding(run: Run) -> str | None:
    """Say why there is no decoding of this run to see; None where there is."""
    if run.task.target == "none":
        return one_step(run.task)
    program = load_program(run)
    if program is not None and run.task.target == "continues" and not program.continues_texts:
        return (
            f"the program {program.program} answers each token with something that is no token itself, so no text is "
            "continued with its answers"
        )
    return None


def one_step(task: Task) -> str:
    return (
        f"this run answers in one step ({task.name}): there is no decoding to see. Runs that translate or generate "
        "have one"
    )


@final
@dataclass(frozen=True, kw_only=True)
class Grown:
    """The tree of a search, node by node, and its outputs, the best first."""

    nodes: list[dict[str, Any]]
    best: list[int]
    hypotheses: list[Hypothesis]

    def outputs(self, request: Decoding) -> list[dict[str, Any]]:
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
        self.nodes: list[dict[str, Any]] = []
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

    def add(self, node: Node, *, step: int, rank: int, state: str) -> int:
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

    def likeliest(self, candidates: Candidates) -> list[dict[str, Any]]:
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
