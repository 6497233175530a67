"""The page of `clearhead trace`: the tokens, every attention with its heads, one head's map, and the differences;
and with --attribute and --patch-from, what made an answer, part by part and place by place.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text
from torch import Tensor

from clearhead.circuits.attribution import Attribution, short
from clearhead.circuits.patch_map import PatchMap
from clearhead.cli.attention_map import legend, pooled_map, readable
from clearhead.cli.screen import bar, number, rule
from clearhead.notebook import Matrix, svg_file
from clearhead.serve.traced import Traced
from clearhead.tracing.head_metrics import Readings, read_head
from clearhead.tracing.site import Site
from clearhead.tracing.survey import SiteSurvey, View
from clearhead.tracing.trace import Trace

BARS = "▁▂▃▄▅▆▇█"
SHOWN = 3
"""The number of candidates of the last place that are shown."""
MOST_TOKENS = 200
"""The most tokens of a side in the terminal."""
KERNEL = 9
"""Columns of a kernel's name."""
HABIT = 0.5
"""The share of its weight from which a head is said to have a habit."""
INDENT, INDENT_FILE = (0, 2, 0, 4), (0, 2, 0, 8)
BITS = "Bar height: how much knowing the query tells you about the key, as a share of the maximum."
CROSSING = "A row is the token read → the token written next, a column a token of the source"

Page = Iterator[RenderableType]


class WrittenFile(NamedTuple):
    """A file that was written, and what it holds."""

    path: Path
    size: int
    held: str


@dataclass(frozen=True, kw_only=True)
class SurveyedTrace:
    """A trace, the survey of it, and the view that is shown."""

    traced: Traced
    surveys: Mapping[str, SiteSurvey]
    view: View

    @property
    def trace(self) -> Trace:
        return self.traced.trace

    @property
    def site(self) -> Site:
        return self.trace[self.view.site]

    @property
    def name(self) -> str:
        n_heads = self.site.n_heads
        if self.view.head is None:
            return f"{self.view.site}, mean of its {n_heads} heads"
        return f"{self.view.site}, head {self.view.head}" + (f" (heads 0 to {n_heads - 1})" if n_heads > 1 else "")

    @property
    def weight(self) -> Tensor:
        return self.view.of(self.trace).cpu()

    @property
    def queries(self) -> list[str]:
        """Return the names of rows: the query's token and, in cross-attention, the token that was decoded from it.

        Of the last one that is what the model would go on with.
        """
        tokens = [readable(token) for token in self.trace.sides[self.site.side].tokens]
        if self.site.slot != "cross":
            return tokens
        best = self.trace.candidates
        last = readable(best[-1][0].text) if best else "…"
        return [f"{read} → {wrote}" for read, wrote in zip(tokens, [*tokens[1:], last], strict=True)]

    @property
    def keys(self) -> list[str]:
        side = "encoder" if self.site.slot == "cross" else self.site.side
        return [readable(token) for token in self.trace.sides[side].tokens]


def render_page(looked: SurveyedTrace) -> Page:
    """Yield the page for the terminal."""
    yield rule(f"{looked.trace.task}: {len(looked.trace.sites)} attention layers")
    yield from render_tokens(looked.trace)
    yield from render_answer(looked)
    yield Text()
    yield rule("Every attention layer, a bar for each head")
    yield from render_overview(looked)
    yield Text()
    yield rule(looked.name)
    yield from pooled_map(looked.queries, looked.keys, looked.weight)
    yield Text()
    yield legend()
    yield from render_view(looked)
    yield Text()


def render_tokens(trace: Trace) -> Page:
    for name, side in trace.sides.items():
        tokens = side.tokens[:MOST_TOKENS]
        more = f"… {len(side.tokens) - MOST_TOKENS:,} more" if len(side.tokens) > MOST_TOKENS else ""
        role = "query" if name == trace.answer_side else "key"
        pieces = [part for token in tokens for part in ((readable(token), role), "  ")]
        yield Text.assemble((f"  {name}", "chosen"), (f" · {len(side.tokens):,} tokens", "quiet"))
        yield Padding(Text.assemble(*pieces, (more, "quiet")), INDENT)
    for note in trace.notes:
        yield Padding(Text(f"{note[0].upper()}{note[1:]}.", "quiet"), (0, 2))


def render_answer(looked: SurveyedTrace) -> Page:
    """Yield the model's answer at its last place, with the probabilities."""
    trace = looked.trace
    if not trace.candidates:
        return
    yield Text.assemble(("  answer", "chosen"), (f" · {looked.traced.run.task.answered}", "quiet"))
    best = trace.candidates[-1][:SHOWN]
    answers = [f"{readable(candidate.text)} {100 * math.exp(candidate.log_prob):.1f} %   " for candidate in best]
    yield Padding(Text("".join(answers), "context"), INDENT)


def render_overview(looked: SurveyedTrace) -> Page:
    """Yield a line for each attention, and how near all of it is to what the kernels gave."""
    wide = max(map(len, looked.surveys))
    heads = max(len("heads"), *(site.n_heads for site in looked.trace.sites.values()))
    head = f"  {'':<{wide}}  {'kernel':<{KERNEL}}  {'heads':<{heads}}  {'clearest':<8}  looks"
    yield Group(Text(head, "quiet", no_wrap=True))
    for site in looked.trace.sites.values():
        yield Group(render_site(looked, site, wide, heads))
    yield Padding(Text(BITS, "quiet"), (0, 2))
    yield Padding(Text(describe_check(looked), "quiet"), (0, 2))


def render_site(looked: SurveyedTrace, site: Site, wide: int, heads: int) -> Text:
    bits = looked.surveys[site.name].information
    best = max(range(len(bits)), key=bits.__getitem__)
    most = math.log2(max(2, min(site.n_query, site.n_key)))
    bars = "".join(BARS[min(len(BARS) - 1, int(information / most * len(BARS)))] for information in bits)
    return Text.assemble(
        (f"  {site.name:<{wide}}  ", "chosen" if site.name == looked.view.site else ""),
        (f"{site.kernel:<{KERNEL}}  ", "quiet"),
        (f"{bars:<{heads}}", "weight"),
        f"  {best:>3}, {bits[best]:.1f}  ",
        (describe_habit(read_head(site.head[best], find_ids(looked.trace, site))), "quiet"),
        no_wrap=True,
        overflow="ellipsis",
    )


def find_ids(trace: Trace, site: Site) -> list[int] | None:
    """Return the ids of a sequence that attends to itself; None in cross-attention."""
    return None if site.slot == "cross" else trace.sides[site.side].ids


def describe_habit(read: Readings) -> str:
    """Return the strongest habit of a head, if it has one; else its entropy."""
    habits = {"previous token": read.previous, "same token": read.same, "induction": read.induction}
    named = {name: share for name, share in habits.items() if share is not None}
    name = max(named, key=named.__getitem__, default=None)
    if name is not None and named[name] >= HABIT:
        return f"{name} {named[name]:.2f}"
    return f"entropy {read.entropy:.1f} bits"


def describe_check(looked: SurveyedTrace) -> str:
    """Return the sentence that what is rebuilt equals what the kernels gave. It was checked, row by row."""
    worst = max(looked.surveys.values(), key=lambda surveyed: surveyed.off / surveyed.tolerance)
    return (
        "Weights are computed again from the recorded queries and keys; they give the contexts that the kernels gave: "
        f"largest difference {worst.off:.1e}, tolerance {worst.tolerance:.1e}."
    )


def render_view(looked: SurveyedTrace) -> Page:
    site = looked.site
    rows = CROSSING if site.slot == "cross" else "A row is a query, a column a key"
    yield Padding(Text(f"{rows}; the weights of a row are where it looks."), (0, 2))
    if looked.view.head is None:
        return
    read = read_head(site.head[looked.view.head], find_ids(looked.trace, site))
    metrics = {
        "entropy": f"{number(read.entropy)} bits",
        "distance": None if site.slot == "cross" else number(read.distance, 1),
        "previous token": format_share(read.previous),
        "same token": format_share(read.same),
        "induction": format_share(read.induction),
    }
    measured = [f"{name} {value}" for name, value in metrics.items() if value is not None]
    yield Padding(Text("  ".join(measured), "quiet"), (0, 2))


def format_share(x: float | None) -> str | None:
    return None if x is None else number(x)


def render_files(looked: SurveyedTrace, files: Mapping[str, WrittenFile]) -> Page:
    """Yield what was written, where no more was asked for."""
    for kind, file in files.items():
        size = f"{file.size / 1e6:.2f} MB" if file.size >= 1e5 else f"{file.size / 1e3:.1f} kB"
        line = Text.assemble((f"  {kind:<6}", "quiet"), f"{file.path}  {size}")
        yield Group(Text.assemble(line, no_wrap=True, overflow="ignore"))
        yield Padding(Text(file.held, "quiet"), INDENT_FILE)
    yield Padding(Text(describe_check(looked), "quiet"), (0, 2))


def draw_head(looked: SurveyedTrace) -> str:
    """Return the view as an SVG file, as a notebook draws it."""
    site = looked.site
    off = looked.surveys[site.name]
    said = f"kernel {site.kernel}; rebuilt contexts equal its own: {off.off:.1e} off, {off.tolerance:.1e} allowed"
    return svg_file(Matrix(looked.name, looked.weight, looked.queries, looked.keys), said)


BAR = 24
"""Columns of the bar of the largest part."""
MOST_PARTS = 16
"""The number of parts that are shown, the largest first."""
MOST_CELLS = 5
"""The number of patches that are named, the best first."""


def render_causes(attribution: Attribution | None, patches: PatchMap | None) -> list[RenderableType]:
    """Return what made the answer, for the terminal: what each part adds to it, and where the difference to another
    text arises; nothing where nothing was asked.
    """
    parts = [] if attribution is None else render_attribution(attribution)
    return parts + ([] if patches is None else render_patches(patches))


def render_attribution(found: Attribution) -> list[RenderableType]:
    """Return the largest parts of a logit as bars, and the sum of each layer."""
    ranked = sorted(found.parts.items(), key=lambda part: -abs(part[1]))
    largest = max(abs(value) for _, value in ranked) or 1.0
    wide = max(len(name) for name, _ in ranked)
    lines: list[RenderableType] = [rule("What made the answer"), Text(f"  {found.what}")]
    for name, value in ranked[:MOST_PARTS]:
        drawn = bar(abs(value) / largest, BAR)
        lines.append(Text.assemble(f"  {name:<{wide}} {value:+9.3f}  ", (drawn, "weight" if value > 0 else "query")))
    if len(ranked) > MOST_PARTS:
        rest = sum(value for _, value in ranked[MOST_PARTS:])
        lines.append(Text(f"  {f'{len(ranked) - MOST_PARTS} more':<{wide}} {rest:+9.3f}", "quiet"))
    layers = "  ".join(f"{name} {value:+.2f}" for name, value in found.layers.items())
    return [*lines, Text(f"  by layer: {layers}", "quiet"), Text()]


def render_patches(found: PatchMap) -> list[RenderableType]:
    """Return a map for each side: rows are layers or heads, columns places; and the best patches in words."""
    lines: list[RenderableType] = [rule("Where the difference arises"), Text(f"  {found.what}")]
    for side, tokens in found.tokens.items():
        rows = {row: shares for row, shares in found.recovered.items() if found.nodes[row].side == side}
        if rows:
            table = next(iter(rows.values())).new_empty(len(rows), len(tokens)).cpu()
            for line, shares in zip(table, rows.values(), strict=True):
                line.copy_(shares.clamp(0, 1))
            lines += [*pooled_map([short(row) for row in rows], [readable(token) for token in tokens], table), Text()]
    for row, place, share in found.best[:MOST_CELLS]:
        token = readable(found.tokens[found.nodes[row].side][place])
        lines.append(Text(f"  {row} at {token} ({place}) recovers {number(100 * share, 1)} %"))
    return [*lines, Text()]


def attribution_json(found: Attribution) -> dict[str, Any]:
    return {"place": found.place, "answers": list(found.names), "total": found.total, "parts": dict(found.parts)}


def patches_json(found: PatchMap) -> dict[str, Any]:
    return {
        "place": found.place,
        "answers": list(found.answers),
        "before": found.before,
        "source": found.source,
        "recovered": {row: shares.tolist() for row, shares in found.recovered.items()},
    }
