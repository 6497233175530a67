"""How tests are shared out among the workers: a file is one worker's, and what takes longest is begun first.

Tests of a file have fixtures for the whole of it: a trained run, a browser, a server. Where a file is cut in two, they
are made twice. A file whose tests share nothing and take long is shared out test by test instead.
"""

from collections import Counter

import pytest
from xdist.scheduler import LoadScopeScheduling

__all__ = ["FilesInTurn", "longest_first"]

BY_TEST = ("tests/docs/test_pages.py", "tests/attack/", "tests/plain/test_compile", "tests/plain/test_triton.py")
"""Where a test takes up to a minute, and needs nothing of the others."""
TOGETHER = "tests/browser/"
"""Files that come one after the other: they share a browser and its windows, which other tests could not bear."""


class FilesInTurn(LoadScopeScheduling):
    """Gives the next file to the worker that has two tests or fewer left to do."""

    def _split_scope(self, nodeid: str) -> str:
        return nodeid if nodeid.startswith(BY_TEST) else nodeid.partition("::")[0]


def longest_first(items: list[pytest.Item]) -> None:
    """Order tests of up to a minute first, then files by how many slow tests they have.

    At the end only quick files are left, so that no worker waits long for the last of the others.
    """
    slow = Counter(file_of(item) for item in items if item.get_closest_marker("slow"))
    most = max((slow[file] for file in slow if file.startswith(TOGETHER)), default=0)

    def place(item: pytest.Item) -> tuple[bool, int, int]:
        own = slow[file_of(item)]
        return not item.nodeid.startswith(BY_TEST), -(most if item.nodeid.startswith(TOGETHER) else own), -own

    items.sort(key=place)


def file_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]
