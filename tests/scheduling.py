"""How tests are shared out among the workers: a file is one worker's, and what takes longest is begun first.

Tests of a file have fixtures for the whole of it: a trained run, a browser, a server. Where a file is cut in two, they
are made twice. A file whose tests share nothing and take long is shared out test by test instead.
"""

from collections import Counter

import pytest
from xdist.scheduler import LoadScopeScheduling

__all__ = ["FilesInTurn", "longest_first"]

BY_TEST = (
    *(
        "tests/docs/test_pages.py",
        "tests/attack/",
        "tests/plain/test_export_graphs.py",
        "tests/interop/test_stranger.py",
    ),
)
"""Where a test takes up to a minute, and needs nothing of the others. Those that compile do: inductor starts once."""
TOGETHER = "tests/browser/"
"""Files that come one after the other: they share a browser and its windows, which other tests could not bear."""
STRANGERS = ("tests/docs/test_pages.py::", "stranger")
"""Pages whose commands are forks of one process: it takes seconds to start, so one worker has them all."""

FEW_AND_LONG = (
    *("tests/plain/", "tests/docs/", "tests/site/", "tests/packaging/", "tests/test_system.py"),
    *(
        "tests/training/test_together.py",
        "tests/experiments/test_comparing.py",
        "tests/interop/test_hostile_sources.py",
    ),
)
"""Files that take long, though few of their tests are slow."""


class FilesInTurn(LoadScopeScheduling):
    """Gives the next file to the worker that has two tests or fewer left to do."""

    def _split_scope(self, nodeid: str) -> str:
        if all(part in nodeid for part in STRANGERS):
            return "pages of strangers"
        return nodeid if nodeid.startswith(BY_TEST) else nodeid.partition("::")[0]


def longest_first(items: list[pytest.Item]) -> None:
    """Order tests of up to a minute first, then files of few long tests, then files by how many slow tests they have.

    At the end only quick files are left, so that no worker waits long for the last of the others.
    """
    slow = Counter(file_of(item) for item in items if item.get_closest_marker("slow"))
    most = max((slow[file] for file in slow if file.startswith(TOGETHER)), default=0)

    def place(item: pytest.Item) -> tuple[bool, bool, int, int]:
        own, test = slow[file_of(item)], item.nodeid
        few_and_long = own > 0 and test.startswith(FEW_AND_LONG)
        return not test.startswith(BY_TEST), not few_and_long, -(most if test.startswith(TOGETHER) else own), -own

    items.sort(key=place)


def file_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]
