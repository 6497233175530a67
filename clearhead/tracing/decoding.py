"""Tracing what is written with a cache: each step as it ran, each output with the history that is its own.

In a beam rows change places at every step: an output's keys of one step stand in another row than those of the next.
The log keeps, for each step, what every row gave and which row it came from, and follows an output back to the prompt.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, final

import torch
from torch import Tensor

from clearhead.attention.inputs import AttentionInputs
from clearhead.attention.layer import Attention
from clearhead.attention.score_index import Positions
from clearhead.decoding.beam import Beam, beam_search
from clearhead.decoding.caches import Source
from clearhead.decoding.generating import check_request, collect, decode_on, eval_mode
from clearhead.decoding.hypotheses import Hypothesis
from clearhead.decoding.request import Model, Request
from clearhead.decoding.rules import Rules
from clearhead.decoding.sampling import Chooser
from clearhead.decoding.session import Session, open_session
from clearhead.model.transformers import Decoder
from clearhead.taps import watching
from clearhead.tracing.names import Names, sides_of
from clearhead.tracing.recording import Passed, Record, recording
from clearhead.tracing.trace import Trace, recorded

__all__ = ["Written", "trace_decoding"]


class Written(NamedTuple):
    """An output, and the trace of the steps that wrote it."""

    hypothesis: Hypothesis
    trace: Trace


@final
@dataclass
class Step:
    """One step of a session: what was tapped, by path; the tokens every row was given; the rows they came from."""

    tapped: dict[str, Tensor] = field(default_factory=dict)
    given: list[list[int]] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)


@final
class Log:
    """The steps of a session, the prompt's first."""

    def __init__(self) -> None:
        self.steps = [Step()]
        self.moved: list[int] | None = None

    def watch(self, path: str, value: Tensor) -> None:
        self.steps[-1].tapped.setdefault(path, value)

    def move(self, rows: Tensor) -> None:
        rows_now = rows.tolist()
        self.moved = rows_now if self.moved is None else [self.moved[row] for row in rows_now]

    def begin(self, tokens: Tensor) -> None:
        """A step in which each row is given one more token."""
        n_rows = len(tokens)
        self.steps.append(Step(given=[[token] for token in tokens.tolist()], parents=self.moved or list(range(n_rows))))
        self.moved = None

    def rows_of(self, tokens: Sequence[int]) -> list[int]:
        """The row at each step whose history is the prompt and then these tokens."""
        last = self.steps[len(tokens)]
        for row in range(max(1, len(last.given))):
            rows = self.back(len(tokens), row)
            if all(self.steps[i + 1].given[rows[i + 1]] == [token] for i, token in enumerate(tokens)):
                return rows
        raise AssertionError("an output that no row wrote")

    def back(self, step: int, row: int) -> list[int]:
        rows = [row]
        for number in range(step, 0, -1):
            rows.append(self.steps[number].parents[rows[-1]])
        return rows[::-1]

    def joined(self, path: str, rows: Sequence[int], axis: int) -> Tensor:
        """What passed there in these rows, one step after another along the axis."""
        steps = zip(self.steps, rows, strict=False)
        return torch.cat([step.tapped[path][row : row + 1] for step, row in steps], axis)


class LoggedSession(Session):
    """A session that tells a log what becomes of its rows."""

    def __init__(
        self, log: Log, decoder: Decoder, prompts: Sequence[Sequence[int]], source: Source | None, n_new: int
    ) -> None:
        self.log = log
        super().__init__(decoder, prompts, source, n_new)

    def extend(self, tokens: Tensor) -> Tensor:
        self.log.begin(tokens)
        return super().extend(tokens)

    def select(self, rows: Tensor, sentences: Tensor | None = None) -> None:
        self.log.move(rows)
        super().select(rows, sentences)


def trace_decoding(
    model: Model,
    inputs: Sequence[int],
    method: Chooser | Beam,
    *,
    rules: Rules,
    prefix: Sequence[int] | None = None,
) -> list[Written]:
    """What the model writes for one row of ids, as `clearhead.generate` does it, and the trace of every output."""
    request = check_request(model, [list(inputs)], None if prefix is None else [list(prefix)], rules, 0)
    log = Log()
    with eval_mode(model), recording(model) as record, watching(request.decoder, log.watch):
        make = functools.partial(LoggedSession, log)
        session = open_session(request.model, request.inputs, request.prompts, rules.max_new, make)
        found = searched(session, request.prompts, method, rules)
    return [Written(one, history(request, log, record, one)) for one in found]


def searched(
    session: Session, prompts: Sequence[Sequence[int]], method: Chooser | Beam, rules: Rules
) -> list[Hypothesis]:
    if isinstance(method, Beam):
        return beam_search(session, prompts, method, rules, 0)[0]
    return collect(decode_on(session, prompts, method, rules, 0), 1)[0]


def history(request: Request, log: Log, record: Record, one: Hypothesis) -> Trace:
    """The trace of an output: the encoder's record, and the decoder's steps in the rows that wrote it.

    The last token was chosen, and never read.
    """
    names, read = Names(request.model), one.tokens[:-1]
    rows, own = log.rows_of(read), len(sides_of(request.model)["decoder"][0])
    sites = dict(record.sites)
    for name, layer in names.sites.items():
        if name not in sites:
            sites[name] = passed(log, names.paths[name][own:], rows, layer, cross=name.endswith(".cross"))
    stream = {name: value for name, value in record.stream.items() if not name.startswith("decoder.")}
    for path, name in names.stream.items():
        if name not in stream:
            stream[name] = log.joined(path[own:], rows, 1)
    ids = {"encoder": request.inputs[0], "decoder": [*request.prompts[0], *read]}
    return recorded(request.model, Record(sites, stream), ids).noted("written with a cache, token by token")


def passed(log: Log, path: str, rows: Sequence[int], layer: Attention, *, cross: bool) -> Passed:
    """One attention over all the steps of an output. The source's keys and values were made in the first of them."""
    query, context = (log.joined(f"{path}.{role}", rows, 2) for role in ("query", "context"))
    first = rows[:1] if cross else rows
    key, value = (log.joined(f"{path}.{role}", first, 2) for role in ("key", "value"))
    places = [torch.arange(vectors.shape[2], device=query.device) for vectors in (query, key)]
    call = AttentionInputs(
        query=layer.position.turn(query, places[0]),
        key=layer.position.turn(key, places[1]),
        value=value,
        similarity=layer.similarity,
        weighting=layer.weighting,
        position=layer.position,
        mask=layer.mask,
        given_positions=Positions(*places) if cross and layer.uses_positions else None,
    )
    projected = (query, key) if layer.position.turns else None
    return Passed(call=call, context=context, kernel="cached", projected=projected)
