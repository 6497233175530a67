"""Runs a page of the guide as a stranger would: with an installed copy of the package, in a folder outside the project.

The process sees nothing of the project: `clearhead` is the copy, on the path as a command too, and the page's files are
written into a folder of the stranger's own. The page and its commands are forks of one process that has imported the
copy (`tests.docs.forked_commands`).

    python -m tests.docs.strangers docs/your-own-task.md      # writes what the blocks print now into the page
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.attack.forking import ONE_THREAD
from tests.docs import forked_commands, pages
from tests.docs.pages import PageError
from tests.once import made_once

__all__ = ["run_as_stranger", "run_once_as_stranger"]

PROJECT = Path(__file__).parents[2]
RUN = """
import os, sys
os.environ["PYTHONPATH"] = {package!r}
sys.path[:0] = [{tests!r}, {folder!r}]
import pages
try:
    pages.{verb}(pages.Path({page!r}))
except pages.PageError as error:
    sys.exit(f"PAGE {{error}}")
"""


def run_as_stranger(page: Path, home: Path, *, verb: str = "run_page") -> None:
    """Run a page in a folder within `home`, where the package is installed too; raise a `PageError` as `run_page`."""
    package, folder, tests, programs = (home / name for name in ("installed", "folder", "tests", "bin"))
    for one in (package, folder, tests, programs):
        one.mkdir(parents=True)
    shutil.copytree(PROJECT / "clearhead", package / "clearhead")
    for file in (pages.__file__, forked_commands.__file__):
        shutil.copy(file, tests)
    environment = (
        os.environ
        | ONE_THREAD
        | {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONPATH": str(package),
            "COLUMNS": "80",
        }
    )
    places = {"package": str(package), "tests": str(tests), "folder": str(folder), "page": str(page.resolve())}
    (tests / "stranger.py").write_text(RUN.format(verb=verb, **places), encoding="utf-8")
    run = [str(programs / "python"), "-m", "stranger"]
    with tempfile.TemporaryDirectory() as short:  # the address of a socket has a hundred characters at most
        forked_commands.install(programs, Path(short) / "socket")
        command = [sys.executable, "-P", str(tests / "forked_commands.py"), f"{short}/socket", str(programs)]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            assert server.stdout.readline() == "ready\n"
            path = {"PYTHONPATH": f"{package}{os.pathsep}{tests}"}
            done = subprocess.run(run, cwd=folder, env=environment | path, capture_output=True, text=True, check=False)
            server.terminate()
    if done.returncode:
        raise PageError(done.stderr.partition("PAGE ")[2] or done.stderr)


def run_once_as_stranger(page: Path, factory: pytest.TempPathFactory) -> Path:
    """Run a page once for all tests that need what it makes; return its folder, or raise its `PageError` each time."""

    def run(home: Path) -> None:
        try:
            run_as_stranger(page, home)
        except PageError as error:
            (home / "error").write_text(str(error), encoding="utf-8")

    home = made_once(factory, f"page-{page.stem}", run)
    if (home / "error").exists():
        raise PageError((home / "error").read_text(encoding="utf-8"))
    return home / "folder"


if __name__ == "__main__":
    for name in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as place:
            run_as_stranger(Path(name), Path(place), verb="write_outputs")
