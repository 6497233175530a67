"""Designs: a head made by hand. What each key says, what each query asks for, what is carried and where it goes.

>>> words = inputs(["the", "blue", "creature"], 4)
>>> head = by_content(words, {"creature": ["blue"]}, scale=10.0)
>>> head.weights(["the", "blue", "creature", "blue"])[2].mul(100).round().int().tolist()
[0, 50, 0, 50]
>>> head.sharpness(4).margin
1.0
>>> by_position(words, offset=-1, scale=10.0).weights(["the", "blue", "creature"])[2].round().int().tolist()
[0, 1, 0]
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.calls import public
from clearhead.craft.design import AskedScores, Design
from clearhead.craft.inputs import Inputs, inputs
from clearhead.errors import OptionError, ShapeError

Asks = Mapping[str, str | Sequence[str]] | Callable[[str, str], float] | Tensor
"""Which labels a label asks for: a list each, or a number for each pair, the query's label first."""


@public
def by_content(
    read: Inputs | Sequence[str],
    asks: Asks,
    *,
    keys: Float[Tensor, "label d_head"] | None = None,
    queries: Float[Tensor, "label d_head"] | None = None,
    query: str = "token",
    key: str = "token",
    scale: float = 1.0,
) -> Design:
    """Return a head that looks for what a key says, wherever it is, and attends equally to keys that say the same.

    Args:
        read: Inputs, or a vocabulary.
        asks: For each label of a query the labels it looks for; or a number for every pair, by a function or a table.
        keys: What the labels of keys say, one row each; orthogonal if None.
        queries: What is asked; the sum of the keys looked for if None.
        query: Block whose labels are the queries'.
        key: Block whose labels are the keys'.
        scale: Factor for the queries.

    Returns:
        The design.

    >>> from clearhead import craft
    >>> craft.by_content(craft.inputs(["a", "b"], 3), {"a": "b"}).weights(["a", "b"])[0].tolist()[0] < 0.5
    True
    """
    source = read if isinstance(read, Inputs) else inputs(read)
    table = make_content_table(asks, source[query].labels, source[key].labels)
    key_vectors = make_key_vectors(keys, table.shape[1])
    query_vectors = make_query_vectors(queries, table, key_vectors)

    def content(query_ids: Tensor, key_ids: Tensor) -> Tensor:
        return table.double()[query_ids][:, key_ids]

    design = Design(
        name="by content",
        inputs=source,
        asked=AskedScores(content=content, query=query, key=key),
        w_q=source.reading(query) @ query_vectors,
        w_k=source.reading(key) @ key_vectors,
        scale=scale,
    )
    return design.carrying("token", to="token")


def make_key_vectors(keys: Tensor | None, count: int) -> Float[Tensor, "label d_head"]:
    """Return the key vectors: those given, or orthogonal ones."""
    vectors = torch.eye(count) if keys is None else keys.float()
    if vectors.ndim != 2 or len(vectors) != count or not vectors.norm(dim=-1).all():
        raise ShapeError(
            f"by_content: expected a key other than 0 for each of the {count} labels of keys; came "
            f"{tuple(vectors.shape)}"
        )
    return vectors


def make_query_vectors(queries: Tensor | None, table: Tensor, keys: Tensor) -> Float[Tensor, "label d_head"]:
    """Return the query vectors: those given, or the sum of the keys looked for, each scaled to the score asked."""
    vectors = table @ (keys / keys.pow(2).sum(-1, keepdim=True)) if queries is None else queries.float()
    if vectors.shape != (len(table), keys.shape[1]):
        raise ShapeError(
            f"by_content: expected queries of shape {(len(table), keys.shape[1])}, one for each label of queries, as "
            f"wide as the keys; came {tuple(vectors.shape)}"
        )
    return vectors


def make_content_table(asks: Asks, queries: Sequence[str], keys: Sequence[str]) -> Float[Tensor, "query key"]:
    """Return what each label of a query asks of each label of a key."""
    if isinstance(asks, Tensor):
        if asks.shape != (len(queries), len(keys)):
            raise ShapeError(
                f"by_content: expected asks of shape {(len(queries), len(keys))}; came {tuple(asks.shape)}"
            )
        return asks.float()
    if callable(asks):
        return torch.tensor([[float(asks(query, key)) for key in keys] for query in queries])
    table = torch.zeros(len(queries), len(keys))
    for query, targets in asks.items():
        if not isinstance(targets, Sequence):
            raise OptionError(f"by_content: {query!r} asks for a label or a list of labels; came {targets!r:.80}")
        for key in [targets] if isinstance(targets, str) else targets:
            if query not in queries or key not in keys:
                raise OptionError(
                    f"by_content: {query!r} asks for {key!r}; queries have {', '.join(queries)}, keys {', '.join(keys)}"
                )
            table[queries.index(query), keys.index(key)] = 1
    return table


@public
def by_position(
    read: Inputs,
    *,
    offset: int | None = None,
    absolute: int | None = None,
    function: Callable[[int, int], int | Sequence[int] | None] | None = None,
    scores: Callable[[int, int], float] | None = None,
    scale: float = 1.0,
) -> Design:
    """Return a head that looks at a place.

    n is the length for which the inputs were made: a head cannot know that a text is shorter. On one-hot positions all
    of this is exact. On waves an offset is a rotation, and a function or scores are fitted by least squares:
    `sharpness` shows how well.

    Args:
        read: The inputs.
        offset: Look this many places on (negative: back).
        absolute: Look at this place.
        function: Takes place i and length n, and returns the place or places to look at, or None.
        scores: Takes places i and j, and returns a score.
        scale: Factor for the queries.

    Returns:
        The design.

    Raises:
        OptionError: If not exactly one of the four is given, or the inputs have no positions.

    >>> from clearhead import craft
    >>> before = craft.by_position(craft.inputs(["a", "b"], 3), offset=-1, scale=20.0)
    >>> before.weights(["a", "b", "a"])[2].round().tolist()
    [0.0, 1.0, 0.0]
    """
    options = {"offset": offset, "absolute": absolute, "function": function, "scores": scores}
    given_names = [name for name, value in options.items() if value is not None]
    if len(given_names) != 1:
        raise OptionError(f"by_position: give one of {', '.join(options)}; came {', '.join(given_names) or 'none'}")
    length = read.length
    if length is None:
        raise OptionError("by_position: the input holds no positions; make the inputs with a length")
    if absolute is not None and not 0 <= absolute < length:
        raise OptionError(f"by_position: absolute must be one of the {length} positions; came {absolute}")
    table = make_places_table(length, offset=offset, absolute=absolute, function=function, scores=scores)
    design = Design(
        name=name_place(offset, absolute),
        inputs=read,
        asked=AskedScores(places=lambda n: table[:n, :n]),
        w_q=make_place_queries(read, table, offset, absolute),
        w_k=torch.eye(read.d_model)[:, read["position"].at],
        scale=scale,
    )
    return design.carrying("token", to="token")


def make_place_queries(
    read: Inputs, table: Tensor, offset: int | None, absolute: int | None
) -> Float[Tensor, "d_model width"]:
    """Return W_Q: from an input to the vector of the place it asks for, scaled so that its score there is 1."""
    block = read["position"]
    norm = block.vectors.pow(2).sum(-1).mean()
    if absolute is not None:
        return read.constant.unsqueeze(1) * block.vectors[absolute] / norm
    target_vectors = None if offset is None else block.turn(offset)
    if target_vectors is None:
        target_vectors = torch.linalg.pinv(block.vectors.double(), rtol=1e-6).float() @ table.float() @ block.vectors
    w_q = torch.zeros(read.d_model, block.width)
    w_q[block.at] = target_vectors / norm
    return w_q


def name_place(offset: int | None, absolute: int | None) -> str:
    if absolute is not None:
        return f"position {absolute}"
    if offset is None:
        return "by position"
    return f"{-offset} back" if offset < 0 else f"{offset} ahead"


def make_places_table(
    length: int,
    *,
    offset: int | None,
    absolute: int | None,
    function: Callable[[int, int], int | Sequence[int] | None] | None,
    scores: Callable[[int, int], float] | None,
) -> Float[Tensor, "query key"]:
    """Return what each place asks of each place."""
    positions = range(length)
    if scores is not None:
        return torch.tensor([[float(scores(i, j)) for j in positions] for i in positions], dtype=torch.float64)
    table = torch.zeros(length, length, dtype=torch.float64)
    for i in positions:
        if offset is not None:
            targets = i + offset
        elif function is not None:
            targets = function(i, length)
        else:
            targets = absolute
        for j in () if targets is None else (targets,) if isinstance(targets, int) else targets:
            if 0 <= j < length:
                table[i, j] = 1
    return table


@public
def combine(*designs: Design, weights: Sequence[float] | None = None) -> Design:
    """Return a head that asks for several things at once: it adds the designs' scores, each times its scale and weight.

    Its values and output are those of the first design.

    Args:
        designs: The designs.
        weights: A factor for each; 1 if None.

    Returns:
        The design.

    Raises:
        OptionError: If there are fewer than two designs, not as many weights, or they differ in inputs or mask.
    """
    shares = [1.0] * len(designs) if weights is None else list(weights)
    if len(designs) < 2 or len(shares) != len(designs):
        raise OptionError(
            "combine: give two designs or more, and a weight for each; "
            f"came {len(designs)} designs and {len(shares)} weights"
        )
    first = designs[0]
    if any(design.inputs is not first.inputs for design in designs):
        raise OptionError("combine: designs in one head read one input; make them from the same inputs")
    if any(design.mask.structure != first.mask.structure for design in designs):
        raise OptionError("combine: a head has one mask; give the designs the same one, by .seeing(mask)")
    factors = [design.scale * share for design, share in zip(designs, shares, strict=True)]
    return replace(
        first,
        name=" and ".join(design.name for design in designs),
        asked=add_scores([design.asked for design in designs], factors),
        w_q=torch.cat([design.w_q * factor for design, factor in zip(designs, factors, strict=True)], -1),
        w_k=torch.cat([design.w_k for design in designs], -1),
        scale=1.0,
    )


def add_scores(scores_of_designs: Sequence[AskedScores], factors: Sequence[float]) -> AskedScores:
    """Return the sum of what several designs ask for, each times its factor."""
    contents = [
        (scores.content, factor) for scores, factor in zip(scores_of_designs, factors, strict=True) if scores.content
    ]
    places = [
        (scores.places, factor) for scores, factor in zip(scores_of_designs, factors, strict=True) if scores.places
    ]
    blocks = {(scores.query, scores.key) for scores in scores_of_designs if scores.content}
    if len(blocks) > 1:
        raise OptionError(
            f"combine: designs by content must read the same blocks; came {sorted(blocks)}. "
            "Put them into heads of their own"
        )
    query, key = next(iter(blocks), ("token", "token"))

    def add_contents(query_ids: Tensor, key_ids: Tensor) -> Tensor:
        return torch.stack([content(query_ids, key_ids) * factor for content, factor in contents]).sum(0)

    def add_places(n: int) -> Tensor:
        return torch.stack([scores_at(n) * factor for scores_at, factor in places]).sum(0)

    return AskedScores(
        content=add_contents if contents else None, places=add_places if places else None, query=query, key=key
    )
