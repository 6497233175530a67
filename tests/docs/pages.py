"""Runs a page of the guide: its python blocks from top to bottom, in one namespace, each held to its output block.

An ```output block right after a ```python block is what that block prints, exactly; `...` in it stands for any text
within a line, for counts that grow with the package. A block that prints must have one.

A python block that begins with a comment such as `# tagging.py` is a file of the reader's: it is written into the
current folder, and not run. A ```shell block is run there by bash, and held to its output in the same way. Pages with
such blocks are run in a folder of their own (`tests.docs.strangers`).

    python -m tests.docs.pages docs/attention.md        # writes what the blocks print now into the page
"""

import contextlib
import io
import re
import subprocess
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

FILE = re.compile(r"# (\w+\.py)\n")
"""The first line of a block that is a file."""
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class PageError(AssertionError):
    """A page says something that does not hold; the message names the page and the line."""


@dataclass(frozen=True)
class Block:
    """A block to run: the line its code starts at, the code, and what it should print.

    `place` is where in the page the output stands; None if there is no output block.
    """

    line: int
    code: str
    output: str = ""
    place: slice | None = None
    shell: bool = False

    @property
    def file(self) -> str | None:
        """The name of the file that the block is; None for one that is run."""
        found = None if self.shell else FILE.match(self.code)
        return found and found[1]


def blocks(path: Path) -> list[Block]:
    """Every python block of a page, with the output block that follows it, if one does."""
    text = path.read_text(encoding="utf-8")
    found: list[Block] = []
    end = None
    for fence in FENCE.finditer(text):
        line = text.count("\n", 0, fence.start()) + 1
        if fence[1] == "output":
            if end is None or text[end : fence.start()].strip():
                raise PageError(f"{path.name}, line {line}: an output block without a python block right before it")
            found[-1] = replace(found[-1], output=fence[2], place=slice(*fence.span(2)))
        elif fence[1] in ("python", "shell"):
            found.append(Block(line + 1, fence[2], shell=fence[1] == "shell"))
        elif fence[1] != "text":
            name = fence[1] or "nameless"
            raise PageError(f"{path.name}, line {line}: a block is python, shell, output or text, not {name!r}")
        end = fence.end() if fence[1] in ("python", "shell") else None
    return found


def run(path: Path, names: dict[str, object]) -> Iterator[tuple[Block, str]]:
    """Every block of a page with what it prints, from a fresh seed."""
    torch.manual_seed(0)
    for block in blocks(path):
        yield block, printed(path, block, names)


def printed(path: Path, block: Block, names: dict[str, object]) -> str:
    if block.file is not None:
        Path(block.file).write_text(block.code, encoding="utf-8")
        return ""
    if block.shell:
        done = subprocess.run(["bash", "-euc", block.code], capture_output=True, text=True, check=False)
        if done.returncode:
            raise PageError(f"{path.name}, line {block.line}: ended with {done.returncode}: {done.stderr[-2000:]}")
        return done.stdout
    stream = io.StringIO()
    # The lines above are left empty, so that a traceback counts as the page does.
    source = "\n" * (block.line - 1) + block.code
    try:
        with contextlib.redirect_stdout(stream):
            exec(compile(source, path.name, "exec"), names)
    except Exception as error:
        raise PageError(f"{path.name}, line {failing_line(path, block, error)}: {error!r}") from error
    return stream.getvalue()


def failing_line(path: Path, block: Block, error: Exception) -> int:
    if isinstance(error, SyntaxError) and error.lineno is not None:
        return error.lineno
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path.name]
    return (lines[0] if lines else None) or block.line


def matches(output: str, text: str) -> bool:
    """Whether a text is what a page says; the sign of a rounded zero is luck of the machine."""
    output, text = (re.sub(r"-(?=0(\.0*)?(?![.\d]))", "", one) for one in (output, text))
    return re.fullmatch("[^\n]*".join(map(re.escape, output.split("..."))), text) is not None


def run_page(path: Path) -> dict[str, object]:
    """The names a page has made once it has run; raises a `PageError` where it does not hold."""
    names: dict[str, object] = {"__name__": path.stem}
    for block, text in run(path, names):
        if not matches(block.output, text):
            raise PageError(f"{path.name}, line {block.line}: should print\n{block.output}\nbut printed\n{text}")
    return names


def write_outputs(path: Path) -> None:
    """Puts what each block prints into its output block; one that holds `...` and still matches is left alone."""
    text = path.read_text(encoding="utf-8")
    for block, output in reversed(list(run(path, {"__name__": path.stem}))):
        if block.place is not None and not matches(block.output, output):
            text = text[: block.place.start] + output + text[block.place.stop :]
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    for page in sys.argv[1:]:
        write_outputs(Path(page))
