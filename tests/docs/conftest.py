"""What holds for the tests of the guide: small tensors on one thread, and tables left as they were."""

import contextlib
from unittest import mock

import pytest

import clearhead as ch


@pytest.fixture(autouse=True)
def small(one_thread):
    """Every page has small tensors."""


@pytest.fixture
def tables_as_they_were():
    """A page may add a part to a table; the next test does not see it."""
    with contextlib.ExitStack() as stack:
        for parts in (ch.similarity, ch.weighting, ch.positions, ch.masks):
            stack.enter_context(mock.patch.dict(parts.TABLE))
        yield
