"""One sentence after another on a GPU: a greedy translation that is recorded once, and kept for the next as long.

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
from clearhead.decoding.greedy import Likeliest
from clearhead.decoding.hypotheses import Hypothesis
from clearhead.decoding.rules import Rules
from clearhead.decoding.session import Session
from clearhead.model.fast_step import is_observed
from clearhead.model.transformers import EncoderDecoder
from clearhead.registry import is_built_in

__all__ = ["translate_again", "translate_once"]

MOST_LENGTHS = 32
"""Translations kept for a model: one for each length of a source, and of an output at most."""
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
    """Greedy translation of one source of fixed length, in memory of its own.

    It may not hold the model, only parts of it: `KEPT` would keep a model that nobody else holds.
    """

    def __init__(self, model: EncoderDecoder, session: Session, n_source: int, rules: Rules) -> None:
        device, caches = session.device, session.caches
        self.max_new = rules.max_new
        self.source = torch.zeros(1, n_source, dtype=torch.long, device=device)
        self.first = torch.zeros(1, 1, dtype=torch.long, device=device)
        self.search = search = Likeliest(session.kept.of(session.logits), rules)
        caches.fix(1, recorded.find_columns(rules.max_new))
        steps = session.record_search(search, self.first)

        def begin() -> None:
            session.caches.refill(model.decoder.stack, model.encoder(self.source))
            search.restart()
            steps.tokens.copy_(self.first)

        begin()  # what is recorded must have run before
        steps.work()
        self.begin: Callable[[], None] = recorded.record(begin)
        self.step: Callable[[], None] = recorded.record(steps.work)
        self.held = steps  # a recording does not hold the memory that it reads

    def run(self, source: Sequence[int], prompt: Sequence[int]) -> Hypothesis:
        self.source.copy_(torch.tensor([source]))
        self.first.copy_(torch.tensor([prompt]))
        self.begin()
        self.search.forget()
        for done in range(0, self.max_new, recorded.AT_ONCE):
            for _ in range(min(recorded.AT_ONCE, self.max_new - done)):
                self.step()
            if not self.search.read():
                break
        return self.search.hypotheses()[0]


@final
class Kept:
    """The translations of a model as it is."""

    def __init__(self, model: nn.Module) -> None:
        self.snapshot = Snapshot(model)
        self.found: OrderedDict[Hashable, Translation | None] = OrderedDict()
        self.busy = threading.Lock()


KEPT: WeakKeyDictionary[nn.Module, Kept] = WeakKeyDictionary()


def key_of(source: Sequence[int], prompt: Sequence[int], rules: Rules) -> Hashable | None:
    """Return what a translation is kept by; None for one that is not kept."""
    fits = len(prompt) == 1 and rules.max_new < MOST_COLUMNS and recorded.pays(rules.max_new)
    return (len(source), repr(rules)) if fits else None


@torch.inference_mode()
def translate_again(
    model: EncoderDecoder, source: Sequence[int], prompt: Sequence[int], rules: Rules
) -> Hypothesis | None:
    """Return the translation by what was kept; None if nothing was for this length, or the model has changed."""
    kept, key = KEPT.get(model), key_of(source, prompt, rules)
    found = None if kept is None else kept.found.get(key)
    if kept is None or found is None or autocast_enabled(model.decoder.embedding.table):
        return None
    if not kept.snapshot.holds(model):
        del KEPT[model]
        return None
    if not kept.busy.acquire(blocking=False):  # another thread is at it, in the same memory
        return None
    try:
        return found.run(source, prompt)
    finally:
        kept.busy.release()


def translate_once(
    model: EncoderDecoder, session: Session, source: Sequence[int], prompt: Sequence[int], rules: Rules
) -> Hypothesis | None:
    """Keep the translation of a source of this length if there was one as long before, and return it; else None."""
    key = key_of(source, prompt, rules)
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
        made = kept.found[key] = Translation(model, session, len(source), rules)
        kept.found.move_to_end(key)
        while len(kept.found) > MOST_LENGTHS:
            kept.found.popitem(last=False)
        return made.run(source, prompt)
