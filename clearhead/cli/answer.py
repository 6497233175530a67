"""`clearhead answer`: a run answers each line, whatever its task is."""

from clearhead.cli.line_io import AsJson, Device, Dtype, File, Lines, RunPath, answer_lines, cells, open_run
from clearhead.cli.options import Parts

EXAMPLES = """\b
Examples:
  clearhead answer runs/tags lines.txt --parts tagging > tags.txt
  echo 'what a film' | clearhead answer runs/reviews --json"""


def answer(
    run: RunPath,
    file: File = "-",
    *,
    device: Device = "auto",
    dtype: Dtype = None,
    parts: Parts = None,
    as_json: AsJson = False,
) -> None:
    """Answer lines of text with a run of any task: one line out for each line in, in order.

    Use it for a task of your own. For the built-in tasks, `translate`, `generate`, `fill` and `classify` do the same
    with more options. A blank line stays blank. A line longer than the model's context is cut, with a note on stderr.
    """
    loaded = open_run(run, device=device, dtype=dtype, file=file)
    lines = Lines(
        answer=lambda texts, _: loaded.answer(texts),
        as_text=lambda answered: cells([answered["output"]]),
        as_json=as_json,
        check=loaded.task.check_line,
    )
    answer_lines(loaded, file, lines)
