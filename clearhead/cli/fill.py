"""`clearhead fill`: a run fills the blanks of each line."""

import math
from collections.abc import Sequence
from typing import Annotated

import typer

from clearhead.cli.line_io import AsJson, Device, File, Found, Lines, RunPath, answer_lines, cell, cells
from clearhead.cli.options import Parts
from clearhead.training.answers import BLANK, Filling, with_blanks
from clearhead.training.run import load
from clearhead.training.tasks import Fill

__all__ = ["EXAMPLES", "fill"]

EXAMPLES = f"""\b
Examples:
  echo 'the cat sat on the {BLANK}' | clearhead fill runs/blanks
  clearhead fill runs/blanks lines.txt --top 5
  clearhead fill runs/blanks lines.txt.gz --json"""
CANDIDATES = 5


def fill(
    run: RunPath,
    file: File = "-",
    *,
    top: Annotated[
        int | None,
        typer.Option(min=1, help="After the text: for each blank the N likeliest pieces, after a tab.", metavar="N"),
    ] = None,
    device: Device = "auto",
    parts: Parts = None,
    as_json: AsJson = False,
) -> None:
    """Fill the blanks of lines, written <mask>: one line out for each line in, in order.

    Nothing but the blanks is touched; a line without one comes back as it is. Of a line longer than the model's
    context the beginning is read, and the blanks in it are filled, which is told on stderr.
    """
    loaded = load(run, device=device)
    task = loaded.asked(Fill)

    def answer(texts: list[str], numbers: list[int]) -> list[Found]:
        blank = [text for text in texts if BLANK in text]
        found = iter(loaded.fill(blank, shown=top or CANDIDATES) if blank else ())
        return [as_found(next(found)) if BLANK in text else {"output": text, "blanks": []} for text in texts]

    def lengths(texts: Sequence[str]) -> list[int]:
        return [len(with_blanks(task, text)) if BLANK in text else 0 for text in texts]

    lines = Lines(
        answer=answer,
        as_text=with_candidates if top else without_candidates,
        as_json=as_json,
        reads=task.context - 2,
        lengths=lengths,
    )
    answer_lines(loaded, file, lines)


def as_found(one: Filling) -> Found:
    """`score` is the log-probability of what was filled in."""
    blanks = [[{"piece": piece, "probability": share} for piece, share in blank] for blank in one.blanks]
    return {"output": one.text, "score": sum((math.log(blank[0][1]) for blank in one.blanks), 0.0), "blanks": blanks}


def without_candidates(found: Found) -> str:
    return cells([found["output"]])


def with_candidates(found: Found) -> str:
    """`text, tab, piece probability piece probability …`, a tab before each blank's."""
    blanks = (" ".join(f"{cell(one['piece'])} {one['probability']:.4f}" for one in blank) for blank in found["blanks"])
    return "\t".join([cell(found["output"]), *blanks])
