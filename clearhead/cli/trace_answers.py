"""What `clearhead trace --attribute` and `--patch-from` print: what made an answer, part by part and place by place."""

from dataclasses import dataclass
from typing import Any, final

from rich.console import RenderableType
from rich.text import Text

from clearhead.circuits.attribution import Attribution, short
from clearhead.circuits.patch_map import PatchMap
from clearhead.cli.attention_map import pooled_map, readable
from clearhead.cli.screen import bar, number, rule

BAR = 24
"""Columns of the bar of the largest part."""
MOST_PARTS = 16
"""The number of parts that are shown, the largest first."""
MOST_CELLS = 5
"""The number of patches that are named, the best first."""


@final
@dataclass(frozen=True, kw_only=True)
class MadeBy:
    """What was asked of an answer: what each part adds to it, and where the difference to another text arises."""

    attribution: Attribution | None
    patches: PatchMap | None

    def render(self) -> list[RenderableType]:
        """Return the page for the terminal; nothing where nothing was asked."""
        parts = [] if self.attribution is None else render_attribution(self.attribution)
        return parts + ([] if self.patches is None else render_patches(self.patches))

    def as_json(self) -> dict[str, Any]:
        parts = {} if self.attribution is None else {"attribution": attribution_json(self.attribution)}
        return parts | ({} if self.patches is None else {"patched": patches_json(self.patches)})


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
