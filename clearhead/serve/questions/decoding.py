"""Decoding for the page: a beam search as a tree, and sampling with what each token was drawn from."""

import functools
import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, TypedDict, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.decoding import Beam, Greedy, Hypothesis, Sample, Token
from clearhead.decoding.generating import decode, decode_tokens
from clearhead.decoding.hypotheses import ROOT, Candidates, Considered, Node
from clearhead.decoding.request import Model, check_request
from clearhead.decoding.rules import FORBIDDEN
from clearhead.decoding.sampling import Chooser
from clearhead.decoding.session import Session
from clearhead.errors import OptionError
from clearhead.experiments.tracing import encode_inputs
from clearhead.serve.budget import FLOAT, JSON_NUMBER, Cost
from clearhead.serve.edit_json import EditJson, changes_of, read_edits
from clearhead.serve.explorer import Explorer
from clearhead.serve.params import bounded
from clearhead.serve.python_lines import load_lines, text_arguments
from clearhead.serve.questions.question import Question
from clearhead.serve.questions.run import one_step
from clearhead.serve.questions.trace import AskTrace, CandidateMessage
from clearhead.serve.traced import check_below
from clearhead.tracing.decoding import EditedSession
from clearhead.tracing.edits import Change
from clearhead.tracing.inner import mean_weight
from clearhead.tracing.recording import check_stopped
from clearhead.training.run import Run
from clearhead.training.tasks.answering import Decoding, continued, token_names

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


MOST_NEW = 200
"""The most tokens that a text is continued by, as many as `clearhead generate` writes unless asked otherwise."""
TEMPERATURE = 0.8
"""As `clearhead generate` has it."""


Cut = Literal["", "top_k", "top_p", "never"]


class SampleCandidate(TypedDict):
    """A token that could have come next: its probability, and the one it was drawn with."""

    id: int
    text: str
    p: float
    after: float
    """After the temperature and the cuts; 0 where it was cut."""
    cut: Cut
    """What cut it: top-k, top-p, or a rule that it may never come; "" where it could be drawn."""


class SampleStep(TypedDict):
    """One token that was drawn, or taken as the likeliest, and what it was drawn from."""

    token: int
    text: str
    p: float
    after: float
    drawn: float | None
    """The random number in [0, 1): the token is the one in whose stretch of the probabilities it lies."""
    begins: float
    """Where that stretch begins: the sum of the probabilities of all likelier tokens."""
    left: int
    """The number of tokens that could be drawn."""
    candidates: list[SampleCandidate]


class Sampled(TypedDict):
    """Text that was sampled, token by token: the same as the library's for the same seed."""

    steps: list[SampleStep]
    text: str
    ends: list[int]
    """After each step, how many characters of the text are certain."""
    ids: list[int]
    ended: bool
    room: int
    """The most new tokens that there can be."""
    source_tokens: list[str]
    cross: list[CrossWeights] | None
    edits: list[EditJson]


@dataclass(frozen=True, kw_only=True)
class AskSample(Question[Sampled]):
    """A sampled output, or the likeliest token each time, and what each token was drawn from.

    With edits it is the changed model that is sampled.
    """

    sent: ClassVar = True
    source: str
    mode: Literal["greedy", "sample"] = "sample"
    temperature: float = TEMPERATURE
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0
    candidates: int = bounded(10, least=1, below=51)
    max_new: int | None = bounded(None, least=1)
    step: int | None = None
    edits: list[EditJson] = field(default_factory=list, metadata={"read": read_edits})

    def answer(self, explorer: "Explorer") -> Sampled:
        run, watched, changes = explorer.at(self.step), self.watched(), changes_of(self.edits)
        room = request_of(run, self.source, MOST_NEW if run.task.target == "continues" else None).rules.max_new
        request = request_of(run, self.source, min(room, self.max_new or room))
        check_search(explorer, request, changes, "sampling", width=1, candidates=self.candidates)
        tokens = draw(run, request, watched, candidates=self.candidates, changes=changes)
        ids = [token.token for token in tokens]
        text = continued(request.writes, request.before, ids)
        so_far = (continued(request.writes, request.before, ids[: i + 1]) for i in range(len(ids)))
        return {
            # The last may have chosen among nothing: then there is no token for it.
            "steps": [
                describe(request, token, seen, greedy=self.mode == "greedy")
                for token, seen in zip(tokens, watched.seen, strict=False)
            ],
            "text": text,
            "ends": [certain(begun, text) for begun in so_far],
            "ids": ids,
            "ended": bool(tokens) and tokens[-1].ended,
            "room": room,
            "source_tokens": token_names(run.tokenizer, request.source),
            "cross": cross(explorer, run, self.source, ids, self.edits),
            "edits": self.edits,
        }

    def python(self, explorer: "Explorer") -> list[str]:
        run, changes = explorer.at(self.step), changes_of(self.edits)
        if changes:  # the likeliest output alone: sampling from a changed model is the explorer's own
            return [
                *load_lines(run),
                f"ch.trace(run, {text_arguments(self.source, None, changes)}).sides['decoder'].ids",
            ]
        traced = f"ch.trace(run, {self.source!r}, method=ch.{self.watched().method!r})"
        return [*load_lines(run), f"{traced}.sides['decoder'].ids"]

    def watched(self) -> "Watched":
        """Return the method that is asked for, watched; `Sample` itself says which numbers cannot be."""
        if self.mode == "greedy":
            return WatchedGreedy(Greedy())
        more = {} if self.top_p is None else {"top_p": self.top_p}
        method = Sample(temperature=self.temperature, top_k=self.top_k, seeds=self.seed, **more)
        return WatchedSample(method, candidates=self.candidates)


def draw(
    run: Run, request: Decoding, watched: "Watched", *, candidates: int, changes: Sequence[Change] = ()
) -> list[Token]:
    """Return the tokens that a model draws one after another, changed as the changes say; `watched` notes what from."""
    checked = check_request(cast(Model, run.model), [request.source], request.prefix, request.rules, candidates)
    tokens: list[Token] = []
    make_session = functools.partial(EditedSession, changes) if changes else Session
    for token in decode_tokens(checked, watched, request.rules, candidates, make_session=make_session):
        check_stopped()
        tokens.append(token)
    return tokens


def certain(begun: str, text: str) -> int:
    """Return how many characters a text has in common with what was decoded of its first tokens.

    >>> certain("so ein Fr\ufffd", "so ein Früchtchen")
    9
    """
    pairs = enumerate(zip(begun, text, strict=False))
    return next((index for index, (decoded, final) in pairs if decoded != final), min(len(begun), len(text)))


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What one token was drawn from: of the likeliest tokens their shares, and what cut those that were cut."""

    after: dict[int, tuple[float, Cut]]
    forbidden: frozenset[int]
    share: float
    begins: float
    left: int
    drawn: float | None


@dataclass(frozen=True)
class Watched(Chooser):
    """A method for one row that notes at each step what it chooses from."""

    method: Chooser
    seen: list[Seen] = field(default_factory=list, kw_only=True)

    def draws(self, count: int) -> list[torch.Generator]:
        return self.method.draws(count)

    def choose(self, logits: Float[Tensor, "row vocabulary"], draws: Sequence[torch.Generator]) -> Int[Tensor, "row"]:
        upcoming = [draw.clone_state() for draw in draws]
        chosen = self.method.choose(logits, draws)
        drawn = torch.rand((), generator=upcoming[0]).item() if upcoming else None
        forbidden = frozenset((logits[0] == FORBIDDEN).nonzero().flatten().tolist())
        self.seen.append(self.note(logits, int(chosen[0]), drawn, forbidden))
        return chosen

    @abstractmethod
    def note(self, logits: Tensor, chosen: int, drawn: float | None, forbidden: frozenset[int]) -> Seen:
        """Return what a token was chosen from."""


@dataclass(frozen=True)
class WatchedGreedy(Watched):
    """The likeliest token, which nothing else could have been."""

    def note(self, logits: Tensor, chosen: int, drawn: float | None, forbidden: frozenset[int]) -> Seen:
        return Seen(after={chosen: (1.0, "")}, forbidden=forbidden, share=1.0, begins=0.0, left=1, drawn=drawn)


@dataclass(frozen=True)
class WatchedSample(Watched):
    """A draw from what is left of the likeliest tokens."""

    method: Sample
    candidates: int = field(kw_only=True)

    def note(self, logits: Tensor, chosen: int, drawn: float | None, forbidden: frozenset[int]) -> Seen:
        share, tokens = (part[0] for part in self.method.shares(logits))
        remaining = self.method.remaining(logits / self.method.temperature)[0][0] != FORBIDDEN
        rank = int((tokens == chosen).nonzero()[0])
        # Forbidden tokens are last here and may be first in the page's list, and equals may stand in another order.
        ranks = [*range(min(2 * self.candidates, len(tokens))), rank]
        ids, after, stays = (part[ranks].tolist() for part in (tokens, share, remaining))
        return Seen(
            after={
                token: (p, "" if stays_in else "top_p") for token, p, stays_in in zip(ids, after, stays, strict=True)
            },
            forbidden=forbidden,
            share=share[rank].item(),
            begins=share[:rank].sum().item(),
            left=int(remaining.sum()),
            drawn=drawn,
        )


def describe(request: Decoding, token: Token, seen: Seen, *, greedy: bool) -> SampleStep:
    """Return a step in the page's form: the likeliest tokens, and the one that came where it is not among them."""
    likeliest = [(token_id, math.exp(log_prob)) for token_id, log_prob in token.candidates]
    probability = math.exp(token.log_prob)
    if token.token not in dict(likeliest):
        likeliest = [*likeliest[:-1], (token.token, probability)]
    names = token_names(request.writes, [token_id for token_id, _ in likeliest])
    candidates: list[SampleCandidate] = []
    for (token_id, p), name in zip(likeliest, names, strict=True):
        usual: Cut = "" if greedy else "top_k"
        after, cut = seen.after.get(token_id, (0.0, usual))
        cut = "never" if token_id in seen.forbidden else cut
        candidates.append({"id": token_id, "text": name, "p": p, "after": after, "cut": cut})
    return {
        "token": token.token,
        "text": token_names(request.writes, [token.token])[0],
        "p": probability,
        "after": seen.share,
        "drawn": seen.drawn,
        "begins": seen.begins,
        "left": seen.left,
        "candidates": candidates,
    }
