"""Trace decoding with a KV cache: each step as it ran, each output with its own history.

In a beam, rows change places at every step: the keys of an output at one step are in another row than at the next. The
log has, for each step, what every row computed and which row it came from, and follows an output back to the prompt.

Decoding with an edited model: the same steps as `clearhead.generate`, while edits act inside the model.

A KV cache holds what earlier steps computed, one query at a time, and an edit may name any query, key or weight of the
whole text. So there is no cache: every step reads the whole text again, as a trace of it would. An edit of a place that
is not decoded yet waits until it is.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.attention.inputs import AttentionInputs
from clearhead.attention.layer import Attention
from clearhead.attention.score_index import Positions
from clearhead.decoding import Hypothesis, Rules
from clearhead.decoding.caches import Guest
from clearhead.decoding.clock import SessionSize
from clearhead.decoding.generating import decode, eval_mode
from clearhead.decoding.method import DecodingMethod
from clearhead.decoding.prefix_cache import Memory
from clearhead.decoding.request import Model, Request, check_request
from clearhead.decoding.session import Prefill, Session
from clearhead.taps import watching
from clearhead.tracing.edits import Change, TextChange, changes_for
from clearhead.tracing.names import Names, sides_of
from clearhead.tracing.recording import RecordedAttention, Recording, recording
from clearhead.tracing.site import overflow_of
from clearhead.tracing.trace import Trace, make_trace


class TracedHypothesis(NamedTuple):
    """An output, and the trace of the steps that decoded it."""

    hypothesis: Hypothesis
    trace: Trace


@dataclass
class LoggedStep:
    """A step of a session: tapped values by path, the token every row was given, and the rows they came from."""

    tapped: dict[str, Tensor] = field(default_factory=dict)
    given: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)


class Log:
    """The steps of a session. The first reads the prompt except its last token, which the second is given."""

    def __init__(self) -> None:
        self.steps = [LoggedStep()]
        self.moved: dict[int, int] = {}

    def watch(self, path: str, value: Tensor) -> None:
        self.steps[-1].tapped.setdefault(path, value)

    def begin_step(self, tokens: Tensor) -> None:
        """Begin a step in which each row is given one more token."""
        given = tokens.tolist()
        # The prompt is one row, whatever slots go on from it.
        parents = [0 if len(self.steps) == 1 else self.moved.get(row, row) for row in range(len(given))]
        self.steps.append(LoggedStep(given=given, parents=parents))
        self.moved = {}

    def rows_of(self, tokens: Sequence[int]) -> list[int]:
        """Return the row at each step whose history is the prompt and then these tokens."""
        for row in range(len(self.steps[len(tokens) + 1].given)):
            rows = self.trace_back(len(tokens) + 1, row)
            if all(self.steps[i + 2].given[rows[i + 2]] == token for i, token in enumerate(tokens)):
                return rows
        raise AssertionError("an output that no row wrote")

    def trace_back(self, step: int, row: int) -> list[int]:
        rows = [row]
        for number in range(step, 0, -1):
            rows.append(self.steps[number].parents[rows[-1]])
        return rows[::-1]

    def join(self, path: str, rows: Sequence[int], axis: int) -> Tensor:
        """Return what was tapped at a path in these rows, one step after another along the axis."""
        steps = [(step.tapped, row) for step, row in zip(self.steps, rows, strict=False) if path in step.tapped]
        return torch.cat([tapped[path][row : row + 1] for tapped, row in steps], axis)


class LoggedSession(Session):
    """A session that reports to a log what becomes of its rows."""

    def __init__(self, log: Log, model: Model, size: SessionSize) -> None:
        self.log = log
        super().__init__(model, size)

    def compute_step(self) -> Tensor:
        self.log.begin_step(self.tokens[: self.clock.rows])
        return super().compute_step()

    def copy_written(self, origins: Sequence[int], slots: Sequence[int]) -> None:
        self.log.moved |= zip(slots, origins, strict=True)
        super().copy_written(origins, slots)


def trace_decoding(
    model: Model,
    inputs: Sequence[int],
    method: DecodingMethod,
    *,
    rules: Rules,
    prefix: Sequence[int] | None = None,
) -> list[TracedHypothesis]:
    """Return the outputs that `clearhead.generate` gives for one row of ids, each with its trace."""
    request = check_request(model, [list(inputs)], None if prefix is None else [list(prefix)], rules, 0)
    log = Log()
    with eval_mode(model), recording(model) as record, watching(request.decoder, log.watch):
        [hypotheses] = decode(request, method, rules, 0, make_session=functools.partial(LoggedSession, log))
    return [TracedHypothesis(hypothesis, history(request, log, record, hypothesis)) for hypothesis in hypotheses]


def history(request: Request, log: Log, record: Recording, hypothesis: Hypothesis) -> Trace:
    """Return the trace of an output: the encoder's record, and the decoder's steps in the rows that decoded it.

    The last token was chosen, and never read.
    """
    names, read = Names(request.model), hypothesis.tokens[:-1]
    rows, prefix = log.rows_of(read), len(sides_of(request.model)["decoder"][0])
    sites = dict(record.sites)
    for name, layer in names.sites.items():
        if name not in sites:
            sites[name] = join_attention(log, names.paths[name][prefix:], rows, layer, cross=name.endswith(".cross"))
    stream = {name: value for name, value in record.stream.items() if not name.startswith("decoder.")}
    for path, name in names.stream.items():
        if name not in stream:
            stream[name] = log.join(path[prefix:], rows, 1)
    ids = {"encoder": request.inputs[0], "decoder": [*request.prompts[0], *read]}
    return make_trace(request.model, Recording(sites, stream), ids).with_notes("written with a cache, token by token")


def join_attention(log: Log, path: str, rows: Sequence[int], layer: Attention, *, cross: bool) -> RecordedAttention:
    """Return one attention over all steps of an output. The source's keys and values were made in the first."""
    query, context = (log.join(f"{path}.{role}", rows, 2) for role in ("query", "context"))
    first = rows[:1] if cross else rows
    key, value = (log.join(f"{path}.{role}", first, 2) for role in ("key", "value"))
    positions = [torch.arange(vectors.shape[2], device=query.device) for vectors in (query, key)]
    call = AttentionInputs(
        query=layer.position.turn(query, positions[0]),
        key=layer.position.turn(key, positions[1]),
        value=value,
        similarity=layer.similarity,
        weighting=layer.weighting,
        position=layer.position,
        mask=layer.mask,
        given_positions=Positions(*positions) if cross and layer.uses_positions else None,
    )
    projected = (query, key) if layer.position.turns else None
    return RecordedAttention(call=call, context=context, kernel="cached", projected=projected)


class EditedSession(Session):
    """The rows of one input being continued, each read from its beginning at every step, under the changes."""

    def __init__(self, changes: Sequence[Change | TextChange], model: Model, size: SessionSize) -> None:
        super().__init__(model, size)
        self.model, self.changes = model, changes
        self.texts: Int[Tensor, "slot column"] = self.tokens.new_zeros(size.slots, size.columns)
        self.source: list[Tensor] = []

    def open_prefill(
        self,
        prompts: Sequence[Sequence[int]],
        inputs: Sequence[Sequence[int]],
        at_once: int,
        begun: Memory | None = None,
        adapters: Sequence[int] = (),
    ) -> "EditedPrompt":
        assert len(prompts) == 1, "edits name places of one text"
        self.source = [] if self.encoder is None else [torch.tensor(inputs, device=self.device)]
        return EditedPrompt(torch.tensor(prompts, device=self.device)[:, :-1])

    def join(self, prefill: Prefill, guests: Sequence[Guest]) -> None:
        self.texts[:, : prefill.tokens.shape[1]] = prefill.tokens

    def copy_written(self, origins: Sequence[int], slots: Sequence[int]) -> None:
        self.texts[list(slots)] = self.texts[list(origins)]

    def compute_step(self) -> Float[Tensor, "row vocabulary"]:
        """Return the logits of the next token of every row."""
        last = int(self.clock.at[0])
        self.texts[:, last] = self.tokens
        rows = self.texts[: self.clock.rows, : last + 1]
        source = [tokens.expand(len(rows), -1) for tokens in self.source]
        changes = changes_for(self.changes, self.model, [*source, rows])
        reaching = [change for change in changes if change.reaches(last + 1)]
        with recording(self.model, reaching):
            logits = self.model(*source, rows)[:, -1]
        if reaching and not bool(logits.isfinite().all()):
            raise overflow_of("decoder.output.logits", logits.dtype)
        self.clock.at += self.moves
        return logits


class EditedPrompt(Prefill):
    """A prompt that is read in every step, and so is not read before."""

    def __init__(self, tokens: Int[Tensor, "row n"]) -> None:
        self.tokens, self.source_tokens = tokens, 0

    @property
    def done(self) -> bool:
        return True
