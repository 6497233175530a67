"""The grid: every pair of parts, on every kernel, held to the reference; what is refused, held to its error.

`check_part(part)` runs a part of one's own through all of it:

>>> import clearhead as ch
>>> ch.check_part(ch.weighting.Argmax(ties="average", tolerance=1e-4)).failures
[]
"""

import contextlib
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations as pairs_of
from typing import Any, NamedTuple

from clearhead.attention import masks, positions, similarity, weighting
from clearhead.attention.grid.case import GRID_DTYPES, HEADS, LENGTHS, Case, Combination, example_mask, form_of
from clearhead.attention.grid.support import KERNEL_NAMES, cell, is_served, promise
from clearhead.attention.kernels import blockwise, chunked, flex
from clearhead.attention.mask_rules import Mask
from clearhead.attention.parts import Part
from clearhead.attention.positions import Position
from clearhead.attention.similarity import Similarity
from clearhead.attention.weighting import Weighting
from clearhead.calls import public
from clearhead.errors import OptionError

__all__ = ["Report", "axes", "check", "check_part", "combinations"]

AXIS_OF: dict[type, str] = {
    Similarity: "similarity",
    Weighting: "weighting",
    Position: "position",
    Mask: "mask",
}
DRAWS = 6_000
"""Random combinations looked at for each kernel; those that show a new pair of parts are kept. With one part fixed a
sixth of them is enough."""


class Failure(NamedTuple):
    """A combination of parts, and what is wrong with it."""

    combination: str
    problem: str

    def __str__(self) -> str:
        return f"{self.combination}: {self.problem}"


@dataclass(frozen=True)
class Report:
    """Result of a run of the grid: how many combinations agreed, were refused, or failed."""

    supported: int = 0
    refused: int = 0
    failures: list[Failure] = field(default_factory=list)

    def __str__(self) -> str:
        total = self.supported + self.refused
        counts = f"{total} combinations: {self.supported} supported, {self.refused} refused"
        by_problem: dict[str, list[Failure]] = {}
        for failure in self.failures:
            by_problem.setdefault(failure.problem, []).append(failure)
        lines = [f"{len(same)} times, first in {same[0]}" if same[1:] else str(same[0]) for same in by_problem.values()]
        return "\n".join([f"{counts}; {total} run, {len(self.failures)} failed", *lines])


def axes() -> dict[str, list[str]]:
    """Return every choice on every axis, read from the tables of parts."""
    return {
        "similarity": ["default", *similarity.TABLE],
        "weighting": list(weighting.TABLE),
        "position": list(positions.TABLE),
        "mask": list(masks.TABLE),
        "heads": list(HEADS),
        "lengths": list(LENGTHS),
        "dtype": list(GRID_DTYPES),
        "gradients": ["needed", "not needed"],
        "dropout": ["0", "0", "0", "0.5"],
        "positions": ["default", "given"],
    }


def combinations(kernel: str, own_parts: Mapping[str, Any] | None = None, device: str = "cpu") -> Iterator[Combination]:
    """Yield enough combinations on this kernel to show what it serves and what it refuses.

    Every pair of choices that it serves together is in one that it serves, and every choice beside every reason for
    refusing is in one that it refuses.
    """
    draw = random.Random(kernel)
    everything = axes() | {axis: ["own"] for axis in own_parts or {}}
    covered: set[tuple[str, str]] = set()
    for choices in (served_choices(kernel, everything, own_parts or {}, device), everything):
        for _ in range(DRAWS // 6 if own_parts else DRAWS):
            parts = {axis: draw.choice(options) for axis, options in choices.items()}
            combination = Combination(kernel, parts, own_parts or {}, device)
            names = sorted(f"{axis} {part}" for axis, part in parts.items())
            refusals = reasons(combination)
            new = {(reason, name) for reason in refusals for name in names} or set(pairs_of(names, 2))
            if new - covered:
                covered |= new
                yield combination


def served_choices(
    kernel: str, choices: Mapping[str, list[str]], own_parts: Mapping[str, Any], device: str
) -> dict[str, list[str]]:
    """Return the choices that this kernel computes, one by one; an axis where it computes none keeps them all."""
    return {
        axis: [
            part
            for part in parts
            if axis in own_parts or is_served(cell(axis, part, form_of(axis, part), kernel), device)
        ]
        or parts
        for axis, parts in choices.items()
    }


def reasons(combination: Combination) -> list[str]:
    return promise(combination.parts, combination.forms(), combination.kernel, combination.device)


def check(cases: Iterable[Combination]) -> Report:
    """Run the combinations, on kernels whose blocks are small enough for these lengths."""
    supported, refused, failures = 0, 0, []
    with small_kernels():
        for seed, combination in enumerate(cases):
            refusals = reasons(combination)
            supported, refused = supported + (not refusals), refused + bool(refusals)
            failures += [Failure(str(combination), problem) for problem in problems(combination, refusals, seed)]
    return Report(supported, refused, failures)


def problems(combination: Combination, refusals: list[str], seed: int) -> list[str]:
    try:
        case = Case(combination, seed)
        if not refusals:
            return case.differences()
        message = case.refusal()
    except Exception as error:  # whatever a part of the user's raises is a finding, not an end
        return [f"raised {type(error).__name__}: {error}"]
    if message is None:
        return [f"promised to be refused ({refusals[0]}), but it ran"]
    return (
        []
        if any(reason in message for reason in refusals)
        else [f"refused with {message!r}, not for {' or '.join(refusals)}"]
    )


@contextlib.contextmanager
def small_kernels() -> Iterator[None]:
    """Make blocks and chunks so small that these lengths have several; trace flex but do not compile it."""
    saved = blockwise.BLOCK_NUMBERS, chunked.CHUNK, flex.BACKEND
    blockwise.BLOCK_NUMBERS, chunked.CHUNK, flex.BACKEND = 200, 2, "eager"
    flex.compile_flex.cache_clear()
    try:
        yield
    finally:
        blockwise.BLOCK_NUMBERS, chunked.CHUNK, flex.BACKEND = saved
        flex.compile_flex.cache_clear()


@public
def check_part(part: Part | Mask) -> Report:
    """Test a similarity, weighting, position or mask of your own: run the grid of tests that built-in parts pass.

    Args:
        part: The part.

    Returns:
        A report; print it to see what failed.

    Raises:
        OptionError: If it is not such a part.
    """
    axis = next((axis for kind, axis in AXIS_OF.items() if isinstance(part, kind)), None)
    if axis is None:
        raise OptionError(f"expected a similarity, a weighting, a position or a mask; came {part!r}")
    own: Any = part
    if isinstance(part, Mask):
        if part.kinds <= {kind for make in masks.TABLE.values() for kind in example_mask(make).kinds}:
            raise OptionError(f"{part!r} is a mask of Clearhead's, which its own tests cover; expected one of your own")
        own = lambda extent: part  # noqa: E731  the grid makes masks for lengths
    return check(case for kernel in KERNEL_NAMES for case in combinations(kernel, {axis: own}))
