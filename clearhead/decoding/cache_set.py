"""The KV caches of a whole decoder: one for each attention layer, by what its mask and weighting need."""

from collections.abc import Iterator

from jaxtyping import Float, Int
from torch import Tensor

from clearhead.attention.layer import Attention
from clearhead.attention.masks import Window
from clearhead.decoding.caches import (
    Cache,
    CrossCache,
    GrowingCache,
    SourceCache,
    SourceStateCache,
    StateCache,
    WindowCache,
)
from clearhead.decoding.clock import Clock
from clearhead.decoding.source import Source
from clearhead.model.blocks import Stack
from clearhead.model.kv_source import KVSources


class Caches:
    """The caches of a whole decoder, and the clock they share."""

    def __init__(self, stack: Stack, source: Source | None, clock: Clock) -> None:
        self.clock = clock
        self.kv_sources = [
            KVSources(
                own_cache(block.attention, self.clock),
                None if block.cross is None or source is None else cross_cache(block.cross, self.clock, source),
            )
            for block in stack.blocks
        ]

    def __iter__(self) -> Iterator[Cache]:
        return (cache for sources in self.kv_sources for cache in sources if isinstance(cache, Cache))

    @property
    def reads_filled(self) -> bool:
        """True if steps of a few rows read the filled columns alone, however many are allocated."""
        return all(cache.reads_filled for cache in self)

    def select(self, rows: Tensor, sentences: Tensor | None = None) -> None:
        for cache in self:
            cache.select(rows, sentences)
        self.clock.select(rows)

    def fix(self, beams: int, columns: int) -> None:
        """Move everything into fixed memory, with `columns` columns for each of `beams` beams of a row."""
        for cache in self:
            cache.fix(beams, columns)
        rows = next(len(cache.tensors()[0]) for cache in self if not isinstance(cache, CrossCache))
        self.clock.fix(rows, beams, columns)

    def refill(self, stack: Stack, source: Float[Tensor, "sentence n d_model"]) -> None:
        """Begin again in the same memory, with another source of the same shape, by work that can be recorded."""
        for block, sources in zip(stack.blocks, self.kv_sources, strict=True):
            for cache, layer in ((sources.attention, block.attention), (sources.cross, block.cross)):
                if isinstance(cache, Cache) and layer is not None:
                    cache.refill(layer, source)
        self.clock.restart()

    def move_rows(self, rows: Int[Tensor, "row"]) -> None:
        """Overwrite the rows with these rows, in the same memory."""
        for cache in self:
            if not isinstance(cache, CrossCache):
                cache.move(rows)
        self.clock.owners.copy_(self.clock.owners[rows])
        if self.clock.pads is not None:
            self.clock.pads.copy_(self.clock.pads[rows])

    def move_sentences(self, sentences: Int[Tensor, "sentence"]) -> None:
        """Replace the keys and values of cross-attention by those of these sentences, in the same memory."""
        for cache in self:
            if isinstance(cache, CrossCache):
                cache.move(sentences)

    def can_fix(self, stack: Stack) -> bool:
        """Check whether every cache can be in memory that stays where it is."""
        return all(
            isinstance(cache, Cache) and cache.can_fix(layer)
            for block, sources in zip(stack.blocks, self.kv_sources, strict=True)
            for layer, cache in ((block.attention, sources.attention), (block.cross, sources.cross))
            if layer is not None
        )

    def bytes(self) -> int:
        """Return the bytes of all caches."""
        return sum(tensor.untyped_storage().nbytes() for cache in self for tensor in cache.tensors())


def own_cache(layer: Attention, clock: Clock) -> Cache:
    if layer.sums and layer.mask.kinds == {"causal"}:
        return StateCache(clock)
    windows = [term.left for term in layer.mask.terms if isinstance(term, Window)]
    return WindowCache(clock, min(windows)) if windows else GrowingCache(clock)


def cross_cache(layer: Attention, clock: Clock, source: Source) -> Cache:
    return (
        SourceStateCache(clock, source) if layer.sums and layer.mask.kinds == {"none"} else SourceCache(clock, source)
    )
