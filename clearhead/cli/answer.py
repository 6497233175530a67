"""`clearhead answer`: a run answers each line, whatever its task is."""

from clearhead.cli.line_io import AsJson, Device, File, Found, Lines, RunPath, answer_lines, cells
from clearhead.cli.options import Parts
from clearhead.training.run import load

__all__ = ["EXAMPLES", "answer"]

EXAMPLES = """\b
Examples:
  clearhead answer runs/tags lines.txt --parts tagging > tags.txt
  echo 'what a film' | clearhead answer runs/reviews --json"""


def answer(
    run: RunPath,
    file: File = "-",
    *,
    device: Device = "auto",
    parts: Parts = None,
    as_json: AsJson = False,
) -> None:
    """Answer lines as the run's task does: one line out for each line in, in order.

    It serves a task of your own; translate, generate, fill and classify are the same with options of their own. A blank
    line stays blank. What of a line the model does not read is told on stderr.
    """
    loaded = load(run, device=device)

    def answers(texts: list[str], numbers: list[int]) -> list[Found]:
        return loaded.task.answer(loaded.model, texts)

    lines = Lines(
        answer=answers,
        as_text=lambda found: cells([found["output"]]),
        as_json=as_json,
        reads=loaded.task.reads,
        lengths=loaded.task.count_tokens,
    )
    answer_lines(loaded, file, lines)
