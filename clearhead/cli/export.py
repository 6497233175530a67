"""`clearhead export`: a run in the format of another program, which has to compute what the run computes."""

from pathlib import Path
from typing import Annotated

from clearhead.cli.line_io import RunPath
from clearhead.cli.options import Parts
from clearhead.cli.screen import show_json, write
from clearhead.interop.export import FORMATS
from clearhead.interop.export import export as export_run
from clearhead.options import Option

EXAMPLES = """\b
Examples:
  clearhead export runs/de-en --to ctranslate2 -o de-en.ct2
  clearhead export runs/de-en --to ctranslate2 --quantization int8 -o de-en.int8
  clearhead export runs/de-en --to ctranslate2 -o de-en.ct2 --json"""


def export(
    run: RunPath,
    *,
    to: Annotated[str, Option(f"The format: {', '.join(FORMATS)}.", takes="FORMAT", names=FORMATS)],
    output: Annotated[Path, Option("Folder to write; it must not be there yet.", short="o", takes="FOLDER")],
    quantization: Annotated[
        str | None,
        Option(
            "; ".join(f"{name}: {', '.join(one.quantizations)}" for name, one in FORMATS.items())
            + ".  [default: the first]",
            takes="KIND",
            names=dict.fromkeys(kind for one in FORMATS.values() for kind in one.quantizations),
        ),
    ] = None,
    step: Annotated[int | None, Option("The checkpoint of this step, instead of the best.", takes="N", least=0)] = None,
    parts: Parts = None,
    as_json: Annotated[bool, Option("Print one JSON object.", word="json")] = False,
) -> None:
    """Write a run for another program, and check it with that program.

    The program loads the export, and its numbers are compared with the run's own on texts of the validation set. An
    export that differs is not left behind, and what a format cannot express is refused by name.
    """
    exported = export_run(run, to=to, path=output, quantization=quantization, step=step)
    files = [path for path in sorted(output.rglob("*")) if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    if as_json:
        show_json(
            {
                "output": str(output),
                "to": to,
                "quantization": exported.quantization,
                "bytes": size,
                "files": [str(path.relative_to(output)) for path in files],
                "peer": exported.figures.peer,
                "texts": exported.figures.texts,
                "compared": exported.figures.numbers,
                "difference": exported.figures.difference,
                "tolerance": exported.figures.tolerance,
                "same": exported.figures.same,
                "outputs": exported.figures.outputs,
            }
        )
        return
    write(
        f"{output}: {to}, {exported.quantization}, {len(files)} files, {size / 1e6:.2f} MB\n"
        f"checked: {exported.figures}\n"
    )
