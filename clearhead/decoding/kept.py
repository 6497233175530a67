"""One sentence after another on a GPU: a translation that is recorded once, and kept for the next as long.

To open a session and to record a step takes as long as forty tokens of a base model. So the second sentence of a length
is translated in recorded work that stays: the encoder with the keys and values for cross-attention, and the step. The
next of that length is copied into its memory, and replayed.

What is recorded reads the weights where they are, and some of them packed. It is used only as long as nothing that the
model holds has been replaced or changed (`Snapshot`).
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from operator import is_
from typing import Any, final
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from clearhead.attention.modes import autocast_enabled
from clearhead.decoding import recorded
from clearhead.decoding.beam import BeamOnDevice
from clearhead.decoding.beam_state import Beam, BeamState
from clearhead.decoding.greedy import Likeliest
from clearhead.decoding.hypotheses import Hypothesis
from clearhead.decoding.recorded import OnDevice
from clearhead.decoding.request import Request
from clearhead.decoding.rules import Rules
from clearhead.decoding.sampling import Greedy
from clearhead.decoding.session import Session
from clearhead.model.fast_step import is_observed
from clearhead.model.transformers import EncoderDecoder
from clearhead.registry import is_built_in

__all__ = ["translate_again", "translate_once"]

Method = Greedy | Beam
MOST_LENGTHS = 32
"""Translations kept for a model: one for each length of a source, method and rules."""
MOST_COLUMNS = 512
"""Tokens that an output may have: memory for all of them is there from the start."""


def things_in(model: nn.Module) -> list[Any]:
    """Return all that the modules of a model hold: parameters, modules, hooks and every other attribute."""
    found: list[Any] = []
    modules = [model]
    while modules:
        module = modules.pop()
        for value in vars(module).values():
            found.append(value)
            if isinstance(value, dict):
                found.extend(value.values())
        modules.extend(child for child in module._modules.values() if child is not None)
    return found


@final
class Snapshot:
    """What a model held, and how often each of its parameters had been written."""

    def __init__(self, model: nn.Module) -> None:
        self.things = things_in(model)
        self.tensors = [one for one in self.things if isinstance(one, Tensor)]
        # The memory is held: what lies at the same address later is the same memory.
        self.memory = [one.detach() for one in self.tensors]
        self.state = self.state_of_tensors()

    def state_of_tensors(self) -> list[tuple[int, int]]:
        return [(one.data_ptr(), one._version) for one in self.tensors]

    def holds(self, model: nn.Module) -> bool:
        """Check that the model is as it was."""
        things = things_in(model)
        return (
            len(things) == len(self.things)
            and all(map(is_, things, self.things))
            and self.state_of_tensors() == self.state
        )


@final
class Translation:
    """Translation of one source of fixed length, greedy or by beams, in memory of its own.

    It may not hold the model, only parts of it: `KEPT` would keep a model that nobody else holds.
    """

    def __init__(self, model: EncoderDecoder, session: Session, n_source: int, method: Method, rules: Rules) -> None:
        device = session.device
        self.max_new, self.search = rules.max_new, make_search(session, method, rules)
        self.source = torch.zeros(1, n_source, dtype=torch.long, device=device)
        self.first = torch.zeros(1, self.search.beams, dtype=torch.long, device=device)
        session.caches.fix(self.search.beams, recorded.find_columns(rules.max_new))
        steps = session.record_search(self.search, self.first)

        def begin() -> None:
            session.caches.refill(model.decoder.stack, model.encoder(self.source))
            self.search.restart()
            steps.tokens.copy_(self.first.view_as(steps.tokens))

        begin()  # what is recorded must have run before
        steps.work()
        self.begin: Callable[[], None] = recorded.record(begin)
        self.step: Callable[[], None] = recorded.record(steps.work)
        self.held = steps  # a recording does not hold the memory that it reads

    def run(self, source: Sequence[int], prompt: Sequence[int]) -> list[Hypothesis]:
        self.source.copy_(torch.tensor([source]))
        self.first.fill_(prompt[0])
        self.begin()
        self.search.forget()
        for done in range(0, self.max_new, recorded.AT_ONCE):
            for _ in range(min(recorded.AT_ONCE, self.max_new - done)):
                self.step()
            if not self.search.read():
                break
        return self.search.found()[0]


def make_search(session: Session, method: Method, rules: Rules) -> OnDevice:
    if isinstance(method, Greedy):
        return Likeliest(session.kept.of(session.logits), rules)
    return BeamOnDevice(BeamState(1, method, rules, session.logits.shape[-1], session.device))


@final
class Kept:
    """The translations of a model as it is."""

    def __init__(self, model: nn.Module) -> None:
        self.snapshot = Snapshot(model)
        self.found: OrderedDict[Hashable, Translation | None] = OrderedDict()
        self.busy = threading.Lock()


KEPT: WeakKeyDictionary[nn.Module, Kept] = WeakKeyDictionary()


def key_of(request: Request, method: Method, rules: Rules) -> Hashable | None:
    """Return what a translation is kept by; None for one that is not kept."""
    fits = len(request.prompts[0]) == 1 and rules.max_new < MOST_COLUMNS
    return (len(request.inputs[0]), repr(method), repr(rules)) if fits else None


@torch.inference_mode()
def translate_again(request: Request, method: Method, rules: Rules) -> list[Hypothesis] | None:
    """Return the translation of one sentence by what was kept for its length; None if nothing was.

    Nor is there anything once the model has changed.
    """
    model = request.model
    kept, key = KEPT.get(model), key_of(request, method, rules)
    found = None if kept is None else kept.found.get(key)
    if kept is None or found is None or autocast_enabled(request.decoder.embedding.table):
        return None
    if not kept.snapshot.holds(model):
        del KEPT[model]
        return None
    if not kept.busy.acquire(blocking=False):  # another thread is at it, in the same memory
        return None
    try:
        return found.run(request.inputs[0], request.prompts[0])
    finally:
        kept.busy.release()


def translate_once(request: Request, session: Session, method: Method, rules: Rules) -> list[Hypothesis] | None:
    """Keep the translation of a source of this length if there was one as long before, and return it; else None."""
    model, key = request.model, key_of(request, method, rules)
    assert isinstance(model, EncoderDecoder)
    if key is None or not is_built_in(model) or any(map(is_observed, model.modules())):
        return None
    kept = KEPT.get(model)
    if kept is None or not kept.snapshot.holds(model):
        if any(isinstance(one, Tensor) and one.is_inference() for one in things_in(model)):
            return None  # nobody counts how often these are written
        kept = KEPT[model] = Kept(model)
    if key not in kept.found:
        kept.found[key] = None
        return None
    with kept.busy:
        made = kept.found[key] = Translation(model, session, len(request.inputs[0]), method, rules)
        kept.found.move_to_end(key)
        while len(kept.found) > MOST_LENGTHS:
            kept.found.popitem(last=False)
        return made.run(request.inputs[0], request.prompts[0])
