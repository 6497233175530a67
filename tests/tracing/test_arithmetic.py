"""The arithmetic of one cell: what a position turns is told before and after its turn."""

import math

import pytest
import torch

from clearhead import positions
from clearhead.attention.heads import Heads
from clearhead.attention.positions.base import Position
from clearhead.attention.weighting import Kernelized
from clearhead.decoding import Greedy, Rules
from clearhead.model.blocks import AttentionSpec
from clearhead.tracing.decoding import trace_decoding
from clearhead.tracing.trace import trace_model
from tests.model.small import block_spec, both_spec, built, decoder_spec, encoder_spec, words


def turning(position, heads=3):
    return block_spec(attention=AttentionSpec(heads=heads, position=position))


ROTARY = {
    "interleaved": positions.Rotary(),
    "halves": positions.Rotary(pairing="halves"),
    "some of the entries": positions.Rotary(width=2, base=100.0),
}


def check_turn(cell, head, places):
    """The vectors before the turn, turned pair by pair, are those that were compared."""
    turn, after = cell.turn, {"query": head.query[places[0]], "key": head.key[places[1]]}
    assert (turn.query_position, turn.key_position) == places
    for role, angles in (("query", turn.query_angles), ("key", turn.key_angles)):
        made = list(getattr(turn, role))
        for (i, j), angle in zip(turn.pairs, angles, strict=True):
            a, b = made[i], made[j]
            made[i], made[j] = a * math.cos(angle) - b * math.sin(angle), a * math.sin(angle) + b * math.cos(angle)
        assert made == pytest.approx(after[role].tolist(), abs=1e-9)
        assert (made == pytest.approx(getattr(turn, role))) == (places[role == "key"] == 0)


@pytest.mark.parametrize("position", ROTARY.values(), ids=ROTARY)
@pytest.mark.parametrize("heads", [3, Heads(4, kv=2, d_head=6)], ids=["whole", "grouped keys"])
def test_a_turned_query_is_told_before_and_after_its_turn(position, heads):
    torch.manual_seed(1)
    model = built(decoder_spec(blocks=(turning(position, heads),) * 2))
    made = trace_model(model, words(1, 6))
    for head in made["decoder.1.attention"].head:
        for places in ((4, 2), (3, 0)):
            check_turn(head.cell(*places), head, places)


def test_what_the_maps_made_is_the_maps_own_output():
    model = built(decoder_spec(blocks=(turning(positions.Rotary()),)))
    made, layer = trace_model(model, words(1, 6)), model.stack.blocks[0].attention
    around = model.stack.blocks[0].around_attention
    with torch.no_grad():
        read = made.value("decoder.embedding.out")
        read = read if around.norm is None or around.passes == "normed" else around.norm(read)
        mapped = layer.query(read.unsqueeze(0))[0, 1, 3]
    assert made["decoder.0.attention"].head[1].cell(3, 1).turn.query == pytest.approx(mapped.tolist(), abs=1e-9)


def test_a_text_written_with_a_cache_and_an_encoder_have_their_turns():
    model = built(both_spec(encoder=encoder_spec(blocks=(turning(positions.Rotary()),) * 2)))
    head = trace_model(model, words(1, 6), words(1, 4))["encoder.1.attention"].head[2]
    check_turn(head.cell(5, 1), head, (5, 1))
    model = built(decoder_spec(blocks=(turning(positions.Rotary()),) * 2))
    [written] = trace_decoding(model, words(1, 4)[0].tolist(), Greedy(), rules=Rules(max_new=4))
    head = written.trace["decoder.1.attention"].head[0]
    check_turn(head.cell(5, 1), head, (5, 1))


def test_nothing_is_told_where_nothing_is_turned():
    made = trace_model(built(decoder_spec()), words(1, 6))
    assert made["decoder.0.attention"].projected is None
    assert made["decoder.0.attention"].head[0].cell(3, 1).turn is None


class Flipped(Position):
    """A user's own position, which says nothing of pairs: every other place is negated."""

    def angles(self, positions, d_head):
        return (1 - 2 * (positions % 2),)

    def turn_by(self, vectors, angles):
        return vectors * angles[0].unsqueeze(-1)


def test_a_position_of_the_users_own_is_told_before_and_after():
    head = trace_model(built(decoder_spec(blocks=(turning(Flipped()),))), words(1, 6))["decoder.0.attention"].head[0]
    turn = head.cell(3, 2).turn
    assert (turn.pairs, turn.query_angles) == ([], [])
    assert turn.query == pytest.approx((-head.query[3]).tolist())
    assert turn.key == pytest.approx(head.key[2].tolist())


@pytest.mark.parametrize("features", ["elu", "random"])
@pytest.mark.parametrize("normalised", [True, False])
def test_weights_that_are_no_shares_are_not_told_as_shares(features, normalised):
    weighting = Kernelized(features, normalised=normalised)
    model = built(decoder_spec(blocks=(block_spec(attention=AttentionSpec(heads=3, weighting=weighting)),)))
    cell = trace_model(model, words(1, 6))["decoder.0.attention"].head[1].cell(4, 2)
    if normalised:
        assert cell.exponential / cell.total == pytest.approx(cell.weight)
    else:
        assert (cell.kind, cell.exponential, cell.total) == ("rows", None, None)
        assert cell.weight == pytest.approx(cell.masked)
