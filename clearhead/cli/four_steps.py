"""The page `clearhead steps` prints: inputs, scores, weights, weighted sum, and the same in one call.

Every number is read from `Demonstration.steps`, which the layer's `explain` made, or is written out from those numbers.
"""

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from rich.console import RenderableType
from rich.text import Text
from torch import Tensor

from clearhead.attention.reference import Steps
from clearhead.attention.weighting import Weighting
from clearhead.cli.colours import heat
from clearhead.cli.demonstration import Demonstration
from clearhead.cli.screen import WIDTH, bar, number, plain, prose, rule
from clearhead.tracing.sentence import FEATURES, KINDS, MEANINGS, TOKENS

__all__ = ["page"]

Page = Iterator[RenderableType]

ROLES = ("query", "key", "value")
"""What a token's embedding is turned into."""
LABEL = 10
"""Columns of a row's name, its mark included."""
CELL = 10
"""Columns of a number in a table of queries and keys."""
BAR = 14
"""Columns of a bar for a weight of 1."""

SUM = WIDTH - 33
"""Columns of a sum of products, between its arrow and what it comes to."""

Amount = tuple[str, Callable[[float], float]]


def page(shown: Demonstration, row: int) -> Page:
    """Yield the whole page, following the token of one row."""
    yield from heading(shown, row)
    yield from inputs(shown, row)
    yield from scores(shown, row)
    yield from weights(shown, row)
    yield from weighted_sum(shown, row)
    yield from one_call(shown)


def heading(shown: Demonstration, row: int) -> Page:
    sentence = Text("  ").join(
        Text(f"[{word}]" if i == row else word, "chosen" if i == row else "") for i, word in words()
    )
    yield Text.assemble("  ", ("Attention in four steps", "title"))
    yield Text()
    yield Text.assemble("  ", sentence)
    yield Text()
    yield prose(
        "One head whose maps were set by hand: nouns ask for adjectives. We follow "
        f"[chosen]{TOKENS[row]}[/] (▸) and see what it gathers from its sentence."
    )
    sizes = f"d_model {len(FEATURES)} · d_head (d_k) {len(KINDS)}"
    yield prose(f"{sizes} · mask {shown.mask_name} · weighting {shown.weighting_name}", style="quiet")


def inputs(shown: Demonstration, row: int) -> Page:
    yield from step(
        "1  Inputs",
        "Each token has an embedding x, here of readable features: the kind of word it is (determiner, adjective, "
        "noun, verb) and what it means.",
    )
    yield Text.assemble(("  x".ljust(LABEL), "quiet"), *names(FEATURES))
    for i, word in words():
        yield Text.assemble(label(word, "", chosen=i == row), *vector(shown.embedding[i]))
    yield Text()
    yield prose(
        "Three maps turn it into a [query]query[/], what it asks for (x W_Q); a [key]key[/], what it is (x W_K); and a "
        "[value]value[/], what it gives (x W_V)."
    )
    yield Text()
    yield from three_vectors(shown.steps, row)
    yield Text()
    present = [j for j, amount in enumerate(shown.embedding[row].tolist()) if amount]
    picks = " + ".join(f"{plain(shown.embedding[row, j].item())}·{FEATURES[j]}" for j in present)
    yield prose(f"[chosen]{TOKENS[row]}[/] is {picks}, so x W picks those rows of each map:")
    yield Text()
    for role in ROLES:
        rows = getattr(shown.layer, role)(torch.eye(len(FEATURES)).unsqueeze(0))[0, 0]
        terms = [f"{plain(shown.embedding[row, j].item())}·{FEATURES[j]} {bracket(rows[j])}" for j in present]
        made = bracket(getattr(shown.steps, role)[row])
        yield Text.assemble((f"  {role:<6}", role), f"{' + '.join(terms)} = ", (made, role))


def three_vectors(steps: Steps, row: int) -> Page:
    """Yield query, key and value of every token, side by side."""
    yield Text.assemble(" " * LABEL, *((f" {role} ".center(20, "─").center(23), role) for role in ROLES))
    yield Text.assemble(" " * LABEL, *gapped([names(KINDS), names(KINDS), names(MEANINGS)]))
    for i, word in words():
        vectors = [vector(getattr(steps, role)[i], role) for role in ROLES]
        yield Text.assemble(label(word, "", chosen=i == row), *gapped(vectors))


def scores(shown: Demonstration, row: int) -> Page:
    query, key = shown.layer.similarity.prepare(shown.steps.query, shown.steps.key)
    as_they_are = torch.equal(query, shown.steps.query) and torch.equal(key, shown.steps.key)
    formula = "[query]query[/] · [key]key[/]" if as_they_are else "φ([query]query[/]) · φ([key]key[/])"
    yield from step(
        "2  Scores",
        f"Every query meets every key. score = {formula}: their {query.shape[-1]} entries multiplied, pair by pair, "
        "and added.",
    )
    yield from table("score", shown.steps.score, row)
    yield Text()
    sums = [products(query[row].tolist(), key[j].tolist()) for j, _ in words()]
    widths = [max(len(term) for term, _ in column) for column in zip(*sums, strict=True)]
    written = columns_that_fit(widths, SUM)
    for j, word in words():
        terms = [Text("…") if i is None else Text(f"{sums[j][i][0]:>{widths[i]}}", sums[j][i][1]) for i in written]
        yield Text.assemble(
            (f"  {TOKENS[row]}", "query"),
            " ──▶ ",
            (f"{word:<10}", "key"),
            Text.assemble((" + ", "quiet")).join(terms),
            " = ",
            (number(shown.steps.score[row, j].item()), "chosen"),
        )


def products(query: Sequence[float], key: Sequence[float]) -> list[tuple[str, str]]:
    """Write out the products of two vectors' entries; those that are 0 in quiet."""
    pairs = zip(query, key, strict=True)
    return [(f"{plain(q)}·{plain(k)}", "" if q * k else "quiet") for q, k in pairs]


def columns_that_fit(widths: Sequence[int], room: int) -> list[int | None]:
    """Return the terms of a sum there is room for: all, or the first few and the last, with None between them."""
    last = len(widths) - 1
    for kept in range(last, 0, -1):
        columns = [*range(kept), *([] if kept == last else [None]), last]
        if sum(1 if i is None else widths[i] for i in columns) + 3 * (len(columns) - 1) <= room:
            return columns
    return [None]


def weights(shown: Demonstration, row: int) -> Page:
    blocked = number(shown.weighting.blocked).strip()
    masked = f"masked: {blocked} where a token may not attend; the weight there is exactly 0."
    if bool(shown.allowed.all()):
        masked = "masked: the same here, as every token may attend to all (try --mask causal)."
    yield from step("3  Weights", scale_said(shown), masked)
    yield from table("masked", shown.steps.masked, row)
    yield Text()
    yield prose(f"[weight]{shown.weighting!r}[/]: {shown.weighting.summary}.")
    yield Text()
    yield from shares(shown, row)
    yield Text()
    yield from heat_table("weight", shown.steps.weight, row, shown.allowed)


def scale_said(shown: Demonstration) -> str:
    d_k = len(KINDS)
    scale = float(shown.layer.similarity.scale(d_k))
    if scale == 1:
        return "scaled: the score as it is, which this similarity does not scale."
    return f"scaled: every score ÷ √d_k = √{d_k} = {1 / scale:.2f}, so that scores do not grow with d_k."


def shares(shown: Demonstration, row: int) -> Page:
    """Yield the way from the scores of one row to its weights, key by key, with the share written out."""
    columns = {name: getattr(shown.steps, name)[row].tolist() for name in ("score", "scaled", "masked")}
    weight = shown.steps.weight[row].tolist()
    written = {}
    if shown.weighting.amounts in AMOUNTS and shown.weighting.sums_to_one:
        said, amount = AMOUNTS[shown.weighting.amounts](shown.weighting)
        amounts = [amount(masked) for masked in columns["masked"]]
        written = {f"{said} / sum": [f"{number(x)} / {number(sum(amounts))}" for x in amounts]}
    yield Text.assemble(
        label(TOKENS[row], "query", chosen=True),
        *((f"{name:>8}", "quiet") for name in columns),
        *((f"{name:>20}", "quiet") for name in written),
        (f"{'weight':>9}", "weight"),
    )
    for j, word in words():
        yield Text.assemble(
            label(word, "key"),
            *(f"{number(column[j]):>8}" for column in columns.values()),
            *(f"{column[j]:>20}" for column in written.values()),
            (f"{number(weight[j], 3):>9}", "weight"),
            ("  " + bar(weight[j] / max(1.0, *weight), BAR), "weight"),
        )
    if not any(weight):
        yield prose("No key fits this query, and a row whose sum is 0 gets weights of 0.")


def exponentials(weighting: Weighting) -> Amount:
    temperature = weighting.temperature
    said = "e^masked" if temperature == 1 else f"e^(masked/{plain(temperature)})"
    return said, lambda masked: math.exp(masked / temperature)


def products_themselves(weighting: Weighting) -> Amount:
    return "masked", lambda masked: masked


AMOUNTS: dict[str, Callable[[Weighting], Amount]] = {"exponential": exponentials, "score": products_themselves}
"""What a key's share of its row is counted in, for weightings that are such a share."""


def weighted_sum(shown: Demonstration, row: int) -> Page:
    yield from step(
        "4  Weighted sum",
        "The [context]context[/] of a token is the sum of all [value]values[/], each times its [weight]weight[/].",
    )
    yield from sum_written_out(shown.steps, row)
    yield Text()
    yield Text.assemble(("  context".ljust(LABEL), "quiet"), *names(MEANINGS, "context", 7))
    for i, word in words():
        numbers = vector(shown.steps.context[i], "context", digits=3, width=7)
        yield Text.assemble(label(word, "query", chosen=i == row), *numbers)
    yield Text()
    yield from gathered_vector(shown, row)


def sum_written_out(steps: Steps, row: int) -> Page:
    """Yield weight times value, row by row, and the context below, as one adds up on paper."""
    yield Text.assemble(
        label(TOKENS[row], "query", chosen=True),
        (f"{'weight':>7}   ", "weight"),
        *names(MEANINGS, "value"),
        "   ",
        *names(MEANINGS, width=7),
    )
    for j, word in words():
        weight = steps.weight[row, j]
        yield Text.assemble(
            label(word, "key"),
            (f"{number(weight.item(), 3):>7}", "weight"),
            " · ",
            *vector(steps.value[j], "value"),
            " = ",
            *vector(weight * steps.value[j], digits=3, width=7),
            (" ─┐" if j == 0 else " ─┤", "context"),
        )
    total = vector(steps.context[row], "context", digits=3, width=7)
    yield Text.assemble((f"{'context':>40} = ", "context"), *total, (" ◀┘", "context"))


def gathered_vector(shown: Demonstration, row: int) -> Page:
    """Yield what the token has become, with its context added to its embedding."""
    sums = shown.embedding[row, len(KINDS) :] + shown.steps.context[row]
    said = ", ".join(f"{name} {number(x)}" for name, x in zip(MEANINGS, sums.tolist(), strict=True))
    yield prose(
        f"[chosen]{TOKENS[row]}[/] plus its context: {said}. The embedding is the same in every sentence; "
        "this vector belongs to this one."
    )


def one_call(shown: Demonstration) -> Page:
    difference = max(shown.differences.values())
    yield from step(
        "The same in one call",
        "clearhead.attend(query, key, value) and layer(x) compute the same with the kernel "
        f"[chosen]{shown.choice.kernel}[/]: {shown.choice.reason}. Largest difference from the steps above: "
        f"[chosen]{f'{difference:.1e}' if difference else '0, bit for bit'}[/].",
    )
    yield prose("Try:  clearhead steps --token sleeps   --mask causal   --weighting argmax", style="quiet")
    yield Text()


def step(title: str, *said: str) -> Page:
    yield Text()
    yield rule(title)
    for sentence in said:
        yield prose(sentence)
    yield Text()


def table(name: str, matrix: Tensor, row: int) -> Page:
    """Yield a table, queries down and keys across."""
    yield header(name)
    for i, word in words():
        cells = ((f"{number(x):>{CELL}}", "chosen" if i == row else "") for x in matrix[i].tolist())
        yield Text.assemble(label(word, "query", chosen=i == row), *cells)


def heat_table(name: str, matrix: Tensor, row: int, allowed: Tensor) -> Page:
    """Yield the same table, with a darker ground for larger numbers, and no ground where a query may not attend."""
    yield header(name)
    most = max(1.0, matrix.max().item())
    for i, word in words():
        pairs = zip(matrix[i].tolist(), allowed[i].tolist(), strict=True)
        grounds = (heat(x / most) if may else "quiet" for x, may in pairs)
        cells = (f"{number(x, 3):>{CELL - 1}} " for x in matrix[i].tolist())
        yield Text.assemble(label(word, "query", chosen=i == row), " ", *zip(cells, grounds, strict=True))


def header(name: str) -> Text:
    return Text.assemble((f"  {name}".ljust(LABEL), "quiet"), *((f"{word:>{CELL}}", "key") for word in TOKENS))


def words() -> Iterator[tuple[int, str]]:
    return iter(enumerate(TOKENS))


def label(word: str, role: str, *, chosen: bool = False) -> Text:
    named = Text(f"{'▸' if chosen else ' '} {word:<{LABEL - 2}}", role)
    if chosen:
        named.stylize("chosen")
    return named


def names(features: Sequence[str], role: str = "quiet", width: int = 5) -> list[tuple[str, str]]:
    return [(f"{feature:>{width}}", role) for feature in features]


def vector(numbers: Tensor, role: str = "", digits: int = 2, width: int = 5) -> list[tuple[str, str]]:
    return [(f"{number(x, digits):>{width}}", role if x else "quiet") for x in numbers.tolist()]


def gapped(groups: Sequence[Sequence[tuple[str, str]]]) -> list[tuple[str, str]]:
    return [cell for group in groups for cell in (*group, ("   ", ""))]


def bracket(numbers: Tensor) -> str:
    return f"({' '.join(plain(x) for x in numbers.tolist())})"
