"""The site, built once for all workers around a small run, and a browser to look at it."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.browser.conftest import browser_program, chromium  # noqa: F401
from tests.browser.looking import missing, timed_briefly
from tests.once import made_once
from tests.training.small_demo import demo_once

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    from clearhead.serve.live import is_built

    if not is_built():
        missing("the live page is not built; run `make web`")
    with timed_briefly():
        run = demo_once(tmp_path_factory)

    def build(home: Path) -> None:
        command = [sys.executable, str(ROOT / "site/build.py"), "--run", str(run), "--out", str(home / "site")]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]

    return (made_once(tmp_path_factory, "site", build) / "site").resolve()
