"""`clearhead embed`: a vector for each line."""

import json
from pathlib import Path
from typing import Annotated

import numpy as np

from clearhead.cli.line_io import (
    AsJson,
    Device,
    Fields,
    File,
    Lines,
    RunPath,
    StderrNotes,
    answer_lines,
    open_run,
    read_chunks,
)
from clearhead.cli.options import Parts
from clearhead.cli.screen import write
from clearhead.errors import OptionError, WordError
from clearhead.files import replacing
from clearhead.options import Option
from clearhead.training.claiming import check_output
from clearhead.training.folder import RunFolder
from clearhead.training.run import Run
from clearhead.training.tasks import answering, learning
from clearhead.training.tasks.embed import Pooling

EXAMPLES = """\b
Examples:
  echo 'a line of text' | clearhead embed runs/minilm
  clearhead embed runs/minilm lines.txt --normalize --output vectors.npy
  clearhead embed runs/blanks lines.txt --pooling first --json"""


def embed(
    run: RunPath,
    file: File = "-",
    *,
    pooling: Annotated[Pooling, Option("The mean of the vectors of all tokens, or the first token's vector.")] = "mean",
    normalize: Annotated[bool, Option("Make the length of each vector 1, for cosines by dot products.")] = False,
    output: Annotated[
        Path | None,
        Option("Write all vectors to a .npy file instead, float32 (line, d_model).", short="o", takes="FILE"),
    ] = None,
    pairs: Annotated[bool, Option("Each line is two texts with a tab between: for models that read pairs.")] = False,
    device: Device = "auto",
    parts: Parts = None,
    as_json: AsJson = False,
) -> None:
    """Turn lines of text into vectors: one JSON list out for each line in, in order.

    Any run with an encoder will do, imported or trained here. A blank line stays blank; in a .npy file its vector is 0.
    If a line is longer than the model's context, only its beginning is read, with a note on stderr.
    """
    if output is not None and as_json:
        raise WordError("json", "is for lines, and --output writes an array: leave one of them out")
    if output is not None:
        check_output(output, option="--output", inputs=() if file == "-" else (file,))
    spec = RunFolder(Path(run)).spec()
    if spec.decoder is not None:
        raise OptionError(f"to embed takes an encoder, and {run} is {learning.with_article(spec.kind)}")
    loaded = open_run(run, device=device, file=file)

    def answer(texts: list[str], numbers: list[int]) -> list[Fields]:
        inputs = [answering.split_pair(text) for text in texts] if pairs else texts
        vectors = loaded.embed(inputs, pooling=pooling, normalize=normalize)
        return [{"vector": vector} for vector in vectors.tolist()]

    lines = Lines(
        answer=answer,
        as_text=lambda answered: json.dumps(answered["vector"]),
        as_json=as_json,
        lengths=lambda texts: [len(row) for row in loaded.tokenizer.encode_batch(list(texts))],
        check=answering.split_pair if pairs else None,
    )
    if output is None:
        answer_lines(loaded, file, lines)
    else:
        write_array(loaded, file, output, lines, pooling=pooling, normalize=normalize, pairs=pairs)


def write_array(
    run: Run, file: str, output: Path, how: Lines, *, pooling: Pooling, normalize: bool, pairs: bool
) -> None:
    """Write the vectors of a file's lines as one array, atomically."""
    width, notes = run.embed([]).shape[1], StderrNotes(run, how)
    chunks_of_rows: list[np.ndarray] = []
    for chunk in read_chunks(file, how.check):
        nonblank = [i for i, line in enumerate(chunk) if line.is_asked]
        rows = np.zeros((len(chunk), width), dtype=np.float32)
        texts = [str(chunk[i].text) for i in nonblank]
        inputs = [answering.split_pair(text) for text in texts] if pairs else texts
        rows[nonblank] = run.embed(inputs, pooling=pooling, normalize=normalize).numpy()
        chunks_of_rows.append(rows)
        notes.look(chunk)
    array = np.concatenate(chunks_of_rows) if chunks_of_rows else np.zeros((0, width), dtype=np.float32)
    with replacing(output) as partial, partial.open("wb") as opened:
        np.save(opened, array)
    notes.tell()
    write(f"{output}: {len(array):,} vectors of {width:,} numbers\n")
