"""What the server says of a model's parts beside attention: feed-forward units, embeddings, the tokeniser.

messages.py has the other replies, and says how these types reach the page.
"""

from typing import TypedDict


class UnitEffect(TypedDict):
    """How much a unit adds to the logit of an answer at a token."""

    id: int
    text: str
    change: float


class NeuronUnit(TypedDict):
    """A hidden unit of a feed-forward at one token."""

    unit: int
    steps: dict[str, float]
    """The values that make it, the last of them its activation, `hidden`."""
    norm: float
    """The length of the vector that it adds to the output: its activation times its output weights."""
    share: float
    """How much of the output that vector is; all units and the bias make 1."""
    promotes: list[UnitEffect]
    suppresses: list[UnitEffect]


class Neurons(TypedDict):
    at: str
    token: int
    d_ff: int
    active: int
    """Units whose activation is above 0."""
    half: int
    """The fewest units whose norms are half of all norms."""
    bias: float
    units: list[NeuronUnit]
    formula: str
    """How the activation is made."""
    silent: str
    """Why no unit promotes an answer; "" where they do."""


class TableFacts(TypedDict):
    """A table with a vector for every token."""

    name: str
    """ "encoder.embedding", "decoder.embedding", or "output": the unembedding, where it is not the same table."""
    tied: bool
    """Whether the output reads the same table."""


class EmbeddingMap(TypedDict):
    """The vectors of all tokens along the two directions in which they differ most (PCA)."""

    table: str
    tables: list[TableFacts]
    d_model: int
    explained: list[float]
    """The shares of the variance along the two directions."""
    points: list[tuple[float, float]]
    tokens: list[str]


class Neighbour(TypedDict):
    id: int
    text: str
    cosine: float


class TableNeighbours(TypedDict):
    table: str
    length: float
    """The length of the token's own vector."""
    near: list[Neighbour]


class Neighbours(TypedDict):
    """The tokens whose vectors point most nearly the same way, in every table of the same vocabulary."""

    token: int
    text: str
    tables: list[TableNeighbours]


class MergePart(TypedDict):
    """A part of a token: a character or byte, or two parts that were merged."""

    text: str
    left: int | None
    right: int | None
    rank: int | None
    """Which merge it is, in the order in which they were learned."""


class TextToken(TypedDict):
    id: int
    text: str
    bytes: list[int]
    start: int
    stop: int
    """From which character of the text to which."""
    unknown: bool
    special: bool
    score: float | None
    """Its log-probability among the pieces of a Unigram tokeniser; null for other kinds."""


class TokenizedText(TypedDict):
    """A text and its tokens, word by word."""

    field: str
    fields: list[str]
    """The fields of the run that have a tokeniser of their own."""
    text: str
    words: list[list[TextToken]]
    trees: dict[str, list[MergePart]]
    """By the id of a token: its parts and how they were merged, itself last; not of every token."""
    model: str
    """How it cuts words: BPE, Unigram, WordPiece or WordLevel."""
    merges: int
    vocabulary: int
    lower: bool
    characters: int
    n_bytes: int
    tokens: int
    unknown: int
