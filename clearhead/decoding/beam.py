"""Beam search: the best few continuations of every sentence are kept, and compared with those that have ended."""

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, final, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor

from clearhead.decoding import beam_gpu
from clearhead.decoding.beam_state import Beam, BeamState, Step
from clearhead.decoding.history import History
from clearhead.decoding.hypotheses import ROOT, Candidates, Hypothesis, Node
from clearhead.decoding.recorded import Notes, OnDevice, is_worth_recording
from clearhead.decoding.rules import FORBIDDEN, FixedRules, Rules
from clearhead.decoding.session import Session
from clearhead.decoding.topk import top_candidates


@dataclass(frozen=True)
class Continuations:
    """The best continuations of one sentence: their totals, beams and tokens, and each beam's likeliest next tokens."""

    totals: list[float]
    beams: list[int]
    tokens: list[int]
    shown: Sequence[Candidates]

    def best_first(self) -> Iterator[tuple[float, int, int]]:
        return zip(self.totals, self.beams, self.tokens, strict=True)


class Considered(NamedTuple):
    """One step of one sentence: the beams before it, the continuations that were found, and those that go on."""

    length: int
    beams: list[Node]
    continuations: Continuations
    live: list[Node]


Watcher = Callable[[Considered], None]
"""Called with every step; it changes nothing."""


def beam_search(
    session: Session,
    prompts: Sequence[Sequence[int]],
    method: Beam,
    rules: Rules,
    candidates: int,
    *,
    watcher: Watcher | None = None,
) -> list[list[Hypothesis]]:
    """Return hypotheses of every sentence, the best first. Sentences that are done leave the session."""
    state = BeamState(len(prompts), method, rules, session.logits.shape[-1], session.device)
    if (
        not (rules.look_back or candidates or watcher)
        and is_worth_recording(rules.max_new - 1)
        and session.can_record()
    ):
        return search_on_device(session, state)
    history = History(state)
    Search(session, state, history, prompts, candidates=candidates, watcher=watcher).run()
    history.hold(state)
    return history.hypotheses(method.n_best, rules.end)


def search_on_device(session: Session, state: BeamState) -> list[list[Hypothesis]]:
    """Search in recorded steps, for a session that allows it and rules that do not look back."""
    search = BeamOnDevice(state)
    _, first = search.choose(session.log_softmax.of(session.logits))
    session.record_search(search, first).run(state.rules.max_new - 1)
    return search.hypotheses()


@final
class BeamOnDevice(OnDevice):
    """Beams that are chosen on the device. Sentences that are done stay, as dead beams, until half of all are done."""

    def __init__(self, state: BeamState) -> None:
        self.state, self.history, device = state, History(state), state.totals.device
        self.beams, self.kind = state.method.width, repr((state.method, state.rules))
        self.rules, self.by_triton = FixedRules(state.rules, device), beam_gpu.serves(state)
        self.length = torch.ones(1, dtype=torch.long, device=device)
        note = state.totals.new_zeros(len(state.totals), state.keep)
        self.notes = Notes(note, note.long(), note.long())

    def restart(self) -> None:
        self.state.restart()
        self.length.fill_(1)
        self.notes.at.zero_()

    def forget(self) -> None:
        self.history = History(self.state)

    def hypotheses(self) -> list[list[Hypothesis]]:
        self.history.hold(self.state)
        return self.history.hypotheses(self.state.method.n_best, self.state.rules.end)

    def choose(self, log_probs: Tensor) -> tuple[Tensor, Tensor]:
        advance = functools.partial(beam_gpu.advance, self.state) if self.by_triton else self.state.advance
        step = advance(self.rules.forbid(log_probs, self.length), self.length)
        self.notes.write(step.totals, step.tokens, step.parents)
        self.length += 1
        return step.origins, step.chosen

    def read(self) -> list[int]:
        self.history.add(*self.notes.read())
        return [sentence for sentence, n_beams in enumerate(self.state.count_live()) if n_beams]

    def select(self, sentences: Int[Tensor, "stays"]) -> None:
        self.history.hold(self.state)
        self.history.leave(sentences)
        self.state.select(sentences)
        self.notes.select(sentences)


@runtime_checkable
class BeamRows(Protocol):
    """The rows of a search: a session, or some rows of a larger batch."""

    logits: Tensor
    device: torch.device

    def log_probs(self, rules: Rules, so_far: Sequence[Sequence[int]]) -> Tensor: ...

    def select(self, rows: Tensor, sentences: Tensor | None = None) -> None: ...

    def extend(self, tokens: Tensor) -> Tensor: ...


@final
class Search:
    """A beam search that looks at every step on the CPU. A sentence that is done leaves the session at once."""

    def __init__(
        self,
        session: BeamRows,
        state: BeamState,
        history: History,
        prompts: Sequence[Sequence[int]],
        *,
        candidates: int,
        watcher: Watcher | None,
    ) -> None:
        self.session, self.state, self.history = session, state, history
        self.rules, self.candidates, self.prompts = state.rules, candidates, list(prompts)
        self.written = torch.zeros(len(prompts), 1, 0, dtype=torch.long, device=session.device)
        self.report = None if watcher is None else Report(watcher, self.rules, len(prompts))

    def run(self) -> None:
        for length in range(1, self.rules.max_new + 1):
            step = self.advance(length)
            live = self.state.count_live()
            if not any(live):
                break
            self.go_on(step, [i for i, n_beams in enumerate(live) if n_beams], max(live))

    def advance(self, length: int) -> Step:
        """Find the best continuations of every sentence, and let the state go on to them."""
        so_far = self.so_far()
        log_probs = self.session.log_probs(self.rules, so_far)
        likeliest = top_candidates(log_probs, self.candidates)
        if self.candidates:
            self.history.show(self.state.nodes[:, : len(likeliest) // len(self.state.nodes)], likeliest)
        step = self.state.advance(self.rules.forbid(log_probs, length - 1, so_far), length)
        self.history.add(step.totals[None], step.tokens[None], step.parents[None])
        if self.report is not None:
            self.report.tell(length, step, likeliest)
        return step

    def so_far(self) -> list[list[int]]:
        """Return the tokens of every beam, if the rules ask for them."""
        if not self.rules.look_back:
            return []
        every = zip(self.prompts, self.written.tolist(), strict=True)
        return [[*prompt, *tokens] for prompt, beams in every for tokens in beams]

    def go_on(self, step: Step, stays: list[int], n_beams: int) -> None:
        """Move the session to `n_beams` beams of each sentence that is not done."""
        origins, chosen, staying = step.origins[:, :n_beams], step.chosen[:, :n_beams], None
        count, n_before = len(origins), len(self.session.logits) // len(origins)
        if self.rules.look_back:
            before = self.written.gather(1, origins.unsqueeze(2).expand(-1, -1, self.written.shape[2]))
            self.written = torch.cat([before, chosen.unsqueeze(2)], 2)
        rows = origins
        if count > 1:
            rows = origins + torch.arange(0, count * n_before, n_before, device=origins.device).unsqueeze(1)
        if len(stays) < count:
            staying = torch.tensor(stays, device=origins.device)
            self.history.hold(self.state)
            self.history.leave(staying)
            self.state.select(staying)
            self.written, rows, chosen = self.written[staying], rows[staying], chosen[staying]
            self.prompts = [self.prompts[i] for i in stays]
            if self.report is not None:
                self.report.select(stays)
        self.session.select(rows.flatten(), staying)
        self.session.extend(chosen.flatten())


@final
class Report:
    """Calls a watcher with the beams of every sentence, as nodes."""

    def __init__(self, watcher: Watcher, rules: Rules, count: int) -> None:
        self.watcher, self.rules = watcher, rules
        self.beams: list[list[Node]] = [[ROOT] for _ in range(count)]

    def select(self, stays: Sequence[int]) -> None:
        self.beams = [self.beams[i] for i in stays]

    def tell(self, length: int, step: Step, likeliest: Sequence[Candidates]) -> None:
        """Call the watcher with every sentence's step."""
        last, n_beams = length == self.rules.max_new, len(likeliest) // len(self.beams)
        lists = (part.tolist() for part in (step.totals, step.beams, step.tokens, step.live))
        for i, (totals, beams, tokens, ranks) in enumerate(zip(*lists, strict=True)):
            continuations = Continuations(totals, beams, tokens, likeliest[i * n_beams :][:n_beams])
            before = self.beams[i]
            goes_on = [r for r in ranks if not last and totals[r] != FORBIDDEN and tokens[r] not in self.rules.end]
            live = [Node(before[beams[r]], tokens[r], totals[r], continuations.shown[beams[r]]) for r in goes_on]
            self.watcher(Considered(length, before, continuations, live))
            self.beams[i] = live
