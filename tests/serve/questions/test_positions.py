"""Tables of positions: the columns that turn together, and the similarity by distance."""

import pytest
import torch

from clearhead.attention.heads import Heads
from clearhead.attention.layer import Attention
from clearhead.attention.masks import causal, everything
from clearhead.attention.positions import ALiBi, Rotary, T5Bias
from clearhead.serve.questions.positions import bias_by_distance, by_distance, rotary


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


@pytest.mark.parametrize("position", [ALiBi(), T5Bias(buckets=8, reach=16)])
@pytest.mark.parametrize("mask", [causal(), everything()])
def test_a_bias_is_what_the_layer_adds_at_each_distance(position, mask):
    torch.manual_seed(0)
    layer = Attention(8, heads=Heads(2), position=position, mask=mask).eval()
    bias = torch.tensor(bias_by_distance(layer, 5))
    with torch.no_grad():
        steps = layer.explain(torch.randn(1, 9, 8)).without_batch()
    added = (steps.masked - steps.scaled)[:, 4, : bias.shape[1]]
    assert bias.shape == (2, 5 if mask.kinds == {"causal"} else 9)
    torch.testing.assert_close(added, bias, atol=1e-5, rtol=0)
    assert bias_by_distance(Attention(8, heads=Heads(2), position=Rotary()), 5) is None
