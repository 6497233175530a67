"""The explorer: a run, the traces of it that are kept, and the questions about them. It knows nothing of HTTP."""

import copy
from dataclasses import replace
from typing import Protocol, TypeVar, runtime_checkable

from clearhead.errors import ClearheadError
from clearhead.lru_cache import LRUCache
from clearhead.serve.budget import AnswerBudget
from clearhead.serve.costs import ModelCosts
from clearhead.serve.curves import Curves
from clearhead.serve.edit_json import weightings
from clearhead.serve.traced import Traced
from clearhead.training.run import Run, load

Answer = TypeVar("Answer")
Given_co = TypeVar("Given_co", covariant=True)
TRACES = 28
"""The most traces in the cache: one text at every step of a film, and a few more."""
OTHERS = 24
"""The most checkpoints and frames of the film that are loaded beside the run's own weights."""
OTHERS_SHARE = 4
"""They take at most one part in so many of the memory, and cached traces what they leave."""


class GoneError(ClearheadError):
    """A trace that is no longer cached."""


@runtime_checkable
class Answerable(Protocol[Given_co]):
    """A question that answers itself: those of the page are in `clearhead.serve.questions`."""

    def answer(self, explorer: "Explorer") -> Given_co: ...


class Explorer:
    """A run to be explored: `ask` answers a question, or raises a ClearheadError.

    `beside` is a second run to compare it with, which the same server answers for.
    """

    def __init__(self, run: Run, budget: AnswerBudget = AnswerBudget(), *, beside: "Explorer | None" = None) -> None:
        self.run, self.budget, self.beside = run, budget, beside
        self.costs = ModelCosts(run.model)
        self.metrics = Curves(run.folder.metrics)
        self.others = LRUCache[int, Run](most=OTHERS, room=budget.memory // OTHERS_SHARE, size=model_bytes)
        self.traces = LRUCache[str, Traced](most=TRACES, room=budget.memory, size=lambda traced: traced.nbytes)
        self.weightings = list(weightings())
        self.device = str(next(run.model.parameters()).device)

    def ask(self, question: Answerable[Answer]) -> Answer:
        return question.answer(self)

    def at(self, step: int | None) -> Run:
        """Return the run with the weights of a checkpoint, or of a frame of its film; its own where none is named."""
        if step is None or step == self.run.step:
            return self.run
        other = self.others.get_or_make(step, lambda: load(self.run.folder.path, device=self.device, step=step))
        # A cached trace holds its model: without this, a model that was dropped would stay in memory.
        loaded = list(self.others.values.values())
        loaded_ids = {id(run) for run in (self.run, *loaded)}
        self.traces.keep_only(lambda traced: id(traced.run) in loaded_ids)
        self.traces.room = self.budget.memory - sum(map(model_bytes, loaded))
        return other

    def find_trace(self, name: str) -> Traced:
        traced = self.traces.get(name)
        if traced is None:
            raise GoneError("this trace is no longer kept: ask for it again, and it is made anew")
        return traced


def with_own_modules(run: Run) -> Run:
    """Return the run with other modules around the same weights.

    A trace replaces values in modules, for every thread that calls them: an API that serves the run beside the explorer
    would answer as the changed model does.
    """
    tensors = {id(tensor): tensor for tensor in (*run.model.parameters(), *run.model.buffers())}
    return Run(run.folder, run.task, copy.deepcopy(run.model, tensors), run.step)


def side_by_side(run: Run, other: Run, budget: AnswerBudget = AnswerBudget()) -> Explorer:
    """Return the explorer of a run with another one beside it; each has half of the memory."""
    half = replace(budget, memory=budget.memory // 2)
    return Explorer(run, half, beside=Explorer(other, half))


def model_bytes(run: Run) -> int:
    return sum(tensor.nbytes for tensor in run.model.state_dict().values())
