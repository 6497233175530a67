"""The sequence diagram of one attention step, as SVG: who sends what to whom, from top to bottom.

Objects stand in columns with a lifeline below each, as in UML: the queries, the keys and the values with their numbers,
the sum, and the output. In a narrow room a token's key and value share a lifeline, as do the sum and the output. Arrows
go in the order of the four steps: every query meets every key (the score is written on the arrow), softmax turns the
scores of the query that is followed into weights, each value goes into the sum times its weight, and the weighted sum
is the output.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, final
from xml.sax.saxutils import escape

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from clearhead.attention.reference import Steps
from clearhead.colours import INKS, ROLES

COLUMN, GROUP, EDGE = 90.0, 20.0, 14.0
"""In pixels: a lifeline's column, what separates queries, keys and values, the margin."""
LINE, ROW, SCORE_ROW = 15.0, 30.0, 21.0
"""In pixels: a line of text in an object, an arrow with its label, a score's arrow."""
BELOW_PHASE = 12.0
"""In pixels: between the title of a step and its first arrow."""
BETWEEN = 5.0
"""In pixels: between two objects."""
SHOWN_NUMBERS = 4
"""How many numbers of a vector an object shows."""
MOST_QUERIES, MOST_KEYS = 6, 12
"""Of longer texts only the query that is followed, and the keys with the largest weights."""
LONGEST = 8
"""Letters of a token that an object has room for."""
NARROW, NARROW_EDGE, LETTER = 42.0, 6.0, 7.4
"""In pixels: the narrowest column, where a token's key and value share one, the margin then, a letter."""

ROLE_STYLE = "".join(
    f".sequence .{role} rect{{stroke:var(--{role},{colour})}}.sequence .{role} .name{{fill:var(--{role}-ink,{ink})}}"
    f".sequence path.{role}{{stroke:var(--{role},{colour})}}"
    f".sequence path.tip.{role}{{fill:var(--{role},{colour});stroke:none}}"
    for role, colour, ink in ((role, ROLES[role].lower(), INKS[role]) for role in ROLES)
)
STYLE = (
    ".sequence text{font:12px ui-monospace,Menlo,Consolas,monospace;fill:var(--ink,#1d1c1a)}"
    ".sequence .ground{fill:var(--surface,#ffffff)}"
    ".sequence .title{font:600 16px system-ui,sans-serif}"
    ".sequence .said,.sequence .phase{font:13px system-ui,sans-serif;fill:var(--soft,#57544e)}"
    ".sequence .phase{font-weight:600}.sequence .name{font-weight:600}"
    ".sequence .life{stroke:var(--strong-line,#c9c4b9);stroke-dasharray:3 4;fill:none}"
    ".sequence .cut{stroke:var(--line,#e3dfd7);fill:none}"
    ".sequence rect{fill:var(--surface,#ffffff);stroke-width:1.5}"
    ".sequence .behind{fill:var(--surface,#ffffff);stroke:none}"
    ".sequence path{fill:none;stroke-width:1.2}.sequence .faint{opacity:.45}.sequence .strong{stroke-width:2}"
    + ROLE_STYLE
)
DARK = (
    "@media (prefers-color-scheme:dark){.sequence{--ink:#eceae5;--surface:#191b1e;--soft:#b5b2ab;--strong-line:#474b52;"
    "--line:#2c2f34;--query-ink:#58b9f2;--key-ink:#f0b43c;--value-ink:#43cb9f;--weight-ink:#ff944d;"
    "--context-ink:#e5a6c9}}"
)
"""The colours of web/src/app.css; a file of its own follows the reader's machine, a page its own theme."""


@final
@dataclass(frozen=True, kw_only=True)
class Exchange:
    """The contents of a diagram: the vectors of one head, its scores and weights, and the query that is followed.

    `queries` and `keys` are the places drawn. `rest` is the weight of the keys that are not, and what they bring.
    """

    title: str
    caption: str
    query_tokens: Sequence[str]
    key_tokens: Sequence[str]
    steps: Steps
    allowed: Bool[Tensor, "query key"]
    followed: int
    queries: Sequence[int]
    keys: Sequence[int]
    scale: float
    weighting: str = "softmax"
    formula: str = "query · key"
    names: Sequence[str] = ()
    """Names for the numbers of a query and a key, if they have any."""
    value_names: Sequence[str] = ()
    folded: float | None = None
    """The width of a column in which a token has both its key and its value; None if they stand apart."""

    @property
    def column(self) -> float:
        return self.folded or COLUMN

    @property
    def letters(self) -> int:
        """Return how many letters an object has room for."""
        return int((self.column - BETWEEN) / LETTER)

    @property
    def remainder(self) -> tuple[float, Float[Tensor, "d_value"]] | None:
        not_drawn = [key for key in range(len(self.key_tokens)) if key not in set(self.keys)]
        if not not_drawn:
            return None
        weight = self.steps.weight[self.followed, not_drawn]
        return weight.sum().item(), weight @ self.steps.value[not_drawn]

    @property
    def bias(self) -> list[float] | None:
        """Return what a position adds to each scaled score of the followed query; None if it adds nothing."""
        scaled, masked = self.steps.scaled[self.followed], self.steps.masked[self.followed]
        added = torch.where(self.allowed[self.followed], masked - scaled, 0.0)
        return added.tolist() if (added.abs() > 1e-5 * (1 + scaled.abs())).any() else None


def exchange_of(
    title: str,
    caption: str,
    tokens: tuple[Sequence[str], Sequence[str]],
    steps: Steps,
    followed: int,
    *,
    scale: float,
    allowed: Bool[Tensor, "query key"] | None = None,
    weighting: str = "softmax",
    formula: str = "query · key",
    room: int | None = None,
    most_queries: int = MOST_QUERIES,
    names: tuple[Sequence[str], Sequence[str]] = ((), ()),
) -> Exchange:
    """Return what is drawn of one head: all of a short text; of a longer one the largest weights of one query.

    `allowed`: what the mask lets each query see, where −inf in `steps.masked` does not say it (kernelized attention).
    `room`: the pixels that the diagram may be wide. Where it would be wider, only the query that is followed is drawn,
    and then a token's key and value in one column.
    """
    n_query, n_key = len(tokens[0]), len(tokens[1])
    seen = steps.masked > float("-inf") if allowed is None else allowed
    rest, space = int(n_key > MOST_KEYS), float("inf") if room is None else room
    apart = 2 * min(n_key, MOST_KEYS) + rest + 2
    fitting = (space - 2 * EDGE - 4 * GROUP) / COLUMN - apart
    folded = None
    if fitting < 1:
        folded = max(NARROW, min(COLUMN, (space - 2 * NARROW_EDGE) / (min(n_key, MOST_KEYS) + rest + 2)))
    order = steps.weight[followed].argsort(descending=True, stable=True).tolist()
    visible = [key for key in order if n_key <= MOST_KEYS or seen[followed, key]]
    return Exchange(
        title=title,
        caption=caption,
        query_tokens=tokens[0],
        key_tokens=tokens[1],
        steps=steps,
        allowed=seen,
        followed=followed,
        queries=range(n_query) if n_query <= min(fitting, most_queries) else (followed,),
        keys=sorted((visible or order)[:MOST_KEYS]),
        folded=folded,
        scale=scale,
        weighting=weighting,
        formula=formula,
        names=names[0],
        value_names=names[1],
    )


@dataclass(frozen=True, kw_only=True)
class Lifeline:
    """An object of the diagram: its role, its name, its numbers, where its lifeline stands, and how wide it is.

    `lower`: how far below the first row of objects it stands.
    """

    role: str
    name: str
    lines: Sequence[str]
    x: float
    wide: float
    lower: float = 0.0

    @property
    def bottom(self) -> float:
        return self.lower + 26 + LINE * len(self.lines)


@final
class Lifelines(NamedTuple):
    """The objects from left to right; `others` stands for the values that are not drawn.

    Where objects are folded, the sum is the output too.
    """

    queries: list[Lifeline]
    keys: list[Lifeline]
    values: list[Lifeline]
    others: Lifeline | None
    summed: Lifeline
    output: Lifeline

    def all(self) -> list[Lifeline]:
        remaining = [] if self.others is None else [self.others]
        sums = [self.summed] if self.output is self.summed else [self.summed, self.output]
        return [*self.queries, *self.keys, *self.values, *remaining, *sums]


def draw_sequence(exchange: Exchange, *, standalone: bool = True) -> str:
    """Return the diagram as an SVG element; `standalone` makes it a file that follows the reader's light or dark."""
    lifelines = place_lifelines(exchange)
    output, heads = lifelines.output, lifelines.all()
    top = 84.0 if standalone else 30.0  # on the page, its card has the title
    y = top + 8 + max(lifeline.bottom for lifeline in heads)
    edge = NARROW_EDGE if exchange.folded else EDGE
    width = output.x + exchange.column / 2 + edge
    scores, y = draw_scores(exchange, lifelines, y, width)
    weights, y = draw_weights(exchange, lifelines, y, width)
    context = Lifeline(
        role="context",
        name=shorten(exchange.query_tokens[exchange.followed], min(LONGEST, exchange.letters)),
        lines=lines_of(exchange.steps.context[exchange.followed], exchange.value_names, exchange.letters),
        x=output.x,
        wide=exchange.column - BETWEEN,
    )
    end = y + ROW + 22 + context.bottom
    height = end + edge
    ends = {lifeline.x: y + ROW + 14 if lifeline is output else end - 6 for lifeline in heads}
    lives = [f'<path class="life" d="M{x:g} {top + 20:g}V{low:g}"/>' for x, low in ends.items()]
    inputs = "query, keys and values" if exchange.folded else "the query (q), key (k) and value (v) of each token"
    described = escape(f"{exchange.title}. {exchange.caption}").replace('"', "&quot;")
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="sequence" viewBox="0 0 {width:g} {height:g}" '
            f'width="{width:g}" height="{height:g}" role="img" aria-label="{described}">',
            f"<style>{STYLE}{DARK if standalone else ''}</style>",
            f'<rect class="ground" width="{width:g}" height="{height:g}"/>',
            *(
                (text("title", EDGE, EDGE + 12, exchange.title), text("said", EDGE, EDGE + 32, exchange.caption))
                if standalone
                else ()
            ),
            text("phase", edge, top - 10, f"1  Inputs: {inputs}"),
            *lives,
            *(object_box(lifeline, top) for lifeline in heads),
            *scores,
            *weights,
            *phase(y, width, "4  Output"),
            output_arrow(lifelines, y + ROW),
            object_box(context, y + ROW + 14),
            "</svg>\n",
        ]
    )


def draw_scores(exchange: Exchange, lifelines: Lifelines, y: float, width: float) -> tuple[list[str], float]:
    """Return the arrows from each query to each key, and where the next step begins."""
    meets = "" if exchange.folded else "each query meets each key, score = "
    body = phase(y, width, f"2  Scores: {meets}{exchange.formula}")
    y += ROW
    for query_index, query in zip(exchange.queries, lifelines.queries, strict=True):
        for key_index, key in zip(exchange.keys, lifelines.keys, strict=True):
            y += SCORE_ROW
            look = "" if query_index == exchange.followed else " faint"
            hidden = not exchange.allowed[query_index, key_index]
            label = number(exchange.steps.score[query_index, key_index].item()) + " masked" * hidden
            body.append(arrow(query.x, key.x, y, "query" + look, label, name=f"score {query_index} {key_index}"))
    return body, y + ROW


def draw_weights(exchange: Exchange, lifelines: Lifelines, y: float, width: float) -> tuple[list[str], float]:
    """Return the arrows from each value to the sum, and where the next step begins."""
    followed = "" if exchange.folded else f", for “{shorten(exchange.query_tokens[exchange.followed])}”"
    bias = exchange.bias
    made = f"score × {number(exchange.scale)}" + (" + bias" if bias else "")
    body = phase(y, width, f"3  Weights: {exchange.weighting} of {made}{followed}")
    y += BELOW_PHASE if exchange.folded else 0  # there the first arrow's number would stand on the title
    for key_index, value in zip(exchange.keys, lifelines.values, strict=True):
        y += ROW
        weight = exchange.steps.weight[exchange.followed, key_index].item()
        label = f"× {weight_text(weight)}"
        if bias:
            label = f"bias {number(bias[key_index])}: {label}"
        body.append(
            arrow(
                value.x,
                lifelines.summed.x,
                y,
                "weight",
                label,
                name=f"weight {exchange.followed} {key_index}",
                wide=1 + 6 * weight,
            )
        )
    if lifelines.others is not None and exchange.remainder is not None:
        y += ROW
        label = f"× {weight_text(exchange.remainder[0])} in all"
        body.append(arrow(lifelines.others.x, lifelines.summed.x, y, "weight", label, name="weight rest"))
    return body, y + ROW


def output_arrow(lifelines: Lifelines, y: float) -> str:
    """Return the arrow from the sum to the output: downwards, where the output is below it."""
    start, end = lifelines.summed.x, lifelines.output.x
    if start < end:
        return arrow(start, end, y, "context strong", "Weighted Sum", name="weighted sum")
    tip = f'<path class="context tip" d="M{end - 4:g} {y + 4:g} {end:g} {y + 13:g} {end + 4:g} {y + 4:g}z"/>'
    return f'<g data-arrow="weighted sum">{tip}{text("label", end - 12, y + 8, "Weighted Sum", end=True)}</g>'


def place_lifelines(exchange: Exchange) -> Lifelines:
    """Return every object of the diagram, each in its column; values below their keys where a column has both."""
    column, folded, letters = exchange.column, exchange.folded is not None, exchange.letters
    gap, wide = 0.0 if folded else GROUP, column - BETWEEN
    x = (NARROW_EDGE if folded else EDGE) + column / 2
    groups: list[list[Lifeline]] = []
    for role, indices, tokens, vectors, names in (
        ("query", exchange.queries, exchange.query_tokens, exchange.steps.query, exchange.names),
        ("key", exchange.keys, exchange.key_tokens, exchange.steps.key, exchange.names),
        ("value", exchange.keys, exchange.key_tokens, exchange.steps.value, exchange.value_names),
    ):
        group, lower = [], 0.0
        if folded and role == "value":
            x, lower = groups[1][0].x, groups[1][0].bottom + BETWEEN
        for index in indices:
            name = f"{role[0]}: {shorten(tokens[index])}"
            if folded:
                name = role if role == "value" else shorten(tokens[index], letters)
            lines = lines_of(vectors[index], names, letters)
            group.append(Lifeline(role=role, name=name, lines=lines, x=x, wide=wide, lower=lower))
            x += column
        groups.append(group)
        x += gap
    remaining = None
    if exchange.remainder is not None:
        count = len(exchange.key_tokens) - len(exchange.keys)
        words = (f"{count} more", ("values",)) if not folded or letters >= len("999 more") else (f"+{count}", ())
        remaining = Lifeline(role="value", name=words[0], lines=words[1], x=x, wide=wide)
        x += column
    summed = Lifeline(role="weight", name="sum", lines=() if folded else ("Σ weight", "× value"), x=x, wide=wide)
    output = summed
    if not folded:
        output = Lifeline(role="context", name="output", lines=(), x=x + column + gap, wide=wide)
    return Lifelines(groups[0], groups[1], groups[2], remaining, summed, output)


def lines_of(vector: Float[Tensor, "d"], names: Sequence[str], letters: int) -> list[str]:
    """Return the numbers of a vector, a line for each, with their names; of a long one the first few.

    A line that would have too many letters is shortened.
    """
    numbers = vector.tolist()
    few = numbers if len(numbers) <= SHOWN_NUMBERS else numbers[: SHOWN_NUMBERS - 1]
    if names:
        lines = [f"{names[index][:5]:<5}{number(value):>6}" for index, value in enumerate(few)]
    else:
        lines = [fit_number(value, letters) for value in few]
    counted = f"… {len(numbers)} in all"
    return lines if len(few) == len(numbers) else [*lines, counted if len(counted) <= letters else counted[:-7]]


def fit_number(value: float, letters: int) -> str:
    """Return a number with as many of three digits as there is room for, one at least.

    >>> fit_number(-0.0756, 8), fit_number(-0.0756, 6), fit_number(-0.0756, 5)
    ('−0.0756', '−0.076', '−0.08')
    """
    tried = [number(value, digits) for digits in (3, 2, 1)]
    return next((one for one in tried if len(one) <= letters), tried[-1])


def number(value: float, digits: int = 3) -> str:
    """Return a number to read: few digits that matter, a true minus.

    >>> number(6.0), number(-0.12345), number(1234.5), number(float("-inf"))
    ('6', '−0.123', '1234', '−∞')
    """
    if value == float("-inf"):
        return "−∞"
    text = f"{value:.{digits}g}" if abs(value) < 1000 else f"{value:.0f}"
    return text.replace("-", "−")


def weight_text(weight: float) -> str:
    """Return a weight with three decimals, and 0 only where it is 0."""
    return "0" if weight == 0 else f"{weight:.3f}" if weight >= 0.0005 else "<0.001"


def object_box(lifeline: Lifeline, top: float) -> str:
    top, height = top + lifeline.lower, lifeline.bottom - lifeline.lower
    parts = [
        f'<g class="{lifeline.role}"><rect x="{lifeline.x - lifeline.wide / 2:g}" y="{top:g}" '
        f'width="{lifeline.wide:g}" height="{height:g}" rx="3"/>',
        text("name", lifeline.x, top + 17, lifeline.name, middle=True),
        *(
            text("number", lifeline.x, top + 17 + LINE * (i + 1), line, middle=True)
            for i, line in enumerate(lifeline.lines)
        ),
        "</g>",
    ]
    return "".join(parts)


def arrow(start: float, end: float, y: float, role: str, label: str, *, name: str, wide: float | None = None) -> str:
    """Return an arrow with its label on it, near its head; `wide` is the width of its line."""
    x, room = end - 12, 7.3 * len(label)
    thick = "" if wide is None else f' style="stroke-width:{wide:.2g}px"'
    line = f'<path class="{role}" d="M{start:g} {y:g}H{end - 8:g}"{thick}/>'
    # A tip of its own and no marker: markers that take the colour of their line are not known to every browser.
    tip = f'<path class="{role} tip" d="M{end - 9:g} {y - 4:g} {end:g} {y:g} {end - 9:g} {y + 4:g}z"/>'
    behind = f'<rect class="behind" x="{x - room - 3:g}" y="{y - 15:g}" width="{room + 6:g}" height="11"/>'
    return f'<g data-arrow="{escape(name)}">{line}{tip}{behind}{text("label", x, y - 6, label, end=True)}</g>'


def phase(y: float, width: float, caption: str) -> list[str]:
    return [
        f'<path class="cut" d="M{EDGE:g} {y:g}H{width - EDGE:g}"/>',
        f'<rect class="behind" x="{EDGE:g}" y="{y + 3:g}" width="{7 * len(caption):g}" height="17"/>',
        text("phase", EDGE, y + 16, caption),
    ]


def shorten(token: str, longest: int = LONGEST) -> str:
    visible = token.strip() or "␣"
    return visible if len(visible) <= longest else f"{visible[: longest - 1]}…"


def text(role: str, x: float, y: float, content: str, *, middle: bool = False, end: bool = False) -> str:
    anchor = ' text-anchor="middle"' if middle else ' text-anchor="end"' if end else ""
    fit = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in content)
    return f'<text class="{role}" x="{x:g}" y="{y:g}" xml:space="preserve"{anchor}>{escape(fit)}</text>'
