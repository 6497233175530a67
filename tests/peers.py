"""Packages that tests compare with, imported when a test first uses them: it takes seconds.

A test file that imports them itself would make every worker of every session wait for that while it collects.
"""

import importlib
from typing import Any


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


class LateName:
    """A function or class of a module that is imported when it is called, or when something of it is asked for."""

    def __init__(self, module: str, name: str) -> None:
        self._module, self._name = module, name

    def _found(self) -> Any:
        return getattr(importlib.import_module(self._module), self._name)

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._found()(*args, **options)

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("_", "pytest_")):
            raise AttributeError(name)
        return getattr(self._found(), name)


def late(module: str, *names: str) -> list[Any]:
    """Return functions and classes as `from module import name` would, which are imported when they are first used.

    >>> [floor, ceil] = late("math", "floor", "ceil")
    >>> floor(2.5), ceil(2.5)
    (2, 3)
    """
    return [LateName(module, name) for name in names]


transformers = Late("transformers")
