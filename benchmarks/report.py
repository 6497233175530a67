"""Write docs/benchmarks.md and its plots from what `python -m benchmarks gpu --json FILE` measured, in several runs.

python -m benchmarks report FILE [FILE ...] [--folder docs]

If several files measured the same thing, the last one counts.
"""

import argparse
import json
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from clearhead.colours import ROLES
from clearhead.plots.figure import add_grid, save_svg

MARKS = ("o-", "s--", "^-", "v:", "D-", "x--", "P-.")
COLOURS = (*ROLES.values(), "#333333", "#888888")
"""Marks and colours of curves: no meaning hangs on the colour alone."""
WIDTH, HEIGHT = 9.0, 3.6


def merge(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the measurements of all runs; the last one counts where several have the same name."""
    figures: dict[str, dict[str, Any]] = {}
    points: dict[tuple[str, str, int], dict[str, Any]] = {}
    sources: dict[str, list[str]] = defaultdict(list)
    for kept in runs:
        sources[kept["machine"]].append(kept["date"])
        figures |= {without_numbers(one["work"]): one for one in kept["figures"]}
        points |= {(one["plot"], one["curve"], one["x"]): one for one in kept["points"]}
    said = [f"{' and '.join(sorted(set(dates)))} on {machine}" for machine, dates in sources.items()]
    return {"sources": said, "figures": list(figures.values()), "points": list(points.values())}


def without_numbers(work: str) -> str:
    """Return a name without the measured numbers in brackets, which differ from run to run."""
    return re.sub(r" \([^)]*\)", "", work)


STEP = "A training step of a decoder 512 wide, captured: 16 sequences of 256 tokens, 4 layers and 16,384 tokens in the "
STEP += "vocabulary, but for what grows."
EXPLAINED = {
    "tokens": "Forward and backward of attention, 8 heads of 64. Short texts take the time of their launches, so the "
    "curves are flat there. ALiBi's memory falls between 1,024 and 4,096 tokens: from 2,048 on flex computes the bias, "
    "below that the fused kernel reads it as a matrix.",
    "sequences of 256 tokens in a batch": STEP,
    "layers": f"{STEP} Some 500 MB do not grow with the layers: embedding, output and logits.",
    "tokens in the vocabulary": STEP,
}
"""What a reader should know of a picture: what is measured, and why a curve bends."""


def draw(points: Sequence[dict[str, Any]], plot: str) -> Figure:
    """Draw time and memory against what grows, both axes logarithmic."""
    curves: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for one in points:
        curves[one["curve"]].append(one)
    figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
    for axes, (what, label) in zip(
        figure.subplots(1, 2), (("ms", "milliseconds"), ("megabytes", "megabytes")), strict=True
    ):
        for number, (name, places) in enumerate(curves.items()):
            ordered = sorted(places, key=lambda one: one["x"])
            style = {"color": COLOURS[number], "markersize": 4, "label": name}
            axes.plot([one["x"] for one in ordered], [max(one[what], 1e-2) for one in ordered], MARKS[number], **style)
        axes.set(xscale="log", yscale="log", xlabel=plot, ylabel=label)
        add_grid(axes)
    if len(curves) > 1:
        figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside right upper", frameon=False)
    return figure


def page(found: dict[str, Any], plots: dict[str, str]) -> str:
    """Return the page: the table, and a picture for each thing that grows."""
    rows = [f"| {one['work']} | {short(one['figure'])} | {one['unit']} | {one['beside']} |" for one in found["figures"]]
    lines = [
        "# Benchmarks on a GPU",
        "",
        "Measured and written by `python -m benchmarks gpu`, each beside its peer in the same run:",
        f"{'; '.join(found['sources'])}.",
        "The CPU's figures are in [benchmarks-cpu.md](benchmarks-cpu.md).",
        "",
        "| work | figure | unit | beside it |",
        "|---|---:|---|---|",
        *rows,
        "",
    ]
    for plot, name in plots.items():
        lines += [f"## Against {plot}", "", f"![Time and memory against {plot}](figures/{name})", ""]
        lines += [EXPLAINED[plot], ""]
        lines += curve_table([one for one in found["points"] if one["plot"] == plot], plot)
    return "\n".join(lines)


def short(number: float) -> str:
    """Return a number with three digits, or with all its whole ones."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def curve_table(points: Sequence[dict[str, Any]], plot: str) -> list[str]:
    """Return the numbers of a picture: one row for each curve, time and memory at every size."""
    sizes = sorted({one["x"] for one in points})
    at = {(one["curve"], one["x"]): f"{short(one['ms'])} ms, {one['megabytes']:,.0f} MB" for one in points}
    curves = dict.fromkeys(one["curve"] for one in points)
    head = [f"| {plot} | {' | '.join(f'{size:,}' for size in sizes)} |", "|---|" + "---|" * len(sizes)]
    return [*head, *(f"| {c} | {' | '.join(at.get((c, size), '') for size in sizes)} |" for c in curves), ""]


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument(
        "--folder", type=Path, default=Path("docs"), help="where benchmarks.md and figures/ are written"
    )
    asked = parser.parse_args(arguments)
    write_page([json.loads(path.read_text(encoding="utf-8")) for path in asked.files], asked.folder)


def write_page(runs: Sequence[dict[str, Any]], folder: Path) -> None:
    """Write benchmarks.md and its plots into a folder."""
    found = merge(runs)
    plots = {}
    for plot in dict.fromkeys(one["plot"] for one in found["points"]):
        plots[plot] = f"growth-{plot.replace(' ', '-')}.svg"
        some = [one for one in found["points"] if one["plot"] == plot]
        save_svg(lambda some=some, plot=plot: draw(some, plot), folder / "figures" / plots[plot], what="the plot")
    (folder / "benchmarks.md").write_text(page(found, plots), encoding="utf-8")
    print(f"{folder / 'benchmarks.md'}: {len(found['figures'])} figures, {len(plots)} plots")
