"""What `Steps` show of themselves: a few lines where they are printed, and a picture in a notebook."""

import math
from collections.abc import Mapping

from torch import Tensor

from clearhead.attention.modes import has_numbers
from clearhead.notebook import Display, Matrix, flow, heat_maps, paragraph, step

SIDE = 40
"""The most rows and columns of a matrix that are drawn: the first ones."""
ROLES = {"score": "weight", "scaled": "weight", "masked": "weight", "weight": "weight", "context": "context"}


def describe_steps(steps: Mapping[str, Tensor]) -> str:
    """Return a line for each step: its name, its shape and the range of its numbers."""
    *_, n_query, n_key = steps["weight"].shape
    lines = [f"Steps of attention: {n_query} queries x {n_key} keys"]
    for name, value in steps.items():
        lines.append(f"  {name:8}{tuple(value.shape)!s:18}{describe_range(value)}".rstrip())
    return "\n".join(lines)


def describe_range(values: Tensor) -> str:
    """Return the least and the greatest number, and how many are -inf; nothing for a tensor without numbers."""
    if not has_numbers(values):
        return ""
    finite = values.detach()[values.detach().isfinite()]
    hidden = values.numel() - finite.numel()
    span = f"{float(finite.min()):.3g} to {float(finite.max()):.3g}" if finite.numel() else "no finite number"
    return span + (f"; {hidden:,} of {values.numel():,} are hidden by the mask" if hidden else "")


def draw_steps(steps: Mapping[str, Tensor]) -> Display:
    """Return score → scaled → masked → weight → context as heat maps of one head, with what happens between them."""
    *outer, n_query, n_key = steps["weight"].shape
    d_value = steps["context"].shape[-1]
    first = {name: steps[name][(0,) * len(outer)].detach() for name in ROLES}
    drawn = [
        Matrix(name, values[:SIDE, :SIDE], role=ROLES[name], percent=False, hidden="-inf, hidden by the mask")
        for name, values in first.items()
    ]
    pictures, labels = heat_maps(drawn), label_arrows(first)
    parts = [step(label, picture) for label, picture in zip(labels, pictures, strict=True)]
    notes = [f"Rows are queries, columns keys; of the context, the {d_value} numbers of each vector."]
    if math.prod(outer) > 1:
        axes = ("batch row", "head")[-len(outer) :] if len(outer) < 3 else ["axis"] * len(outer)
        notes.append("Shown: " + ", ".join(f"{axis} 0 of {n}" for axis, n in zip(axes, outer, strict=True)) + ".")
    if max(n_query, n_key, d_value) > SIDE:
        notes.append(f"Of each step the first {SIDE} rows and columns are drawn.")
    title = f"Attention step by step: {n_query} queries x {n_key} keys"
    return Display(title, flow(parts) + paragraph(" ".join(notes)))


def label_arrows(first: dict[str, Tensor]) -> list[str]:
    """Return what happens before each step, as far as its numbers tell."""
    score, scaled, masked, weight = (first[name].double() for name in ("score", "scaled", "masked", "weight"))
    at = score.abs() == score.abs().max()
    factor = float((scaled[at] / score[at])[0]) if float(score.abs().max()) else 1.0
    even = bool(((scaled - factor * score).abs() <= 1e-4 * scaled.abs().max()).all())
    seen = masked.isfinite()
    hidden, n_cells = int((~seen).sum()), masked.numel()
    mask = f"mask: {hidden} of {n_cells} hidden" if hidden else "mask: nothing hidden"
    biased = not bool(((masked - scaled)[seen].abs() <= 1e-4).all())
    sums = weight.sum(-1)[seen.any(-1)]
    to_one = bool(((sums - 1).abs() <= 1e-4).all())
    return [
        "query · key",
        f"× {factor:.3g}, the scale" if even else "× scale",
        ("+ bias; " if biased else "") + mask,
        "weighting: each row sums to 1" if to_one else "weighting",
        "weight × value",
    ]
