"""`patch`: activation patching over all layers, or heads, and places of a text.

```
found = ch.patch(run, "the cat eats the plum", "the dog eats the plum", by="head")
found.best[0]                                # the row, the place, and how much of the difference it recovers
ch.trace(run, "the cat eats the plum", edits=[found.edit(*found.best[0][:2])])
```
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from clearhead.calls import public
from clearhead.circuits.metrics import LogitDifference
from clearhead.circuits.nodes import NodeKind, NodePatch, Progress, at_places, list_nodes, patch_nodes, read_nodes
from clearhead.circuits.patch_map import PatchMap
from clearhead.circuits.texts import Texts
from clearhead.errors import OptionError
from clearhead.tracing.edits import Change, TextChange, check_changes
from clearhead.tracing.names import names_of
from clearhead.tracing.trace import Trace
from clearhead.training.attribution import AnswerName, find_answer, first_place, likeliest_at
from clearhead.training.run import Run, as_run
from clearhead.training.tasks.pairs import Pair
from clearhead.training.tasks.showing import TraceInputs
from clearhead.training.tracing import encode_inputs, trace_inputs, with_own_output
from clearhead.training.verbs import check_text_or_pair

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
    """Run a text once for each value and place, with that value as it is in the text `source` (activation patching).

    `by` says what is patched: the residual stream after each `layer`, what each `attention` or `feed_forward` adds to
    it, or each `head`. What is measured is the logit of `answer` less that of `other` at `place`: without them, the
    likeliest answer to the source less the likeliest to the text, where the explorer looks first. Both texts need as
    many tokens; a translator reads the same target in both, its own output for `text` unless one is given.
    `source_run` takes the values from another run with the same tokenizer; `edits` change the model of `run`.
    `progress` is told how much is done; True draws a bar on a terminal or in a notebook.
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
            f"both answers at place {at} are {name!r}: there is no difference to recover; give other ones"
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
    """Raise where two runs do not cut texts into the same tokens."""
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
