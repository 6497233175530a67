"""Tables of positions: the columns that turn together, and the similarity by distance."""

import pytest
import torch

from clearhead.attention.positions import Rotary
from clearhead.serve.waves import by_distance, rotary


@pytest.mark.parametrize("part", [Rotary(), Rotary(pairing="halves"), Rotary(pairing="halves", width=4)])
def test_a_pair_of_columns_is_what_turns_together(part):
    """A query that is 1 in the first entry of a pair and 0 elsewhere, turned, is what the table says of that pair."""
    table = torch.tensor(rotary(part, 8, 5)["table"])
    positions = torch.arange(5)
    for first, second in part.pairs(8):
        vectors = torch.zeros(1, 5, 8, dtype=torch.float64)
        vectors[..., first] = 1
        turned = part.turn_by(vectors, part.angles(positions, 8))[0]
        torch.testing.assert_close(turned[:, [first, second]], table[:, [first, second]].double())


def test_vectors_of_zeros_have_no_direction_and_are_left_out():
    table = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 2.0]], dtype=torch.float64)
    assert by_distance(table) == pytest.approx([1, 0.5, 0, 0])
