"""What the server says of a run: its model, layer by layer, and the program that was compiled into it, if one was.

messages.py has the other replies, and says how these types reach the page.
"""

from typing import Literal, NotRequired, TypedDict

SideName = Literal["encoder", "decoder"]
Slot = Literal["attention", "cross"]
ModelKind = Literal["encoder", "decoder", "encoder-decoder"]
WeightingKind = Literal["softmax", "kernelized", "argmax", "rows"]
BoxKind = Literal["token", "position", "norm", "attention", "cross", "add", "feed_forward", "output"]


class AttentionSpec(TypedDict):
    n_heads: int
    n_kv_heads: int
    d_head: int
    weighting: str
    similarity: str
    position: str


class LayerSpec(TypedDict):
    attention: AttentionSpec
    cross: NotRequired[AttentionSpec]
    feed_forward: str | None
    arrangement: str


class BoxValue(TypedDict):
    """A named value that is made in a box, and how it follows from others."""

    name: str
    """Its name in the trace: "encoder.0.feed_forward.hidden"."""
    formula: str
    """In words, or with its operands in braces: "{gamma} · {normalized} + {beta}"."""
    operands: dict[str, str]
    """From what stands in braces to the name of that value."""
    map: str
    """The linear map that makes it of the value `of`; "" where none does."""
    of: str
    rows: Literal["query", "key", "none", "whole"]
    """What its rows are; "none": one for all tokens, "whole": one made of all of them."""
    columns: Literal["unit", "key"]
    per_head: bool
    neutral: float
    """The number that changes nothing, around which the value is painted: 1 in gamma."""


class BoxSpec(TypedDict):
    """A box of the model's picture, with every value that is made in it."""

    name: str
    kind: BoxKind
    layer: int | None
    values: list[BoxValue]


class EmbeddingSpec(TypedDict):
    position: str | None
    scaled: bool


class SideSpec(TypedDict):
    side: SideName
    n_layers: int
    d_model: int
    layers: list[LayerSpec]
    boxes: list[BoxSpec]
    embedding: EmbeddingSpec


class Example(TypedDict):
    source: str
    target: NotRequired[str]


class ProgramHead(TypedDict):
    site: str
    head: int
    words: str


class ProgramUnit(TypedDict):
    words: str


class ProgramLayer(TypedDict):
    side: SideName
    layer: int
    heads: list[ProgramHead]
    units: int
    network: list[ProgramUnit]


class Program(TypedDict):
    """The program that was compiled into a run."""

    name: str
    about: str
    listing: list[str]
    """The program, a line for each sequence it computes."""
    layers: list[ProgramLayer]
    exact: bool
    """Whether the weights are still those that were compiled."""


class Opening(TypedDict):
    """The head that a page opens on."""

    site: str
    head: int | Literal["mean"]


class Run(TypedDict):
    name: str
    path: str
    task: str
    context: int
    step: int
    steps: list[int]
    """The steps whose checkpoints are kept."""
    film: list[int]
    """The steps of the training's film: weights that are kept for the explorer alone."""
    beside: NotRequired[str]
    """The name of a second run to compare it with, which is asked under b/api/."""
    kind: ModelKind
    parameters: int
    vocabulary: int
    sides: list[SideSpec]
    target: Literal["none", "writes", "continues"]
    """Whether a text has a target: none, one that the model writes, or one that continues the text."""
    place: Literal["first", "last", "blank"]
    """The place of a text whose answer is shown first."""
    fields: list[str]
    labels: NotRequired[list[str]]
    examples: list[Example]
    """Texts to look at; a page opens on the first."""
    opening: NotRequired[Opening]
    """What a page opens on; the model's picture where there is none."""
    training: bool
    imported: NotRequired[bool]
    """Whether it was trained elsewhere: it has no steps of its own."""
    absent: NotRequired[dict[str, str]]
    """Views that would have nothing to show for this run, each with the reason."""
    weightings: NotRequired[list[str]]
    """What can be put in the place of a weighting, by name; a saved page has none."""
    directions: NotRequired[list[str]]
    """Of a compiled program: what each direction of the residual stream is called."""
    program: NotRequired[Program]
