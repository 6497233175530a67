"""Recorded translations of single sentences on a GPU, kept for the next source of the same length.

Opening a session and recording a step takes as long as forty tokens of a base model. So the second source of a length
is translated by CUDA graphs that are kept: one for the encoder and the keys and values for cross-attention, one for the
step. The next source of that length is copied into their memory, and they are replayed.

A graph reads the weights at their addresses, and some of them packed. It is used only as long as nothing that the model
holds has been replaced or changed (`Snapshot`).
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from operator import is_
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from clearhead.attention.modes import autocast_enabled
from clearhead.decoding import device_search, on_device, recorded
from clearhead.decoding.device_search import RecordedSearch
from clearhead.decoding.hypotheses import Hypothesis
from clearhead.decoding.method import DecodingMethod
from clearhead.decoding.request import Request
from clearhead.decoding.rules import Rules
from clearhead.model.fast_step import is_observed
from clearhead.registry import find_silent

MOST_LENGTHS = 32
"""Translations kept for a model: one for each length of a source, method and rules."""
MOST_COLUMNS = 512
"""Tokens that an output may have: memory for all of them is there from the start."""


def list_contents(model: nn.Module) -> list[Any]:
    """Return all that the modules of a model hold: parameters, modules, hooks and every other attribute."""
    contents: list[Any] = []
    modules = [model]
    while modules:
        module = modules.pop()
        for value in vars(module).values():
            contents.append(value)
            if isinstance(value, dict):
                contents.extend(value.values())
        modules.extend(child for child in module._modules.values() if child is not None)
    return contents


class Snapshot:
    """What a model held, and how often each of its parameters had been written."""

    def __init__(self, model: nn.Module) -> None:
        self.contents = list_contents(model)
        self.tensors = [value for value in self.contents if isinstance(value, Tensor)]
        # The memory is held: what lies at the same address later is the same memory.
        self.memory = [tensor.detach() for tensor in self.tensors]
        self.versions = self.read_versions()

    def read_versions(self) -> list[tuple[int, int]]:
        """Return where each tensor is, and how often it has been written."""
        return [(tensor.data_ptr(), tensor._version) for tensor in self.tensors]

    def matches(self, model: nn.Module) -> bool:
        """Check that nothing in the model was replaced or changed since the snapshot."""
        contents = list_contents(model)
        return (
            len(contents) == len(self.contents)
            and all(map(is_, contents, self.contents))
            and self.read_versions() == self.versions
        )


class Translation:
    """Translation of one source of fixed length, in memory of its own.

    It holds parts of the model, and never the model itself: `CACHES` would keep it alive.
    """

    def __init__(self, steps: RecordedSearch, request: Request, max_new: int) -> None:
        session, self.search, self.max_new = steps.session, steps.search, max_new
        session.search_beams(self.search.beams, device_search.find_columns(max_new))
        self.source = torch.tensor(request.inputs, device=session.device)
        self.first = torch.zeros_like(session.tokens)
        encoder, search = session.encoder, steps.search
        assert encoder is not None

        def begin() -> None:
            session.restart(encoder(self.source))
            search.restart()
            session.tokens.copy_(self.first)

        begin()  # what is recorded must have run before
        steps.work()
        self.begin: Callable[[], None] = recorded.record(begin)
        self.step: Callable[[], None] = recorded.record(steps.work)
        self.steps_held = steps  # a recording does not hold the memory that it reads

    def run(self, source: Sequence[int], prompt: Sequence[int]) -> list[Hypothesis]:
        self.source.copy_(torch.tensor([source]))
        self.first.fill_(prompt[0])
        self.begin()
        self.search.forget()
        for n_done in range(0, self.max_new, on_device.AT_ONCE):
            for _ in range(min(on_device.AT_ONCE, self.max_new - n_done)):
                self.step()
            if not self.search.read():
                break
        return self.search.hypotheses()[0]


class TranslationCache:
    """The recorded translations of a model in its present state, by `make_key`; None for a key that was seen once."""

    def __init__(self, model: nn.Module) -> None:
        self.snapshot = Snapshot(model)
        self.translations: OrderedDict[Hashable, Translation | None] = OrderedDict()
        self.busy = threading.Lock()


CACHES: WeakKeyDictionary[nn.Module, TranslationCache] = WeakKeyDictionary()


def make_key(request: Request, method: DecodingMethod, rules: Rules) -> Hashable | None:
    """Return the key that a translation is kept by; None for one that is not kept."""
    alone = len(request.inputs) == 1 and request.model.encoder is not None
    fits = alone and len(request.prompts[0]) == 1 and rules.max_new < MOST_COLUMNS
    return (len(request.inputs[0]), repr(method), repr(rules)) if fits else None


@torch.inference_mode()
def replay_translation(request: Request, method: DecodingMethod, rules: Rules) -> list[Hypothesis] | None:
    """Return the translation of one sentence by the graphs recorded for its length.

    None if there are none, or the model has changed since, or another thread is using them.
    """
    model = request.model
    cache, key = CACHES.get(model), make_key(request, method, rules)
    translation = None if cache is None or key is None else cache.translations.get(key)
    if cache is None or translation is None or autocast_enabled(request.decoder.embedding.table):
        return None
    if not cache.snapshot.matches(model):
        del CACHES[model]
        return None
    if not cache.busy.acquire(blocking=False):
        return None
    try:
        return translation.run(request.inputs[0], request.prompts[0])
    finally:
        cache.busy.release()


def record_translation(
    request: Request, steps: RecordedSearch, method: DecodingMethod, rules: Rules
) -> list[Hypothesis] | None:
    """Record the translation of a source, keep it and return its result; None for the first source of a length."""
    model, key = request.model, make_key(request, method, rules)
    if key is None or find_silent(model, "recordable") is not None or any(map(is_observed, model.modules())):
        return None
    cache = CACHES.get(model)
    if cache is None or not cache.snapshot.matches(model):
        if any(isinstance(value, Tensor) and value.is_inference() for value in list_contents(model)):
            return None  # torch does not count how often inference tensors are written
        cache = CACHES[model] = TranslationCache(model)
    if key not in cache.translations:
        cache.translations[key] = None
        return None
    with cache.busy:
        translation = cache.translations[key] = Translation(steps, request, rules.max_new)
        cache.translations.move_to_end(key)
        while len(cache.translations) > MOST_LENGTHS:
            cache.translations.popitem(last=False)
        return translation.run(request.inputs[0], request.prompts[0])
