"""How an output was found: every continuation that a beam looked at, what it was worth, and what became of it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast, final

from clearhead.decoding import Beam, Hypothesis, Rules
from clearhead.decoding.beam import Considered, beam_search
from clearhead.decoding.generating import check_request, eval_mode
from clearhead.decoding.hypotheses import ROOT, Candidates, Node
from clearhead.decoding.request import Model
from clearhead.decoding.rules import FORBIDDEN
from clearhead.decoding.session import open_session
from clearhead.errors import OptionError
from clearhead.serve.program import load_program
from clearhead.text.tokenizer import Tokenizer
from clearhead.tracing.edited_decoding import EditedSession
from clearhead.tracing.edits import Change
from clearhead.tracing.stopping import check_stopped
from clearhead.training.answers import continued, reach
from clearhead.training.run import Run
from clearhead.training.tasks import Generate, Task, Translate
from clearhead.training.tracing import asked_of, shown

__all__ = ["Grown", "Request", "grow", "request_of", "why_no_decoding"]

GENERATED = 24
"""New tokens of a text that is gone on with, unless more are asked for."""


@final
@dataclass(frozen=True, kw_only=True)
class Request:
    """What is decoded from, and what the output may be. `before`: ids of the text that an output follows."""

    source: list[int]
    prefix: list[list[int]] | None
    rules: Rules
    writes: Tokenizer
    before: list[int]


def request_of(run: Run, text: str, max_new: int | None) -> Request:
    match run.task:
        case Translate():
            return translating(run, run.task, text, max_new)
        case Generate():
            return going_on(run, run.task, text, max_new)
        case task:
            raise OptionError(one_step(task))


def why_no_decoding(run: Run) -> str | None:
    """Say why there is no decoding of this run to see; None where there is."""
    if not isinstance(run.task, Translate | Generate):
        return one_step(run.task)
    program = load_program(run)
    if program is not None and isinstance(run.task, Generate) and not program.continues_texts:
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


def translating(run: Run, task: Translate, text: str, max_new: int | None) -> Request:
    writes, source = task.tokenizers["target"], asked_of(run, text).ids["encoder"]
    return Request(
        source=source,
        prefix=[[writes.start]],
        rules=Rules(max_new=min(task.context, max_new or reach(len(source))), end=(writes.end,)),
        writes=writes,
        before=[],
    )


def going_on(run: Run, task: Generate, text: str, max_new: int | None) -> Request:
    tokenizer, source = task.tokenizers["text"], asked_of(run, text).ids["decoder"]
    room = task.context - len(source)
    if room < 1:
        raise OptionError(f"the text fills the {task.context} tokens that the model reads; shorten it to go on from it")
    end = (tokenizer.end,) if run.opens else ()
    return Request(
        source=source,
        prefix=None,
        rules=Rules(max_new=min(room, max_new or GENERATED), end=end),
        writes=tokenizer,
        before=source,
    )


@final
@dataclass(frozen=True, kw_only=True)
class Grown:
    """The tree of a search, node by node, and its outputs, the best first."""

    nodes: list[dict[str, Any]]
    best: list[int]
    hypotheses: list[Hypothesis]

    def outputs(self, request: Request) -> list[dict[str, Any]]:
        return [
            {
                "text": continued(request.writes, request.before, one.tokens),
                "score": one.score,
                "ids": list(one.tokens),
                "ended": one.ended,
            }
            for one in self.hypotheses
        ]


def grow(run: Run, request: Request, *, width: int, candidates: int, changes: Sequence[Change] = ()) -> Grown:
    """Search with a beam, with the model changed as the changes say, and keep every continuation it looked at."""
    method = Beam(width=width, n_best=width)
    asked = check_request(cast(Model, run.model), [request.source], request.prefix, request.rules, candidates)
    tree = Tree(request, width)
    with eval_mode(run.model):
        session = (
            EditedSession(asked, changes)
            if changes
            else open_session(asked.model, asked.inputs, asked.prompts, request.rules.max_new)
        )
        [found] = beam_search(session, asked.prompts, method, request.rules, candidates, watcher=tree.watch)
    best = tree.path(found[0].tokens)
    for place in best:
        tree.nodes[place]["state"] = "best"
    return Grown(nodes=tree.nodes, best=best, hypotheses=found)


@final
class Tree:
    """Nodes as a page takes them. The root is what the output follows; a node's candidates are those it was among."""

    def __init__(self, request: Request, width: int) -> None:
        self.writes, self.rules, self.width = request.writes, request.rules, width
        self.nodes: list[dict[str, Any]] = []
        self.places: dict[int, int] = {}
        self.kept: list[Node] = []
        self.root = self.add(ROOT, step=0, rank=0, state="best")

    def watch(self, step: Considered) -> None:
        check_stopped()
        live = {(id(node.parent), node.token): node for node in step.live}
        for rank, (total, beam, token) in enumerate(step.found.best_first()):
            if total == FORBIDDEN:
                return
            parent = step.beams[beam]
            node = live.get((id(parent), token))
            ends = rank < self.width and (token in self.rules.end or step.length == self.rules.max_new)
            state = "live" if node else "ended" if ends else "pruned"
            made = node or Node(parent, token, total, step.found.shown[beam])
            self.add(made, step=step.length, rank=rank, state=state)

    def add(self, node: Node, *, step: int, rank: int, state: str) -> int:
        place, parent = len(self.nodes), node.parent
        self.places[id(node)] = place
        self.kept.append(node)  # so that no other comes to have its id
        self.nodes.append(
            {
                "id": place,
                "parent": None if parent is None else self.places[id(parent)],
                "step": step,
                "token": node.token,
                "text": "" if parent is None else shown(self.writes, [node.token])[0],
                "log_prob": node.total - (0.0 if parent is None else parent.total),
                "total": node.total,
                "state": state,
                "rank": rank,
                "candidates": self.likeliest(node.candidates),
            }
        )
        return place

    def likeliest(self, candidates: Candidates) -> list[dict[str, Any]]:
        pieces = shown(self.writes, [token for token, _ in candidates])
        pairs = zip(candidates, pieces, strict=True)
        return [{"id": token, "text": piece, "p": math.exp(log_prob)} for (token, log_prob), piece in pairs]

    def path(self, tokens: Sequence[int]) -> list[int]:
        """The places of these tokens, one after another from the root, the root first."""
        found = [self.root]
        children = {(node["parent"], node["token"]): node["id"] for node in self.nodes}
        for token in tokens:
            found.append(children[found[-1], token])
        return found
