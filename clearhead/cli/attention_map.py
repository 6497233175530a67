"""A map of attention for a terminal: a row for each query, a column for each key, the darker the greater the weight.

No meaning hangs on colour: shades are characters, and the greatest weight of each row stands beside it.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

from jaxtyping import Float
from rich.text import Text
from torch import Tensor
from torch.nn import functional as F

from clearhead.cli.screen import WIDTH, number
from clearhead.errors import ShapeError

SHADES = ((0.8, "█"), (0.5, "▓"), (0.3, "▒"), (0.1, "░"), (0.0, " "))
"""From which weight on each is shown."""
MARGIN, MOST = 2, 5
"""Columns on the left, and those of the greatest weight on the right."""
HALF = 0.5
LONGEST = 20
"""Columns of a row's name, at most."""
ROWS, COLUMNS = 28, 24
"""Largest map with a row and a column for each token; a larger one is pooled."""

Weights = Float[Tensor, "query key"]


def attention_map(queries: Sequence[str], keys: Sequence[str], weight: Weights) -> Iterator[Text]:
    """Return the map in lines of 80 columns at most; names too long for that are cut."""
    if weight.shape != (len(queries), len(keys)):
        raise ShapeError(
            f"weight: expected a row for each of {len(queries)} queries and a column for each of {len(keys)} keys; "
            f"came {tuple(weight.shape)}"
        )
    names = [cut(readable(query), LONGEST) for query in queries]
    label = MARGIN + max(map(len, names))
    widths = fit_widths([len(readable(key)) for key in keys], WIDTH - label - MOST)
    heads = (f" {cut(readable(key), width):^{width}}" for key, width in zip(keys, widths, strict=True))
    yield Text.assemble(" " * label, *((head, "key") for head in heads), (f" {'most':>{MOST - 1}}", "quiet"))
    for name, row in zip(names, weight.tolist(), strict=True):
        cells = ((f" {shade(x) * width}", "weight") for x, width in zip(row, widths, strict=True))
        most = f" {number(max(row)):>{MOST - 1}}"
        yield Text.assemble((f"{name:>{label}}", "query"), *cells, (most, "quiet"))


def pooled_map(queries: Sequence[str], keys: Sequence[str], weight: Weights) -> Iterator[Text]:
    """Return the map of any length: one that is too large has the largest of several weights in each of its places."""
    if len(queries) <= ROWS and len(keys) <= COLUMNS:
        yield from attention_map(queries, keys, weight)
        return
    across = WIDTH - LONGEST - MARGIN - MOST - 1
    height, width = -(-len(queries) // ROWS), -(-len(keys) // across)
    small = F.max_pool2d(weight.unsqueeze(0), (height, width), ceil_mode=True)[0]
    for i, row in enumerate(small.tolist()):
        name = cut(readable(queries[i * height]), LONGEST)
        most = f" {number(max(row)):>{MOST - 1}}"
        shades = "".join(map(shade, row))
        yield Text.assemble((f"{name:>{LONGEST + MARGIN}} ", "query"), (shades, "weight"), (most, "quiet"))
    yield Text(f"  Each place is the largest of up to {height} × {width} weights.", "quiet")


def legend() -> Text:
    """Return what the shades stand for."""
    shades = [(f"{character * 2} {least:g}", "weight") for least, character in reversed(SHADES) if least]
    parts = [part for shade in shades for part in ("   ", shade)]
    return Text.assemble(("  weight from", "quiet"), *parts)


def fit_widths(lengths: Sequence[int], room: int) -> list[int]:
    """Return the widths of columns that fit into this room with a space before each: the widest give way."""
    widths = [max(length, 4) for length in lengths]
    while sum(widths) + len(widths) > room:
        widest = max(range(len(widths)), key=widths.__getitem__)
        if widths[widest] == 1:
            raise ShapeError(f"a map of {len(lengths)} columns does not fit into {room} characters; look at fewer keys")
        widths[widest] -= 1
    return widths


def shade(weight: float) -> str:
    return next(character for least, character in SHADES if weight >= least)


def cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def readable(piece: str) -> str:
    """Return a piece without the sign for the space before it."""
    return piece.removeprefix("▁") or piece


class SwappedQueries(NamedTuple):
    """Two queries, the earlier first, that look at keys in the opposite order."""

    queries: tuple[str, str]
    keys: tuple[str, str]
    weights: tuple[float, float]


def swap(queries: Sequence[str], keys: Sequence[str], weight: Weights) -> SwappedQueries | None:
    """Return the clearest swap of words in a map, where both look there with half their weight or more; else None.

    Among equally clear pairs it is the one whose words are nearest.
    """
    most: list[float] = weight.amax(-1).tolist()
    best_key: list[int] = weight.argmax(-1).tolist()
    spoken = [
        i
        for i, query in enumerate(queries)
        if readable(query).isalpha() and readable(keys[best_key[i]]).isalpha() and most[i] >= HALF
    ]
    pairs = [(i, j) for i, j in combinations(spoken, 2) if best_key[i] > best_key[j]]
    if not pairs:
        return None
    i, j = max(pairs, key=lambda pair: (round(most[pair[0]] * most[pair[1]], 1), pair[0] - pair[1]))
    return SwappedQueries(
        queries=(readable(queries[i]), readable(queries[j])),
        keys=(readable(keys[best_key[i]]), readable(keys[best_key[j]])),
        weights=(most[i], most[j]),
    )
