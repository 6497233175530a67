"""The short form of `make attack`: every attack a few times."""

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.attack import mutants, running, table  # noqa: F401 - it imports every attack
from tests.attack.calls import Calls
from tests.attack.changing import Kept, flip_bit, mutate
from tests.attack.forking import ONE_THREAD, Outcome
from tests.attack.small import changes, contents
from tests.attack.table import ATTACKS, BEGIN, END, Row

ROOT = Path(__file__).parents[2]


def attack(*args):
    """Run the attacks in a process of their own, since they fork; return its exit code and what it printed."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.attack", *args],
        cwd=ROOT,
        env=os.environ | ONE_THREAD | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    return ended.returncode, ended.stdout + ended.stderr


QUICK = ("pairs-train", "pairs-resume", "power", "disk-broken", "strangers-at-the-door", "open-server", "flips-scores")
"""Attacks of which `make test` has the short form; tests of the package have most of the others."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "names", [QUICK, pytest.param([*ATTACKS], marks=pytest.mark.thorough)], ids=["quick", "every one"]
)
def test_every_attack_is_survived(tmp_path, names):
    code, told = attack("--short", "--seed", "2", "--json", str(tmp_path / "table.json"), "--only", *names)
    rows = json.loads((tmp_path / "table.json").read_text(encoding="utf-8"))["rows"]
    assert code == 0, told
    assert {row["attack"] for row in rows if row["tried"]} >= {*names}


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


def test_every_promise_names_its_attacks_and_every_attack_a_promise():
    """A paragraph that promises something says which attacks try to break it; no page names one that is not there."""
    security, page = ((ROOT / name).read_text(encoding="utf-8") for name in ("SECURITY.md", "docs/reliability.md"))
    promised = page.partition("## What is promised")[2].partition("An example.")[0]
    model = security.partition("## Threat model")[2]
    threats = [line for line in model.splitlines() if line.startswith("|")][2:]
    threats += re.findall(r"^- .*?(?=\n- |\n\n)", model, re.M | re.S)
    named = set()
    for promise in [*re.findall(r"^\*\*.*?(?=\n\n|\Z)", promised, re.M | re.S), *threats]:
        found = {name for name in re.findall(r"`([a-z][a-z_.-]+)`", promise) if name in ATTACKS}
        assert found, f"no attack is named beside: {promise[:80]}"
        named |= found
    assert named | {*re.findall(r"\[`([a-z-]+)`\]", promised)} >= {*ATTACKS}, {*ATTACKS} - named
    brackets = " ".join(re.findall(r"\[(`[^\]]+`)\](?!\()", promised))
    assert {*re.findall(r"`([^`]+)`", brackets)} <= {*ATTACKS}


def test_every_mutant_can_be_made():
    """The text that it replaces is there, once; that it is caught is shown by the thorough test."""
    for mutant in mutants.MUTANTS:
        text = (ROOT / "clearhead" / mutant.file).read_text(encoding="utf-8")
        assert text.count(mutant.old) == 1, mutant.name
    assert {mutant.attack.split()[0] for mutant in mutants.MUTANTS} == {*ATTACKS}


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_is_noticed(mutant):
    end, told = mutants.attack_mutant(mutant)
    assert end == "caught", told
