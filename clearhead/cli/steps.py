"""`clearhead steps`: attention in four steps on a short sentence, with the numbers of a real layer."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, TypeVar

import torch
import typer
from torch import Tensor

from clearhead.attention import masks
from clearhead.attention.attend import attend
from clearhead.attention.kernels import Choice
from clearhead.attention.layer import Attention
from clearhead.attention.masks import Mask
from clearhead.attention.reference import Steps
from clearhead.attention.weighting import TABLE as WEIGHTINGS
from clearhead.attention.weighting import Weighting
from clearhead.cli.screen import show, show_json
from clearhead.files import os_errors_as_run_errors, write_text
from clearhead.tracing.sentence import FEATURES, KINDS, MEANINGS, TOKENS, creature_exchange, designed_layer, embeddings
from clearhead.tracing.sequence_diagram import draw_sequence
from clearhead.training.outputs import check_output

__all__ = ["EXAMPLES", "Demonstration", "demonstrate", "steps"]

MASKS = {"none": masks.everything(), "causal": masks.causal()}
EXAMPLES = """\b
Examples:
  clearhead steps
  clearhead steps --mask causal --token sleeps
  clearhead steps --weighting argmax-average
  clearhead steps --svg creature.svg
  clearhead steps --json"""

Chosen = TypeVar("Chosen")


@dataclass(frozen=True, kw_only=True)
class Demonstration:
    """One attention on the sentence: the layer, every step of it, and what the kernel makes of the same."""

    mask: Mask
    mask_name: str
    weighting: Weighting
    weighting_name: str
    layer: Attention
    embedding: Tensor
    steps: Steps
    """Of the one head: `(query, key)`, `(token, d)`."""
    choice: Choice
    differences: Mapping[str, float]
    """The largest difference from the steps' context of what each way of calling it gives."""

    @property
    def allowed(self) -> Tensor:
        """True where the query may attend to the key."""
        return masks.show(self.mask, n_query=len(TOKENS), n_key=len(TOKENS))[0]


def steps(
    mask: Annotated[
        str, typer.Option(help=f"Which keys a query may attend to: {', '.join(MASKS)}.", metavar="NAME")
    ] = "none",
    weighting: Annotated[
        str,
        typer.Option(
            help=f"What turns scores into weights: {', '.join(name.replace(' ', '-') for name in WEIGHTINGS)}.",
            metavar="NAME",
        ),
    ] = "softmax",
    token: Annotated[
        str, typer.Option(help=f"The token whose row is worked out: {', '.join(TOKENS)}.", metavar="WORD")
    ] = "creature",
    svg: Annotated[Path | None, typer.Option(help="Write the steps as a sequence diagram.", metavar="FILE")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print every step as one JSON object.")] = False,
) -> None:
    """Show attention in four steps on a short sentence, with every number.

    The steps are: queries, keys and values; scores; weights; weighted sum. The head was designed by hand: nouns attend
    to their adjectives.
    """
    mask_name, chosen_mask = chosen("--mask", mask, MASKS)
    weighting_name, chosen_weighting = chosen("--weighting", weighting, WEIGHTINGS)
    _, row = chosen("--token", token, {word: index for index, word in enumerate(TOKENS)})
    shown = demonstrate(mask_name, chosen_mask, weighting_name, chosen_weighting)
    if svg is not None:
        check_output(svg, option="--svg")
        with os_errors_as_run_errors(svg):
            write_text(svg, draw_sequence(creature_exchange(row, chosen_weighting, chosen_mask)))
    if as_json:
        show_json(as_object(shown, row))
    else:
        from clearhead.cli.four_steps import page

        show(*page(shown, row))


def chosen(option: str, name: str, table: Mapping[str, Chosen]) -> tuple[str, Chosen]:
    """The name as the table has it, and what it stands for. A hyphen may stand for a space."""
    known = name if name in table else name.replace("-", " ")
    if known not in table:
        there = ", ".join(word.replace(" ", "-") for word in table)
        raise typer.BadParameter(f"there is no {name!r}. There are: {there}", param_hint=option)
    return known, table[known]


@torch.no_grad()
def demonstrate(mask_name: str, mask: Mask, weighting_name: str, weighting: Weighting) -> Demonstration:
    torch.manual_seed(0)
    layer, embedding = designed_layer(weighting, mask), embeddings()
    made = layer.explain(embedding)
    called = attend(
        made.query, made.key, made.value, similarity=layer.similarity, weighting=layer.weighting, mask=layer.mask
    )
    return Demonstration(
        mask=mask,
        mask_name=mask_name,
        weighting=weighting,
        weighting_name=weighting_name,
        layer=layer,
        embedding=embedding,
        steps=made.without_batch(),
        choice=layer.which_kernel(embedding),
        differences={
            "attend": (called - made.context).abs().max().item(),
            "layer": (layer(embedding) - made.context[0]).abs().max().item(),
        },
    )


def as_object(shown: Demonstration, row: int) -> dict[str, Any]:
    """What the page shows, and the rest of it, for a program."""
    return {
        "tokens": list(TOKENS),
        "token": TOKENS[row],
        "mask": shown.mask_name,
        "weighting": shown.weighting_name,
        "features": {"embedding": FEATURES, "query": KINDS, "key": KINDS, "value": MEANINGS, "context": MEANINGS},
        "embedding": shown.embedding.tolist(),
        "scale": float(shown.layer.similarity.scale(len(KINDS))),
        "allowed": shown.allowed.tolist(),
        "steps": {field.name: rows(getattr(shown.steps, field.name)) for field in fields(shown.steps)},
        "kernel": {"name": shown.choice.kernel, "reason": shown.choice.reason, "notes": shown.choice.notes},
        "largest_difference": dict(shown.differences),
    }


def rows(matrix: Tensor) -> list[list[float | None]]:
    """Numbers for JSON, which has no -inf: null stands for it, in `masked` where a query may not attend."""
    return [[None if x == float("-inf") else x for x in row] for row in matrix.tolist()]
