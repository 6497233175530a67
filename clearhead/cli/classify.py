"""`clearhead classify`: a run gives each line its label."""

from typing import Annotated

from clearhead.cli.line_io import AsJson, Device, Fields, File, Lines, RunPath, answer_lines, cell, cells, open_run
from clearhead.cli.options import Parts
from clearhead.options import Option
from clearhead.training.tasks.answering import split_pair
from clearhead.training.tasks.classify import OneLabel

EXAMPLES = """\b
Examples:
  clearhead classify runs/reviews reviews.txt > labels.txt
  echo 'what a film' | clearhead classify runs/reviews --probabilities
  clearhead classify runs/reviews reviews.txt.gz --json"""


def classify(
    run: RunPath,
    file: File = "-",
    *,
    probabilities: Annotated[bool, Option("Add every label and its probability, separated by tabs.")] = False,
    pairs: Annotated[bool, Option("Each line is two texts with a tab between: for models that read pairs.")] = False,
    device: Device = "auto",
    parts: Parts = None,
    as_json: AsJson = False,
) -> None:
    """Label lines of text: one label out for each line in, in order.

    A blank line stays blank. So does a line that is not a pair if pairs are read, with a note on stderr. If a line is
    longer than the model's context, only its beginning is read, with a note on stderr.
    """
    loaded = open_run(run, device=device, file=file, task=OneLabel)

    def answer(texts: list[str], numbers: list[int]) -> list[Fields]:
        return loaded.answer([split_pair(text) for text in texts] if pairs else texts)

    def as_text(answered: Fields) -> str:
        ranked = [f"{cell(name)}\t{share:.6f}" for name, share in answered["probabilities"].items()]
        return "\t".join([cell(answered["output"]), *ranked]) if probabilities else cells([answered["output"]])

    lines = Lines(
        answer=answer, as_text=as_text, as_json=as_json, check=split_pair if pairs else loaded.task.check_line
    )
    answer_lines(loaded, file, lines)
