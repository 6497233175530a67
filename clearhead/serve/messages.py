"""What the server answers: one class for each reply, and for each thing in it.

web/src/lib/messages.ts has the same types in TypeScript. It is written from this file and run_messages.py by
`python -m tests.serve.write_messages`, and a test compares the two. Another test holds the replies of a running server
against these types. In JSON a number that is not finite is null.
"""

from typing import Any, Literal, NotRequired, TypedDict

from clearhead.serve.part_messages import EmbeddingMap, Neighbours, Neurons, TokenizedText
from clearhead.serve.run_messages import ModelKind, Run, SideName, Slot, WeightingKind


class StepEdit(TypedDict):
    """A change of one step of one site: a head off is {step: "context", head, times: 0}."""

    at: str
    step: str
    head: NotRequired[int | None]
    query: NotRequired[int | None]
    key: NotRequired[int | None]
    unit: NotRequired[int | None]
    to: NotRequired[float | bool | None]
    times: NotRequired[float | None]


class WeightingEdit(TypedDict):
    """One weighting in place of another."""

    at: str
    weighting: str


class SideMeta(TypedDict):
    ids: list[int]
    tokens: list[str]
    n_layers: int
    d_model: int


class PartWords(TypedDict):
    """What a reader calls the parts: "scaled dot product", "no positions", "causal mask"."""

    similarity: str
    weighting: str
    position: str
    mask: str


class Arithmetic(TypedDict):
    """What the arithmetic of a site is, as its parts say it."""

    kind: WeightingKind
    """How a weight is worked out: its share of the row's exponentials, or of its scores; all on the best key; or
    `rows`, any function of the row, of which nothing is known but what the part says of itself."""
    rule: str
    """What its weighting does, in a sentence of its own without a full stop."""
    blocked: float | None
    """What stands in place of a score where the query may not attend; null is −∞."""
    formula: str
    """How the score of a query and a key is made."""
    prepared: str
    """What a query or key is called once prepared for that, "{}" standing for its name: "unit {}"."""
    scale_reason: str
    """Why the scale is what it is, where it is not 1/√d_head."""
    biased: bool
    """Whether its positions add to the scaled scores."""
    turns: bool
    """Whether its positions turn queries and keys before they are compared."""
    masks: bool
    """Whether a key may be hidden from a query."""
    causal: bool


class SiteMeta(TypedDict):
    name: str
    side: SideName
    layer: int
    slot: Slot
    n_heads: int
    n_kv_heads: int
    d_head: int
    d_value: int
    n_query: int
    n_key: int
    query_side: SideName
    key_side: SideName
    similarity: str
    weighting: str
    position: str
    mask: str
    words: PartWords
    arithmetic: Arithmetic
    scale: list[float]
    kernel: str
    why: str
    """Why the reference computed it and no kernel; "" where a kernel did."""
    edited: bool


class Candidate(TypedDict):
    id: int
    text: str
    p: float


class ProgramAnswers(TypedDict):
    answers: list[str]
    offset: int


class Meta(TypedDict):
    """What a trace is of: its tokens, its attentions, and what the model answers."""

    id: str
    source: str
    target: str | None
    edits: list[StepEdit | WeightingEdit]
    step: int | None
    notes: list[str]
    kind: ModelKind
    sides: dict[SideName, SideMeta]
    sites: list[SiteMeta]
    names: list[str]
    candidates: list[list[Candidate]]
    answer: str
    program: NotRequired[ProgramAnswers]
    """Of a compiled program: its answer at each token of the text, which begins at token `offset`."""


class Row(TypedDict):
    """One query's numbers against every key; null stands for −∞. The mean of heads has only its weight."""

    query: NotRequired[list[float]]
    score: NotRequired[list[float | None]]
    scaled: NotRequired[list[float | None]]
    masked: NotRequired[list[float | None]]
    weight: list[float]
    context: NotRequired[list[float]]
    allowed: NotRequired[list[bool]]


class Column(TypedDict):
    weight: list[float]


class Turn(TypedDict):
    """A query and a key before their turn, and by how much each pair of their numbers is turned, in radians."""

    query: list[float]
    key: list[float]
    query_position: int
    key_position: int
    pairs: list[tuple[int, int]]
    query_angles: list[float]
    key_angles: list[float]


class Cell(TypedDict):
    """Every number of one cell's arithmetic."""

    kind: WeightingKind
    query: list[float]
    key: list[float]
    products: list[float]
    score: float | None
    scale: float
    scaled: float | None
    bias: float | None
    allowed: bool
    masked: float | None
    highest: float | None
    temperature: float
    """What softmax divides by before the exponential."""
    exponential: float | None
    """What the weight is a share of `total` of; null in weightings that are no share."""
    total: float | None
    weight: float
    ties: list[int]
    value: list[float]
    share: list[float]
    context: list[float]
    turn: Turn | None
    """How the positions turned query and key before they were compared; null where they did not."""
    input: list[float] | None
    """What the head reads of the query's vector: in sliced heads, its slice."""
    input_start: int | None
    """The place of the first of these numbers in the vector; null where the head reads all of it."""
    latent: list[float] | None
    """The key's value between V_down and V_up; null where values are not of low rank."""
    n_query: int
    n_key: int


class Readings(TypedDict):
    """Of each head, means over its queries; null where there is no such key for any query. Entropy is in bits."""

    entropy: list[float | None]
    distance: list[float | None]
    first: list[float | None]
    itself: list[float | None]
    previous: list[float | None]
    same: list[float | None]
    induction: list[float | None]
    gain: list[float | None]
    """What W_O makes of the head: how many times as long as its contexts is what it adds to the stream."""


class LensLayer(TypedDict):
    name: str
    rows: list[list[Candidate]]


class Lens(TypedDict):
    side: SideName
    layers: list[LensLayer]


class HeadEffect(TypedDict):
    head: int
    change: float
    kl: float


class Effects(TypedDict):
    effects: list[HeadEffect]


class StreamRow(TypedDict):
    name: str
    norm: list[float]
    cosine: list[float]


class Stream(TypedDict):
    """How long each position's vector is along the stream, and its cosine with the embedding."""

    rows: list[StreamRow]


class Spaces(TypedDict):
    """Cosines of some tokens with each other in three spaces, and the head's scores; rows are queries, columns keys."""

    places: list[int]
    tokens: list[str]
    embedding: list[list[float]]
    query_key: list[list[float]]
    score: list[list[float]]
    value: list[list[float]]


class Sequence(TypedDict):
    """A sequence diagram of one attention step, as an SVG element."""

    svg: str


class Sentence(TypedDict):
    """The same of the notes' sentence, whose head was set by hand."""

    svg: str
    tokens: list[str]
    token: int


class BoxNumbers(TypedDict):
    """The numbers of a box for one token, by name; what its values follow from is among them. null stands for −∞."""

    values: dict[str, list[float | None]]
    constants: dict[str, float]
    """Numbers of formulas that are no value of the trace: the scale of a head."""
    labels: dict[str, str]
    """What units of an output are called, the likeliest of them."""


class BoxTerms(TypedDict):
    """A number that a linear map makes: the sum of x · weight, and bias."""

    x: list[float]
    weight: list[float]
    bias: float
    value: float
    start: int
    """The place of the first x: in sliced heads, where the head's slice begins."""


class ContextPlace(TypedDict):
    text: str
    tokens: list[str]
    places: list[int]


class Attended(TypedDict):
    index: int
    text: str
    weight: float


class ContextAnswer(TypedDict):
    word: str
    places: list[ContextPlace]
    layers: list[str]
    cosine: list[list[list[float]]]
    path: list[list[tuple[float, float]]]
    responsible: list[list[list[Attended]]]


class PositionKind(TypedDict):
    name: str
    title: str
    sentence: str
    """What the kind is."""
    note: str
    """What this run has of it."""
    used: bool
    """Whether this run has it."""
    trained: bool
    table: list[list[float]] | None
    similarity: list[float]


class Positions(TypedDict):
    used: str
    kinds: list[PositionKind]
    bias: list[list[float]] | None
    """What the position adds to the scores of each head of the first layer, from the furthest key before it on."""


class DecodeNode(TypedDict):
    id: int
    parent: int | None
    step: int
    token: int
    text: str
    log_prob: float
    total: float
    state: Literal["live", "pruned", "ended", "best"]
    rank: int
    candidates: list[Candidate]


class DecodeOutput(TypedDict):
    text: str
    score: float
    ids: list[int]
    ended: bool


class CrossWeights(TypedDict):
    step: int
    weight: list[list[float]]


class Decoded(TypedDict):
    nodes: list[DecodeNode]
    best: list[int]
    outputs: list[DecodeOutput]
    source_tokens: list[str]
    cross: list[CrossWeights] | None
    edits: list[StepEdit | WeightingEdit]


class SampleCandidate(TypedDict):
    """A token that could have come next: its probability, and the one it was drawn with."""

    id: int
    text: str
    p: float
    after: float
    """After the temperature and the cuts; 0 where it was cut."""
    cut: Literal["", "top_k", "top_p", "never"]
    """What cut it: top-k, top-p, or a rule that it may never come; "" where it could be drawn."""


class SampleStep(TypedDict):
    """One token that was drawn, or taken as the likeliest, and what it was drawn from."""

    token: int
    text: str
    p: float
    after: float
    drawn: float | None
    """The random number in [0, 1): the token is the one in whose stretch of the probabilities it lies."""
    begins: float
    """Where that stretch begins: the sum of the probabilities of all likelier tokens."""
    left: int
    """The number of tokens that could be drawn."""
    candidates: list[SampleCandidate]


class Sampled(TypedDict):
    """Text that was sampled, token by token: the same as the library's for the same seed."""

    steps: list[SampleStep]
    text: str
    ends: list[int]
    """After each step, how many characters of the text are certain."""
    ids: list[int]
    ended: bool
    room: int
    """The most new tokens that there can be."""
    source_tokens: list[str]
    cross: list[CrossWeights] | None
    edits: list[StepEdit | WeightingEdit]


class CurveLine(TypedDict):
    kind: str
    step: int
    loss: NotRequired[float | None]


class Curves(TypedDict):
    lines: list[CurveLine]
    training: bool
    last: int | None


class Problem(TypedDict):
    """What went wrong, in a sentence."""

    error: str


OPEN = {"CurveLine"}
"""Messages that hold more than is said here: a line of the log has the scores of its task."""

REPLIES: dict[str, Any] = {
    "run": Run,
    "trace": Meta,
    "sentence": Sentence,
    "context": ContextAnswer,
    "positions": Positions,
    "decode": Decoded,
    "curves": Curves,
    "row": Row,
    "column": Column,
    "cell": Cell,
    "stream": Stream,
    "spaces": Spaces,
    "sequence": Sequence,
    "box": BoxNumbers,
    "terms": BoxTerms,
    "readings": dict[str, Readings],
    "lens": Lens,
    "effects": Effects,
    "sample": Sampled,
    "neurons": Neurons,
    "embeddings": EmbeddingMap,
    "neighbours": Neighbours,
    "tokenize": TokenizedText,
}
"""Every reply in JSON by the last part of its address; `tile`, `vectors` and `thumbs` are raw numbers."""
