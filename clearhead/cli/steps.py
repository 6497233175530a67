"""`clearhead steps`: attention in four steps on a short sentence, with the numbers of a real layer."""

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

from torch import Tensor

from clearhead.attention import masks
from clearhead.attention.weighting import TABLE as WEIGHTINGS
from clearhead.cli.four_steps import Demonstration, demonstrate, render_page
from clearhead.cli.options import Parts, find_part, one_of, part_option
from clearhead.cli.screen import show, show_json
from clearhead.files import os_errors_as_run_errors, write_text
from clearhead.options import Option
from clearhead.tracing.sentence import FEATURES, KINDS, MEANINGS, TOKENS, creature_exchange
from clearhead.tracing.sequence_diagram import draw_sequence
from clearhead.training.claiming import check_output

MASKS = {"none": masks.everything(), "causal": masks.causal()}
EXAMPLES = """\b
Examples:
  clearhead steps
  clearhead steps --mask causal --query cute
  clearhead steps --weighting argmax-average
  clearhead steps --svg creature.svg
  clearhead steps --json"""


def steps(
    mask: Annotated[
        str,
        part_option(f"Which keys a query may attend to: {', '.join(MASKS)}", MASKS),
    ] = "none",
    weighting: Annotated[
        str,
        part_option(
            f"What turns scores into weights: {', '.join(name.replace(' ', '-') for name in WEIGHTINGS)}",
            WEIGHTINGS,
        ),
    ] = "softmax",
    query: Annotated[
        str,
        Option(help=f"The token whose row is worked out: {', '.join(TOKENS)}.", takes="WORD", names=TOKENS),
    ] = "creature",
    *,
    svg: Annotated[Path | None, Option(help="Write the steps as a sequence diagram.", takes="FILE")] = None,
    parts: Parts = None,
    as_json: Annotated[bool, Option(help="Print every step as one JSON object.", word="json")] = False,
) -> None:
    """Show attention in four steps on a short sentence, with every number.

    The steps are: queries, keys and values; scores; weights; weighted sum. The head was designed by hand: nouns attend
    to their adjectives.
    """
    mask_name, chosen_mask = find_part("mask", mask, MASKS)
    weighting_name, chosen_weighting = find_part("weighting", weighting, WEIGHTINGS)
    row = one_of("query", query, {word: index for index, word in enumerate(TOKENS)})
    if svg is not None:
        check_output(svg, option="--svg")
    demo = demonstrate(mask_name, chosen_mask, weighting_name, chosen_weighting)
    if svg is not None:
        with os_errors_as_run_errors(svg):
            write_text(svg, draw_sequence(creature_exchange(row, chosen_weighting, chosen_mask)))
    if as_json:
        show_json(as_object(demo, row))
    else:
        show(*render_page(demo, row))


def as_object(demo: Demonstration, row: int) -> dict[str, Any]:
    """Return what the page shows, and the rest of it, as JSON."""
    return {
        "tokens": list(TOKENS),
        "token": TOKENS[row],
        "mask": demo.mask_name,
        "weighting": demo.weighting_name,
        "features": {"embedding": FEATURES, "query": KINDS, "key": KINDS, "value": MEANINGS, "context": MEANINGS},
        "embedding": demo.embedding.tolist(),
        "scale": float(demo.layer.similarity.scale(len(KINDS))),
        "allowed": demo.allowed.tolist(),
        "steps": {field.name: rows(getattr(demo.steps, field.name)) for field in fields(demo.steps)},
        "kernel": {"name": demo.choice.kernel, "reason": demo.choice.reason, "notes": demo.choice.notes},
        "largest_difference": dict(demo.differences),
    }


def rows(matrix: Tensor) -> list[list[float | None]]:
    """Return numbers for JSON, which has no -inf: null stands for it, in `masked` where a query may not attend."""
    return [[None if x == float("-inf") else x for x in row] for row in matrix.tolist()]
