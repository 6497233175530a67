"""What a notebook shows of a trace, and what is printed of it: the text, the answers, and weights as heat maps."""

import html
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, final

from clearhead.notebook import Display, bars, flow, heat_maps, paragraph, spell, token_line
from clearhead.tracing.content import Candidate, Side
from clearhead.tracing.site import MANY, SIDE, SMALL, Head, Site

WEIGHTS = 40_000_000
"""How many weights are computed for one display: a second or two."""
PLACES = 24
"""The most places whose answers are listed."""
ANSWERS = 3
"""How many answers are listed for each place."""
ROLES = {"source": "key", "target": "query", "text": "query"}


@final
class TraceFacts(NamedTuple):
    """What there is to show of a trace."""

    headline: str
    notes: Sequence[str]
    sides: Mapping[str, Side]
    sites: Mapping[str, Site]
    candidates: Sequence[Sequence[Candidate]]

    @property
    def tokens(self) -> dict[str, list[str]]:
        """Return the tokens of each side, by what a reader calls it; the side that answers is last."""
        names = {"encoder": "source", "decoder": "target"} if len(self.sides) > 1 else dict.fromkeys(self.sides, "text")
        return {names[side]: content.tokens for side, content in self.sides.items()}

    @property
    def main_site(self) -> Site:
        """Return the last cross-attention, or the last attention where there is none."""
        sites = list(self.sites.values())
        return [*sites, *(site for site in sites if site.slot == "cross")][-1]

    def describe(self) -> str:
        """Return what is printed: what the trace is, its tokens, and the likeliest answer at each place."""
        answers = [f"{spell(best.text)} {math.exp(best.log_prob):.0%}" for best, *_ in self.candidates]
        lines = {name: list(map(spell, tokens)) for name, tokens in self.tokens.items()}
        lines |= {"answers": answers} if answers else {}
        ends = {name: [*(["…"] if len(line) > PLACES else []), *line[-PLACES:]] for name, line in lines.items()}
        said = [f"  {note}" for note in self.notes] + [f"  {name:8}{' '.join(line)}" for name, line in ends.items()]
        return "\n".join([self.headline, *said])

    def draw(self) -> Display:
        """Return the text, the answers, and one map: of the sharpest head of the main attention."""
        site = self.main_site
        head = sharpest(site)
        [drawn] = heat_maps([head.matrix(f"{site.name}, head {head.index} of {site.n_heads}", SIDE)])
        more = f"trace.show() has every head; trace.show({site.name!r}, {head.index}) this one."
        return Display(self.headline, self.overview() + flow([drawn]) + paragraph(more))

    def draw_all(self) -> Display:
        """Return the text, the answers, and the heads of all attentions; of a large model, of as many as are quick."""
        first = self.main_site
        shown, cost = [], 0
        for site in (first, *(site for site in self.sites.values() if site is not first)):
            cost += site.n_heads * site.n_query * site.n_key
            if shown and cost > WEIGHTS:
                break
            shown.append(site)
        side = SIDE if sum(site.n_heads for site in shown) <= MANY else SMALL
        sections = [
            f"<details{' open' if site is first else ''}><summary>{html.escape(site.name)}</summary>"
            f"{flow(heat_maps([head.matrix(f'head {head.index}', side) for head in site.head]))}</details>"
            for site in self.sites.values()
            if site in shown
        ]
        left_out = len(self.sites) - len(shown)
        note = f"{left_out} more of its {len(self.sites)} attentions are left out: trace.show(site=NAME) shows one"
        return Display(self.headline, self.overview() + "".join(sections) + (paragraph(note) if left_out else ""))

    def overview(self) -> str:
        """Return notes, the tokens of each side, and the likeliest answers at each place."""
        lines = [token_line(name, tokens, ROLES[name]) for name, tokens in self.tokens.items()]
        text = "".join([*map(paragraph, self.notes), *lines])
        if not self.candidates:
            return text
        *_, tokens = self.tokens.values()
        names = tokens if len(self.candidates) == len(tokens) else ["answer"] * len(self.candidates)
        rows = [
            (name, [(candidate.text, math.exp(candidate.log_prob)) for candidate in answers[:ANSWERS]])
            for name, answers in zip(names, self.candidates, strict=True)
        ]
        which = f"the last {PLACES} of {len(rows):,} places" if len(rows) > PLACES else "each place"
        asked = "The likeliest answers" + (f" at {which}" if len(rows) > 1 else "")
        return text + paragraph(asked) + flow([bars(rows[-PLACES:], label=asked)])


def sharpest(site: Site) -> Head:
    """Return the head whose queries put most of their weight on one key; the first, if a text is long."""
    if site.n_heads * site.n_query * site.n_key > WEIGHTS // 10:
        return site.head[0]
    return max(site.head, key=lambda head: float(head.weight.amax(-1).mean()))
