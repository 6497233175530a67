"""What an answer comes from: the parts that add to its logit, and what it becomes with one value from another text."""

from dataclasses import dataclass
from typing import Literal, TypedDict, cast

from clearhead.circuits import Attribution, PatchMap
from clearhead.circuits.nodes import MOST_NUMBERS, list_nodes
from clearhead.errors import OptionError
from clearhead.experiments.patching import attribute_trace, check_tokenizers, choose_answers, first_place, patch_traces
from clearhead.serve.budget import FLOAT, JSON_NUMBER, JSON_OBJECT, Cost
from clearhead.serve.explorer import Explorer
from clearhead.serve.params import bounded
from clearhead.serve.python_lines import keywords, load_lines, text_arguments
from clearhead.serve.questions.question import Question, TraceQuestion
from clearhead.serve.questions.run import SideName
from clearhead.serve.traced import TEXT, Traced
from clearhead.tracing.names import list_near

PartKind = Literal["embedding", "head", "feed_forward", "constant", "output", "edits"]


class NamedAnswer(TypedDict):
    id: int
    text: str


class LogitPart(TypedDict):
    """What one part adds to the logit, or to the difference of two."""

    name: str
    kind: PartKind
    site: str | None
    """Of a head, its attention."""
    layer: int | None
    head: int | None
    value: float


class LogitParts(TypedDict):
    """The parts sum to the total: the logit of the answer, less that of the other one."""

    side: SideName
    place: int
    answer: NamedAnswer
    other: NamedAnswer | None
    total: float
    parts: list[LogitPart]


@dataclass(frozen=True, kw_only=True)
class AskAttribution(TraceQuestion[LogitParts]):
    """What each part adds to the logit of `token`, less that of `other`; without one, of the likeliest answer."""

    place: int | None = None
    """A token of the side that answers; without it, the one the page looks at first."""
    token: int | None = None
    """The number of an answer: a token, or a label."""
    other: int | None = None

    def answer_of(self, traced: Traced) -> LogitParts:
        place = first_place(traced.run, traced.trace) if self.place is None else self.place
        rows = 1 if traced.costs.logits else max(traced.lengths.values())
        heads = sum(site.n_heads for site in traced.trace.sites.values())
        memory = rows * heads * 4 * traced.costs.hidden * FLOAT + traced.costs.logits * FLOAT + heads * JSON_OBJECT
        traced.budget.check(traced.costs.box(rows) + Cost(memory=memory), "attributing a logit", TEXT)
        found = attribute_trace(
            traced.run, traced.trace, answer=self.token, other=self.other, place=place, graph=traced.graph
        )
        return {
            "side": cast(SideName, traced.trace.answer_side),
            "place": found.place,
            "answer": {"id": found.answer, "text": found.names[0]},
            "other": None if found.other is None else {"id": found.other, "text": found.names[1]},
            "total": found.total,
            "parts": parts_of(found),
        }

    def python_of(self, traced: Traced) -> list[str]:
        named = keywords(answer=self.token, other=self.other, place=self.place)
        return [f"ch.attribute(run, {traced.arguments}{named})"]


def parts_of(found: Attribution) -> list[LogitPart]:
    """Return the parts, each with what it is a part of."""
    parts: list[LogitPart] = []
    for name, value in found.parts.items():
        at, is_head, number = name.rpartition(".head.")
        layer = name.split(".")[1:2]
        kind = "head" if is_head else "embedding" if ".embedding." in name else name.rpartition(".")[2]
        parts.append(
            {
                "name": name,
                "kind": cast(PartKind, kind),
                "site": at if is_head else None,
                "layer": int(layer[0]) if layer and layer[0].isdigit() else None,
                "head": int(number) if is_head else None,
                "value": value,
            }
        )
    return parts


PatchKind = Literal["layer", "attention", "feed_forward", "head"]


class PatchRow(TypedDict):
    """One row of the map: a number for each place of its side."""

    name: str
    side: SideName
    site: str | None
    """Of a head, its attention."""
    layer: int | None
    head: int | None
    patched: list[float]
    """The logit difference with each place patched."""
    recovered: list[float | None]
    """The same as a share of the way from `before` to `source`."""


class PatchRows(TypedDict):
    place: int
    """Where the two answers are compared."""
    token: NamedAnswer
    other: NamedAnswer
    before: float
    """The logit of `token` less that of `other` in the text as it is."""
    source: float
    """The same where the values are taken from."""
    groups: list[str]
    """What `at` may be, in the order of the forward pass: values, or attentions, whose heads are asked for together."""
    rows: list[PatchRow]


@dataclass(frozen=True, kw_only=True)
class AskPatch(Question[PatchRows]):
    """A text run once for each place of a row, with that value as it is in the source; both are ids of traces."""

    text: str
    source: str
    beside: int = bounded(0, below=2)
    """1: the source is a trace of the run beside."""
    by: PatchKind = "layer"
    """What is patched: the stream after each layer, what attentions or feed-forwards add to it, or heads."""
    at: str | None = None
    """One of the groups; without it, all of them."""
    place: int | None = None
    token: int | None = None
    other: int | None = None

    def answer(self, explorer: "Explorer") -> PatchRows:
        traced, source = explorer.find_trace(self.text), self.giver(explorer).find_trace(self.source)
        check_tokenizers(traced.run, source.run)
        rows = list_nodes(traced.model, self.by)
        groups = list(dict.fromkeys(group_of(row.name) for row in rows))
        if self.at is not None and self.at not in groups:
            raise OptionError(f"at: there is no {self.at!r:.80} to patch; {list_near(self.at, groups)}")
        rows = [row for row in rows if self.at in (None, group_of(row.name))]
        self.check_cost(traced, sum(traced.lengths[row.side] for row in rows))
        traces = traced.trace, source.trace
        metric = choose_answers(traced.run, *traces, answer=self.token, other=self.other, place=self.place)
        found = patch_traces(traced.run, traces, traced.texts, rows, metric)
        answer, other = int(metric.answer), int(metric.other)
        return {
            "place": found.place,
            "token": {"id": answer, "text": found.answers[0]},
            "other": {"id": other, "text": found.answers[1]},
            "before": found.before,
            "source": found.source,
            "groups": groups,
            "rows": rows_of(found),
        }

    def python(self, explorer: "Explorer") -> list[str]:
        traced, source = explorer.find_trace(self.text), self.giver(explorer).find_trace(self.source)
        named = keywords(answer=self.token, other=self.other, place=self.place)
        target = "" if traced.request.target is None else f", {traced.request.target!r}"
        edits = text_arguments("", None, traced.trace.changes)[2:]
        texts = f"{traced.request.source!r}, {source.request.source!r}{target}"
        beside = keywords(source_run=str(source.run.folder.path) if self.beside else None)
        return [*load_lines(traced.run), f"ch.patch(run, {texts}, by={self.by!r}{named}{beside}{edits}).recovered"]

    def giver(self, explorer: "Explorer") -> "Explorer":
        if not self.beside:
            return explorer
        if explorer.beside is None:
            raise OptionError("there is no run beside this one to take values from: clearhead look RUN OTHER")
        return explorer.beside

    def check_cost(self, traced: Traced, patches: int) -> None:
        forward = traced.costs.forward(traced.lengths, traced.trace.changes)
        memory = forward.memory + 8 * MOST_NUMBERS * FLOAT + 2 * patches * JSON_NUMBER
        instead = f"ask for one row at a time (at=…), or {TEXT}"
        traced.budget.check(Cost(cells=patches * forward.cells, memory=memory), f"{patches:,} patches", instead)


def group_of(name: str) -> str:
    """Return what a row is asked for with: the value itself, or the attention of a head's context."""
    return name.removesuffix(".context")


def rows_of(found: PatchMap) -> list[PatchRow]:
    rows: list[PatchRow] = []
    for name, shares in found.recovered.items():
        node, layer = found.nodes[name], name.split(".")[1]
        rows.append(
            {
                "name": name,
                "side": cast(SideName, node.side),
                "site": None if node.head is None else group_of(node.name),
                "layer": int(layer) if layer.isdigit() else None,
                "head": node.head,
                "patched": found.patched[name].tolist(),
                "recovered": shares.tolist(),
            }
        )
    return rows
