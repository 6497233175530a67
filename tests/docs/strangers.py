"""Runs a page of the guide as a stranger would: with an installed copy of the package, in a folder outside the project.

The process sees nothing of the project: `clearhead` is the copy, on the path as a command too, and the page's files are
written into a folder of the stranger's own.

    python -m tests.docs.strangers docs/your-own-task.md      # writes what the blocks print now into the page
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.docs import pages
from tests.docs.pages import PageError

__all__ = ["run_as_stranger"]

PROJECT = Path(__file__).parents[2]
COMMAND = """#!/bin/sh
exec "{python}" -P -m clearhead "$@"
"""
RUN = """
import sys
sys.path[:0] = [{tests!r}, {folder!r}]
import pages
try:
    pages.{verb}(pages.Path({page!r}))
except pages.PageError as error:
    sys.exit(f"PAGE {{error}}")
"""


def run_as_stranger(page: Path, home: Path, *, verb: str = "run_page") -> None:
    """Run a page in a folder within `home`, where the package is installed too; raise a `PageError` as `run_page`."""
    package, folder, tests = home / "installed", home / "folder", home / "tests"
    for one in (package, folder, tests):
        one.mkdir(parents=True)
    shutil.copytree(PROJECT / "clearhead", package / "clearhead")
    shutil.copy(pages.__file__, tests)
    command = home / "bin" / "clearhead"
    command.parent.mkdir()
    command.write_text(COMMAND.format(python=sys.executable))
    command.chmod(0o755)
    environment = os.environ | {
        "PATH": f"{command.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(package),
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "80",
    }
    script = RUN.format(tests=str(tests), folder=str(folder), page=str(page.resolve()), verb=verb)
    done = subprocess.run(
        [sys.executable, "-P", "-c", script], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise PageError(done.stderr.partition("PAGE ")[2] or done.stderr)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as place:
            run_as_stranger(Path(name), Path(place), verb="write_outputs")
