"""How tests are shared out among the workers: a file is one worker's, and what takes longest is begun first.

Tests of a file have fixtures for the whole of it: a trained run, a browser, a server. Where a file is cut in two, they
are made twice. A file whose tests share nothing and take long is shared out test by test instead.
"""

from collections import Counter

import pytest
from xdist.scheduler import LoadScopeScheduling

BY_TEST = ("tests/docs/test_pages.py", "tests/attack/", "tests/plain/test_export_graphs.py")
"""Where a test takes up to a minute, and needs nothing of the others. Those that compile do: inductor starts once."""
STRANGERS = ("tests/docs/test_pages.py::", "stranger")
"""Pages whose commands are forks of one process: it takes seconds to start, so one worker has them all."""
BROWSER = "tests/browser/"
"""Files that come first and one after the other: they share a browser and its windows, which others could not bear."""
TOGETHER = {
    "the browser's views": tuple(
        f"{BROWSER}test_{name}"
        for name in ("every_view", "inside_views", "heads_view", "idea_views", "program_views", "design_view", "page")
    ),
    "the rest of the browser": (BROWSER,),
    "those that read transformers": (
        *("tests/interop/", "tests/model/test_peers_hf.py", "tests/model/test_peers_marian.py"),
        *("tests/decoding/test_peers.py", "tests/training/tasks/test_classify.py"),
        "tests/training/tasks/test_instruct.py",
    ),
}
"""Files of one worker: what they begin with, a browser or four seconds of imports, would be begun in all of them."""

FEW_AND_LONG = (
    *("tests/plain/", "tests/docs/", "tests/site/", "tests/packaging/", "tests/test_system.py"),
    *(
        "tests/training/test_together.py",
        "tests/experiments/test_comparing.py",
        "tests/interop/",
    ),
)
"""Files that take long, though few of their tests are slow."""


class FilesInTurn(LoadScopeScheduling):
    """Gives the next file to the worker that has two tests or fewer left to do."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)


def unit_of(nodeid: str) -> str:
    """Return the name of the tests that this one is given to a worker with: a file's, mostly."""
    if all(part in nodeid for part in STRANGERS):
        return "pages of strangers"
    for name, files in TOGETHER.items():
        if nodeid.startswith(files):
            return name
    return nodeid if nodeid.startswith(BY_TEST) else nodeid.partition("::")[0]


def longest_first(items: list[pytest.Item]) -> None:
    """Order the browser's tests first, those of up to a minute next, then files by how many slow tests they have.

    At the end only quick files are left, so that no worker waits long for the last of the others.
    """
    slow = Counter(file_of(item) for item in items if item.get_closest_marker("slow"))

    def place(item: pytest.Item) -> tuple[bool, bool, bool, int]:
        own, test = slow[file_of(item)], item.nodeid
        few_and_long = own > 0 and test.startswith(FEW_AND_LONG)
        return not test.startswith(BROWSER), not test.startswith(BY_TEST), not few_and_long, -own

    items.sort(key=place)


def file_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]
