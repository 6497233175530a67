"""`Design`: a head made by hand. Its four maps, what it asks for, and how sharp it is."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from clearhead.attention import masks
from clearhead.attention.heads import Heads
from clearhead.attention.layer import Attention
from clearhead.attention.mask_rules import Mask
from clearhead.attention.reference import Steps
from clearhead.attention.similarity import Dot
from clearhead.attention.weighting import Weighting
from clearhead.calls import public
from clearhead.craft.inputs import Inputs, Tokens
from clearhead.craft.sharpness import HardestQuery, Sharpness, check_epsilon, hardest
from clearhead.errors import OptionError, ShapeError
from clearhead.model.blocks import AttentionSpec

Labels = Int[Tensor, "n"]


@dataclass(frozen=True, kw_only=True)
class AskedScores:
    """The score that a design asks for, for each query and key. A row's targets are its highest scores above 0."""

    content: Callable[[Labels, Labels], Tensor] | None = None
    """From the labels of queries and of keys."""
    places: Callable[[int], Tensor] | None = None
    """From the length."""
    query: str = "token"
    key: str = "token"
    """The blocks whose labels count."""

    def table(self, query: Labels, key: Labels) -> Float[Tensor, "query key"]:
        scores = torch.zeros(len(query), len(key), dtype=torch.float64)
        if self.content is not None:
            scores = scores + self.content(query, key)
        return scores if self.places is None else scores + self.places(len(key))

    @public
    def targets(self, query: Labels, key: Labels, allowed: Bool[Tensor, "query key"]) -> Bool[Tensor, "query key"]:
        """Return which keys a query should attend to, of those that are allowed."""
        scores = self.table(query, key).masked_fill(~allowed, -math.inf)
        best = scores.amax(-1, keepdim=True)
        return (scores >= best - 1e-9) & (best > 1e-9) & allowed


@final
@public
@dataclass(frozen=True, kw_only=True, eq=False)
class Design:
    """A head: its four maps, for these inputs. `query = scale · x W_Q`, `key = x W_K`, `score = query · key`.

    Without `w_v` and `w_o` the design says only where to look, and installing it leaves the head's W_V and W_O alone.

    Attributes:
        name: What it does.
        inputs: Directions of its input.
        asked: The score it is designed to have, for each query and key.
        w_q: Map to queries.
        w_k: Map to keys.
        w_v: Map to values.
        w_o: Map to the output.
        scale: Factor for the queries.
        mask: Where a query may attend.

    Raises:
        OptionError: If the scale is not positive and finite.

    >>> from clearhead import craft
    >>> craft.by_position(craft.inputs(["a", "b"], 3), offset=-1).w_q.shape
    torch.Size([5, 3])
    """

    name: str
    inputs: Inputs
    asked: AskedScores
    w_q: Float[Tensor, "d_model d_head"]
    w_k: Float[Tensor, "d_model d_head"]
    w_v: Float[Tensor, "d_model d_value"] | None = None
    w_o: Float[Tensor, "d_value d_model"] | None = None
    scale: float = 1.0
    mask: Mask = masks.everything()

    def __post_init__(self) -> None:
        if not (self.scale > 0 and math.isfinite(self.scale)):
            raise OptionError(f"{self.name}: scale must be above 0 and finite; came {self.scale}")

    def __str__(self) -> str:
        maps = f"W_Q and W_K {self.inputs.d_model} × {self.d_head}"
        carried = "" if self.w_v is None else f", W_V and W_O through {self.w_v.shape[1]} numbers"
        return f"{self.name}: {maps}{carried}, scale {self.scale:.4g}"

    @property
    def d_head(self) -> int:
        return self.w_q.shape[1]

    def scaled(self, scale: float) -> "Design":
        """Return the same head at another scale: larger is sharper."""
        return replace(self, scale=float(scale))

    def sharpened(self, n: int, epsilon: float = 0.01) -> "Design":
        """Return the same head at the scale that puts 1 - ε on what is wanted, at this length."""
        needed = self.sharpness(n, epsilon).needed
        if math.isinf(needed):
            raise OptionError(f"{self.name}: no scale is enough at {n} tokens; look at its sharpness({n})")
        return self.scaled(max(needed, 1e-3))

    def seeing(self, mask: Mask) -> "Design":
        """Return the same head under a mask."""
        return replace(self, mask=mask)

    def named(self, name: str) -> "Design":
        return replace(self, name=name)

    def carrying(self, what: str | Tensor, to: str | Tensor) -> "Design":
        """Return the same head, carrying a block of the input into another as wide; or by matrices W_V and W_O."""
        w_v = self.taking(what) if isinstance(what, str) else what.float()
        w_o = self.taking(to).T if isinstance(to, str) else to.float()
        d_model = self.inputs.d_model
        if w_v.shape != (d_model, w_o.shape[0]) or w_o.shape[1] != d_model:
            raise ShapeError(
                f"{self.name}: W_V and W_O must be ({d_model}, d_value) and (d_value, {d_model}); came "
                f"{tuple(w_v.shape)} and {tuple(w_o.shape)}. A block is carried into one of its own width"
            )
        return replace(self, w_v=w_v, w_o=w_o)

    def saying(self, values: Float[Tensor, "label width"], to: str, *, of: str = "token") -> "Design":
        """Return the same head with these values, written to the block `to`: a row for each label of the block `of`.

        >>> from clearhead.craft import by_content, inputs
        >>> read = inputs(["blue", "creature"], room={"meaning": ["colour"]})
        >>> head = by_content(read, {"creature": ["blue"]}).saying(torch.tensor([[1.0], [0.0]]), to="meaning")
        >>> head.explain(["blue", "creature"]).value[0].tolist()
        [[1.0], [0.0]]
        """
        labels, width = len(self.inputs[of].labels), self.inputs[to].width
        if values.shape != (labels, width):
            raise ShapeError(
                f"{self.name}: expected a row of values for each of the {labels} labels of {of}, as wide as {to}: "
                f"{(labels, width)}; came {tuple(values.shape)}"
            )
        return self.carrying(self.inputs.reading(of) @ values.float(), to)

    def taking(self, name: str) -> Float[Tensor, "d_model width"]:
        """Return the map that takes the directions of a block as they are."""
        block = self.inputs[name]
        return torch.eye(self.inputs.d_model)[:, block.at]

    def layer(self, weighting: Weighting | None = None) -> Attention:
        """Return an ordinary attention of one head with these weights; softmax unless another weighting is given."""
        return layer(self, weighting=weighting)

    @public
    def explain(
        self, tokens: Tokens, weighting: Weighting | None = None, *, labels: Mapping[str, Tokens] | None = None
    ) -> Steps:
        """Return every step of the head on a text: one head, no batch.

        `labels` are those in further blocks of the inputs, by the block's name: a label for each token.
        """
        x = self.inputs.vectors(tokens, labels)
        with torch.no_grad():
            return self.layer(weighting).explain(x)

    @public
    def weights(
        self, tokens: Tokens, weighting: Weighting | None = None, *, labels: Mapping[str, Tokens] | None = None
    ) -> Float[Tensor, "query key"]:
        """Return its weights on a text; `labels` as in `explain`."""
        return self.explain(tokens, weighting, labels=labels).weight[0]

    def targets(self, tokens: Tokens, *, labels: Mapping[str, Tokens] | None = None) -> Bool[Tensor, "query key"]:
        """Return which keys each query should attend to; `labels` as in `explain`."""
        n = len(self.inputs["token"].ids(tokens))
        rows = {"token": tokens, **(labels or {})}
        query, key = (self.inputs[block].ids(rows[block]) for block in (self.asked.query, self.asked.key))
        return self.asked.targets(query, key, self.allowed(n))

    def allowed(self, n: int) -> Bool[Tensor, "query key"]:
        return masks.show(self.mask, n_query=n, n_key=n)[0]

    @public
    def sharpness(self, n: int, epsilon: float = 0.01) -> Sharpness:
        """Return how sharp the head is on any text of n tokens."""
        check_epsilon(epsilon)
        self.inputs.check_length(n)
        margins: dict[tuple[int, int], float] = {}
        allowed = self.allowed(n)
        for row in range(n):
            for case, margin in hardest(*self.cells(row, allowed)).items():
                margins[case] = min(margins.get(case, math.inf), margin)
        cases = tuple(HardestQuery(margin, *case) for case, margin in sorted(margins.items()))
        return Sharpness(n=n, scale=self.scale, epsilon=epsilon, cases=cases)

    def cells(self, row: int, allowed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return, for a query of each label in this row and a key of each at each place: asked, score, allowed."""
        n = len(allowed)
        query, key = self.labels(self.asked.query), self.labels(self.asked.key)
        at = torch.zeros(n, self.inputs.d_model)
        at = at if self.inputs.length is None else self.inputs.spread("position")[:n]
        queries = (query + at[row]).double() @ self.w_q.double()
        keys = (key.unsqueeze(0) + at.unsqueeze(1)).double() @ self.w_k.double()
        scores = torch.einsum("ad,jbd->ajb", queries, keys)
        asked_scores = torch.zeros_like(scores)
        if self.asked.content is not None:
            asked_scores = asked_scores + self.asked.content(
                torch.arange(len(query)), torch.arange(len(key))
            ).unsqueeze(1)
        if self.asked.places is not None:
            asked_scores = asked_scores + self.asked.places(n)[row].unsqueeze(-1)
        may = allowed[row].unsqueeze(-1).expand(scores.shape).clone()
        if self.asked.query == self.asked.key:
            may[:, row] &= torch.eye(len(query), dtype=torch.bool)
        return asked_scores, scores, may

    def labels(self, block: str) -> Float[Tensor, "label d_model"]:
        """Return the vectors of a block's labels; only the first where labels do not count."""
        vectors = self.inputs.spread(block)
        return vectors if self.asked.content is not None else vectors[:1]


@public
def layer(*designs: Design, weighting: Weighting | None = None) -> Attention:
    """Return an ordinary attention layer with one head for each design: q·k without a factor, and no bias.

    Args:
        designs: The designs.
        weighting: The weighting; softmax if None.

    Returns:
        The layer.
    """
    spec = attention_spec(designs, weighting)
    built = spec.build(designs[0].inputs.d_model)
    write_layer(built, designs)
    return built


def attention_spec(designs: Sequence[Design], weighting: Weighting | None) -> AttentionSpec:
    if not designs:
        raise OptionError("a layer needs at least one design")
    first = designs[0]
    for design in designs:
        if design.inputs is not first.inputs:
            raise OptionError("designs of one layer read one input; make them from the same inputs")
        if design.mask.structure != first.mask.structure:
            raise OptionError("a layer has one mask; give the designs the same one, by .seeing(mask)")
        if design.w_v is None:
            raise OptionError(f"{design.name} carries nothing; say what and where to, by .carrying(what, to)")
    heads = Heads(
        len(designs),
        d_head=max(design.d_head for design in designs),
        d_value=max(design.w_v.shape[1] for design in designs if design.w_v is not None),
    )
    return AttentionSpec(heads=heads, similarity=Dot(), weighting=weighting, mask=first.mask)


@torch.no_grad()
def write_layer(layer: Attention, designs: Sequence[Design]) -> None:
    for number, design in enumerate(designs):
        write_head(layer, number, design, scale=design.scale)


@torch.no_grad()
def write_head(layer: Attention, head: int, design: Design, *, scale: float) -> dict[str, tuple[slice, slice]]:
    """Write a design into a head, with zeros where the head is wider; return where it wrote, by parameter."""
    everywhere, regions = slice(None), {}
    maps = {"query": design.w_q * scale, "key": design.w_k}
    if design.w_v is not None and design.w_o is not None:
        maps |= {"value": design.w_v}
        weight = cast(nn.Linear, layer.output).weight
        width = weight.shape[1] // layer.shape.n_heads
        rows = slice(head * width, (head + 1) * width)
        weight[:, rows] = pad_columns(design.w_o.T, width).to(weight)
        regions["output.weight"] = (everywhere, rows)
    for name, matrix in maps.items():
        weight = getattr(layer, name).linear.weight
        width = weight.shape[0] // layer.shape.n_heads
        rows = slice(head * width, (head + 1) * width)
        weight[rows] = pad_columns(matrix, width).T.to(weight)
        regions[f"{name}.linear.weight"] = (rows, everywhere)
    return regions


def pad_columns(matrix: Tensor, width: int) -> Tensor:
    """Return the matrix with zeros to the right of its columns, `width` columns in all."""
    return nn.functional.pad(matrix, (0, width - matrix.shape[1]))
