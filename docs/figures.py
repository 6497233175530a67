"""Draw the figures of the guide, and write the page that says which kernel computes what.

    python docs/figures.py            # writes them beside this file

The figures are drawn from what the library computes. Drawn twice, a file is the same to the byte.
"""

import contextlib
import io
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import clearhead as ch
import matplotlib
import torch
from clearhead.attention.grid.support import KERNEL_NAMES, PAIRS, REASONS, ROWS
from clearhead.attention.kernels import KERNELS
from clearhead.colours import ROLES
from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLOURS = {"score": "#333333", "scaled": ROLES["weight"]}
THEORY = "#555555"
WIDTHS = (4, 8, 16, 32, 64, 128, 256, 512)
N_KEYS = 16
PAIR_COLOURS = {
    "query and key": ROLES["query"],
    "query and value": ROLES["context"],
    "key and value": ROLES["value"],
}
STYLES = {
    "o-": ROLES["weight"],
    "s--": ROLES["query"],
    "^-": ROLES["value"],
    "v:": "#333333",
}
"""Marks and colours of curves: no meaning hangs on the colour alone."""


@dataclass(frozen=True)
class ScaleData:
    """The variance of the scores and the Frobenius norm of softmax's Jacobian for 16 keys, for each of `widths`."""

    widths: tuple[int, ...]
    variance: dict[str, list[float]]
    mean_norm: dict[str, list[float]]
    median_norm: dict[str, list[float]]


def jacobian_norm(weight: torch.Tensor) -> torch.Tensor:
    """Return the Frobenius norm of diag(w) - w wᵀ for each row w: how far the weights move when the scores do."""
    squares, cubes = weight.square().sum(-1), weight.pow(3).sum(-1)
    return (squares - 2 * cubes + squares.square()).clamp(min=0).sqrt()


def scale_data(widths: tuple[int, ...] = WIDTHS, rows: int = 1500) -> ScaleData:
    """Score queries and keys with entries of mean 0 and variance 1, without and with the scale."""
    data = ScaleData(widths, *({"score": [], "scaled": []} for _ in range(3)))
    draw = torch.Generator().manual_seed(0)
    for d_head in widths:
        query = torch.randn(rows, 1, 1, d_head, generator=draw)
        key = torch.randn(rows, 1, N_KEYS, d_head, generator=draw)
        for name, similarity in (
            ("score", ch.similarity.Dot()),
            ("scaled", ch.similarity.ScaledDot()),
        ):
            steps = ch.explain(query, key, key[..., :1], similarity=similarity)
            norm = jacobian_norm(steps.weight.double())
            data.variance[name].append(steps.scaled.var().item())
            data.mean_norm[name].append(norm.mean().item())
            data.median_norm[name].append(norm.median().item())
    return data


def draw_scale(data: ScaleData) -> Figure:
    figure = Figure(figsize=(9.6, 4.2), layout="constrained", facecolor="white")
    left, right = figure.subplots(1, 2)
    draw_variance(left, data)
    draw_norm(right, data)
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_xticks(data.widths, [str(width) for width in data.widths])
        axes.minorticks_off()
        axes.set_xlabel("d, the width of query and key")
        axes.grid(color="#E6E6E6", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def draw_variance(axes: Axes, data: ScaleData) -> None:
    axes.plot(
        data.widths,
        data.widths,
        color=THEORY,
        linestyle="--",
        linewidth=1.2,
        label="theory: d, and 1",
    )
    axes.plot(
        data.widths, [1] * len(data.widths), color=THEORY, linestyle="--", linewidth=1.2
    )
    for name, label in (("score", "q·k"), ("scaled", "q·k / √d")):
        axes.plot(
            data.widths,
            data.variance[name],
            "o",
            color=COLOURS[name],
            markersize=7,
            label=label,
        )
    axes.set_yscale("log", base=2)
    axes.set_yticks([1, 4, 16, 64, 256], ["1", "4", "16", "64", "256"])
    axes.set_ylim(0.5, 1024)
    axes.set_ylabel("variance")
    axes.set_title("The variance of a score grows with d", loc="left", fontsize=11)
    axes.legend(frameon=False, loc="upper left")


def draw_norm(axes: Axes, data: ScaleData) -> None:
    for name, label in (("scaled", "q·k / √d"), ("score", "q·k")):
        colour = COLOURS[name]
        axes.plot(
            data.widths,
            data.median_norm[name],
            "o-",
            color=colour,
            markersize=7,
            label=f"{label}: median row",
        )
        axes.plot(
            data.widths,
            data.mean_norm[name],
            ":",
            color=colour,
            linewidth=2,
            label=f"{label}: mean",
        )
    axes.set_yscale("log")
    axes.set_ylim(1e-4, 1.2)
    axes.set_ylabel(f"Frobenius norm of softmax's Jacobian, {N_KEYS} keys")
    axes.set_title(
        "Without the scale, softmax's gradient vanishes", loc="left", fontsize=11
    )
    axes.legend(frameon=False, loc="lower left")


def save(figure: Figure, path: Path) -> None:
    with matplotlib.rc_context({"svg.hashsalt": "clearhead", "svg.fonttype": "path"}):
        figure.savefig(path, metadata={"Date": None, "Creator": None})
    # matplotlib ends some lines with a space.
    path.write_text(
        "\n".join(
            line.rstrip() for line in path.read_text(encoding="utf-8").splitlines()
        )
        + "\n",
        encoding="utf-8",
    )


def found_on(page: str) -> dict[str, Any]:
    """Run the code of a page, and return its variables: the figure shows what the page finds."""
    text = (Path(__file__).parent / page).read_text(encoding="utf-8")
    names: dict[str, Any] = {"__name__": page}
    torch.manual_seed(0)
    with contextlib.redirect_stdout(io.StringIO()):
        for code in re.findall(
            r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL
        ):
            exec(code, names)
    return names


def panels() -> tuple[Figure, list[Axes]]:
    """Return a figure of four drawings side by side: two of curves, two of weights."""
    figure = Figure(figsize=(14, 3.6), layout="constrained", facecolor="white")
    return figure, list(figure.subplots(1, 4))


def draw_maps(found: dict[str, Any]) -> Figure:
    """Draw why Q, K and V differ: the maps grow apart, tied maps, and where the head looks before and after a swap."""
    figure, axes = panels()
    course = found["courses"]["same start"]
    for i, (label, colour) in enumerate(PAIR_COLOURS.items()):
        axes[0].plot(
            [row[0] for row in course],
            [row[2 + i] for row in course],
            color=colour,
            label=label,
        )
    finish_curves(axes[0], "cosine of the maps", "From equal values, they part")
    draw_courses(
        axes[1], found["courses"], "right: the token before", "Tied: what is learned"
    )
    draw_weights(axes[2], found["looks"]["trained"], "Trained: looks one back")
    draw_weights(axes[3], found["looks"]["swapped"], "W_Q and W_K swapped: one ahead")
    return figure


def draw_layers(found: dict[str, Any]) -> Figure:
    """Draw how layers cooperate: one and two layers in training, a head of each layer, and the head made by hand."""
    figure, axes = panels()
    draw_courses(
        axes[0], found["courses"], "right: the next token", "Induction takes two layers"
    )
    (before, after), by_hand = found["looks"]["trained"], found["looks"]["by hand"][1]
    draw_weights(axes[1], before, "Layer 0: the token before")
    draw_weights(axes[2], after, "Layer 1: what followed earlier")
    draw_weights(axes[3], by_hand, "Layer 1, made by hand")
    return figure


def draw_courses(
    axes: Axes, courses: dict[str, list[tuple[float, ...]]], what: str, title: str
) -> None:
    for (label, course), (style, colour) in zip(
        courses.items(), STYLES.items(), strict=False
    ):
        axes.plot(
            [row[0] for row in course],
            [row[1] for row in course],
            style,
            color=colour,
            label=label,
            markersize=4,
        )
    finish_curves(axes, what, title)


def finish_curves(axes: Axes, what: str, title: str) -> None:
    axes.set_ylim(0, 1.05)
    axes.set_xlabel("step of training")
    axes.set_ylabel(what)
    axes.set_title(title, loc="left", fontsize=11)
    axes.grid(color="#E6E6E6", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9)


def draw_weights(axes: Axes, weight: torch.Tensor, title: str) -> None:
    """Draw a square for each cell, so that the file is a drawing and holds no bitmap."""
    axes.pcolormesh(
        weight.detach().numpy(),
        cmap="Oranges",
        vmin=0,
        vmax=1,
        edgecolors="white",
        linewidth=0.3,
    )
    axes.invert_yaxis()
    axes.set_aspect("equal")
    axes.set_xlabel("key")
    axes.set_ylabel("query")
    axes.set_title(title, loc="left", fontsize=11)


SUPPORT = """\
# Kernel support

Several kernels compute attention, and no fast one computes every kind. You need not choose: `ch.attend` picks one that
can, and `ch.which_kernel` says which and why. This page has the whole table.

An example: softmax of a scaled dot product with a causal mask. Look up `scaled dot`, `softmax` and `causal` below. All
three have *yes* under `fused`, so `fused` can compute it.

A call makes one choice in each table. A kernel can compute the call if it has *yes* for each choice, unless [a
pair](#pairs) says otherwise. `reference` is not in the tables, because it computes everything. For your own part, read
the row of its form, in parentheses. The tests check every *yes* against the reference and every other cell against its
error.

| kernel | what it is |
|---|---|
{kernels}

A letter means *no*, and stands for a phrase of the error:

{reasons}

{axes}
Every kernel computes all of these: {everywhere}.

## Pairs

These pairs are refused together, even if each of the two has a *yes*.

| one | other | kernels | the error says |
|---|---|---|---|
{pairs}
"""


def support_page() -> str:
    """Return the page that says which kernel computes what."""
    axes: dict[str, dict[tuple[str, ...], list[str]]] = {}
    for name, cells in ROWS.items():
        axis, part = name.split(" ", 1)
        alike = axes.setdefault(axis, {})
        alike.setdefault(tuple(cells.values()), []).append(part)
    whole = [axis for axis, alike in axes.items() if set().union(*alike) == {"yes"}]
    pairs: dict[tuple[str, str], tuple[list[str], list[str]]] = {}
    for one, other, kernels, why in PAIRS:
        ones, others = pairs.setdefault((kernels, why), ([], []))
        ones.extend([one] * (one not in ones))
        others.extend([other] * (other not in others))
    return SUPPORT.format(
        kernels="\n".join(
            f"| `{name}` | {KERNELS[name].summary} |" for name in KERNEL_NAMES
        ),
        reasons="\n".join(
            f"- **{code}**: {reason}" for code, reason in REASONS.items()
        ),
        axes="\n".join(
            support_axis(axis, alike)
            for axis, alike in axes.items()
            if axis not in whole
        ),
        everywhere="; ".join(
            f"{axis} ({', '.join(next(iter(axes[axis].values())))})" for axis in whole
        ),
        pairs="\n".join(
            f"| {', '.join(ones)} | {', '.join(others)} "
            f"| {'every one' if kernels == '*' else kernels.replace(' ', ', ')} | {why} |"
            for (kernels, why), (ones, others) in pairs.items()
        ),
    )


def support_axis(axis: str, alike: dict[tuple[str, ...], list[str]]) -> str:
    head = [
        "",
        f"| {axis} | {' | '.join(KERNEL_NAMES)} |",
        "|---" * (len(KERNEL_NAMES) + 1) + "|",
    ]
    lines = [
        f"| {', '.join(parts)} | {' | '.join(map(support_cell, cells))} |"
        for cells, parts in alike.items()
    ]
    return "\n".join([f"## {axis.capitalize()}", *head, *lines, ""])


def support_cell(cell: str) -> str:
    return cell if cell == "yes" else f"**{cell}**"


def main(folder: Path) -> list[Path]:
    """Write everything under `folder`, and return the paths."""
    figures, support = folder / "figures", folder / "support.md"
    figures.mkdir(parents=True, exist_ok=True)
    drawn = {
        "why-the-scale.svg": draw_scale(scale_data()),
        "why-q-k-v-differ.svg": draw_maps(found_on("why-q-k-v-differ.md")),
        "how-layers-cooperate.svg": draw_layers(found_on("how-layers-cooperate.md")),
    }
    for name, figure in drawn.items():
        save(figure, figures / name)
    support.write_text(support_page(), encoding="utf-8")
    return [*(figures / name for name in drawn), support]


if __name__ == "__main__":
    for written in main(
        Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    ):
        print(written)
