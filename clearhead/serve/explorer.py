"""The explorer: every question the page may ask about a run, answered as plain data. It knows nothing of HTTP."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, final

from jaxtyping import Float, UInt8
from torch import Tensor

from clearhead.errors import ClearheadError, OptionError
from clearhead.lru_cache import LRUCache
from clearhead.serve import messages
from clearhead.serve.budget import FLOAT, JSON_NUMBER, Budget, Cost
from clearhead.serve.contexts import context_view, occurrences
from clearhead.serve.costs import ModelCosts
from clearhead.serve.curves import Curves, is_training
from clearhead.serve.embeddings import Tables
from clearhead.serve.facts import run_facts
from clearhead.serve.neurons import neurons_view
from clearhead.serve.params import Params
from clearhead.serve.sampling import MOST_NEW, read_method, sample
from clearhead.serve.tokenizing import tokenize_text
from clearhead.serve.trace_request import TraceRequest, changes_of, read_edits, weightings
from clearhead.serve.traced import Traced
from clearhead.serve.tree import grow, request_of
from clearhead.serve.waves import positions
from clearhead.tracing.edits import Change
from clearhead.tracing.rollout import mean_weight
from clearhead.tracing.sentence import TOKENS, creature_exchange
from clearhead.tracing.sequence_diagram import draw_sequence
from clearhead.tracing.site import overflow_of
from clearhead.tracing.trace import Trace
from clearhead.training.answers import token_names
from clearhead.training.run import Run, load
from clearhead.training.tasks.answering import Decoding
from clearhead.training.tracing import encode_inputs, trace

TRACES = 28
"""The most traces in the cache: one text at every step of a film, and a few more."""
OTHERS = 24
"""The most checkpoints and frames of the film that are loaded beside the run's own weights."""
OTHERS_SHARE = 4
"""They take at most one part in so many of the memory, and cached traces what they leave."""
MOST_TEXTS, LONGEST_WORD = 20, 100
SHOWN = 30
"""The number of unseen characters that a note lists."""


class GoneError(ClearheadError):
    """A trace that is no longer cached."""


@final
class Explorer:
    """A run to be explored. Methods take the request's parameters and return data, or raise a ClearheadError.

    `beside` is a second run to compare it with, which the same server answers for.
    """

    def __init__(self, run: Run, budget: Budget = Budget(), *, beside: "Explorer | None" = None) -> None:
        self.run, self.budget, self.beside = run, budget, beside
        self.costs = ModelCosts(run.model)
        self.metrics = Curves(run.folder.metrics)
        self.others = LRUCache[int, Run](most=OTHERS, room=budget.memory // OTHERS_SHARE, size=model_bytes)
        self.traces = LRUCache[str, Traced](most=TRACES, room=budget.memory, size=lambda traced: traced.nbytes)
        self.tables = Tables(budget)
        self.device = str(next(run.model.parameters()).device)

    def run_facts(self) -> dict[str, Any]:
        facts = {**run_facts(self.run, self.metrics), "weightings": list(weightings())}
        return facts if self.beside is None else {**facts, "beside": self.beside.run.folder.path.resolve().name}

    def at(self, step: int) -> Run:
        """Return the run with the weights of a checkpoint, or of a frame of its film."""
        if step == self.run.step:
            return self.run
        other = self.others.get_or_make(step, lambda: load(self.run.folder.path, device=self.device, step=step))
        # A cached trace holds its model: without this, a model that was dropped would stay in memory.
        loaded = list(self.others.values.values())
        loaded_ids = {id(run) for run in (self.run, *loaded)}
        self.traces.keep_only(lambda traced: id(traced.run) in loaded_ids)
        self.traces.room = self.budget.memory - sum(map(model_bytes, loaded))
        return other

    def trace(self, params: Params) -> dict[str, Any]:
        request = TraceRequest.of(params, self.run.step)
        return self.traces.get_or_make(request.id, lambda: self.make_trace(request)).meta()

    def make_trace(self, request: TraceRequest) -> Traced:
        run, changes = self.at(request.step), request.changes
        self.check_text(run, request, changes)
        recorded = trace(run, request.source, request.target, edits=changes)
        check_overflow(recorded)
        return Traced(request, run, recorded.with_notes(*note_unseen(run, request.source)), self.budget)

    def check_text(self, run: Run, request: TraceRequest, changes: Sequence[Change]) -> None:
        """Check the cost of tracing a text; the longest text there can be follows from the budget."""
        ids = encode_inputs(run, request.source, request.target).ids
        lengths = {side: len(tokens) for side, tokens in ids.items()}
        cost, writes_target = Cost(), run.task.target == "writes" and request.target is None
        if writes_target:  # what the model will write is not known yet: the most it may
            lengths["decoder"] = run.task.decoding(ids, max_new=None, usual=run.task.context).rules.max_new
            cost = self.costs.decoding(lengths, rows=1, new=lengths["decoder"], changes=changes)
        longest = self.budget.most(lambda n: self.costs.trace(dict.fromkeys(lengths, n)), run.task.context)
        fewer = ", and fewer with edits inside an attention or without a target" if writes_target or changes else ""
        tokens = " and ".join(f"{n:,} {side} tokens" for side, n in lengths.items())
        instead = f"shorten the text: the longest has {longest:,} tokens here{fewer}"
        self.budget.check(cost + self.costs.trace(lengths, changes), f"a trace of {tokens}", instead)

    def find_trace(self, name: str) -> Traced:
        traced = self.traces.get(name)
        if traced is None:
            raise GoneError("this trace is no longer kept: ask for it again, and it is made anew")
        return traced

    def tile(self, name: str, params: Params) -> Float[Tensor, "query key"]:
        return self.find_trace(name).tile(params)

    def thumbs(self, name: str, params: Params) -> UInt8[Tensor, "head row column"]:
        return self.find_trace(name).thumbs(params)

    def row(self, name: str, params: Params) -> dict[str, Any]:
        return self.find_trace(name).row(params)

    def column(self, name: str, params: Params) -> messages.Column:
        return self.find_trace(name).column(params)

    def cell(self, name: str, params: Params) -> dict[str, Any]:
        return self.find_trace(name).cell(params)

    def vectors(self, name: str, params: Params) -> Float[Tensor, "n d"]:
        return self.find_trace(name).vectors(params)

    def stream(self, name: str, params: Params) -> messages.Stream:
        return self.find_trace(name).stream(params)

    def spaces(self, name: str, params: Params) -> dict[str, Any]:
        return self.find_trace(name).spaces(params)

    def sequence(self, name: str, params: Params) -> messages.Sequence:
        return self.find_trace(name).sequence(params)

    def sentence(self, params: Params) -> messages.Sentence:
        """Return the sequence diagram of the notes' sentence, whose head was set by hand: it needs no trained run."""
        row = params.integer("token", below=len(TOKENS), default=TOKENS.index("creature"))
        return {"tokens": list(TOKENS), "token": row, "svg": draw_sequence(creature_exchange(row), standalone=False)}

    def box(self, name: str, params: Params) -> dict[str, Any]:
        return self.find_trace(name).box(params)

    def terms(self, name: str, params: Params) -> messages.BoxTerms:
        return self.find_trace(name).terms(params)

    def neurons(self, name: str, params: Params) -> dict[str, Any]:
        return neurons_view(self.find_trace(name), params)

    def readings(self, name: str, params: Params) -> dict[str, Any]:
        return self.find_trace(name).readings(params)

    def lens(self, name: str, params: Params) -> dict[str, Any]:
        return self.find_trace(name).lens(params)

    def effects(self, name: str, params: Params) -> messages.Effects:
        return self.find_trace(name).effects(params)

    def context(self, params: Params) -> dict[str, Any]:
        """Return the vectors of one word in several texts."""
        params.only("texts", "word", "step")
        word = params.text("word", longest=LONGEST_WORD).strip()
        if not word:
            raise OptionError("there is no word to follow: write one that stands in every text")
        run = self.at(params.integer("step", default=self.run.step))
        occurrences_found, cost = [], Cost()
        for text in params.texts("texts", most=MOST_TEXTS, longest=100_000):
            traced = self.plain_trace(run, text)
            cost += self.costs.trace(traced.lengths)  # all of them are held at once
            self.budget.check(Cost(memory=cost.memory), "traces of these texts together", "send fewer or shorter ones")
            side = next(iter(traced.lengths))
            occurrences_found += occurrences(run.tokenizer, word, text, traced.trace, side, budget=self.budget)
        return context_view(word, occurrences_found, budget=self.budget)

    def plain_trace(self, run: Run, text: str) -> Traced:
        """Return the trace of a text that is only read: nothing is translated."""
        target = [] if run.task.target == "writes" else None
        request = TraceRequest(source=text, target=target, edits=[], step=run.step)
        return self.traces.get_or_make(request.id, lambda: self.make_trace(request))

    def positions(self, params: Params) -> dict[str, Any]:
        params.only("n", "step")
        n = params.integer("n", least=2, below=1025, default=64)
        width = max(part.spec.d_model for part in self.costs.sides.values())
        self.budget.check(Cost(memory=3 * n * (width * JSON_NUMBER + n * FLOAT)), f"{n} positions", "ask for fewer")
        return positions(self.at(params.integer("step", default=self.run.step)), n)

    def decode(self, params: Params) -> dict[str, Any]:
        """Search with a beam, and return it step by step, with where its best output looked in the source.

        With edits it is the changed model that is searched with, and looked into.
        """
        params.only("source", "beam", "candidates", "max_new", "step", "edits")
        run = self.at(params.integer("step", default=self.run.step))
        width = params.integer("beam", least=1, below=9, default=4)
        candidates = params.integer("candidates", least=1, below=51, default=5)
        max_new = params.maybe_whole("max_new", least=1, below=run.task.context + 1)
        request = request_of(run, params.text("source"), max_new)
        edits = read_edits(params)
        self.check_search(request, changes_of(edits), width=width, candidates=candidates)
        grown = grow(run, request, width=width, candidates=candidates, changes=changes_of(edits))
        return {
            "nodes": grown.nodes,
            "best": grown.best,
            "outputs": grown.outputs(request),
            "source_tokens": token_names(run.tokenizer, request.source),
            "cross": self.cross(run, params.text("source"), grown.hypotheses[0].tokens, edits),
            "edits": edits,
        }

    def sample(self, params: Params) -> dict[str, Any]:
        """Sample an output, or take the likeliest token each time, and return what each token was drawn from.

        With edits it is the changed model that is sampled.
        """
        params.only("source", "mode", "temperature", "top_k", "top_p", "seed", "candidates", "max_new", "step", "edits")
        run = self.at(params.integer("step", default=self.run.step))
        candidates = params.integer("candidates", least=1, below=51, default=10)
        source, edits, method = params.text("source"), read_edits(params), read_method(params)
        room = request_of(run, source, MOST_NEW if run.task.target == "continues" else None).rules.max_new
        request = request_of(run, source, min(room, params.integer("max_new", least=1, default=room)))
        self.check_search(request, changes_of(edits), width=1, candidates=candidates, sampled=True)
        sampled = sample(run, request, method, candidates=candidates, changes=changes_of(edits))
        return {
            **sampled,
            "room": room,
            "source_tokens": token_names(run.tokenizer, request.source),
            "cross": self.cross(run, source, sampled["ids"], edits),
            "edits": edits,
        }

    def embeddings(self, params: Params) -> dict[str, Any]:
        params.only("table", "step")
        return self.tables.map(self.at(params.integer("step", default=self.run.step)), params)

    def neighbours(self, params: Params) -> dict[str, Any]:
        params.only("table", "step", "token", "count")
        return self.tables.neighbours(self.at(params.integer("step", default=self.run.step)), params)

    def tokenize(self, params: Params) -> dict[str, Any]:
        return tokenize_text(self.run, params, self.budget)

    def check_search(
        self, request: Decoding, changes: Sequence[Change], *, width: int, candidates: int, sampled: bool = False
    ) -> None:
        new, sides = request.rules.max_new, list(self.costs.sides)
        paired = len(sides) > 1
        lengths = dict(zip(sides, (len(request.source), new) if paired else (len(request.source) + new,), strict=True))
        cost = self.costs.decoding(lengths, rows=width, new=new, changes=changes)
        answer_bytes = self.costs.tree(width=width, candidates=candidates, new=new)
        if paired:  # and where it looked in the source: weights of every layer, once as a matrix and once as JSON
            layers = len(self.costs.sides["decoder"].stack.blocks)
            answer_bytes += layers * new * len(request.source) * (JSON_NUMBER + 2 * FLOAT)
        verb = "sampling" if sampled else f"searching with a beam of {width} for"
        action = f"{verb} {new:,} tokens with {candidates} candidates each"
        self.budget.check(cost + Cost(memory=answer_bytes), action, "ask for fewer, or send a shorter text")

    def cross(
        self, run: Run, source: str, tokens: Sequence[int], edits: list[dict[str, Any]]
    ) -> list[dict[str, Any]] | None:
        """Return for each token of an output how much each layer looked at each piece of the source."""
        if len(self.costs.sides) == 1:
            return None
        reached = [edit for edit, change in zip(edits, changes_of(edits), strict=True) if change.reaches(len(tokens))]
        request = TraceRequest(source=source, target=list(tokens[:-1]), edits=reached, step=run.step)
        recorded = self.traces.get_or_make(request.id, lambda: self.make_trace(request)).trace
        layers = [mean_weight(layer.cross) for layer in recorded.decoder if layer.cross]
        return [
            {"step": step, "weight": [weight[step - 1].tolist() for weight in layers]}
            for step in range(1, len(tokens) + 1)
        ]

    def curves(self, params: Params) -> dict[str, Any]:
        lines = self.metrics.after(params.integer("after", least=-1, default=-1))
        last = max((line["step"] for line in lines), default=None)
        return {"lines": lines, "training": is_training(self.run.folder), "last": last}


def side_by_side(run: Run, other: Run, budget: Budget = Budget()) -> Explorer:
    """Return the explorer of a run with another one beside it; each has half of the memory."""
    half = replace(budget, memory=budget.memory // 2)
    return Explorer(run, half, beside=Explorer(other, half))


def model_bytes(run: Run) -> int:
    return sum(tensor.nbytes for tensor in run.model.state_dict().values())


def check_overflow(recorded: Trace) -> None:
    """Raise where edits drove numbers inside the model beyond what its precision holds."""
    if not recorded.changes:
        return
    values = {**recorded.stream, **{f"{name}.context": site.recorded_context for name, site in recorded.sites.items()}}
    for name in recorded.all_names:  # in the order of the way through the model, so that the first is told
        if name in values and not bool(values[name].isfinite().all()):
            raise overflow_of(name, values[name].dtype)


def note_unseen(run: Run, text: str) -> list[str]:
    """Return a note on what of a text the tokeniser has never seen, if there is any."""
    unseen = run.unseen(text)
    if not unseen:
        return []
    more = "…" if len(unseen) > SHOWN else ""
    return [f"never met in training, and read as unknown: {unseen[:SHOWN]}{more}"]
