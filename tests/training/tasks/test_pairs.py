"""Pairs of texts: lines with a tab, and rows with the segment of each token (tests/interop holds them to a peer)."""

import pytest
import torch

from clearhead.errors import OptionError
from clearhead.model import presets
from clearhead.model.presets import Size
from clearhead.text.tokenizer import Tokenizer
from clearhead.training.tasks import Classify
from clearhead.training.tasks.framing import Framing, share_room
from clearhead.training.tasks.pairs import frame_pairs, split_pair

TOKENIZER = Tokenizer.train(["abcdefg"], kind="char")
FRAME = Framing(before=(1,), after=(2,), between=(2,), segment=1)


def test_a_line_is_two_texts():
    assert split_pair("a b\tc") == ("a b", "c")
    assert split_pair("a\t") == ("a", "")
    for line in ("a b", "a\tb\tc"):
        with pytest.raises(OptionError, match="expected two texts with one tab between"):
            split_pair(line)


def test_a_model_without_segments_is_given_none():
    task = Classify(tokenizers={"text": TOKENIZER}, context=7, labels=("x", "y"), framing={"text": FRAME})
    model = presets.bert(Size(1, 8, 2, 2, 8), vocabulary=20, length=7).build()
    made = frame_pairs(task, model, [("abc", "de"), ("a", "g")])
    assert made.segments is None
    a, b, c, d, e, g = TOKENIZER.encode("abcdeg")
    assert made.rows == [[1, a, b, 2, d, e, 2], [1, a, 2, g, 2]]
    assert c not in made.rows[0]


@pytest.mark.parametrize("room", range(8))
def test_all_the_room_is_used(room):
    for first, second in torch.cartesian_prod(torch.arange(6), torch.arange(6)).tolist():
        kept = share_room(first, second, room)
        assert sum(kept) == min(room, first + second)
        assert kept[0] <= first
        assert kept[1] <= second
