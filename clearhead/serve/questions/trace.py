"""A trace of a text: its tokens, its attentions, and what the model answers. Other questions ask about it by its id."""

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import ClassVar, NotRequired, TypedDict, cast

from clearhead.experiments.tracing import encode_inputs, trace
from clearhead.serve.budget import Cost
from clearhead.serve.edit_json import EditJson, changes_of, read_edits
from clearhead.serve.explorer import Explorer
from clearhead.serve.params import Params
from clearhead.serve.program import load_program
from clearhead.serve.questions.question import Question
from clearhead.serve.questions.run import ModelKind, SideName, Slot, WeightingKind, part_name
from clearhead.serve.traced import Traced
from clearhead.tracing.arithmetic import weighting_kind
from clearhead.tracing.edits import Change, Edit
from clearhead.tracing.site import ALLOWED, Site, overflow_of
from clearhead.tracing.trace import Candidate, Trace
from clearhead.training.run import Run

MANY, FEW = 512, 5
"""Of more places than the first number, only the second number of candidates are sent."""
SHOWN = 30
"""The number of unseen characters that a note lists."""


class SideMeta(TypedDict):
    ids: list[int]
    tokens: list[str]
    n_layers: int
    d_model: int


class PartWords(TypedDict):
    """What a reader calls the parts: "scaled dot product", "no positions", "causal mask"."""

    similarity: str
    weighting: str
    position: str
    mask: str


class Arithmetic(TypedDict):
    """What the arithmetic of a site is, as its parts say it."""

    kind: WeightingKind
    """How a weight is worked out: its share of the row's exponentials, or of its scores; all on the best key; or
    `rows`, any function of the row, of which nothing is known but what the part says of itself."""
    rule: str
    """What its weighting does, in a sentence of its own without a full stop."""
    blocked: float | None
    """What stands in place of a score where the query may not attend; null is −∞."""
    formula: str
    """How the score of a query and a key is made."""
    prepared: str
    """What a query or key is called once prepared for that, "{}" standing for its name: "unit {}"."""
    scale_reason: str
    """Why the scale is what it is, where it is not 1/√d_head."""
    biased: bool
    """Whether its positions add to the scaled scores."""
    turns: bool
    """Whether its positions turn queries and keys before they are compared."""
    masks: bool
    """Whether a key may be hidden from a query."""
    causal: bool


class SiteMeta(TypedDict):
    name: str
    side: SideName
    layer: int
    slot: Slot
    n_heads: int
    n_kv_heads: int
    d_head: int
    d_value: int
    n_query: int
    n_key: int
    query_side: SideName
    key_side: SideName
    similarity: str
    weighting: str
    position: str
    mask: str
    words: PartWords
    arithmetic: Arithmetic
    scale: list[float]
    kernel: str
    why: str
    """Why the reference computed it and no kernel; "" where a kernel did."""
    edited: bool


class CandidateMessage(TypedDict):
    id: int
    text: str
    p: float


class ProgramAnswers(TypedDict):
    answers: list[str]
    offset: int


class Meta(TypedDict):
    """What a trace is of: its tokens, its attentions, and what the model answers."""

    id: str
    source: str
    target: str | None
    edits: list[EditJson]
    step: int | None
    notes: list[str]
    kind: ModelKind
    sides: dict[SideName, SideMeta]
    sites: list[SiteMeta]
    names: list[str]
    candidates: list[list[CandidateMessage]]
    answer: str
    program: NotRequired[ProgramAnswers]
    """Of a compiled program: its answer at each token of the text, which begins at token `offset`."""


def read_target(params: Params) -> str | list[int] | None:
    """Return the target as text or ids; None for the model's own output."""
    target = params.values.get("target")
    if target is None:
        return None
    if not isinstance(target, list):
        return params.text("target")
    if not all(isinstance(token, int) and not isinstance(token, bool) and 0 <= token < 2**31 for token in target):
        raise params.value_error("target", "expected text, or a list of token ids", target)
    return target


@dataclass(frozen=True, kw_only=True)
class AskTrace(Question[Meta]):
    """A trace of a text, with edits inside the model, by the weights of a step: the run's own where none is named."""

    sent: ClassVar = True
    source: str
    target: str | list[int] | None = field(default=None, metadata={"read": read_target})
    """The output, as text or ids; without it, the model's own."""
    edits: list[EditJson] = field(default_factory=list, metadata={"read": read_edits})
    step: int | None = None

    @property
    def id(self) -> str:
        """Return a key that is the same for the same request."""
        key = json.dumps([self.source, self.target, self.edits, self.step], sort_keys=True)
        return hashlib.blake2b(key.encode(), digest_size=12).hexdigest()

    @property
    def changes(self) -> list[Change]:
        return changes_of(self.edits)

    def answer(self, explorer: "Explorer") -> Meta:
        return meta_of(self.traced(explorer))

    def python(self, explorer: "Explorer") -> list[str]:
        return [*self.traced(explorer).python, "trace.candidates"]

    def traced(self, explorer: "Explorer") -> Traced:
        """Return the trace that is asked for, which is made where it is not cached."""
        wanted = replace(self, step=explorer.run.step if self.step is None else self.step)
        return explorer.traces.get_or_make(wanted.id, lambda: wanted.make(explorer))

    def make(self, explorer: "Explorer") -> Traced:
        """Run the model and record it. What is not too much is decided before."""
        run, changes = explorer.at(self.step), self.changes
        self.check_cost(explorer, run, changes)
        recorded = trace(run, self.source, self.target, edits=changes)
        check_overflow(recorded)
        return Traced(self, run, recorded.with_notes(*note_unseen(run, self.source)), explorer.budget)

    def check_cost(self, explorer: "Explorer", run: Run, changes: Sequence[Change]) -> None:
        """Check the cost of tracing a text; the longest text there can be follows from the budget."""
        budget, costs = explorer.budget, explorer.costs
        ids = encode_inputs(run, self.source, self.target).ids
        lengths = {side: len(tokens) for side, tokens in ids.items()}
        cost, writes_target = Cost(), run.task.target == "writes" and self.target is None
        if writes_target:  # what the model will write is not known yet: the most it may
            lengths["decoder"] = run.task.decoding(ids, max_new=None, usual=run.task.context).rules.max_new
            cost = costs.decoding(lengths, rows=1, new=lengths["decoder"], changes=changes)
        longest = budget.most(lambda n: costs.trace(dict.fromkeys(lengths, n)), run.task.context)
        fewer = ", and fewer with edits inside an attention or without a target" if writes_target or changes else ""
        tokens = " and ".join(f"{n:,} {side} tokens" for side, n in lengths.items())
        instead = f"shorten the text: the longest has {longest:,} tokens here{fewer}"
        budget.check(cost + costs.trace(lengths, changes), f"a trace of {tokens}", instead)


def meta_of(traced: Traced) -> Meta:
    """Return what a trace is of, which is put together once."""
    return traced.once("meta", lambda: make_meta(cast(AskTrace, traced.request), traced.run, traced.trace))


def make_meta(request: AskTrace, run: Run, trace: Trace) -> Meta:
    n_told = None if len(trace.candidates) <= MANY else FEW
    program = load_program(run)
    answers = None if program is None else program.answers_to(run, trace)
    if answers is None or run.task.target == "writes":
        answer = run.task.traced_answer(request.source, trace)
    else:  # a compiled program's, at every token
        answer = " ".join(answers)
    meta: Meta = {
        "id": request.id,
        "source": request.source,
        "target": run.task.traced_target(request.target, trace),
        "edits": request.edits,
        "step": run.step,
        "notes": list(trace.notes),
        "kind": cast(ModelKind, trace.kind),
        "sides": cast(dict[SideName, SideMeta], {name: asdict(side) for name, side in trace.sides.items()}),
        "sites": [site_facts(site) for site in trace.sites.values()],
        "names": trace.names,
        "candidates": [as_candidates(row[:n_told]) for row in trace.candidates],
        "answer": answer,
    }
    if program is not None and answers is not None:
        meta["program"] = {"answers": answers, "offset": program.offset}
    return meta


def as_candidates(row: Sequence[Candidate]) -> list[CandidateMessage]:
    return [{"id": candidate.id, "text": candidate.text, "p": math.exp(candidate.log_prob)} for candidate in row]


def site_facts(site: Site) -> SiteMeta:
    edits_allowed = any(isinstance(change, Edit) and change.step == ALLOWED for change in site.recorded.changes)
    return {
        "name": site.name,
        "side": cast(SideName, site.side),
        "layer": site.layer,
        "slot": cast(Slot, site.slot),
        "n_heads": site.n_heads,
        "n_kv_heads": site.n_kv_heads,
        "d_head": site.d_head,
        "d_value": site.d_value,
        "n_query": site.n_query,
        "n_key": site.n_key,
        "query_side": cast(SideName, site.side),
        "key_side": "encoder" if site.slot == "cross" else cast(SideName, site.side),
        "similarity": part_name(site.similarity),
        "weighting": part_name(site.weighting),
        "position": part_name(site.position),
        "mask": " & ".join(part_name(term) for term in site.mask.terms),
        "words": {
            "similarity": site.similarity.called,
            "weighting": site.weighting.called,
            "position": site.position.called,
            "mask": site.mask.called,
        },
        "arithmetic": {
            "kind": cast(WeightingKind, weighting_kind(site.weighting)),
            "rule": site.weighting.summary,
            "blocked": site.weighting.blocked if math.isfinite(site.weighting.blocked) else None,
            "formula": site.similarity.formula,
            "prepared": site.similarity.prepared,
            "scale_reason": site.similarity.scale_reason,
            "biased": site.position.bias_kind != "none",
            "turns": site.position.turns,
            "masks": edits_allowed or site.mask.kinds != {"none"},
            "causal": "causal" in site.mask.kinds,
        },
        "scale": [head.scale for head in site.head],
        "kernel": site.kernel,
        "why": site.why,
        "edited": site.is_edited,
    }


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
