"""Work on strangers' files in a process that is ended at its bounds."""

import os
import signal

import pytest

from clearhead import bounds
from clearhead.bounds import BoundedProcess, FileBounds, call_bounded, check_unpacked
from clearhead.errors import DataError, OptionError
from clearhead.exercises.answers import run_functions
from clearhead.text.templates import render_here

pytestmark = pytest.mark.plain
SMALL = FileBounds(seconds=1, memory=200_000_000, output=100_000)
SPIN = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


def render(text, limits=SMALL):
    return call_bounded(render_here, {"text": text, "variables": {}}, limits, where="some.jinja", error=DataError)


@pytest.fixture
def started(monkeypatch):
    """The processes that are started, from none on."""
    processes = []

    class Counted(BoundedProcess):
        def __init__(self):
            super().__init__()
            processes.append(self.process)

    bounds.end_idle()
    monkeypatch.setattr(bounds, "BoundedProcess", Counted)
    yield processes
    bounds.end_idle()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{{ 'a' * 3000000000 }}", "takes more than 0.2 GB of memory"),
        ("{{ 'a' * 100000 }}", "gives more than 0.1 MB at once"),
        pytest.param(SPIN, "was given up after 1 s of work", marks=pytest.mark.slow),
    ],
)
def test_work_is_ended_at_a_bound_and_the_next_begins_anew(started, text, message):
    with pytest.raises(DataError, match=f"^some.jinja: {message}"):
        render(text)
    assert started[0].poll() is not None
    assert render("{{ 1 + 1 }}") == "2"
    assert len(started) == 2


def test_the_deadline_holds_where_nothing_is_counted(started, monkeypatch):
    monkeypatch.setattr(FileBounds, "deadline", 0.3)
    with pytest.raises(DataError, match="was given up"):
        render(SPIN, FileBounds(seconds=1000, memory=10**9, output=10**6))


def test_a_process_is_kept_for_the_next_call_also_after_an_error(started):
    assert render("{{ 'ü\ud800' }}") == "ü\ud800"
    with pytest.raises(DataError, match=r"^some.jinja: division by zero$"):
        render("{{ 1 / 0 }}")
    assert render("b") == "b"
    assert len(started) == 1


def test_the_limits_of_a_call_are_not_those_of_what_the_next_one_imports(started, tmp_path):
    """Torch, which answers to exercises import, takes more time and memory than a template may."""
    assert render("a") == "a"
    (tmp_path / "mine.py").write_text("def f(a):\n    return a\n", encoding="utf-8")
    assert list(run_functions(tmp_path / "mine.py", {"f": [[1.0]]})) == [[{"values": 1.0}]]
    assert len(started) == 1


def test_a_process_that_somebody_ended_is_replaced(started):
    render("a")
    started[0].send_signal(signal.SIGKILL)
    started[0].wait()
    assert render("b") == "b"


def test_an_error_of_the_family_is_raised_as_it_is_there():
    with pytest.raises(OptionError, match=r"^a chat: came nothing$"):
        call_bounded(refuse, {"message": "a chat: came nothing"}, SMALL, where="x", error=DataError)


def refuse(message):
    raise OptionError(message)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_fork_leaves_the_processes_to_the_one_that_started_them(started):
    render("a")
    child = os.fork()
    if not child:
        os._exit(len(bounds.IDLE))
    assert os.waitpid(child, 0)[1] == 0
    assert render("b") == "b"
    assert len(started) == 1


def test_a_text_may_unpack_to_a_gigabyte_or_to_a_hundred_times_its_file():
    check_unpacked(10**9, 1)
    check_unpacked(10**11, 10**9)
    with pytest.raises(ValueError, match="more than 100 times its size"):
        check_unpacked(10**9 + 1, 10**7)
