"""Runs a page of the guide as a stranger would: with an installed copy of the package, in a folder outside the project.

The process sees nothing of the project: `clearhead` is the copy, on the path as a command too, and the page's files are
written into a folder of the stranger's own. Pages and their commands are forks of one process that has imported the
copy (`tests.docs.forked_commands`), begun with the first page and ended with the process that runs the tests. A page
that names `models/gpt2` finds a small model with GPT-2's architecture there (`tests.docs.small_gpt2`).

    python -m tests.docs.strangers docs/your-own-task.md      # writes what the blocks print now into the page
"""

import functools
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.attack.forking import ONE_THREAD
from tests.docs import forked_commands, pages, small_gpt2
from tests.docs.pages import PageError
from tests.once import made_once

PROJECT = Path(__file__).parents[2]
RUN = """
import os, sys
package, folder, page, verb = sys.argv[1:]
os.environ["PYTHONPATH"] = package
sys.path[:0] = [folder]
import pages
try:
    getattr(pages, verb)(pages.Path(page))
except pages.PageError as error:
    sys.exit(f"PAGE {error}")
"""


@dataclass(frozen=True)
class Installed:
    """A copy of the package, the programs that run it, and what they need of an environment."""

    package: Path
    tests: Path
    programs: Path
    environment: dict[str, str]
    server: subprocess.Popen[str]


@functools.cache
def install() -> Installed:
    """Copy the package into a folder, and start the process that commands are forks of; it removes the folder."""
    home = Path(tempfile.mkdtemp())  # short: the address of a socket has a hundred characters at most
    package, tests, programs = (home / name for name in ("installed", "tests", "bin"))
    for one in (tests, programs):
        one.mkdir()
    shutil.copytree(PROJECT / "clearhead", package / "clearhead")
    for file in (pages.__file__, forked_commands.__file__):
        shutil.copy(file, tests)
    (tests / "stranger.py").write_text(RUN, encoding="utf-8")
    path = {"PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(package), "COLUMNS": "80"}
    environment = os.environ | ONE_THREAD | path
    forked_commands.install(programs, home / "socket")
    command = [sys.executable, "-P", str(tests / "forked_commands.py"), str(home)]
    server = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    with server.stdout as said:
        assert said.readline() == "ready\n"
    return Installed(package, tests, programs, environment, server)


def run_as_stranger(page: Path, home: Path, *, gpt2: Path | None = None, verb: str = "run_page") -> None:
    """Run a page in a folder within `home`, with a copy of `gpt2` in it; raise a `PageError` as `run_page`."""
    there, folder = install(), home / "folder"
    folder.mkdir(parents=True)
    if gpt2 is not None:
        shutil.copytree(gpt2, folder / "models/gpt2")
    command = [there.programs / "python", "-m", "stranger", there.package, folder, page.resolve(), verb]
    path = {"PYTHONPATH": f"{there.package}{os.pathsep}{there.tests}"}
    done = subprocess.run(
        list(map(str, command)),
        cwd=folder,
        env=there.environment | path,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise PageError(done.stderr.partition("PAGE ")[2] or done.stderr)


def needs_gpt2(page: Path) -> bool:
    return "models/gpt2" in page.read_text(encoding="utf-8")


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
            gpt2 = Path(place) / "gpt2" if needs_gpt2(Path(name)) else None
            if gpt2 is not None:
                (small_gpt2.save_trained_here if "circuits" in name else small_gpt2.save)(gpt2)
            run_as_stranger(Path(name), Path(place), gpt2=gpt2, verb="write_outputs")
