"""The sandbox: what answers may not do, each tried in a bounded process; and a hundred hand-ins, a third hostile."""

import itertools
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from clearhead.exercises import EXERCISES, answers
from clearhead.exercises.checking import check_file

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the filter is Linux's")

CALL = """
def call(*args):
    import ctypes, os
    found = ctypes.CDLL(None, use_errno=True).syscall(*args)
    if found < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return found
"""
"""A system call by its number."""
REFUSED = {
    "a process": "import os; os.fork()",
    "a command": "import subprocess; subprocess.run(['touch', TARGET])",
    "a signal to the grader": "import os, signal; os.kill(os.getppid(), signal.SIGTERM)",
    "a signal to all": "import os, signal; os.kill(-1, signal.SIGTERM)",
    "a file removed": "import os; os.remove(TARGET)",
    "a file emptied": "open(TARGET, 'w')",
    "a file made longer": "open(TARGET, 'a').write('x')",
    "a file renamed": "import os; os.rename(TARGET, TARGET + '2')",
    "a file by number": "import os; os.truncate(TARGET, 0)",
    "a folder": "import os; os.mkdir(TARGET + 'd')",
    "a socket": "import socket; socket.socket()",
    "a session": "import os; os.setsid()",
    "an attribute of a file": "import os; os.setxattr(TARGET, 'user.a', b'b')",
    "the times of a file": "import os; os.utime(TARGET, (0, 0))",
    "limits of the grader": "import os, resource; resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (1, 1))",
    "the grader's priority": "import os; os.setpriority(os.PRIO_PROCESS, os.getppid(), 5)",
    "a file of the grader": "import os; call(438, call(434, os.getppid(), 0), 1, 0)",
    "the mode of a file by a newer call": "call(452, -100, TARGET.encode(), 0o600, 0)",
    "memory that outlives it": "import platform; call(29 if platform.machine() == 'x86_64' else 194, 0, 4096, 0o1600)",
    "a call of the x32 form": "call(0x40000000 + 39)",
}
ENDED = {
    "endless": "while True: pass",
    "asleep": "import time; time.sleep(10**6)",
    "deaf": "import signal; signal.signal(signal.SIGXCPU, signal.SIG_IGN)\n    while True: pass",
    "memory": "return [0] * 10**10",
    "flood": "return list(range(10**6))",
    "exit": "import os; os._exit(0)",
    "crash": "import ctypes; ctypes.string_at(0)",
    "deep": "x = []\n    for _ in range(10**5): x = [x]\n    return x",
}
CHEATS = {
    "an object that equals all": "class A(float):\n        __eq__ = lambda s, o: True\n    return A(1.0)",
    "another checker": "import clearhead.exercises.comparing as c; c.same_number = lambda *_: True; return 0.0",
    "no number": "return 'right'",
}


@pytest.fixture
def target(tmp_path):
    path = tmp_path / "precious"
    path.write_text("kept")
    return path


@pytest.fixture(autouse=True)
def short_bounds(monkeypatch):
    monkeypatch.setattr(answers, "BOUNDS", replace(answers.BOUNDS, seconds=2, memory=500_000_000, output=100_000))


def grade(folder, body, target, name="dot-product"):
    """Return what is said of an answer: its state, and the first line; or why it was given up."""
    path = folder / "answer.py"
    path.write_text(f"TARGET = {str(target)!r}\n{CALL}\n\ndef dot_product(a, b):\n    {body}\n")
    return outcome(EXERCISES[name], path)


def outcome(exercise, path):
    verdict = check_file(exercise, path)
    return verdict.state, next(iter(verdict.lines), "")


@pytest.mark.slow
@pytest.mark.parametrize("body", REFUSED.values(), ids=REFUSED)
def test_the_kernel_refuses_it(tmp_path, target, body):
    state, said = grade(tmp_path, body, target)
    assert state == "failed"
    assert "PermissionError: [Errno 1]" in said
    assert target.read_text() == "kept"
    assert {path.name for path in tmp_path.iterdir()} == {"precious", "answer.py"}


def test_what_an_honest_answer_does_is_allowed(tmp_path, target):
    body = "import threading; t = threading.Thread(target=open, args=(TARGET,)); t.start(); t.join(); return a @ b"
    assert grade(tmp_path, body, target) == ("right", "")


@pytest.mark.thorough
def test_a_hundred_hand_ins(tmp_path, target, monkeypatch):
    """Solutions pass, mistakes are refused in their words, hostile code ends; and the grader is still here."""
    short, usual = answers.BOUNDS, replace(answers.BOUNDS, seconds=20, memory=2_000_000_000, output=20_000_000)
    exercises = [each for each in EXERCISES.values() if each.kind != "write"]
    bodies = itertools.chain(REFUSED.values(), ENDED.values(), CHEATS.values())
    hostile = [(EXERCISES["dot-product"], body, "") for body in bodies]
    right = [(each, each.solution, "right") for each in exercises]
    wrong = [(each, each.slips[0].code, "not yet") for each in exercises]
    handed = [*hostile, *right[: (100 - len(hostile)) // 2]]
    handed += wrong[: 100 - len(handed)]
    assert len(handed) == 100
    pid, found = os.getpid(), []
    for number, (exercise, code, expected) in enumerate(handed):
        monkeypatch.setattr(answers, "BOUNDS", usual if expected else short)
        if not expected:
            found.append(grade(tmp_path, code, target)[0])
            continue
        path = tmp_path / f"{number}.py"
        path.write_text(code)
        state, _ = outcome(exercise, path)
        assert state == expected, exercise.name
    assert os.getpid() == pid
    assert "right" not in found
    assert target.read_text() == "kept"
    assert not Path(f"{target}2").exists()
