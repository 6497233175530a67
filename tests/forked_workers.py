"""Workers that are forks of one process: `pytest --forks 4` imports and collects once for all of them.

pytest-xdist starts every worker afresh, and each of them imports torch and collects ten thousand tests: ten seconds a
worker. Here the process that has collected forks instead. It gives out files (`unit_of` in tests/scheduling.py) and
gathers reports, so that the terminal shows what it would show without workers; a worker asks for its next file before
the last test of the one it has, since only then is it known which fixtures are still needed.

It needs a process that has not spoken to a GPU: where there is one, the Makefile takes pytest-xdist, and for coverage
too. And it needs a process of one thread: a lock that another thread holds at the fork is never released in the fork,
which would wait for it without a word. So a test file that starts a thread when it is imported is refused by name.
"""

import os
import sys
import traceback
from collections import deque
from collections.abc import Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from signal import SIGKILL
from typing import Any

import pytest

from tests.scheduling import unit_of


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--forks", type=int, default=0, help="how many forks of this process run the tests; 0: none")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("forks"):
        config.pluginmanager.register(Imports(), "imports")


class Imports:
    """Watch that test files start no thread when they are imported. A tokenizer that one trains or asks would."""

    VARIABLE = "TOKENIZERS_PARALLELISM"

    def __init__(self) -> None:
        self.threaded: str | None = None
        """The first file after which there was more than one thread."""
        self.serial = self.VARIABLE not in os.environ
        if self.serial:
            os.environ[self.VARIABLE] = "false"

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.look(report.nodeid)

    def look(self, imported: str) -> None:
        if self.threaded is None and len(os.listdir("/proc/self/task")) > 1:
            self.threaded = imported

    def end(self) -> None:
        """Let tests start threads; raise UsageError if a file, or what every worker imports, has."""
        self.look("IN_EVERY_WORKER")
        if self.threaded is not None:
            raise pytest.UsageError(
                f"{self.threaded} starts a thread when it is imported, and forks of several threads may wait forever: "
                "start it in a fixture or a test"
            )
        if self.serial:
            del os.environ[self.VARIABLE]


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the tests in forks where `--forks` asks for them. Collected alone or in error, they are pytest's own."""
    count = session.config.getoption("forks")
    failed = session.testsfailed and not session.config.option.continue_on_collection_errors
    if not count or session.config.option.collectonly or failed:
        return None
    imports: Any = session.config.pluginmanager.getplugin("imports")
    imports.end()
    units: dict[str, list[int]] = {}
    for place, item in enumerate(session.items):
        units.setdefault(unit_of(item.nodeid), []).append(place)
    Forks(session, deque(units.values())).run(count)
    return True


class Forks:
    """The process that collected: it gives out tests by their place in the session, and takes reports."""

    def __init__(self, session: pytest.Session, units: deque[list[int]]) -> None:
        self.session, self.hook, self.units = session, session.config.hook, units
        self.base = session.config._tmp_path_factory.getbasetemp()  # pyright: ignore[reportAttributeAccessIssue]
        self.begun = 0
        self.pipes: dict[int, Connection] = {}
        self.left: dict[int, deque[int]] = {}
        """By process: the tests that it has and has not ended."""

    def run(self, count: int) -> None:
        try:
            for _ in range(min(count, len(self.units))):
                self.fork()
            while self.pipes:
                ready = wait(self.pipes.values())
                for number in [number for number, pipe in self.pipes.items() if pipe in ready]:
                    try:
                        for message in self.pipes[number].recv():
                            self.hear(number, **message)
                    except (EOFError, ConnectionResetError):
                        self.bury(number)
                    self.stop_if_asked()
        finally:
            for number in self.pipes:
                os.kill(number, SIGKILL)
                os.waitpid(number, 0)

    def fork(self) -> None:
        self.begun += 1
        ours, theirs = Pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        number = os.fork()
        if number == 0:
            for other in self.pipes.values():  # or nobody would notice that this process has closed it
                other.close()
            ours.close()
            code = 1
            try:
                code = Worker(self.session, theirs, f"gw{self.begun - 1}").work(self.base)
            finally:
                os._exit(code)
        theirs.close()
        self.pipes[number], self.left[number] = ours, deque()

    def hear(self, number: int, kind: str, **told: Any) -> None:
        match kind:
            case "ask":
                unit = self.units.popleft() if self.units else []
                self.left[number].extend(unit)
                self.pipes[number].send(unit)
            case "start":
                self.hook.pytest_runtest_logstart(nodeid=told["test"], location=told["location"])
            case "report":
                report = self.hook.pytest_report_from_serializable(config=self.session.config, data=told["data"])
                self.hook.pytest_runtest_logreport(report=report)
            case "finish":
                self.left[number].popleft()
                self.hook.pytest_runtest_logfinish(nodeid=told["test"], location=told["location"])
            case _:
                raise RuntimeError(told["text"])

    def bury(self, number: int) -> None:
        """Take leave of one that has ended: what it was at has failed, and another one takes over what it had left."""
        self.pipes.pop(number).close()
        status, left = os.waitpid(number, 0)[1], self.left.pop(number)
        if left:
            item = self.session.items[left.popleft()]
            said = f"the worker ended in this test, with {os.waitstatus_to_exitcode(status)}"
            report = pytest.TestReport(item.nodeid, item.location, {}, "failed", said, "call")
            self.hook.pytest_runtest_logreport(report=report)
            self.hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        if left:
            self.units.appendleft([*left])
        if self.units:
            self.fork()

    def stop_if_asked(self) -> None:
        if self.session.shouldfail:
            raise self.session.Failed(self.session.shouldfail)
        if self.session.shouldstop:
            raise self.session.Interrupted(self.session.shouldstop)


class Worker:
    """A fork: it runs what it is given, and tells of it instead of printing it."""

    def __init__(self, session: pytest.Session, pipe: Connection, name: str) -> None:
        self.session, self.config, self.pipe, self.name = session, session.config, pipe, name
        self.unsent: list[Any] = []
        """What there is to tell of a test. It is sent when the test has ended: the other end knows who is at what."""

    def work(self, base: Any) -> int:
        """Run tests until there are none left; return the exit code."""
        try:
            self.settle(base)
            for item, following in self.pairs():
                self.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        except BaseException:
            self.pipe.send([{"kind": "broken", "text": f"in {self.name}: {traceback.format_exc()}"}])
            return 1
        return 0

    def settle(self, base: Any) -> None:
        """Take a folder and files for output of its own, and the place of the terminal."""
        os.environ["PYTEST_XDIST_WORKER"] = self.name  # what tests/once.py shares among workers, it shares among these
        self.config.option.basetemp = str(base / self.name)
        factory = type(self.config._tmp_path_factory)  # pyright: ignore[reportAttributeAccessIssue]
        self.config._tmp_path_factory = factory.from_config(self.config, _ispytest=True)  # pyright: ignore[reportAttributeAccessIssue]
        manager = self.config.pluginmanager
        capture: Any = manager.getplugin("capturemanager")
        if capture is not None:
            capture.stop_global_capturing()
            capture.start_global_capturing()
            capture.suspend_global_capture()
        manager.unregister(name="terminalreporter")
        manager.register(self, "forked-worker")

    def pairs(self) -> Iterator[tuple[pytest.Item, pytest.Item | None]]:
        """Give each test with the one after it."""
        places = deque(self.ask())
        while places:
            item = self.session.items[places.popleft()]
            if not places:
                places.extend(self.ask())
            yield item, self.session.items[places[0]] if places else None

    def ask(self) -> list[int]:
        """Ask for the next file, and wait for it; there is none left where the answer is empty."""
        self.pipe.send([{"kind": "ask"}])
        return self.pipe.recv()

    def pytest_runtest_logstart(self, nodeid: str, location: Any) -> None:
        self.unsent.append({"kind": "start", "test": nodeid, "location": location})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self.config.hook.pytest_report_to_serializable(config=self.config, report=report)
        self.unsent.append({"kind": "report", "data": data})

    def pytest_runtest_logfinish(self, nodeid: str, location: Any) -> None:
        self.pipe.send([*self.unsent, {"kind": "finish", "test": nodeid, "location": location}])
        self.unsent.clear()
