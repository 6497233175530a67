"""What holds for the tests of the guide: small tensors on one thread, and tables left as they were."""

import contextlib
from unittest import mock

import pytest
import torch

import clearhead as ch


@pytest.fixture(autouse=True)
def one_thread():
    """Tensors are small here, and on a busy machine two threads wait for each other."""
    kept = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(kept)


@pytest.fixture
def tables_as_they_were():
    """A page may add a part to a table; the next test does not see it."""
    with contextlib.ExitStack() as stack:
        for parts in (ch.similarity, ch.weighting, ch.positions, ch.masks):
            stack.enter_context(mock.patch.dict(parts.TABLE))
        yield
