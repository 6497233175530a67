"""Runs a notebook's cells from top to bottom in this process, and shows what a notebook program would show.

A notebook program would need a kernel, a process of its own that imports torch again. What it does beyond this is
small: the last expression of a cell is its value, and one that has `_repr_html_` is shown as a page.
"""

import ast
import contextlib
import io
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["NotebookError", "Shown", "cells", "run_notebook"]


class NotebookError(AssertionError):
    """A cell failed; the message names the notebook and the cell."""


@dataclass
class Shown:
    """What the cells printed, the values of their last lines, and the pages among these."""

    printed: str = ""
    values: list[Any] = field(default_factory=list)
    pages: list[str] = field(default_factory=list)


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
        shown.printed += stream.getvalue()
        if value is not None:
            shown.values.append(value)
            if hasattr(value, "_repr_html_"):
                shown.pages.append(value._repr_html_())
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
