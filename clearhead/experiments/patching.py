"""What made an answer. `patch`: activation patching over all layers, or heads, and places of a text. `attribute`: what
each head, feed-forward and layer adds to an answer's logit. `contrast_texts`: pairs of texts to find circuits with.

```
found = ch.patch(run, "the cat eats the plum", "the dog eats the plum", by="head")
found.best[0]                                # the row, the place, and how much of the difference it recovers
ch.trace(run, "the cat eats the plum", edits=[found.edit(*found.best[0][:2])])
found = ch.attribute(run, "zweiundvierzig", answer="f", other="t", place=0)
found.parts["decoder.1.cross.head.3"]        # what that head adds to the logit of f less that of t
```
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import torch
from jaxtyping import Int
from torch import Tensor

from clearhead.calls import public
from clearhead.circuits import Attribution, Contrast, Graph, LogitDifference, PatchMap, attribute_logits
from clearhead.circuits.forward import run_graph
from clearhead.circuits.nodes import NodeKind, NodePatch, Progress, at_places, list_nodes, patch_nodes, read_nodes
from clearhead.circuits.texts import Texts, check_pair, pad_texts
from clearhead.errors import OptionError, PlaceError
from clearhead.experiments.tracing import encode_inputs, trace, trace_inputs, with_own_output
from clearhead.tracing import Trace
from clearhead.tracing.edits import Change, TextChange, check_changes
from clearhead.tracing.names import list_near, names_of
from clearhead.training.run import Run, as_run
from clearhead.training.tasks.answering import Pair, check_text_or_pair
from clearhead.training.tasks.base import TraceInputs

AnswerName = str | int
"""An answer: a token or a label as it is shown, or its number."""


@public
def attribute(
    run: Run | str | Path,
    source: str | Pair,
    target: str | Sequence[int] | None = None,
    *,
    answer: AnswerName | None = None,
    other: AnswerName | None = None,
    place: int | None = None,
    edits: Sequence[Change | TextChange] = (),
) -> Attribution:
    """Return what each part of a model adds to the logit of an answer (direct logit attribution).

    Args:
        run: A run, or the path of its folder.
        source: The text, as in `ch.trace`.
        target: The target, as in `ch.trace`.
        answer: A token or label as a trace shows it, or its number; the most likely one if None.
        other: A second answer: then the difference of the two logits is attributed.
        place: A token of the text that answers, counted from 0, or from -1 at the end; if None, the one the explorer
            shows first.
        edits: Changes of the model, as in `ch.trace`.

    Returns:
        The parts and what they add; they sum to the logit or the difference.

    Raises:
        OptionError: If there is no such answer or place.
    """
    run = as_run(run)
    traced = trace(run, source, target, edits=edits)
    return attribute_trace(run, traced, answer=answer, other=other, place=place)


def attribute_trace(
    run: Run,
    traced: Trace,
    *,
    answer: AnswerName | None = None,
    other: AnswerName | None = None,
    place: int | None = None,
    graph: Graph | None = None,
) -> Attribution:
    """Return what `attribute` does, of a text that is traced already."""
    place = first_place(run, traced) if place is None else place
    chosen = likeliest_at(traced, place) if answer is None else find_answer(run, answer)
    against = None if other is None else find_answer(run, other)
    found = attribute_logits(traced, place=place, answer=chosen, other=against, graph=graph)
    words = run.task.answer_names([chosen] if against is None else [chosen, against])
    return replace(found, names=(words[0], words[-1] if against is not None else ""))


def first_place(run: Run, traced: Trace) -> int:
    """Return the place whose answer the explorer shows first: the first, the last, or that of a blank."""
    ids = traced.sides[traced.answer_side].ids
    if run.task.place == "blank" and run.tokenizer.mask in ids:
        return ids.index(run.tokenizer.mask)
    return 0 if run.task.place == "first" else len(ids) - 1


def likeliest_at(traced: Trace, place: int) -> int:
    """Return the likeliest answer at a place; a class is the same at all."""
    rows = traced.candidates
    if not rows:
        raise OptionError("this model gives vectors and answers nothing, so it has no logit to take apart")
    if len(rows) > 1 and not -len(rows) <= place < len(rows):
        raise PlaceError(f"place {place}: there are {len(rows)} tokens, counted from 0, or from -1 at the end")
    return rows[place if len(rows) > 1 else 0][0].id


def find_answer(run: Run, answer: AnswerName) -> int:
    """Return the number of an answer that is given by its name or by its number."""
    if isinstance(answer, int) and not isinstance(answer, bool):
        return answer
    if not isinstance(answer, str):
        raise OptionError(
            f"answer: expected a token or a label as a trace shows it, or its number; came {answer!r:.80}"
        )
    task = run.task
    tokenizer = [*task.tokenizers.values()][-1]
    names = task.answer_names(range(len(task.labels) or tokenizer.vocabulary))
    if answer in names:
        return names.index(answer)
    encoded = [] if task.labels else tokenizer.encode(answer)
    if len(encoded) == 1:
        return encoded[0]
    parts = f"; it is {len(encoded)} tokens: {', '.join(map(repr, task.answer_names(encoded)))}" if encoded else ""
    near = list_near(answer, names) if task.labels else "give one token as a trace shows it, or its number"
    raise OptionError(f"there is no answer {answer!r:.80}{parts}; {near}")


BAR = 30
"""Characters of the progress bar."""


@public
def patch(
    run: Run | str | Path,
    text: str | Pair,
    source: str | Pair,
    target: str | Sequence[int] | None = None,
    *,
    by: NodeKind = "layer",
    answer: AnswerName | None = None,
    other: AnswerName | None = None,
    place: int | None = None,
    source_run: Run | str | Path | None = None,
    edits: Sequence[Change | TextChange] = (),
    progress: Progress | bool = True,
) -> PatchMap:
    """Run a text once for each value and place, with that value taken from the text `source` (activation patching).

    The metric is the logit of `answer` minus the logit of `other`. Both texts need the same number of tokens. A
    translator reads the same target in both: the one given, or its own output for `text`.

    Args:
        run: A run, or the path of its folder.
        text: The text whose answer is measured.
        source: The text that values are taken from.
        target: The target, for a translator or a language model.
        by: What is patched: the residual stream after each `layer`, the output of each `attention` or `feed_forward`,
            or each `head`.
        answer: The most likely answer to the source if None.
        other: The most likely answer to the text if None.
        place: Token whose answer is measured; if None, the one the explorer shows first.
        source_run: Another run with the same tokenizer, to take values from.
        edits: Changes of the model of `run`.
        progress: Called with how much is done; True draws a bar on a terminal or in a notebook.

    Returns:
        The metric for each value and place.

    Raises:
        OptionError: If the texts have different numbers of tokens, or there is no such answer.
    """
    run = as_run(run)
    giver = run if source_run is None else as_run(source_run)
    check_changes(edits, names_of(run.model))
    check_tokenizers(run, giver)
    inputs = encode_inputs(run, check_text_or_pair("text", text), target)
    given = encode_inputs(giver, check_text_or_pair("source", source), target)
    if run.task.target == "writes":
        inputs = with_own_output(run, inputs, edits) if target is None else inputs
        given = given._replace(ids=given.ids | {"decoder": inputs.ids["decoder"]}, pieces=given.pieces | inputs.pieces)
    traced = trace_inputs(run, inputs, edits)
    from_trace = trace_inputs(giver, given, edits if giver is run else ())
    told = progress if callable(progress) else draw_bar if progress else None
    texts = as_texts(run, inputs)
    metric = choose_answers(run, traced, from_trace, answer=answer, other=other, place=place)
    return patch_traces(run, (traced, from_trace), texts, list_nodes(run.model, by), metric, progress=told)


def patch_traces(
    run: Run,
    traces: tuple[Trace, Trace],
    texts: Texts,
    rows: Sequence[NodePatch],
    metric: LogitDifference,
    *,
    progress: Progress | None = None,
) -> PatchMap:
    """Return the map of these rows over all places: a traced text, patched with values of another trace."""
    traced, source = traces
    values = read_nodes(source, rows)
    lengths = {side: len(traced.sides[side].ids) for side in traced.sides}
    nodes = at_places(rows, lengths)
    found = patch_nodes(run.model, texts, nodes, values, metric, changes=traced.changes, progress=progress)
    by_row = found.split([lengths[row.side] for row in rows])
    return PatchMap(
        before=difference(traced, metric),
        source=difference(source, metric),
        patched={row.row: part for row, part in zip(rows, by_row, strict=True)},
        answers=tuple(run.task.answer_names([int(metric.answer), int(metric.other)])),  # pyright: ignore
        place=0 if metric.place is None else int(metric.place),
        tokens={name: side.tokens for name, side in traced.sides.items()},
        nodes={row.row: row for row in rows},
        values=values,
    )


def choose_answers(
    run: Run,
    traced: Trace,
    source: Trace,
    *,
    answer: AnswerName | None = None,
    other: AnswerName | None = None,
    place: int | None = None,
) -> LogitDifference:
    """Return what is measured: an answer less another one, at a place; the likeliest of the two texts by default."""
    n = len(traced.sides[traced.answer_side].ids)
    at = first_place(run, traced) if place is None else place
    one = likeliest_at(source, at) if answer is None else find_answer(run, answer)
    two = likeliest_at(traced, at) if other is None else find_answer(run, other)
    if one == two:
        [name] = run.task.answer_names([one])
        raise OptionError(
            f"both answers at place {at} are {name!r}: there is no difference to recover; "
            "choose another place, or name two answers"
        )
    output = names_of(run.model).sides[traced.answer_side][1].spec.output
    has_place = output is not None and output.by_position
    return LogitDifference(
        answer=torch.tensor([one]), other=torch.tensor([two]), place=torch.tensor([at % n]) if has_place else None
    )


def difference(traced: Trace, metric: LogitDifference) -> float:
    """Return the metric of a traced text."""
    place = 0 if metric.place is None else int(metric.place)
    [logits] = traced.value(f"{traced.answer_side}.output.logits", slice(place, place + 1))
    return float(logits[int(metric.answer)] - logits[int(metric.other)])


def as_texts(run: Run, inputs: TraceInputs) -> Texts:
    """Return a text as circuits take it."""
    device = next(run.model.parameters()).device
    segments = None if inputs.segments is None else torch.tensor([inputs.segments], device=device)
    tokens = {side: torch.tensor([ids], device=device) for side, ids in inputs.ids.items()}
    return Texts(tokens=tokens, segments=segments)


def check_tokenizers(run: Run, giver: Run) -> None:
    """Raise if two runs do not cut texts into the same tokens."""
    own, others = run.task.tokenizers, giver.task.tokenizers
    if own.keys() != others.keys() or any(own[field].fingerprint() != others[field].fingerprint() for field in own):
        raise OptionError(
            f"{giver.folder.path} has another tokenizer than {run.folder.path}: patching goes token by token; "
            "train the two with one tokenizer"
        )


def draw_bar(done: int, of: int) -> None:
    """Draw how much is done over the line before, on a terminal or in a notebook."""
    if sys.stderr.isatty() or "ipykernel" in sys.modules:
        filled = BAR * done // of
        end = "\n" if done == of else ""
        print(f"\rpatching {'━' * filled}{'╌' * (BAR - filled)} {done:,}/{of:,}", end=end, file=sys.stderr, flush=True)


@final
@public
@dataclass(frozen=True, kw_only=True, eq=False)
class RunContrast:
    """A contrast of a run's texts, with what is compared in words."""

    contrast: Contrast
    tokens: tuple[str, ...]
    """Tokens of the first clean text, as they are shown."""
    answers: list[tuple[str, str]]
    """For each pair, the clean answer and the other."""


@public
def contrast_texts(run: Run | str | Path, texts: Sequence[str], against: Sequence[str]) -> RunContrast:
    """Return what circuits are found with: each text, the one it is patched from, and the difference of their answers.

    What is compared is the logit of the clean answer less that of the other: of a translator at the first token in
    which the two translations differ, of a language model the next token, of a text with a blank the first blank, of a
    classifier the label. The texts of a pair need as many tokens, and different answers.
    """
    run = as_run(run)
    if len(texts) != len(against) or not texts:
        raise OptionError(f"expected as many texts as texts to patch from; came {len(texts)} and {len(against)}")
    graph = Graph(run.model)
    pairs = [pair_inputs(run, clean, other) for clean, other in zip(texts, against, strict=True)]
    sides, device = list(graph.names.sides), next(run.model.parameters()).device
    rows = [{side: [inputs.ids[side] for inputs in column] for side in sides} for column in zip(*pairs, strict=True)]
    *_, last = sides
    if run.task.target == "writes":  # both read the part of the translations that is the same
        same = [first_difference(one.ids[last], two.ids[last]) for one, two in pairs]
        for column in rows:
            column[last] = [ids[:end] for ids, end in zip(column[last], same, strict=True)]
    clean, other = (pad_texts(column).map(lambda tensor: tensor.to(device)) for column in rows)
    output = graph.names.sides[last][1].spec.output
    if output is None:
        raise OptionError("this model gives vectors and no answers, so there is no difference of answers to explain")
    check_pair(run.model, clean, other)
    place = torch.tensor([place_of(run, ids) for ids in rows[0][last]], device=device) if output.by_position else None
    answers = torch.stack([likeliest(graph, batch, place) for batch in (clean, other)], 1)
    for text, (one, two) in zip(texts, answers.tolist(), strict=True):
        if one == two:
            raise OptionError(f"{text!r:.60} has the same answer as the text it is patched from: nothing to compare")
    metric = LogitDifference(answer=answers[:, 0], other=answers[:, 1], place=place)
    words = [run.task.answer_names(row) for row in answers.tolist()]
    return RunContrast(
        contrast=Contrast(graph, clean, other, metric),
        tokens=tuple(pairs[0][0].pieces[sides[0]]),
        answers=[(one, two) for one, two in words],
    )


def place_of(run: Run, ids: Sequence[int]) -> int:
    """Return the place whose answers are compared: the first blank, or the last token."""
    return (
        list(ids).index(run.tokenizer.mask) if run.task.place == "blank" and run.tokenizer.mask in ids else len(ids) - 1
    )


def pair_inputs(run: Run, clean: str, other: str) -> tuple[TraceInputs, TraceInputs]:
    """Return two texts as the model takes them, a translator's with its translations."""
    one, two = (encode_inputs(run, text) for text in (clean, other))
    if run.task.target == "writes":
        return with_own_output(run, one, ()), with_own_output(run, two, ())
    return one, two


def first_difference(one: Sequence[int], two: Sequence[int]) -> int:
    """Return the first place where two rows differ; the length of the shorter where it begins the other."""
    return next((n for n, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))


def likeliest(graph: Graph, texts: Texts, place: Tensor | None) -> Int[Tensor, "batch"]:
    """Return the likeliest answer to each text."""
    logits = run_graph(graph, texts).logits[0]
    rows = torch.arange(len(texts), device=texts.device)
    return (logits if place is None else logits[rows, place]).argmax(-1)
