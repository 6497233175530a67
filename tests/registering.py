"""Modules of a user's own for tests: written to a folder, imported from it, and forgotten afterwards."""

import contextlib
import sys
from collections.abc import Iterator
from unittest import mock

from clearhead import registry

__all__ = ["registry_restored"]


@contextlib.contextmanager
def registry_restored() -> Iterator[None]:
    """Forget on leaving every part that was registered meanwhile, and every module that was imported."""
    modules = set(sys.modules)
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.dict(registry.CLASSES))
        for tables in (registry.OPTIONS, registry.EXAMPLES):
            for table in tables.values():
                stack.enter_context(mock.patch.dict(table))
        yield
    for name in set(sys.modules) - modules:
        if not name.startswith(("clearhead", "torch", "numpy")):
            del sys.modules[name]
