"""Texts as a model takes them: token ids for each side, padded to one length, and how many of them count."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import final

import torch
from jaxtyping import Int
from torch import Tensor

from clearhead.calls import public
from clearhead.errors import OptionError, ShapeError
from clearhead.model.transformers import Transformer
from clearhead.tracing.names import sides_of


@final
@public
@dataclass(frozen=True, kw_only=True)
class Texts:
    """A batch of texts.

    Args:
        tokens: By side, the ids.
        lengths: By side, how many ids of each row count; all if not given.
        segments: Segments of the tokens, for an encoder that has any.

    >>> import torch
    >>> from clearhead.circuits import Texts
    >>> len(Texts(tokens={"decoder": torch.tensor([[1, 2, 3], [4, 5, 6]])}))
    2
    """

    tokens: Mapping[str, Int[Tensor, "batch n"]]
    lengths: Mapping[str, Int[Tensor, "batch"]] = field(default_factory=dict)
    segments: Int[Tensor, "batch n"] | None = None

    def __len__(self) -> int:
        return len(next(iter(self.tokens.values())))

    @property
    def device(self) -> torch.device:
        return next(iter(self.tokens.values())).device

    def __getitem__(self, rows: slice) -> "Texts":
        """Return some of the texts."""
        return self.map(lambda rows_of: rows_of[rows])

    def repeat(self, times: int) -> "Texts":
        """Return all texts, and all of them again, so many times."""
        return self.map(lambda rows: rows.repeat(times, *(1 for _ in rows.shape[1:])))

    def map(self, change: Callable[[Tensor], Tensor]) -> "Texts":
        return replace(
            self,
            tokens={side: change(rows) for side, rows in self.tokens.items()},
            lengths={side: change(rows) for side, rows in self.lengths.items()},
            segments=None if self.segments is None else change(self.segments),
        )

    def arguments(self) -> tuple[list[Tensor], dict[str, Tensor]]:
        """Return what the model itself is called with."""
        named = {} if self.segments is None else {"segments": self.segments}
        for side, lengths in self.lengths.items():
            named["lengths" if len(self.tokens) == 1 else f"{'source' if side == 'encoder' else 'target'}_lengths"] = (
                lengths
            )
        return list(self.tokens.values()), named


def check_pair(model: Transformer, clean: Texts, other: Texts) -> None:
    """Raise if two batches cannot be compared place by place, or are not what the model reads."""
    sides = set(sides_of(model))
    for texts in (clean, other):
        if set(texts.tokens) != sides:
            raise OptionError(f"this model reads {' and '.join(sorted(sides))}; came {' and '.join(texts.tokens)}")
    for side in sides:
        shapes = tuple(clean.tokens[side].shape), tuple(other.tokens[side].shape)
        if shapes[0] != shapes[1]:
            raise ShapeError(
                f"{side}: patching goes place by place, so both texts need as many tokens; came {shapes[0]} and "
                f"{shapes[1]}"
            )
    for side in {*clean.lengths, *other.lengths}:
        one, two = clean.lengths.get(side), other.lengths.get(side)
        if one is None or two is None or not torch.equal(one, two):
            raise ShapeError(f"{side}: patching goes place by place, so both texts of a pair need one length")


def pad_texts(rows: Mapping[str, Sequence[Sequence[int]]], pad: int = 0) -> Texts:
    """Return texts of any lengths as one batch."""
    tokens, lengths = {}, {}
    for side, texts in rows.items():
        width = max(map(len, texts))
        tokens[side] = torch.tensor([[*text, *[pad] * (width - len(text))] for text in texts])
        if len({len(text) for text in texts}) > 1:
            lengths[side] = torch.tensor([len(text) for text in texts])
    return Texts(tokens=tokens, lengths=lengths)
