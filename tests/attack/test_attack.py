"""The short form of `make attack`: every attack a few times; and attacks on code that is broken, which must be seen."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.attack import table
from tests.attack.calls import Calls
from tests.attack.forking import ONE_THREAD, Outcome
from tests.attack.mutations import Kept, flip_bit, mutate
from tests.attack.running import ATTACKS
from tests.attack.small import changes, contents
from tests.attack.table import BEGIN, END, Row

ROOT = Path(__file__).parents[2]
BROKEN = """
import os, sys
from tests.attack.forking import ONE_THREAD
os.environ.update(ONE_THREAD)
from clearhead.training import checkpoints, loop
from tests.attack import running
{change}
sys.exit(running.main({args!r}))
"""


def attack(*args, change=None):
    """Run the attacks in a process of their own, since they fork; return its exit code and what it printed."""
    program = ["-m", "tests.attack", *args] if change is None else ["-c", BROKEN.format(change=change, args=args)]
    ended = subprocess.run(
        [sys.executable, *program],
        cwd=ROOT,
        env=os.environ | ONE_THREAD | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    return ended.returncode, ended.stdout + ended.stderr


ELSEWHERE = ("folders", "damage", "requests", "signals", "texts", "kills")
"""Attacks that have a short form in tests/training/test_folder_attacks.py, test_mutated_files.py, tests/serve,
tests/cli/test_train.py, tests/text/test_fuzz.py and tests/training/test_killed.py.
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "names",
    [set(ATTACKS) - {*ELSEWHERE}, pytest.param(ELSEWHERE, marks=pytest.mark.thorough)],
    ids=["here", "elsewhere"],
)
def test_every_attack_is_survived(tmp_path, names):
    code, told = attack("--short", "--seed", "2", "--json", str(tmp_path / "table.json"), "--only", *sorted(names))
    rows = json.loads((tmp_path / "table.json").read_text(encoding="utf-8"))["rows"]
    assert code == 0, told
    assert [row["attack"] for row in rows if row["tried"] == 0 and not row["note"]] == []
    assert len(rows) > 2 * len(names)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("kills", "loop.restore_tensors = lambda *args: None"),
        ("flips", "checkpoints.sha256_of_file = lambda path: '0' * 64"),
    ],
    ids=["a resume that forgets", "weights without a checksum"],
)
@pytest.mark.thorough
def test_an_attack_sees_what_is_broken(tmp_path, name, change):
    """Or the table would prove nothing."""
    options = ("--short", "--seed", "2", "--only", name)  # with this seed a flipped bit is in what a resume reads
    code, told = attack(*options, "--json", str(tmp_path / "table.json"), change=change)
    assert code == 1, told


def test_the_page_takes_the_table_between_its_markers(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n", encoding="utf-8")
    table.write_page("new", page)
    assert page.read_text(encoding="utf-8") == f"before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"
    page.write_text("no markers", encoding="utf-8")
    with pytest.raises(RuntimeError, match="markers"):
        table.write_page("new", page)


def test_a_row_counts_what_failed_and_shows_it():
    row = Row("kill")
    row.add("", "first")
    row.add("lost a log", "second")
    assert (row.tried, row.survived) == (2, 1)
    assert "kill: second: lost a log" in table.as_text([row])


@pytest.mark.parametrize(
    ("outcome", "found"),
    [
        (Outcome(0, 0, "", ""), ""),
        (Outcome(1, 1, "", "clearhead: run/model.json: was changed\n"), ""),
        (Outcome(1, 1, "", ""), "failed without a word"),
        (Outcome(1, 1, "", "clearhead: this should not happen: KeyError: 'spec'"), "unclear error"),
        (Outcome(-14, None, "", ""), "still running"),
        (Outcome(-11, None, "", ""), "crashed with signal 11"),
    ],
)
def test_an_unclear_end_is_seen(outcome, found):
    assert outcome.unclear().startswith(found)
    assert bool(outcome.unclear()) == bool(found)


def test_calls_are_counted_with_their_names_and_an_act_comes_before_its_own(tmp_path):
    """Without the audit hook itself, which would stay in this process."""
    heard = []
    calls = Calls(tmp_path, 2, lambda name, what: heard.append((name, list(calls.made))))
    for event, path, flags in (
        ("open", tmp_path / "read", os.O_RDONLY),
        ("open", tmp_path / "written", os.O_WRONLY | os.O_CREAT),
        ("os.rename", tmp_path / "written", None),
        ("os.mkdir", "/elsewhere", None),
    ):
        calls.hear(event, (path, None, flags))
    assert calls.made == ["open written", "rename written"]
    assert heard == [("rename", ["open written", "rename written"])]


def test_a_changed_file_is_put_back_as_it_was(tmp_path):
    path = tmp_path / "model.json"
    path.write_text(json.dumps({"spec": {"d_model": 8, "heads": [1, 2]}, "name": "x"}), encoding="utf-8")
    before, kept, draw = contents(tmp_path), Kept(path), random.Random(0)
    different = 0
    for _ in range(100):
        assert mutate(path, draw)
        different += bool(changes(before, tmp_path))
        kept.put_back()
        assert changes(before, tmp_path) == ""
    assert different > 90
    assert "bit" in flip_bit(path, draw)
    assert changes(before, tmp_path) == "model.json"
