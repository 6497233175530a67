"""`trace`: a text's way through a trained model, with every number inside it.

```
trace = ch.trace(run, "zweiundvierzig")
trace.decoder[1].cross.head[3].weight       # (query, key)
```
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import torch

from clearhead.decoding import Beam, Greedy, Sample, generate
from clearhead.decoding.generating import check_request, collect, decode_on, eval_mode
from clearhead.decoding.request import Model
from clearhead.errors import OptionError
from clearhead.model.transformers import Decoder
from clearhead.tracing.decoding import trace_decoding
from clearhead.tracing.edited_decoding import EditedSession
from clearhead.tracing.edits import Change
from clearhead.tracing.trace import Answers, Candidate, Trace, trace_model
from clearhead.training.answers import token_names
from clearhead.training.run import Run
from clearhead.training.tasks.base import TraceInputs
from clearhead.training.tasks.pairs import Pair, trace_pair

__all__ = ["asked_of", "trace"]

MAX_NEW = 64
"""How much of a text is written where a method is given and the run has no end of its own."""
OWN_OUTPUT = "the target is its own greedy output"


def trace(
    run: Run,
    source: str | Pair,
    target: str | Sequence[int] | None = None,
    *,
    edits: Sequence[Change] = (),
    method: Greedy | Sample | Beam | None = None,
) -> Trace:
    """Trace a text. For a translator, `target=None` traces the model's own greedy output, and a note says so.

    A language model reads the source and, after it, the target. A model that reads two texts is given a pair of them.
    `edits` change what happens inside; an own output is then what the changed model writes. With a `method` what is
    written is traced as it was, step by step on a cache; of a beam `beams` has the trace of every output.
    """
    if method is not None:
        return written(run, source, method, target, edits)
    asked = asked_of(run, source, target)
    own = run.task.target == "writes" and target is None
    if own:
        asked = with_own_output(run, asked, edits)
    device = next(run.model.parameters()).device
    tokens = [torch.tensor([row], device=device) for row in asked.ids.values()]
    segments = None if asked.segments is None else torch.tensor([asked.segments], device=device)
    made = trace_model(run.model, *tokens, segments=segments, changes=edits, pieces=asked.pieces)
    made = named(run, made)
    return made.with_notes(OWN_OUTPUT + (", as changed" if edits else "")) if own else made


def asked_of(run: Run, source: str | Pair, target: str | Sequence[int] | None = None) -> TraceInputs:
    """Return the text as the run's model takes it; raise OptionError where it cannot be given."""
    if not isinstance(source, str):
        return trace_pair(run.task, source)
    if not source.strip() and not (run.task.target == "continues" and target):
        raise OptionError("there is no text to trace: expected one; came a blank one")
    if target is not None and run.task.target == "none":
        raise OptionError(f"{run.folder.path} was trained to {run.task.name}: its text has no target; leave it out")
    asked = run.task.trace_inputs(source, target)
    if (
        isinstance(run.model, Decoder) and "encoder" in asked.ids
    ):  # a task of encoders, on a decoder that was fine-tuned
        return TraceInputs({"decoder": asked.ids["encoder"]}, {"decoder": asked.pieces["encoder"]})
    return asked


def with_own_output(run: Run, asked: TraceInputs, edits: Sequence[Change]) -> TraceInputs:
    """Return the source with the model's greedy output for it, as the edits change it."""
    decoding = run.task.decoding(asked.ids, max_new=None, usual=MAX_NEW)
    writes, rules, prefix = decoding.writes, decoding.rules, decoding.prefix
    if not edits:
        [[found]] = generate(cast(Model, run.model), [decoding.source], Greedy(), rules=rules, prefix=prefix)
    else:
        rules = replace(rules, max_new=rules.max_new - 1)
        request = check_request(cast(Model, run.model), [decoding.source], prefix, rules, 0)
        with eval_mode(run.model):
            session = EditedSession(request, edits)
            [[found]] = collect(decode_on(session, request.prompts, Greedy(), rules, 0), 1)
    tokens = [token for token in found.tokens if token not in rules.end]
    ids = [*asked.ids["decoder"], *tokens[: run.task.context - 1]]
    return TraceInputs(asked.ids | {"decoder": ids}, asked.pieces | {"decoder": token_names(writes, ids)})


def written(
    run: Run,
    source: str | Pair,
    method: Greedy | Sample | Beam,
    target: str | Sequence[int] | None,
    edits: Sequence[Change],
) -> Trace:
    """Trace what the method writes, step by step."""
    if target is not None or edits:
        raise OptionError("a method writes the target itself, unchanged: leave out target and edits, or the method")
    if run.task.target == "none":
        raise OptionError(f"{run.folder.path} was trained to {run.task.name}, and writes nothing; leave out the method")
    asked = asked_of(run, source)
    one = run.task.decoding(asked.ids, max_new=None, usual=MAX_NEW)
    prefix = None if one.prefix is None else one.prefix[0]
    found = trace_decoding(run.model, one.source, method, rules=one.rules, prefix=prefix)  # type: ignore[arg-type]
    traces = []
    for made in found:
        sides = made.trace.sides
        pieces = asked.pieces | {"decoder": token_names(one.writes, sides["decoder"].ids)}
        sides = {name: replace(side, tokens=pieces[name]) for name, side in sides.items()}
        traces.append(named(run, replace(made.trace, sides=sides)))
    return replace(traces[0], beams=tuple(traces) if isinstance(method, Beam) else ())


def named(run: Run, made: Trace) -> Trace:
    """Return the trace with the run's task, and its words for what the model may answer."""

    def candidates() -> list[list[Candidate]]:
        found = made.answers.likeliest
        ids = sorted({one.id for row in found for one in row})
        text = dict(zip(ids, run.task.answer_names(ids), strict=True))
        return [[one._replace(text=text[one.id]) for one in row] for row in found]

    return replace(made, task=run.task.name, answers=Answers(candidates))
