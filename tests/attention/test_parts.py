"""What every part has in common: a reader is told its name in words, a user's own part included."""

import re
from dataclasses import dataclass

import pytest

import clearhead as ch
from clearhead.attention import masks, similarity, weighting
from clearhead.attention.parts import HeadShape
from clearhead.attention.positions import ALiBi, Learned, NoPosition, Position, Rotary, Sinusoidal, T5Bias
from clearhead.attention.weighting import Weighting

PARTS = [
    *similarity.TABLE.values(),
    *weighting.TABLE.values(),
    *(NoPosition(), Rotary(), ALiBi(), T5Bias(), Sinusoidal(), Learned(8)),
]
SHAPE = HeadShape(n_heads=2, n_kv_heads=2, d_head=4)


@pytest.mark.parametrize("part", PARTS, ids=lambda part: type(part).__name__)
def test_a_part_is_called_by_words_and_not_by_its_class(part):
    built = part.build(SHAPE) if isinstance(part, similarity.Similarity | Weighting | Position) else part
    for one in (part, built):
        assert not re.search(r"[a-z][A-Z]", one.called.replace("ALiBi", "")), one.called
        assert "learned" not in one.called or isinstance(one, Learned)
    assert part.called == built.called


@dataclass(frozen=True)
class TopTwoSoftmax(ch.weighting.Weighting):
    """A user's own."""

    def weigh(self, masked, allowed):
        return masked


def test_a_part_of_the_users_own_is_called_by_its_class_name_as_words():
    assert TopTwoSoftmax().called == "top two softmax"


def test_masks_are_named_in_words():
    assert masks.everything().called == "no mask"
    assert (masks.causal() & masks.padding([2])).called == "causal mask and padding mask"
    assert (masks.causal() & masks.everything()).called == "causal mask"


@pytest.mark.parametrize(("pairing", "pairs"), [("interleaved", [(0, 1), (2, 3)]), ("halves", [(0, 2), (1, 3)])])
def test_rotary_says_which_entries_turn_together(pairing, pairs):
    assert Rotary(pairing=pairing, width=4).pairs(6) == pairs
    assert NoPosition().pairs(6) == []
