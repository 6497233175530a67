"""Beam search on a GPU: beams are chosen there, and read from it many steps at a time."""

import functools
from typing import final

import torch
from jaxtyping import Int
from torch import Tensor

from clearhead.decoding import beam_gpu
from clearhead.decoding.beam_state import BeamState
from clearhead.decoding.history import History
from clearhead.decoding.hypotheses import Hypothesis
from clearhead.decoding.on_device import Notes, OnDevice
from clearhead.decoding.rules import FixedRules


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
