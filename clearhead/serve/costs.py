"""The costs of a trace, a search and a rebuilt block, computed from the model's sizes before anything runs."""

import functools
from collections.abc import Mapping, Sequence

from torch import nn

from clearhead.serve.budget import FLOAT, JSON_NUMBER, JSON_OBJECT, Cost
from clearhead.tracing.edits import Change, Edit
from clearhead.tracing.names import Names
from clearhead.tracing.site import Head, Site
from clearhead.tracing.trace import LIKELIEST, ROWS

FASTER = 30
"""How many weights a kernel computes inside the model in the time in which one is rebuilt: 31 of a causal head of
4,096 tokens, 64 wide, on a CPU."""
LOGITS = 10
"""How many logits are computed in the time in which one weight is rebuilt."""
STEPS = 6
"""Matrices that the reference holds at once: the mask, score, scaled, biased, masked and weight."""
CANDIDATE = 200
"""Bytes of a candidate that is held as a tuple."""
BLOCK = 50_000_000
"""Bytes that rebuilding a block of rows takes, however many blocks there are."""


def cells_of(site: Site, *, heads: int, rows: int) -> int:
    """Return how many weights are rebuilt for these rows; every edit inside the site reads them once more."""
    edits = sum(isinstance(change, Edit) and not change.fused for change in site.recorded.changes)
    together = site.head[0].call.n_heads  # more than one where a part cannot be had for one head alone
    return heads * together * rows * site.n_key * (1 + edits)


def rows_cost(heads: Sequence[Head], rows: int, kept: int = 0) -> Cost:
    """Return the cost of reading rows of some heads a block at a time, while `kept` numbers of each row stay."""
    site = heads[0].site
    memory = len(heads) * rows * kept * FLOAT + min(BLOCK, STEPS * FLOAT * rows * site.n_key)
    return Cost(cells=cells_of(site, heads=len(heads), rows=rows), memory=memory)


def row_cost(heads: Sequence[Head], rows: int = 1) -> Cost:
    """Return the cost of rows that are sent number by number."""
    return rows_cost(heads, rows) + Cost(memory=len(heads) * rows * heads[0].site.n_key * STEPS * JSON_NUMBER)


class ModelCosts:
    """The costs that follow from a model's sizes, for texts of any length."""

    def __init__(self, model: nn.Module) -> None:
        names = Names(model)
        self.sides = {side: part for side, (_, part) in names.sides.items()}
        self.sites = names.sites
        self.streams = {side: sum(name.startswith(f"{side}.") for name in names.stream.values()) for side in self.sides}
        self.answering = list(self.sides)[-1]
        spec = self.sides[self.answering].spec
        self.logits = spec.vocabulary if spec.output is not None and spec.output.by_position else 0
        """Logits of each token; of a class there is one row for the whole text, which costs nothing."""

    @functools.cached_property
    def hidden(self) -> int:
        """Return the numbers of a token where a block is widest: d_ff, or queries, keys, values and the stream."""
        parts = [part.spec for part in self.sides.values()]
        networks = [block.feed_forward for spec in parts for block in spec.blocks]
        return max([network.d_ff for network in networks if network is not None] + [4 * spec.d_model for spec in parts])

    def box(self, rows: int) -> Cost:
        """Return the cost of the widest box: numbers of `rows` tokens are computed, those of one token are sent."""
        return Cost(memory=rows * 4 * (self.logits + self.hidden) * FLOAT + (self.logits + self.hidden) * JSON_NUMBER)

    def cells(self, lengths: Mapping[str, int]) -> int:
        """Return how many weights one forward pass has."""
        return sum(
            layer.shape.n_heads * lengths[side_of(name)] * lengths[key_side(name)] for name, layer in self.sites.items()
        )

    def forward(
        self, lengths: Mapping[str, int], changes: Sequence[Change] = (), *, logit_rows: int | None = None
    ) -> Cost:
        """Return the cost of a forward pass: its weights, its logits, and whole matrices where the reference runs.

        `logit_rows` is how many rows of logits are held at once: all, unless given.
        """
        inner = [change.at for change in changes if isinstance(change, Edit) and not change.fused]
        full_matrices = [
            (layer.shape.n_heads * lengths[side_of(name)] * lengths[key_side(name)], inner.count(name))
            for name, layer in self.sites.items()
            if name in inner or layer.kernel == "reference"
        ]
        rows = lengths[self.answering] if logit_rows is None else min(logit_rows, lengths[self.answering])
        numbers = rows * self.logits + max(lengths.values()) * 2 * self.hidden
        numbers += STEPS * max((cells for cells, _ in full_matrices), default=0)
        cells = -(-self.cells(lengths) // FASTER) + sum(cells * (1 + edits) for cells, edits in full_matrices)
        return Cost(cells=cells, memory=numbers * FLOAT)

    def trace(self, lengths: Mapping[str, int], changes: Sequence[Change] = ()) -> Cost:
        """Return the cost of a trace: a forward pass, what is recorded of it, and the answers at each token."""
        stream = sum(self.streams[side] * n * self.sides[side].spec.d_model for side, n in lengths.items())
        vectors = sum(
            (lengths[side_of(name)] * layer.shape.n_heads + lengths[key_side(name)] * layer.shape.n_kv_heads)
            * 3  # before and after their positions, and values or contexts
            * layer.shape.d_head
            for name, layer in self.sites.items()
        )
        answers = lengths[self.answering] * (LIKELIEST * CANDIDATE + 5 * JSON_OBJECT)
        labels = sum(lengths.values()) * 4 * JSON_NUMBER
        forward = self.forward(lengths, changes, logit_rows=2 * ROWS)  # and their log-probabilities
        matrix = max(lengths[side_of(name)] * lengths[key_side(name)] for name in self.sites)  # each can be read whole
        return Cost(
            cells=max(forward.cells, matrix), memory=forward.memory + (stream + vectors) * FLOAT + answers + labels
        )

    def decoding(self, lengths: Mapping[str, int], *, rows: int, new: int, changes: Sequence[Change] = ()) -> Cost:
        """Return the cost of decoding `new` tokens in `rows` rows; with changes each step reads everything again."""
        forward = self.forward(lengths, changes)
        passes = 1 if not changes else -(-new // 2)
        return Cost(cells=rows * passes * forward.cells, memory=rows * forward.memory)

    def tree(self, *, width: int, candidates: int, new: int) -> int:
        """Return the bytes of the nodes of a search that is sent in full."""
        return new * 2 * width * (candidates + 2) * JSON_OBJECT


def side_of(site: str) -> str:
    return site.partition(".")[0]


def key_side(site: str) -> str:
    """Return the side whose tokens are the keys."""
    return "encoder" if site.endswith(".cross") else side_of(site)
