"""`trace`: a text's way through a trained model, with every number inside it.

```
trace = ch.trace(run, "zweiundvierzig")
trace.decoder[1].cross.head[3].weight       # (query, key)
ch.experiments.align(run, "die Katze schläft", "the cat sleeps")      # word alignments, in Moses format: 0-0 1-1 2-2
```
"""

import functools
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.calls import public
from clearhead.decoding import Beam, Greedy, Sample, generate
from clearhead.decoding.generating import decode
from clearhead.decoding.request import Model, check_request
from clearhead.decoding.rules import USUAL_NEW
from clearhead.errors import OptionError
from clearhead.text.tokenizer import Span
from clearhead.tracing import inner, names
from clearhead.tracing.decoding import EditedSession, trace_decoding
from clearhead.tracing.edits import Change, TextChange, check_changes
from clearhead.tracing.site import Site
from clearhead.tracing.trace import Answers, Candidate, Trace, trace_model
from clearhead.training.run import Run, as_run
from clearhead.training.tasks import Translate
from clearhead.training.tasks.answering import Pair, check_text_or_pair, token_names
from clearhead.training.tasks.base import TraceInputs, trace_pair

OWN_OUTPUT = "the target is its own greedy output"


@public
def trace(
    run: Run | str | Path,
    source: str | Pair,
    target: str | Sequence[int] | None = None,
    *,
    edits: Sequence[Change | TextChange] = (),
    method: Greedy | Sample | Beam | None = None,
) -> Trace:
    """Trace a text: keep every inner value of one forward pass, by name.

    Args:
        run: A run, or the path of its folder.
        source: The text; a pair of texts for a model that reads two.
        target: For a translator, the target; None traces its own greedy output, and a note tells you. A language model
            reads it after the source.
        edits: Changes of values (`Edit`, `Swap`) or of edges (`clearhead.circuits.EdgeEdit`). With edits and no target,
            the edited model's own output is traced.
        method: Trace decoding step by step as it ran on the KV cache. For beam search, `trace.beams` holds one trace
            per output.

    Returns:
        The trace.

    Raises:
        OptionError: If an edit names something that does not exist, or a text does not fit the run.
    """
    run = as_run(run)
    source = check_text_or_pair("source", source)
    check_changes(edits, names.names_of(run.model))
    if method is not None:
        return trace_decoded(run, source, method, target, edits)
    inputs = encode_inputs(run, source, target)
    own_output = run.task.target == "writes" and target is None
    if own_output:
        inputs = with_own_output(run, inputs, edits)
    traced = trace_inputs(run, inputs, edits)
    return traced.with_notes(OWN_OUTPUT + (", as changed" if edits else "")) if own_output else traced


def trace_inputs(run: Run, inputs: TraceInputs, edits: Sequence[Change | TextChange] = ()) -> Trace:
    """Trace a text that is encoded already."""
    device = next(run.model.parameters()).device
    tokens = [torch.tensor([row], device=device) for row in inputs.ids.values()]
    segments = None if inputs.segments is None else torch.tensor([inputs.segments], device=device)
    traced = trace_model(run.model, *tokens, segments=segments, changes=edits, pieces=inputs.pieces)
    return with_names(run, traced)


def encode_inputs(run: Run, source: str | Pair, target: str | Sequence[int] | None = None) -> TraceInputs:
    """Return the text as the run's model takes it; raise OptionError if it cannot be given."""
    if not isinstance(source, str):
        return trace_pair(run.task, source)
    if not source.strip() and not (run.task.target == "continues" and target):
        raise OptionError("there is no text to trace: expected one; came a blank one")
    if target is not None and run.task.target == "none":
        raise OptionError(f"{run.folder.path} was trained to {run.task.name}: its text has no target; leave it out")
    inputs = run.task.trace_inputs(source, target)
    if run.model.encoder is None and "encoder" in inputs.ids:  # a decoder fine-tuned for a task of encoders
        return TraceInputs({"decoder": inputs.ids["encoder"]}, {"decoder": inputs.pieces["encoder"]})
    return inputs


def with_own_output(run: Run, inputs: TraceInputs, edits: Sequence[Change | TextChange]) -> TraceInputs:
    """Return the source with the model's greedy output for it, as the edits change it."""
    decoding = run.task.decoding(inputs.ids, max_new=None, usual=USUAL_NEW)
    writes, rules, prefix = decoding.writes, decoding.rules, decoding.prefix
    if not edits:
        [[hypothesis]] = generate(cast(Model, run.model), [decoding.source], Greedy(), rules=rules, prefix=prefix)
    else:
        rules = replace(rules, max_new=rules.max_new - 1)
        request = check_request(cast(Model, run.model), [decoding.source], prefix, rules, 0)
        [[hypothesis]] = decode(request, Greedy(), rules, 0, make_session=functools.partial(EditedSession, edits))
    tokens = [token for token in hypothesis.tokens if token not in rules.end]
    ids = [*inputs.ids["decoder"], *tokens[: run.task.context - 1]]
    return TraceInputs(inputs.ids | {"decoder": ids}, inputs.pieces | {"decoder": token_names(writes, ids)})


def trace_decoded(
    run: Run,
    source: str | Pair,
    method: Greedy | Sample | Beam,
    target: str | Sequence[int] | None,
    edits: Sequence[Change | TextChange],
) -> Trace:
    """Trace what the method writes, step by step."""
    if target is not None or edits:
        raise OptionError("a method writes the target itself, unchanged: leave out target and edits, or the method")
    if run.task.target == "none":
        raise OptionError(f"{run.folder.path} was trained to {run.task.name}, and writes nothing; leave out the method")
    inputs = encode_inputs(run, source)
    decoding = run.task.decoding(inputs.ids, max_new=None, usual=USUAL_NEW)
    prefix = None if decoding.prefix is None else decoding.prefix[0]
    decoded = trace_decoding(run.model, decoding.source, method, rules=decoding.rules, prefix=prefix)  # type: ignore[arg-type]
    traces = []
    for traced in decoded:
        sides = traced.trace.sides
        pieces = inputs.pieces | {"decoder": token_names(decoding.writes, sides["decoder"].ids)}
        sides = {name: replace(side, tokens=pieces[name]) for name, side in sides.items()}
        traces.append(with_names(run, replace(traced.trace, sides=sides)))
    return replace(traces[0], beams=() if method.streams else tuple(traces))


def with_names(run: Run, trace: Trace) -> Trace:
    """Return the trace with the run's task, and its words for what the model may answer."""

    def candidates() -> list[list[Candidate]]:
        likeliest = trace.answers.likeliest
        ids = sorted({candidate.id for row in likeliest for candidate in row})
        text = dict(zip(ids, run.task.answer_names(ids), strict=True))
        return [[candidate._replace(text=text[candidate.id]) for candidate in row] for row in likeliest]

    return replace(trace, task=run.task.name, answers=Answers(candidates))


WORD = re.compile(r"\S+")
UNITS = ("words", "tokens")


class Alignment(NamedTuple):
    """Pairs of a source and a target number, in the order of the target; printed, they are in Moses format."""

    pairs: tuple[tuple[int, int], ...]

    def __str__(self) -> str:
        return " ".join(f"{source}-{target}" for source, target in self.pairs)


@public
def align(
    run: Run | str | Path,
    source: str,
    target: str | None = None,
    *,
    layer: int | None = None,
    head: int | None = None,
    by: str = "words",
) -> Alignment:
    """Return, for each word of the target, the source word that its cross-attention weighs most.

    The weights of a target token are those of the step that writes it. Special tokens of the source are left out. By
    words, weights are added over the tokens of a source word and averaged over the tokens of a target word. A text
    longer than the model reads is cut.

    Args:
        run: A translator, or the path of its folder.
        source: The source.
        target: The target; the model's translation if None.
        layer: Layer whose weights count, from 0; the mean of all if None.
        head: Head whose weights count, from 0; the mean of all if None.
        by: `words`, separated by white space, or `tokens`.

    Returns:
        Pairs of numbers; printed, they are in Moses format.

    Raises:
        OptionError: If `by` is unknown, or there is no such layer or head.
    """
    run = as_run(run)
    task = run.asked(Translate)
    if by not in UNITS:
        raise OptionError(f"by: alignments are of {' or '.join(UNITS)}; came {by!r}")
    texts = {"source": source, "target": run.translate([source])[0] if target is None else target}
    spans = {field: task.tokenizers[field].spans(text)[: task.reads] for field, text in texts.items()}
    if not spans["source"] or not spans["target"]:
        return Alignment(())
    ids = {field: [span.id for span in tokens] for field, tokens in spans.items()}
    frames = {field: task.frame(field) for field in ids}
    rows = frames["source"].around(ids["source"]), [*frames["target"].before, *frames["target"].opening, *ids["target"]]
    device = next(run.model.parameters()).device
    traced = trace_model(run.model, *(torch.tensor([row], device=device) for row in rows))
    weight = mean_weight([site for name, site in traced.sites.items() if name.endswith(".cross")], layer, head)
    first_key = len(frames["source"].before) + len(frames["source"].opening)
    first_query = len(rows[1]) - len(ids["target"]) - 1  # the position before a token is the one that predicts it
    weight = weight[first_query : first_query + len(ids["target"]), first_key : first_key + len(ids["source"])]
    if by == "words":
        read, written = (word_matrix(texts[field], tokens).to(weight) for field, tokens in spans.items())
        weight = written.T @ weight @ read / written.sum(0).clamp(min=1).unsqueeze(1)
    best = weight.argmax(-1).tolist()
    return Alignment(tuple((key, query) for query, key in enumerate(best) if weight[query, key] > 0))


def mean_weight(sites: Sequence[Site], layer: int | None, head: int | None) -> Float[Tensor, "query key"]:
    """Return the weights of one head, or the mean over heads or layers that are not named."""
    for name, number, count in (("layer", layer, len(sites)), ("head", head, min(site.n_heads for site in sites))):
        if number is not None and not 0 <= number < count:
            raise OptionError(f"{name}: there are {count}, counted from 0; came {number}")
    chosen = sites if layer is None else [sites[layer]]
    weights = [inner.site_value(site, "weight").float() for site in chosen]
    return torch.stack([every.mean(0) if head is None else every[head] for every in weights]).mean(0)


def word_matrix(text: str, spans: Sequence[Span]) -> Float[Tensor, "token word"]:
    """Return 1 where a token is of a word, each token of the first word that it has characters of."""
    words = [match.span() for match in WORD.finditer(text)]
    matrix = torch.zeros(len(spans), len(words))
    for row, span in zip(matrix, spans, strict=True):
        inside = (number for number, (start, stop) in enumerate(words) if span.start < stop and span.stop > start)
        if (word := next(inside, None)) is not None:
            row[word] = 1
    return matrix
