"""Two processes in one folder at once: the order of looking, locking and removing, at every file call."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.attack.forking import ONE_THREAD

ROOT = Path(__file__).parents[2]
PROGRAM = """
import os, random, sys, tempfile
from pathlib import Path
import torch
torch.set_num_threads(1)
from tests.attack import pairs
from tests.attack.small import warm_up
with tempfile.TemporaryDirectory() as home:
    warm_up(Path(home))
    pair, draw = pairs.Pair(Path(home)), random.Random(1)
    rows = {rows}
    print(*rows, sep="\\n")
    sys.exit(any(row.failures or not row.tried for row in rows))
"""


def run_rows(rows):
    """Run attacks in a process of their own, since they fork; return its exit code and what it printed."""
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(rows=rows)],
        cwd=ROOT,
        env=os.environ | ONE_THREAD | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    return ended.returncode, ended.stdout + ended.stderr


@pytest.mark.slow
def test_a_training_that_is_stopped_while_another_begins_loses_nothing():
    """At each call up to the lock, and of a training that is refused at every call; further on at every 100th."""
    code, told = run_rows("[pairs.at_every_call(pair, draw, 60, every=100)]")
    assert code == 0, told


@pytest.mark.slow
@pytest.mark.thorough
def test_at_every_call_and_with_random_delays():
    code, told = run_rows("[pairs.at_every_call(pair, draw, None), pairs.at_random(pair, draw, 200)]")
    assert code == 0, told
