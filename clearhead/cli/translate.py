"""`clearhead translate`: a run translates, line by line."""

from pathlib import Path
from typing import Annotated

from clearhead.cli.line_io import AsJson, Device, Dtype, Fields, File, Lines, RunPath, answer_lines, cells, open_run
from clearhead.cli.options import Parts
from clearhead.errors import WordError
from clearhead.experiments.tracing import align
from clearhead.files import check_writable, write_text
from clearhead.options import Option
from clearhead.training.tasks import Translate

EXAMPLES = """\b
Examples:
  clearhead translate runs/de-en test.de > test.out
  echo zweiundvierzig | clearhead translate runs/demo
  clearhead translate runs/de-en test.de.gz --n-best 3 --json
  clearhead translate runs/de-en test.de --dtype int8-dynamic
  clearhead translate runs/de-en test.de --alignments test.align > test.out"""
ALIGNED = "Which cross-attention {}s align, counted from 0; by default the mean of all."


def translate(
    run: RunPath,
    file: File = "-",
    *,
    beam: Annotated[int, Option("Beam width; 1 is greedy decoding.", takes="N", least=1)] = 5,
    n_best: Annotated[int, Option("Translations per line, separated by tabs.", takes="N", least=1)] = 1,
    length_penalty: Annotated[
        float, Option("0 ranks by log-probability, 1 by its mean per token; more favours long outputs.", takes="X")
    ] = 1.0,
    alignments: Annotated[
        Path | None, Option("Write word alignments from cross-attention here, as 0-0 1-2 (Moses).", takes="FILE")
    ] = None,
    align_layer: Annotated[int | None, Option(ALIGNED.format("layer"), takes="N")] = None,
    align_head: Annotated[int | None, Option(ALIGNED.format("head"), takes="N")] = None,
    align_tokens: Annotated[bool, Option("Align tokens, not words.")] = False,
    device: Device = "auto",
    dtype: Dtype = None,
    parts: Parts = None,
    as_json: AsJson = False,
) -> None:
    """Translate lines of text: one line out for each line in, in order.

    A blank line stays blank. A line longer than the model's context is cut, with a note on stderr.
    """
    if n_best > beam:
        raise WordError("n_best", f"it cannot be more than the beam, {beam}: widen that too")
    if alignments is None and (align_tokens or align_layer is not None or align_head is not None):
        raise WordError("alignments", "say where to write them", is_missing=True)
    loaded = open_run(run, device=device, dtype=dtype, file=file, task=Translate)
    unit = "tokens" if align_tokens else "words"
    aligned: list[str] = []

    def answer(texts: list[str], numbers: list[int]) -> list[Fields]:
        answered = loaded.scored_translations(texts, beam=beam, n_best=n_best, length_penalty=length_penalty)
        listed = [
            [
                {"output": hypothesis.text, "score": hypothesis.score, "log_prob": hypothesis.log_prob}
                for hypothesis in hypotheses
            ]
            for hypotheses in answered
        ]
        best = [{**hypotheses[0], **({"n_best": hypotheses} if n_best > 1 else {})} for hypotheses in listed]
        if alignments is None:
            return best
        pairs = zip(texts, best, strict=True)
        found = [align(loaded, text, one["output"], layer=align_layer, head=align_head, by=unit) for text, one in pairs]
        return [{**one, "alignment": str(alignment)} for one, alignment in zip(best, found, strict=True)]

    def as_text(answered: Fields) -> str:
        return cells([hypothesis["output"] for hypothesis in answered.get("n_best", [answered])])

    lines = Lines(
        answer=answer,
        as_text=as_text,
        as_json=as_json,
        each=lambda answered: aligned.append(answered.get("alignment", "")),
    )
    if alignments is not None:
        check_writable(alignments.parent)
    answer_lines(loaded, file, lines)
    if alignments is not None:
        write_text(alignments, "".join(f"{line}\n" for line in aligned))
