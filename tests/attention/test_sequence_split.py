"""Which places of a sequence each process holds. What is gathered is tested in test_context_parallel.py."""

import pytest
import torch

from clearhead.attention.sequence_split import SequenceSplit
from clearhead.errors import ShapeError


@pytest.mark.parametrize(("n", "count"), [(1, 1), (8, 2), (13, 4), (3, 4), (16, 4)])
def test_every_place_is_held_once_and_causal_work_is_balanced(n, count):
    splits = [SequenceSplit(n, rank, count) for rank in range(count)]
    held = [place for split in splits for block in split.held for place in range(n)[block.whole]]
    assert sorted(held) == list(range(n))
    if n % (2 * count) == 0:
        assert len({int((split.indices() + 1).sum()) for split in splits}) == 1


def test_what_a_process_takes_of_a_sequence():
    split = SequenceSplit(5, rank=0, count=2)
    assert split.take(torch.arange(5), 0).tolist() == [0, 1, 4, 4]
    assert split.take(torch.arange(5), 0, fill=-100).tolist() == [0, 1, -100, -100]
    with pytest.raises(ShapeError, match="expected sequences of 5 places on axis 0"):
        split.take(torch.arange(6), 0)
