"""What holds for the tests of the guide: small tensors on one thread, and the registry left as it was."""

import importlib

import pytest

from tests.registering import registry_restored


@pytest.fixture(autouse=True)
def small(one_thread):
    """Every page has small tensors."""


@pytest.fixture
def tables_as_they_were():
    """A page may register a part; the next test does not see it."""
    importlib.import_module("clearhead.training")  # Clearhead's own parts are registered before, not meanwhile
    with registry_restored():
        yield
