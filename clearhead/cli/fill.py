"""`clearhead fill`: a run fills the blanks of each line."""

from typing import Annotated

from clearhead.cli.line_io import AsJson, Device, Fields, File, Lines, RunPath, answer_lines, cell, cells, open_run
from clearhead.cli.options import Parts
from clearhead.options import Option
from clearhead.training.tasks import Fill
from clearhead.training.tasks.fill import BLANK, CANDIDATES

EXAMPLES = f"""\b
Examples:
  echo 'the cat sat on the {BLANK}' | clearhead fill runs/blanks
  clearhead fill runs/blanks lines.txt --top 5
  clearhead fill runs/blanks lines.txt.gz --json"""


def fill(
    run: RunPath,
    file: File = "-",
    *,
    top: Annotated[
        int | None, Option("Add the N likeliest pieces for each blank, after a tab.", takes="N", least=1)
    ] = None,
    device: Device = "auto",
    parts: Parts = None,
    as_json: AsJson = False,
) -> None:
    """Fill the blanks in lines of text, written <mask>: one line out for each line in, in order.

    Only the blanks change; a line without one comes back as it is. If a line is longer than the model's context, only
    its beginning is read and filled, with a note on stderr.
    """
    loaded = open_run(run, device=device, file=file, task=Fill)
    task = loaded.asked(Fill)

    def as_text(answered: Fields) -> str:
        if not top:
            return cells([answered["output"]])
        blanks = [
            [f"{cell(piece['piece'])} {piece['probability']:.4f}" for piece in blank] for blank in answered["blanks"]
        ]
        return "\t".join([cell(answered["output"]), *(" ".join(pieces) for pieces in blanks)])

    def answer(texts: list[str], numbers: list[int]) -> list[Fields]:
        return task.answer(loaded.model, texts, shown=top or CANDIDATES)

    answer_lines(loaded, file, Lines(answer=answer, as_text=as_text, as_json=as_json))
