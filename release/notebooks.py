"""Runs notebooks from top to bottom, and keeps what they show, for the site's pages of them.

    python release/notebooks.py              # whole, all four: notebooks/outputs/NAME.json

A notebook program would need a kernel, a process of its own that imports torch again. What it does beyond this is
small: the last expression of a cell is its value, and one that has `_repr_html_` is shown as a page.
"""

import ast
import contextlib
import io
import json
import os
import re
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "notebooks"
TEMPORARY = rf"{re.escape(tempfile.gettempdir())}/\w+"
"""Folders that are gone when somebody reads of them."""


class NotebookError(AssertionError):
    """A cell failed; the message names the notebook and the cell."""


@dataclass
class Output:
    """What a cell shows: what it printed, and the value of its last line, as text or as a page."""

    printed: str = ""
    value: str = ""
    page: str = ""


@dataclass
class Shown:
    """What the cells of a notebook show, in turn."""

    outputs: list[Output] = field(default_factory=list)

    @property
    def printed(self) -> str:
        return "".join(output.printed for output in self.outputs)

    @property
    def pages(self) -> list[str]:
        return [output.page for output in self.outputs if output.page]


def cells(path: Path) -> list[str]:
    """Return the code of each cell that has code."""
    found = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in found if cell["cell_type"] == "code"]


def run_notebook(path: Path) -> Shown:
    """Run every cell in one namespace."""
    shown, names = Shown(), {"__name__": "__main__"}
    for number, code in enumerate(cells(path), 1):
        stream = io.StringIO()
        try:
            with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(io.StringIO()):
                value = run_cell(code, f"{path.name}, cell {number}", names)
        except Exception as error:
            raise NotebookError(f"{path.name}, cell {number}: {error!r}") from error
        page = getattr(value, "_repr_html_", None)
        text = "" if value is None or page else repr(value)
        shown.outputs.append(Output(stream.getvalue(), text, page() if page else ""))
    return shown


def run_cell(code: str, name: str, names: dict[str, Any]) -> Any:
    """Run the statements of a cell, and return the value of its last one, if that is an expression.

    A cell that begins with `%%writefile NAME` is a file, and is written into the current folder.
    """
    if code.startswith("%%writefile "):
        first, _, text = code.partition("\n")
        Path(first.removeprefix("%%writefile ").strip()).write_text(text, encoding="utf-8")
        return None
    tree = ast.parse(code, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), names)
    return None if last is None else eval(compile(ast.Expression(last.value), name, "eval"), names)


def main() -> None:
    """Run every notebook whole in an empty folder, and keep its outputs."""
    os.environ.pop("CLEARHEAD_SHORT", None)
    (FOLDER / "outputs").mkdir(exist_ok=True)
    for path in sorted(FOLDER.glob("*.ipynb")):
        begun = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            sys.path.insert(0, folder)
            shown = run_notebook(path)
            sys.path.remove(folder)
            written = json.dumps({"code": cells(path), "outputs": [asdict(one) for one in shown.outputs]}, indent=1)
        (FOLDER / "outputs" / f"{path.stem}.json").write_text(re.sub(TEMPORARY, "…", written) + "\n", encoding="utf-8")
        print(f"{path.name}: {time.perf_counter() - begun:.0f} s, {len(shown.pages)} pages")


if __name__ == "__main__":
    main()
