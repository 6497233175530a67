"""What a notebook shows of a trace, a site and a head: the text, the answer, and weights as heat maps."""

import html
import math
from typing import TYPE_CHECKING

from clearhead.errors import OptionError
from clearhead.notebook import Display, Matrix, bars, flow, heat_maps, paragraph, spell, token_line

if TYPE_CHECKING:
    from clearhead.tracing.site import Head, Site
    from clearhead.tracing.trace import Trace

__all__ = ["describe_trace", "show_site", "show_trace", "summarize_trace"]

SIDE, SMALL = 128, 64
"""The most rows and columns of a map, and of one among many: of a longer text each cell is the largest of several."""
MANY = 16
"""More maps than these are small."""
WEIGHTS = 40_000_000
"""How many weights are computed for one display: a second or two."""
PLACES = 24
"""The most places whose answers are listed."""
ANSWERS = 3
"""How many answers are listed for each place."""


def summarize_trace(trace: "Trace") -> Display:
    """Return the text, what the model answers with probabilities, and one map: of the sharpest head of the last
    cross-attention, or of the last attention.
    """
    site = main_site(trace)
    head = sharpest(site)
    title = f"{site.name}, head {head.index} of {site.n_heads}"
    [drawn] = heat_maps([matrix_of(head, SIDE, title)])
    more = f"trace.show() has every head; trace.show({site.name!r}, {head.index}) this one."
    return Display(headline(trace), overview(trace) + flow([drawn]) + paragraph(more))


def describe_trace(trace: "Trace") -> str:
    """Return what is printed of a trace: what it is, its tokens, and the likeliest answer at each place."""
    tokens = {name_side(trace, side): list(map(spell, content.tokens)) for side, content in trace.sides.items()}
    answers = [f"{spell(answers[0].text)} {math.exp(answers[0].log_prob):.0%}" for answers in trace.candidates]
    lines = {**tokens, **({"answers": answers} if answers else {})}
    ends = {name: [*(["…"] if len(line) > PLACES else []), *line[-PLACES:]] for name, line in lines.items()}
    return "\n".join([repr(trace), *(f"  {name:8}{' '.join(line)}" for name, line in ends.items())])


def name_side(trace: "Trace", side: str) -> str:
    return {"encoder": "source", "decoder": "target"}[side] if len(trace.sides) > 1 else "text"


def show_trace(trace: "Trace") -> Display:
    """Return the text, the answers, and the heads of all attentions; of a large model, of as many as are quick."""
    first = main_site(trace)
    shown, cost = [], 0
    for site in (first, *(site for site in trace.sites.values() if site is not first)):
        cost += site.n_heads * site.n_query * site.n_key
        if shown and cost > WEIGHTS:
            break
        shown.append(site)
    side = SIDE if sum(site.n_heads for site in shown) <= MANY else SMALL
    sections = [
        f"<details{' open' if site is first else ''}><summary>{html.escape(site.name)}</summary>"
        f"{flow(heat_maps([matrix_of(head, side, f'head {head.index}') for head in site.head]))}</details>"
        for site in trace.sites.values()
        if site in shown
    ]
    left_out = len(trace.sites) - len(shown)
    note = f"{left_out} more of its {len(trace.sites)} attentions are left out: trace.show(site=NAME) shows one"
    return Display(headline(trace), overview(trace) + "".join(sections) + (paragraph(note) if left_out else ""))


def show_site(site: "Site", head: int | None = None) -> Display:
    """Return the weights of all heads of an attention, or of one."""
    if head is not None and not 0 <= head < site.n_heads:
        raise OptionError(f"{site.name}: there is no head {head}; there are {site.n_heads}, counted from 0")
    heads = site.head if head is None else [site.head[head]]
    side = SIDE if len(heads) <= MANY else SMALL
    drawn = heat_maps([matrix_of(one, side, f"head {one.index}") for one in heads])
    which = f"{site.n_heads} heads" if head is None else f"head {head}"
    title = f"{site.name}, {which}: {site.n_query} queries x {site.n_key} keys"
    return Display(title, flow(drawn) + paragraph("Rows are queries, columns keys: where each query looks."))


def matrix_of(head: "Head", side: int, name: str) -> Matrix:
    """Return a head's weights at the finest level with no more rows and columns than `side`."""
    level = max(0, math.ceil(math.log2(max(head.site.n_query, head.site.n_key) / side)))
    rows, columns = head.site.tokens if level == 0 else ((), ())
    return Matrix(name, head.pooled_weights(level), rows, columns, pool=1 << level)


def headline(trace: "Trace") -> str:
    return repr(trace).splitlines()[0]


def main_site(trace: "Trace") -> "Site":
    """Return the last cross-attention, or the last attention where there is none."""
    sites = list(trace.sites.values())
    return [*sites, *(site for site in sites if site.slot == "cross")][-1]


def sharpest(site: "Site") -> "Head":
    """Return the head whose queries put most of their weight on one key; the first, if a text is long."""
    if site.n_heads * site.n_query * site.n_key > WEIGHTS // 10:
        return site.head[0]
    return max(site.head, key=lambda head: float(head.weight.amax(-1).mean()))


def overview(trace: "Trace") -> str:
    """Return notes, the tokens of each side, and the likeliest answers at each place."""
    roles = {"source": "key", "target": "query", "text": "query"}
    sides = {name_side(trace, side): content.tokens for side, content in trace.sides.items()}
    lines = [token_line(name, tokens, roles[name]) for name, tokens in sides.items()]
    notes = "".join(map(paragraph, trace.notes))
    candidates = trace.candidates
    if not candidates:
        return notes + "".join(lines)
    tokens = trace.sides[trace.answer_side].tokens
    names = tokens if len(candidates) == len(tokens) else ["answer"] * len(candidates)
    rows = [
        (name, [(candidate.text, math.exp(candidate.log_prob)) for candidate in answers[:ANSWERS]])
        for name, answers in zip(names, candidates, strict=True)
    ]
    which = f"the last {PLACES} of {len(rows):,} places" if len(rows) > PLACES else "each place"
    asked = "The likeliest answers" + (f" at {which}" if len(rows) > 1 else "")
    return notes + "".join(lines) + paragraph(asked) + flow([bars(rows[-PLACES:], label=asked)])
