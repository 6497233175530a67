"""Captured work is replayed on the same memory. Needs a GPU; tests/decoding/test_recorded.py has what does not."""

import pytest
import torch

from clearhead.cuda_graphs import capture, shared_pool, warm_up

pytestmark = pytest.mark.gpu


def test_work_is_captured_without_running_and_replayed():
    number = torch.zeros((), device="cuda")

    def work():
        number.add_(1)

    warm_up(work, 2)
    replay = capture(work)
    assert number.item() == 2
    replay()
    replay()
    assert number.item() == 4


def test_graphs_of_a_shared_pool_do_not_disturb_each_other():
    pool, found = shared_pool(torch.cuda.current_device()), {}
    given = torch.arange(4.0, device="cuda")

    def work(factor):
        found[factor] = (given * factor).cumsum(0)

    for factor in (2, 3):
        work(factor)
    replays = {factor: capture(lambda factor=factor: work(factor), pool) for factor in (2, 3)}
    for _ in range(2):
        for replay in replays.values():
            replay()
        assert all(found[factor].tolist() == [0, factor, 3 * factor, 6 * factor] for factor in replays)
        given.mul_(1)
