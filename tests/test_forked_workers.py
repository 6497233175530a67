"""Workers that are forks report what a session without workers reports, and one that dies is a failure of its test."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forked_workers import Imports

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
ONE = """
import os, pathlib, pytest

@pytest.fixture(scope="module")
def made(tmp_path_factory):
    print("made here")
    yield tmp_path_factory.getbasetemp().name
    pathlib.Path("ended").touch()

def test_passes(made):
    assert made == os.environ.get("PYTEST_XDIST_WORKER", made)

def test_fails(made):
    print("said to nobody")
    assert made == "something else"

def test_dies():
    os._exit(3) if "PYTEST_XDIST_WORKER" in os.environ else pytest.fail()

def test_after_it(made):
    assert made
"""
OTHER = """
import pytest

from tests.forked_workers import Imports

@pytest.mark.skip(reason="for now")
def test_skipped(): pass

@pytest.mark.xfail(strict=True)
def test_fails_as_it_should(): assert not "so"

@pytest.fixture
def breaks():
    yield
    raise ValueError("too late")

@pytest.mark.parametrize("count", range(3))
def test_breaks_when_it_ends(breaks, count): pass
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("tests")
    (made / "test_one.py").write_text(ONE, encoding="utf-8")
    (made / "test_other.py").write_text(OTHER, encoding="utf-8")
    (made / "pytest.ini").touch()
    return made


def session(folder, *options):
    """Run the tests of a folder; return the exit code and what was printed."""
    (folder / "ended").unlink(missing_ok=True)
    without = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", Imports.VARIABLE))}
    command = [sys.executable, "-m", "pytest", "-p", "tests.forked_workers", "-p", "no:cacheprovider", "-rA"]
    done = subprocess.run(
        [*command, *options],
        cwd=folder,
        env=without | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def forked(folder):
    return session(folder, "--forks", "2")


def outcomes(told):
    return {re.split(r" - |: ", line)[0] for line in told.splitlines() if re.match(r"[A-Z]+ \S*test_", line)}


def test_reports_are_those_of_one_process(folder, forked):
    code, told = session(folder)
    assert (code, forked[0]) == (1, 1)
    assert outcomes(told) == outcomes(forked[1])
    assert re.findall(r"\d+ (?:passed|failed|skipped|error|xfailed)", told.splitlines()[-1]) == re.findall(
        r"\d+ (?:passed|failed|skipped|error|xfailed)", forked[1].splitlines()[-1]
    )


def test_a_failure_is_shown_with_what_was_printed(forked):
    assert "assert 'gw" in forked[1]
    assert "said to nobody" in forked[1]
    assert "too late" in forked[1]


def test_a_worker_that_dies_fails_its_test_and_another_one_goes_on(folder, forked):
    assert "the worker ended in this test, with 3" in forked[1]
    assert "PASSED test_one.py::test_after_it" in forked[1]
    assert (folder / "ended").exists()


def test_the_first_failure_ends_it_where_that_is_asked_for(folder):
    code, told = session(folder, "--forks", "1", "-x")
    assert code == 1
    assert "1 failed, 1 passed" in told


def test_what_cannot_be_collected_is_told_and_nothing_runs(folder, tmp_path):
    (tmp_path / "test_broken.py").write_text("import nothing_of_this_name\n", encoding="utf-8")
    code, told = session(folder, "--forks", "2", str(tmp_path), ".")
    assert code == 2
    assert "nothing_of_this_name" in told
    assert "passed" not in told


@pytest.mark.parametrize(
    "line",
    [
        "threading.Thread(target=threading.Event().wait, daemon=True).start()",
        "torch.set_num_threads(2); torch.ones(512, 512) @ torch.ones(512, 512)",
    ],
)
def test_a_file_that_starts_a_thread_when_it_is_imported_is_refused(folder, tmp_path, line):
    text = f"import threading, torch\n{line}\ndef test_nothing(): pass\n"
    (tmp_path / "test_threads.py").write_text(text, encoding="utf-8")
    code, told = session(folder, "--forks", "2", str(tmp_path), ".")
    assert code == 4
    assert "test_threads.py starts a thread when it is imported" in told


def test_a_tokenizer_that_is_trained_when_a_file_is_imported_starts_no_thread(folder, tmp_path):
    text = "import os, tokenizers as library\n"
    text += "library.Tokenizer(library.models.BPE()).train_from_iterator(['a b'] * 2000)\n"
    text += "def test_serial_no_longer(): assert 'TOKENIZERS_PARALLELISM' not in os.environ\n"
    (tmp_path / "test_trains.py").write_text(text, encoding="utf-8")
    code, told = session(folder, "--forks", "2", str(tmp_path))
    assert code == 0, told
