"""A map of patches: how much of the difference between two texts each value at each place carries."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

from jaxtyping import Float
from torch import Tensor

from clearhead.calls import public
from clearhead.circuits.attribution import short
from clearhead.circuits.nodes import NodePatch
from clearhead.errors import OptionError
from clearhead.notebook import Display, Matrix, flow, heat_maps, paragraph
from clearhead.tracing.edits import Edit
from clearhead.tracing.names import list_near


class PatchCell(NamedTuple):
    """One patch: a row of the map, a place, and the share of the difference that it recovers."""

    row: str
    place: int
    recovered: float


@final
@public
@dataclass(frozen=True, kw_only=True, eq=False)
class PatchMap:
    """The logit difference of a text while one value at one place is taken from another text, for every value and
    place.

    Rows are `decoder.1.feed_forward.residual` (the stream after a layer) or `decoder.0.attention.head.3`. `recovered`
    is `patched` as a share of the way from `before` (0) to `source` (1).

    Attributes:
        before: The logit of `answer` minus the logit of `other` in the unchanged text.
        source: The same in the text that values are taken from.
        patched: By row, the difference with each place patched.
        nodes: By row, what is patched.
    """

    before: float
    source: float
    patched: Mapping[str, Float[Tensor, "place"]]
    answers: tuple[str, str]
    """The answer and the other one in words."""
    place: int
    """Where they are compared."""
    tokens: Mapping[str, Sequence[str]]
    """The text, by side."""
    nodes: Mapping[str, NodePatch]
    values: Mapping[str, Tensor]
    """What was put in, by the name of the value."""

    @property
    def recovered(self) -> dict[str, Float[Tensor, "place"]]:
        way = self.source - self.before
        return {row: (values - self.before) / way for row, values in self.patched.items()}

    @property
    def best(self) -> list[PatchCell]:
        """Return all patches, those that recover most first."""
        cells = [
            PatchCell(row, place, share)
            for row, shares in self.recovered.items()
            for place, share in enumerate(shares.tolist())
        ]
        return sorted(cells, key=lambda cell: -cell.recovered)

    @public
    def edit(self, row: str, place: int | None = None) -> Edit:
        """Return the edit that does what one cell of the map did; without a place, at all places."""
        if row not in self.nodes:
            raise OptionError(f"there is no row {row!r:.80} in this map; {list_near(row, list(self.nodes))}")
        return self.nodes[row]._replace(place=place).edit(self.values)

    @property
    def what(self) -> str:
        """Say what was measured, in words."""
        answer, other = self.answers
        difference = f"the logit of {answer!r} less that of {other!r} at place {self.place}"
        return f"{difference}: {self.before:+.3f}, and {self.source:+.3f} where the values are taken from"

    def __repr__(self) -> str:
        return f"PatchMap of {len(self.patched)} rows: {self.what}"

    def __str__(self) -> str:
        cells = [f"  {row} at {place}: {share:.1%}" for row, place, share in self.best[:10]]
        return "\n".join([self.what, "recovered most by", *cells])

    @public
    def show(self) -> Display:
        """Return a heat map for each side: a notebook shows it, and `save` writes it."""
        maps = []
        for side, tokens in self.tokens.items():
            rows = {row: shares for row, shares in self.recovered.items() if self.nodes[row].side == side}
            if rows:
                table = next(iter(rows.values())).new_empty(len(rows), len(tokens))
                for number, shares in enumerate(rows.values()):
                    table[number] = shares
                maps.append(Matrix(f"{side}: recovered", table, [short(row) for row in rows], tokens))
        return Display("Activation patching", paragraph(self.what) + flow(heat_maps(maps)))

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        return self.show()._repr_html_()
