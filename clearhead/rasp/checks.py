"""Checks of a RASP program: what the compiler cannot build is refused by name before anything is built."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from clearhead.attention.weighting import Argmax, Weighting
from clearhead.errors import ProgramError
from clearhead.rasp.compiled_model import TextLayout
from clearhead.rasp.language import Aggregate, Sequence, Width
from clearhead.rasp.values import Possible


def check_vocabulary(name: str, vocabulary: list[Any], layout: TextLayout) -> None:
    if not vocabulary:
        raise ProgramError(f"{name} is the tokens a text may have; there are none")
    if None in vocabulary:
        raise ProgramError(f"{name}: None is no token; it stands for nothing at all")
    if layout.sink in map(str, vocabulary):
        raise ProgramError(f"{name}: {layout.sink} is the model's own token, attended to where nothing is chosen")
    check_written(name, vocabulary)


def check_sides(
    program: Sequence, vocabulary: list[Any], source_vocabulary: list[Any] | None, layouts: Mapping[str, TextLayout]
) -> None:
    """Check that a program answers on the target's side, and that each side it reads has tokens to be read."""
    if program.side == "source":
        raise ProgramError(f"{program.name} runs along the source, and what answers is the target: bring it over")
    check_vocabulary("vocabulary", vocabulary, layouts["target"])
    if source_vocabulary is not None:
        check_vocabulary("source_vocabulary", source_vocabulary, layouts["source"])
    elif any(sequence.side == "source" for sequence in parts_of(program)):
        raise ProgramError("this program reads a source: give its tokens, source_vocabulary=...")


def check_written(name: str, values: Iterable[Any]) -> None:
    """Check that no two values are written alike: ids are found by how values are written."""
    seen: dict[str, Any] = {}
    for value in values:
        if seen.setdefault(str(value), value) != value:
            raise ProgramError(f"{name}: {seen[str(value)]!r} and {value!r} are written alike; rename one")


def check_weighting(weighting: Weighting, sharpness: float) -> None:
    if weighting.form == "kernelized" or not weighting.sums_to_one:
        raise ProgramError(
            f"a program needs weights on the best keys alone that sum to one: those of Argmax, Softmax, Sparsemax or a "
            f"weighting of your own; {weighting} puts weight elsewhere too"
        )
    if not (sharpness > 0 and math.isfinite(sharpness)):
        raise ProgramError(f"sharpness multiplies the scores: more than 0 was expected; came {sharpness}")


def parts_of(program: Sequence) -> list[Sequence]:
    """Return every sequence a program is made of, itself among them."""
    parts: dict[int, Sequence] = {}

    def visit(sequence: Sequence) -> None:
        if id(sequence) not in parts:
            parts[id(sequence)] = sequence
            for inner in sequence.inputs():
                visit(inner)

    visit(program)
    return list(parts.values())


def check_selectors(program: Sequence, possible: Possible, *, causal: bool, weighting: Weighting) -> None:
    """Refuse selectors that the model cannot have: those that look ahead, or average where argmax picks one key."""
    single = isinstance(weighting, Argmax) and weighting.ties != "average"
    for sequence in parts_of(program):
        if not isinstance(sequence, Aggregate | Width):
            continue
        selector = sequence.selector
        within_target = selector.key_side == selector.query_side == "target"
        if causal and within_target and (ahead := possible.looks_ahead(selector)):
            raise ProgramError(
                f"{sequence.name} looks ahead: the query at place {ahead[0]} may choose the key at place {ahead[1]}, "
                "and a causal model does not see it; choose among the past (`past(selector)`), or leave out causal"
            )
        if (
            single
            and isinstance(sequence, Width)
            and (pair := possible.chooses(selector, causal=causal and within_target))
        ):
            raise ProgramError(
                f"{sequence.name} counts what it chooses (at place {pair[0]} it may choose place {pair[1]}) by how the "
                "weight is shared: an argmax that picks one key cannot share it; take Argmax(ties='average')"
            )
        several = single and sequence.numeric and possible.may_choose_several(selector, causal=causal and within_target)
        if several:
            raise ProgramError(
                f"{sequence.name} takes the mean of what it chooses, and at place {several[0]} it may choose places "
                f"{several[1]} and {several[2]} together: an argmax that picks one key cannot average; take "
                "Argmax(ties='average')"
            )
