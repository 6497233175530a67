"""`clearhead page`: one HTML file with the model in it, which runs in the browser."""

from pathlib import Path
from typing import Annotated

from clearhead.cli.line_io import RunPath
from clearhead.cli.options import Parts
from clearhead.cli.screen import show_json, write
from clearhead.files import write_text
from clearhead.options import Option
from clearhead.serve.live import check_built, check_size, live_page
from clearhead.training.claiming import check_output
from clearhead.training.folder import RunFolder
from clearhead.training.run import load

EXAMPLES = """\b
Examples:
  clearhead page runs/demo -o demo.html
  clearhead page runs/de-en --step 4000 -o de-en.html"""


def page(
    run: RunPath,
    *,
    output: Annotated[Path, Option(help="The HTML file to write.", short="o", takes="FILE")],
    step: Annotated[
        int | None, Option(help="The checkpoint of this step, instead of the best.", takes="N", least=0)
    ] = None,
    parts: Parts = None,
    as_json: Annotated[bool, Option(help="Print one JSON object.", word="json")] = False,
) -> None:
    """Write the explorer and the model as one HTML file that needs no server and no network.

    Whoever opens it types any text and sees every layer, head and number; the model runs in the browser. Up to a
    million parameters the weights stay float32; beyond, they are rounded to float16; 30 million are the most. A part
    that the page cannot compute is refused by name.
    """
    check_output(output, option="--output")
    check_built()
    check_size(RunFolder(Path(run)))
    live = live_page(load(run, device="cpu", step=step))
    write_text(output, live.text)
    size = output.stat().st_size
    if as_json:
        show_json({"output": str(output), "bytes": size, "parameters": live.parameters, "weights": live.dtype})
        return
    rounded = ", rounded from float32" if live.dtype == "float16" else ""
    write(f"{output}: {size / 1e6:.1f} MB, {live.parameters:,} parameters in {live.dtype}{rounded}\n")
