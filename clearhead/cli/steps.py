"""`clearhead steps`: attention in four steps on a short sentence, with the numbers of a real layer.

A designed head on a short sentence is explained and run by its kernel. Every number is read from `Demonstration.steps`,
which the layer's `explain` made, or is written out from those numbers.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import torch
from rich.console import RenderableType
from rich.text import Text
from torch import Tensor

from clearhead.attention import masks
from clearhead.attention.attend import attend
from clearhead.attention.kernels import Choice
from clearhead.attention.layer import Attention
from clearhead.attention.mask_rules import Mask
from clearhead.attention.reference import Steps
from clearhead.attention.weighting import TABLE as WEIGHTINGS
from clearhead.attention.weighting import Weighting
from clearhead.cli.options import Parts, find_part, one_of, part_option
from clearhead.cli.screen import WIDTH, bar, heat, number, plain, prose, rule, show, show_json
from clearhead.files import os_errors_as_run_errors, write_text
from clearhead.options import Option
from clearhead.tracing.sentence import FEATURES, KINDS, MEANINGS, TOKENS, creature_exchange, designed_layer, embeddings
from clearhead.tracing.sequence_diagram import draw_sequence
from clearhead.training.claiming import check_output


@dataclass(frozen=True, kw_only=True)
class Demonstration:
    """One attention on the sentence: the layer, every step of it, and what the kernel makes of the same."""

    mask: Mask
    mask_name: str
    weighting: Weighting
    weighting_name: str
    layer: Attention
    embedding: Tensor
    steps: Steps
    """Steps of the only head: `(query, key)`, `(token, d)`."""
    choice: Choice
    differences: Mapping[str, float]
    """The largest difference from the steps' context of what each way of calling it gives."""

    @property
    def allowed(self) -> Tensor:
        """Return True where the query may attend to the key."""
        return masks.show(self.mask, n_query=len(TOKENS), n_key=len(TOKENS))[0]


@torch.no_grad()
def demonstrate(mask_name: str, mask: Mask, weighting_name: str, weighting: Weighting) -> Demonstration:
    torch.manual_seed(0)
    layer, embedding = designed_layer(weighting, mask), embeddings()
    explained = layer.explain(embedding)
    context = attend(
        explained.query,
        explained.key,
        explained.value,
        similarity=layer.similarity,
        weighting=layer.weighting,
        mask=layer.mask,
    )
    return Demonstration(
        mask=mask,
        mask_name=mask_name,
        weighting=weighting,
        weighting_name=weighting_name,
        layer=layer,
        embedding=embedding,
        steps=explained.without_batch(),
        choice=layer.which_kernel(embedding),
        differences={
            "attend": (context - explained.context).abs().max().item(),
            "layer": (layer(embedding) - explained.context[0]).abs().max().item(),
        },
    )


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


def render_page(demo: Demonstration, row: int) -> Page:
    """Yield the whole page, following the token of one row."""
    yield from render_heading(demo, row)
    yield from render_inputs(demo, row)
    yield from render_scores(demo, row)
    yield from render_weights(demo, row)
    yield from render_weighted_sum(demo, row)
    yield from render_one_call(demo)


def render_heading(demo: Demonstration, row: int) -> Page:
    sentence = Text("  ").join(
        Text(f"[{word}]" if i == row else word, "chosen" if i == row else "") for i, word in numbered_tokens()
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
    yield prose(f"{sizes} · mask {demo.mask_name} · weighting {demo.weighting_name}", style="quiet")


def render_inputs(demo: Demonstration, row: int) -> Page:
    yield from render_step(
        "1  Inputs",
        "Each token has an embedding x, here of readable features: the kind of word it is (determiner, adjective, "
        "noun, verb) and what it means.",
    )
    yield Text.assemble(("  x".ljust(LABEL), "quiet"), *name_cells(FEATURES))
    for i, word in numbered_tokens():
        yield Text.assemble(row_label(word, "", chosen=i == row), *number_cells(demo.embedding[i]))
    yield Text()
    yield prose(
        "Three maps turn it into a [query]query[/], what it asks for (x W_Q); a [key]key[/], what it is (x W_K); and a "
        "[value]value[/], what it gives (x W_V)."
    )
    yield Text()
    yield from render_three_vectors(demo.steps, row)
    yield Text()
    present = [j for j, amount in enumerate(demo.embedding[row].tolist()) if amount]
    picks = " + ".join(f"{plain(demo.embedding[row, j].item())}·{FEATURES[j]}" for j in present)
    yield prose(f"[chosen]{TOKENS[row]}[/] is {picks}, so x W picks those rows of each map:")
    yield Text()
    for role in ROLES:
        rows = getattr(demo.layer, role)(torch.eye(len(FEATURES)).unsqueeze(0))[0, 0]
        terms = [f"{plain(demo.embedding[row, j].item())}·{FEATURES[j]} {in_brackets(rows[j])}" for j in present]
        result = in_brackets(getattr(demo.steps, role)[row])
        yield Text.assemble((f"  {role:<6}", role), f"{' + '.join(terms)} = ", (result, role))


def render_three_vectors(steps: Steps, row: int) -> Page:
    """Yield query, key and value of every token, side by side."""
    yield Text.assemble(" " * LABEL, *((f" {role} ".center(20, "─").center(23), role) for role in ROLES))
    yield Text.assemble(" " * LABEL, *with_gaps([name_cells(KINDS), name_cells(KINDS), name_cells(MEANINGS)]))
    for i, word in numbered_tokens():
        vectors = [number_cells(getattr(steps, role)[i], role) for role in ROLES]
        yield Text.assemble(row_label(word, "", chosen=i == row), *with_gaps(vectors))


def render_scores(demo: Demonstration, row: int) -> Page:
    query, key = demo.layer.similarity.prepare(demo.steps.query, demo.steps.key)
    unmapped = torch.equal(query, demo.steps.query) and torch.equal(key, demo.steps.key)
    formula = "[query]query[/] · [key]key[/]" if unmapped else "φ([query]query[/]) · φ([key]key[/])"
    yield from render_step(
        "2  Scores",
        f"Every query meets every key. score = {formula}: their {query.shape[-1]} entries multiplied, pair by pair, "
        "and added.",
    )
    yield from render_table("score", demo.steps.score, row)
    yield Text()
    sums = [write_products(query[row].tolist(), key[j].tolist()) for j, _ in numbered_tokens()]
    widths = [max(len(term) for term, _ in column) for column in zip(*sums, strict=True)]
    shown_terms = choose_terms(widths, SUM)
    for j, word in numbered_tokens():
        terms = [Text("…") if i is None else Text(f"{sums[j][i][0]:>{widths[i]}}", sums[j][i][1]) for i in shown_terms]
        yield Text.assemble(
            (f"  {TOKENS[row]}", "query"),
            " ──▶ ",
            (f"{word:<10}", "key"),
            Text.assemble((" + ", "quiet")).join(terms),
            " = ",
            (number(demo.steps.score[row, j].item()), "chosen"),
        )


def write_products(query: Sequence[float], key: Sequence[float]) -> list[tuple[str, str]]:
    """Write out the products of two vectors' entries; those that are 0 in quiet."""
    pairs = zip(query, key, strict=True)
    return [(f"{plain(q)}·{plain(k)}", "" if q * k else "quiet") for q, k in pairs]


def choose_terms(widths: Sequence[int], room: int) -> list[int | None]:
    """Return the terms of a sum there is room for: all, or the first few and the last, with None between them."""
    last = len(widths) - 1
    for n_first in range(last, 0, -1):
        columns = [*range(n_first), *([] if n_first == last else [None]), last]
        if sum(1 if i is None else widths[i] for i in columns) + 3 * (len(columns) - 1) <= room:
            return columns
    return [None]


def render_weights(demo: Demonstration, row: int) -> Page:
    blocked = number(demo.weighting.blocked).strip()
    masked = f"masked: {blocked} where a token may not attend; the weight there is exactly 0."
    if bool(demo.allowed.all()):
        masked = "masked: the same here, as every token may attend to all (try --mask causal)."
    yield from render_step("3  Weights", describe_scale(demo), masked)
    yield from render_table("masked", demo.steps.masked, row)
    yield Text()
    yield prose(f"[weight]{demo.weighting!r}[/]: {demo.weighting.summary}.")
    yield Text()
    yield from render_shares(demo, row)
    yield Text()
    yield from render_heat_table("weight", demo.steps.weight, row, demo.allowed)


def describe_scale(demo: Demonstration) -> str:
    d_k = len(KINDS)
    scale = float(demo.layer.similarity.scale(d_k))
    if scale == 1:
        return "scaled: the score as it is, which this similarity does not scale."
    return f"scaled: every score ÷ √d_k = √{d_k} = {1 / scale:.2f}, so that scores do not grow with d_k."


def render_shares(demo: Demonstration, row: int) -> Page:
    """Yield the way from the scores of one row to its weights, key by key, with the share written out."""
    columns = {name: getattr(demo.steps, name)[row].tolist() for name in ("score", "scaled", "masked")}
    weight = demo.steps.weight[row].tolist()
    share_column = {}
    if (share := share_formula(demo.weighting)) is not None:
        formula, amount = share
        amounts = [amount(masked) for masked in columns["masked"]]
        share_column = {f"{formula} / sum": [f"{number(x)} / {number(sum(amounts))}" for x in amounts]}
    yield Text.assemble(
        row_label(TOKENS[row], "query", chosen=True),
        *((f"{name:>8}", "quiet") for name in columns),
        *((f"{name:>20}", "quiet") for name in share_column),
        (f"{'weight':>9}", "weight"),
    )
    for j, word in numbered_tokens():
        yield Text.assemble(
            row_label(word, "key"),
            *(f"{number(column[j]):>8}" for column in columns.values()),
            *(f"{column[j]:>20}" for column in share_column.values()),
            (f"{number(weight[j], 3):>9}", "weight"),
            ("  " + bar(weight[j] / max(1.0, *weight), BAR), "weight"),
        )
    if not any(weight):
        yield prose("No key fits this query, and a row whose sum is 0 gets weights of 0.")


def share_formula(weighting: Weighting) -> tuple[str, Callable[[float], float]] | None:
    """Return what a weight is the share of, as text and as a function of the masked score; None for no such share."""
    if not weighting.sums_to_one:
        return None
    if weighting.amounts == "exponential":
        temperature = weighting.temperature
        formula = "e^masked" if temperature == 1 else f"e^(masked/{plain(temperature)})"
        return formula, lambda masked: math.exp(masked / temperature)
    return ("masked", lambda masked: masked) if weighting.amounts == "score" else None


def render_weighted_sum(demo: Demonstration, row: int) -> Page:
    yield from render_step(
        "4  Weighted sum",
        "The [context]context[/] of a token is the sum of all [value]values[/], each times its [weight]weight[/].",
    )
    yield from render_sum(demo.steps, row)
    yield Text()
    yield Text.assemble(("  context".ljust(LABEL), "quiet"), *name_cells(MEANINGS, "context", 7))
    for i, word in numbered_tokens():
        numbers = number_cells(demo.steps.context[i], "context", digits=3, width=7)
        yield Text.assemble(row_label(word, "query", chosen=i == row), *numbers)
    yield Text()
    yield from render_result(demo, row)


def render_sum(steps: Steps, row: int) -> Page:
    """Yield weight times value, row by row, and the context below, as one adds up on paper."""
    yield Text.assemble(
        row_label(TOKENS[row], "query", chosen=True),
        (f"{'weight':>7}   ", "weight"),
        *name_cells(MEANINGS, "value"),
        "   ",
        *name_cells(MEANINGS, width=7),
    )
    for j, word in numbered_tokens():
        weight = steps.weight[row, j]
        yield Text.assemble(
            row_label(word, "key"),
            (f"{number(weight.item(), 3):>7}", "weight"),
            " · ",
            *number_cells(steps.value[j], "value"),
            " = ",
            *number_cells(weight * steps.value[j], digits=3, width=7),
            (" ─┐" if j == 0 else " ─┤", "context"),
        )
    total = number_cells(steps.context[row], "context", digits=3, width=7)
    yield Text.assemble((f"{'context':>40} = ", "context"), *total, (" ◀┘", "context"))


def render_result(demo: Demonstration, row: int) -> Page:
    """Yield what the token has become, with its context added to its embedding."""
    sums = demo.embedding[row, len(KINDS) :] + demo.steps.context[row]
    values = ", ".join(f"{name} {number(x)}" for name, x in zip(MEANINGS, sums.tolist(), strict=True))
    yield prose(
        f"[chosen]{TOKENS[row]}[/] plus its context: {values}. The embedding is the same in every sentence; "
        "this vector belongs to this one."
    )


def render_one_call(demo: Demonstration) -> Page:
    difference = max(demo.differences.values())
    yield from render_step(
        "The same in one call",
        "clearhead.attend(query, key, value) and layer(x) compute the same with the kernel "
        f"[chosen]{demo.choice.kernel}[/]: {demo.choice.reason}. Largest difference from the steps above: "
        f"[chosen]{f'{difference:.1e}' if difference else '0, bit for bit'}[/].",
    )
    yield prose("Try:  clearhead steps --query cute   --mask causal   --weighting argmax", style="quiet")
    yield Text()


def render_step(title: str, *sentences: str) -> Page:
    yield Text()
    yield rule(title)
    for sentence in sentences:
        yield prose(sentence)
    yield Text()


def render_table(name: str, matrix: Tensor, row: int) -> Page:
    """Yield a table, queries down and keys across."""
    yield table_header(name)
    for i, word in numbered_tokens():
        cells = ((f"{number(x):>{CELL}}", "chosen" if i == row else "") for x in matrix[i].tolist())
        yield Text.assemble(row_label(word, "query", chosen=i == row), *cells)


def render_heat_table(name: str, matrix: Tensor, row: int, allowed: Tensor) -> Page:
    """Yield the same table, with a darker ground for larger numbers, and no ground where a query may not attend."""
    yield table_header(name)
    most = max(1.0, matrix.max().item())
    for i, word in numbered_tokens():
        pairs = zip(matrix[i].tolist(), allowed[i].tolist(), strict=True)
        grounds = (heat(x / most) if may else "quiet" for x, may in pairs)
        cells = (f"{number(x, 3):>{CELL - 1}} " for x in matrix[i].tolist())
        yield Text.assemble(row_label(word, "query", chosen=i == row), " ", *zip(cells, grounds, strict=True))


def table_header(name: str) -> Text:
    return Text.assemble((f"  {name}".ljust(LABEL), "quiet"), *((f"{word:>{CELL}}", "key") for word in TOKENS))


def numbered_tokens() -> Iterator[tuple[int, str]]:
    return iter(enumerate(TOKENS))


def row_label(word: str, role: str, *, chosen: bool = False) -> Text:
    named = Text(f"{'▸' if chosen else ' '} {word:<{LABEL - 2}}", role)
    if chosen:
        named.stylize("chosen")
    return named


def name_cells(features: Sequence[str], role: str = "quiet", width: int = 5) -> list[tuple[str, str]]:
    return [(f"{feature:>{width}}", role) for feature in features]


def number_cells(numbers: Tensor, role: str = "", digits: int = 2, width: int = 5) -> list[tuple[str, str]]:
    return [(f"{number(x, digits):>{width}}", role if x else "quiet") for x in numbers.tolist()]


def with_gaps(groups: Sequence[Sequence[tuple[str, str]]]) -> list[tuple[str, str]]:
    return [cell for group in groups for cell in (*group, ("   ", ""))]


def in_brackets(numbers: Tensor) -> str:
    return f"({' '.join(plain(x) for x in numbers.tolist())})"


MASKS = {"none": masks.everything(), "causal": masks.causal()}
EXAMPLES = """\b
Examples:
  clearhead steps
  clearhead steps --mask causal --query cute
  clearhead steps --weighting argmax-average
  clearhead steps --svg creature.svg
  clearhead steps --json"""


def steps(
    mask: Annotated[str, part_option(f"Which keys a query may attend to: {', '.join(MASKS)}", MASKS)] = "none",
    weighting: Annotated[
        str,
        part_option(
            f"What turns scores into weights: {', '.join(name.replace(' ', '-') for name in WEIGHTINGS)}", WEIGHTINGS
        ),
    ] = "softmax",
    query: Annotated[
        str, Option(f"The token whose row is worked out: {', '.join(TOKENS)}.", takes="WORD", names=TOKENS)
    ] = "creature",
    *,
    svg: Annotated[Path | None, Option("Write the steps as a sequence diagram.", takes="FILE")] = None,
    parts: Parts = None,
    as_json: Annotated[bool, Option("Print every step as one JSON object.", word="json")] = False,
) -> None:
    """Show attention in four steps on a short sentence, with every number.

    The steps are: queries, keys and values; scores; weights; weighted sum. The head was designed by hand: nouns attend
    to their adjectives.
    """
    mask_name, chosen_mask = find_part("mask", mask, MASKS)
    weighting_name, chosen_weighting = find_part("weighting", weighting, WEIGHTINGS)
    row = one_of("query", query, {word: index for index, word in enumerate(TOKENS)})
    if svg is not None:
        check_output(svg, option="--svg")
    demo = demonstrate(mask_name, chosen_mask, weighting_name, chosen_weighting)
    if svg is not None:
        with os_errors_as_run_errors(svg):
            write_text(svg, draw_sequence(creature_exchange(row, chosen_weighting, chosen_mask)))
    if as_json:
        show_json(as_object(demo, row))
    else:
        show(*render_page(demo, row))


def as_object(demo: Demonstration, row: int) -> dict[str, Any]:
    """Return what the page shows, and the rest of it, as JSON."""
    return {
        "tokens": list(TOKENS),
        "token": TOKENS[row],
        "mask": demo.mask_name,
        "weighting": demo.weighting_name,
        "features": {"embedding": FEATURES, "query": KINDS, "key": KINDS, "value": MEANINGS, "context": MEANINGS},
        "embedding": demo.embedding.tolist(),
        "scale": float(demo.layer.similarity.scale(len(KINDS))),
        "allowed": demo.allowed.tolist(),
        "steps": {field.name: rows(getattr(demo.steps, field.name)) for field in fields(demo.steps)},
        "kernel": {"name": demo.choice.kernel, "reason": demo.choice.reason, "notes": demo.choice.notes},
        "largest_difference": dict(demo.differences),
    }


def rows(matrix: Tensor) -> list[list[float | None]]:
    """Return numbers for JSON, which has no -inf: null stands for it, in `masked` where a query may not attend."""
    return [[None if x == float("-inf") else x for x in row] for row in matrix.tolist()]
