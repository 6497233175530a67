"""Packages that tests compare with, imported when a test first uses them: it takes seconds.

A test file that imports them itself would make every worker of every session wait for that while it collects.
"""

import importlib
from typing import Any

__all__ = ["Late", "transformers"]


class Late:
    """A module that is imported when something in it is asked for.

    >>> Late("math").floor(2.5)
    2
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("_", "pytest_")):  # asked by those who collect doctests and tests, of everything they see
            raise AttributeError(name)
        return getattr(importlib.import_module(self._name), name)


transformers = Late("transformers")
