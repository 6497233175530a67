"""Runs a page of the guide as a stranger would: with an installed copy of the package, in a folder outside the project.

The process sees nothing of the project: `clearhead` is the copy, on the path as a command too, and the page's files are
written into a folder of the stranger's own. Commands are forks of one process that has imported the copy
(`tests.docs.forked_commands`).

    python -m tests.docs.strangers docs/your-own-task.md      # writes what the blocks print now into the page
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.attack.forking import ONE_THREAD
from tests.docs import forked_commands, pages
from tests.docs.pages import PageError

__all__ = ["run_as_stranger"]

PROJECT = Path(__file__).parents[2]
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
    script = RUN.format(tests=str(tests), folder=str(folder), page=str(page.resolve()), verb=verb)
    python = [sys.executable, "-P"]
    with tempfile.TemporaryDirectory() as short:  # the address of a socket has a hundred characters at most
        forked_commands.install(programs, Path(short) / "socket")
        command = [*python, str(tests / "forked_commands.py"), f"{short}/socket", str(programs)]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            assert server.stdout.readline() == "ready\n"
            done = subprocess.run(
                [*python, "-c", script], cwd=folder, env=environment, capture_output=True, text=True, check=False
            )
            server.terminate()
    if done.returncode:
        raise PageError(done.stderr.partition("PAGE ")[2] or done.stderr)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as place:
            run_as_stranger(Path(name), Path(place), verb="write_outputs")
