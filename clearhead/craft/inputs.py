"""Inputs: what a head designed by hand reads. Which directions of its input hold the token, which the position.

>>> words = inputs(["the", "blue", "creature"], 4)
>>> words.names
('token:the', 'token:blue', 'token:creature', 'position:0', 'position:1', 'position:2', 'position:3')
>>> words.vectors(["blue", "the"]).int().tolist()
[[0, 1, 0, 1, 0, 0, 0], [1, 0, 0, 0, 1, 0, 0]]
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.attention.positions import Sinusoidal
from clearhead.calls import public
from clearhead.errors import OptionError, ShapeError

Tokens = Sequence[str] | Sequence[int] | Tensor
"""The tokens of a text: as they are written, or as ids."""


@dataclass(frozen=True, kw_only=True, eq=False)
class InputBlock:
    """Some directions of the input, and the vector that stands there for each label: each token, each position."""

    name: str
    labels: tuple[str, ...]
    first: int
    """Its first direction."""
    vectors: Float[Tensor, "label width"]
    waves: Sinusoidal | None = None
    """The encoding its vectors come from, if they are not one-hot."""

    @property
    def width(self) -> int:
        return self.vectors.shape[1]

    @property
    def at(self) -> slice:
        """Return where its directions lie in the input."""
        return slice(self.first, self.first + self.width)

    @property
    def directions(self) -> list[str]:
        """Return the names of its directions."""
        if self.waves is None:
            return [f"{self.name}:{label}" for label in self.labels]
        pairs = [(wave, pair) for pair in range(self.width // 2) for wave in ("sin", "cos")]
        order = pairs if self.waves.layout == "interleaved" else sorted(pairs, key=lambda pair: pair[0] == "cos")
        return [f"{self.name}:{wave} {pair}" for wave, pair in order]

    def ids(self, labels: Tokens) -> Int[Tensor, "n"]:
        """Return the numbers of these labels."""
        if isinstance(labels, str) or (isinstance(labels, Tensor) and labels.is_meta):
            raise OptionError(f"{self.name}: expected a list of labels, or their numbers; came {labels!r:.80}")
        if isinstance(labels, Tensor) or all(isinstance(label, int) for label in labels):
            ids = torch.as_tensor(labels).long().flatten()
            if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < len(self.labels):
                raise OptionError(f"{self.name}: ids go from 0 to {len(self.labels) - 1}; came {ids.tolist()}")
            return ids
        unknown = [label for label in labels if label not in self.labels]
        if unknown:
            raise OptionError(f"{self.name}: there is no {unknown[0]!r} among {', '.join(self.labels)}")
        return torch.tensor([self.labels.index(str(label)) for label in labels], dtype=torch.long)

    def turn(self, offset: int) -> Float[Tensor, "width width"] | None:
        """Return the rotation from the vector of any position to that `offset` further on; None if there is none."""
        if self.waves is None:
            return None
        turned = torch.zeros(self.width, self.width, dtype=torch.float64)
        for pair in range(self.width // 2):
            angle = torch.tensor(offset * self.waves.base ** (-2 * pair / self.width), dtype=torch.float64)
            sin, cos = self.pair(pair)
            turned[sin, sin] = turned[cos, cos] = angle.cos()
            turned[cos, sin], turned[sin, cos] = angle.sin(), -angle.sin()
        return turned.float()

    def pair(self, number: int) -> tuple[int, int]:
        """Return where a sine and its cosine stand."""
        assert self.waves is not None
        interleaved = self.waves.layout == "interleaved"
        return (2 * number, 2 * number + 1) if interleaved else (number, number + self.width // 2)


@final
@public
@dataclass(frozen=True, kw_only=True, eq=False)
class Inputs:
    """The directions of a head's input by name. An input is the sum of one vector from each block that is filled.

    Attributes:
        blocks: By name, some directions and their labels.
        d_model: Number of directions.

    >>> from clearhead import craft
    >>> craft.inputs(["a", "b"], 3).d_model
    5
    """

    blocks: Mapping[str, InputBlock]
    d_model: int

    @property
    def names(self) -> tuple[str, ...]:
        """Return the name of every direction."""
        return tuple(name for block in self.blocks.values() for name in block.directions)

    @property
    def length(self) -> int | None:
        """Return how many positions there are; None if the input holds none."""
        return len(self.blocks["position"].labels) if "position" in self.blocks else None

    def __getitem__(self, name: str) -> InputBlock:
        if name not in self.blocks:
            names = ", ".join(self.blocks) or "none: it is the stream of a model"
            raise OptionError(f"these inputs have no block {name!r}; there are {names}")
        return self.blocks[name]

    def spread(self, name: str) -> Float[Tensor, "label d_model"]:
        """Return the vectors of a block's labels, as wide as the input."""
        block = self[name]
        wide = torch.zeros(len(block.labels), self.d_model)
        wide[:, block.at] = block.vectors
        return wide

    def reading(self, name: str) -> Float[Tensor, "d_model label"]:
        """Return the map from an input to the one-hot of its label in a block."""
        block = self[name]
        if block.waves is not None:
            raise OptionError(f"the labels of {name!r} are not one-hot, so no map tells them apart; use one-hot ones")
        return self.spread(name).T

    @property
    def constant(self) -> Float[Tensor, "d_model"]:
        """Return a direction along which every input is 1: the sum of a one-hot block that is always filled."""
        return self.spread("token").sum(0)

    def vectors(self, tokens: Tokens, labels: Mapping[str, Tokens] | None = None) -> Float[Tensor, "n d_model"]:
        """Return the input for a text. `labels` fills blocks besides token and position: a label for each token."""
        ids = self["token"].ids(tokens)
        n = len(ids)
        self.check_length(n)
        x = self.spread("token")[ids]
        if self.length is not None:
            x = x + self.spread("position")[:n]
        for name, block_labels in (labels or {}).items():
            filled = self[name].ids(block_labels)
            if len(filled) != n:
                raise ShapeError(f"{name}: expected a label for each of the {n} tokens; came {len(filled)}")
            x = x + self.spread(name)[filled]
        return x

    def check_length(self, n: int) -> None:
        if n < 1 or (self.length is not None and n > self.length):
            raise ShapeError(f"these inputs are texts of 1 to {self.length or 'any number of'} tokens; came {n}")


@public
def inputs(
    vocabulary: Sequence[str],
    length: int | None = None,
    *,
    waves: int | None = None,
    room: Mapping[str, Sequence[str]] | None = None,
) -> Inputs:
    """Return inputs with a direction for each token and each position.

    Args:
        vocabulary: The tokens.
        length: Number of positions; none if None.
        waves: Positions as sines and cosines in this many directions, as `positions.Sinusoidal` makes them, instead of
            one-hot ones.
        room: Further blocks, by name with their labels, that are empty until a head writes into them.

    Returns:
        The inputs.

    Raises:
        OptionError: If a token occurs twice, or a number is out of range.

    >>> from clearhead import craft
    >>> craft.inputs(["a", "b"], 3, room={"seen": ["a", "b"]}).d_model
    7
    """
    one_hot = {"token": vocabulary, **(room or {})}
    blocks: dict[str, InputBlock] = {}
    for name, labels in one_hot.items():
        if name == "position":
            raise OptionError("inputs: `position` is made by `length`; call the room something else")
        labelled = not isinstance(labels, str) and all(isinstance(label, str) for label in labels)
        if not labelled or not labels or len(set(labels)) < len(labels):
            raise OptionError(f"{name}: expected a list of different labels, at least one; came {labels!r}")
        blocks[name] = InputBlock(name=name, labels=tuple(labels), first=0, vectors=torch.eye(len(labels)))
        if name == "token" and length is not None:
            blocks["position"] = positions(length, waves)
    if length is None and waves is not None:
        raise OptionError("inputs: waves are for positions; say how many there are by length")
    placed, first = {}, 0
    for name, block in blocks.items():
        placed[name] = InputBlock(name=name, labels=block.labels, first=first, vectors=block.vectors, waves=block.waves)
        first += block.width
    return Inputs(blocks=placed, d_model=first)


def positions(length: int, waves: int | None) -> InputBlock:
    if length < 1:
        raise OptionError(f"inputs: length must be 1 or more; came {length}")
    spec = None if waves is None else Sinusoidal()
    vectors = torch.eye(length) if spec is None or waves is None else spec.embed(waves)(length)
    return InputBlock(name="position", labels=tuple(map(str, range(length))), first=0, vectors=vectors, waves=spec)
