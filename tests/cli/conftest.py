"""What the tests of the command line share."""

import pytest


@pytest.fixture
def plain_terminal(monkeypatch):
    """Nothing in the environment asks for colours, or forbids them."""
    for name in ("CLICOLOR_FORCE", "COLORTERM", "COLUMNS", "FORCE_COLOR", "NO_COLOR", "PY_COLORS", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
