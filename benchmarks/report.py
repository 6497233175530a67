"""Write gpu.md and its plots from what `python -m benchmarks gpu --json FILE` measured, in several runs.

python -m benchmarks report [FILE ...] [--folder FOLDER]     # the files of benchmarks/results, unless others are given

If several files measured the same thing, the last one counts. A ratio is said to the fastest peer first. A peer of
another run is marked, with the ratio within its own run if there is one.
"""

import argparse
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks.measure import in_words
from clearhead.colours import ROLES
from clearhead.plots.curves import add_grid, save_svg

MARKS = ("o-", "s--", "^-", "v:", "D-", "x--", "P-.")
COLOURS = (*ROLES.values(), "#333333", "#888888")
"""Marks and colours of curves: no meaning hangs on the colour alone."""
WIDTH, HEIGHT = 9.0, 3.6
RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, kw_only=True)
class Target:
    """What was to be reached, set before it was measured: a figure in the row's unit, or a ratio to a peer."""

    limit: float
    peer: str = ""

    def say(self, row: dict[str, Any]) -> str:
        """Return the target and, in words, whether the row reaches it."""
        takes_time, peers = row["unit"] in TIMES, {peer["work"]: peer["figure"] for peer in row["peers"]}
        figure = row["figure"] / peers[self.peer] if self.peer else row["figure"]
        reached = figure <= self.limit if takes_time else figure >= self.limit
        ratio = f"x {'the time of ' if takes_time else ''}{self.peer}"
        return f"target {self.limit:,g} {ratio if self.peer else row['unit']}: {'reached' if reached else 'missed'}"


TIMES = ("ms", "s")
DEFAULT, STATIC = "Hugging Face by default", "Hugging Face with its static cache compiled"
TARGETS = {
    "training GPT-2 124M, 32 x 1024, compiled": Target(limit=610),
    "training base encoder-decoder, 256 x 128, dropout 0.1, compiled": Target(limit=850),
    "training Qwen2.5-0.5B's shape, 16 x 1024, compiled": Target(limit=164),
    "window 256": Target(limit=0.3),
    "8 documents, causal": Target(limit=1.15, peer="one batched call of torch"),
    "ALiBi, causal": Target(limit=1.5, peer="causal alone"),
    "linear attention forward": Target(limit=0.35),
    "linear attention backward": Target(limit=0.9),
    "argmax forward, straight-through": Target(limit=0.5),
    "argmax backward, straight-through": Target(limit=2),
    "decoding base, batch 1, greedy": Target(limit=10, peer=DEFAULT),
    "decoding base, batch 1, beam 4": Target(limit=8, peer=DEFAULT),
    "decoding base, batch 64, greedy": Target(limit=4, peer=DEFAULT),
    "decoding base, batch 64, beam 4": Target(limit=4, peer=DEFAULT),
    "decoding base, batch 512, greedy": Target(limit=3, peer=DEFAULT),
    "decoding GPT-2 124M, batch 1": Target(limit=3000),
    "decoding Llama 1.1B, batch 32": Target(limit=25_000),
    "forward, GPT-2 124M": Target(limit=1.05, peer="the same pass, nothing recorded"),
}
"""Targets by how a row's name begins."""
WANTED = {"decoding": STATIC, "causal": "torch's SDPA"}
"""The fastest peer that is known for a work: where a run lacks it, the row has to say so."""
HEADLINES = (
    "training GPT-2 124M, 32 x 1024, compiled",
    "training base encoder-decoder, 256 x 128, dropout 0.1, compiled",
    "decoding",
)
"""Rows that the page begins with, by how their names begin."""
EXPLANATION = """\
The table compares with the fastest peer first; its figure is in brackets, in the row's unit. A target is what was to be
reached. *In another run* means on another host of the same kind. Hosts differ, most of all for engines that wait for
Python ([decision 0010](../../docs/decisions/0010-every-number-and-the-gpu.md)), so such a ratio is rough. All texts of
a batch have one length, and all outputs too; unequal ones were not measured.
"""


def merge(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the measurements of all runs; the last one counts where several have the same name."""
    rows: dict[str, dict[str, Any]] = {}
    peers: dict[tuple[str, str], dict[str, Any]] = {}
    points: dict[tuple[str, str, int], dict[str, Any]] = {}
    sources: dict[str, list[str]] = defaultdict(list)
    for number, run in enumerate(runs):
        sources[run["machine"]].append(run["date"])
        own = {without_numbers(one["work"]): one for one in run["figures"] if not one["peer_of"]}
        rows |= {name: {**one, "run": number} for name, one in own.items()}
        for one in run["figures"]:
            of = [name for name in own if one["peer_of"] and name.startswith(one["peer_of"])]
            ratios = {name: speed_ratio(own[name], one) for name in of}
            if one["peer_of"]:
                peers[one["peer_of"], one["work"]] = {**one, "run": number, "ratios": ratios}
        points |= {(one["plot"], one["curve"], one["x"]): one for one in run["points"]}
    for name, row in rows.items():
        found = [peer for peer in peers.values() if name.startswith(peer["peer_of"])]
        row["peers"] = sorted(found, key=lambda peer, row=row: speed_ratio(row, peer))  # the fastest first
    said = [f"{' and '.join(sorted(set(dates)))} on {machine}" for machine, dates in sources.items()]
    return {"sources": said, "figures": rows, "points": list(points.values())}


def speed_ratio(row: dict[str, Any], peer: dict[str, Any]) -> float:
    """Return how many times as fast as its peer a row is."""
    return peer["figure"] / row["figure"] if row["unit"] in TIMES else row["figure"] / peer["figure"]


def compared(name: str, row: dict[str, Any]) -> Iterator[str]:
    """Yield a row's ratios in words, to the fastest peer first, then what else was seen, then its target."""
    for peer in row["peers"]:
        said = f"{in_words(speed_ratio(row, peer))} {peer['work']} ({short(peer['figure'])}"
        if peer["run"] != row["run"]:
            said += ", in another run"
            said += f"; within that run {peer['ratios'][name]:.1f} x" if name in peer["ratios"] else ""
        yield f"{said})"
    measured = {peer["work"] for peer in row["peers"]}
    yield from (
        f"{peer} was not measured" for begin, peer in WANTED.items() if name.startswith(begin) and peer not in measured
    )
    if row["note"]:
        yield row["note"]
    yield from (target.say(row) for begin, target in TARGETS.items() if name.startswith(begin))


def without_numbers(work: str) -> str:
    """Return a name without the measured numbers in brackets, which differ from run to run."""
    return re.sub(r" \([^)]*\)", "", work)


STEP = "A training step of a decoder 512 wide, captured: 16 sequences of 256 tokens, 4 layers and 16,384 tokens in the "
STEP += "vocabulary, unless it is the variable on the x axis."
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
    """Return the page: what it comes to, the table, and a picture for each thing that grows."""
    words = {name: list(compared(name, row)) for name, row in found["figures"].items()}
    headlines = [
        f"- {name}: {'; '.join([said[0], *(one for one in said if one.endswith('was not measured'))])}"
        for name, said in words.items()
        if name.startswith(HEADLINES)
    ]
    missed = [f"{name} ({one})" for name, said in words.items() for one in said if one.endswith(": missed")]
    rows = [
        f"| {row['work']} | {short(row['figure'])} | {row['unit']} | {'; '.join(words[name])} |"
        for name, row in found["figures"].items()
    ]
    lines = [
        "# Benchmarks on a GPU",
        "",
        "Measured by `python -m benchmarks gpu`, and written by `python -m benchmarks report`:",
        f"{'; '.join(found['sources'])}.",
        "The CPU's figures are in [cpu.md](cpu.md).",
        "",
        "In short, to the fastest peer that was measured:",
        "",
        *headlines,
        "",
        f"Targets missed: {'; '.join(missed) or 'none'}.",
        "",
        EXPLANATION,
        "| work | figure | unit | compared |",
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
    parser.add_argument("files", nargs="*", type=Path, help="runs to report (those of benchmarks/results)")
    parser.add_argument("--folder", type=Path, default=RESULTS, help="where gpu.md and figures/ are written")
    asked = parser.parse_args(arguments)
    write_page(load_runs(asked.files or stored_runs()), asked.folder)


def stored_runs() -> list[Path]:
    """Return the runs that the page is made of, the first one first."""
    return sorted(RESULTS.glob("gpu*.json"), key=lambda path: path.stem)


def load_runs(paths: Sequence[Path]) -> list[dict[str, Any]]:
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths]


def write_page(runs: Sequence[dict[str, Any]], folder: Path) -> None:
    """Write gpu.md and its plots into a folder."""
    found = merge(runs)
    plots = {}
    for plot in dict.fromkeys(one["plot"] for one in found["points"]):
        plots[plot] = f"growth-{plot.replace(' ', '-')}.svg"
        some = [one for one in found["points"] if one["plot"] == plot]
        save_svg(lambda some=some, plot=plot: draw(some, plot), folder / "figures" / plots[plot], what="the plot")
    (folder / "gpu.md").write_text(page(found, plots), encoding="utf-8")
    print(f"{folder / 'gpu.md'}: {len(found['figures'])} figures, {len(plots)} plots")
