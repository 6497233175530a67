"""The texts of a task that says nothing of them."""

import numpy as np
import pytest

from clearhead.errors import OptionError
from clearhead.text.batches import Rows
from clearhead.text.store import Ragged
from clearhead.training.tasks.texts import Framing, frame_rows
from tests.training.tasks.echo import echo_task


def test_a_text_has_a_start_token_and_leaves_room_for_it():
    task = echo_task()
    assert task.fields() == ("text",)
    assert (task.reads, task.count_tokens(["abc", "a"])) == (7, [3, 1])
    assert task.frame().around([9]) == [task.tokenizer.start, 9]


TEXTS = [[7], [8, 9, 10], [], [11, 12, 13, 14, 15]]
FRAMES = {
    "none": Framing(),
    "before": Framing(before=(1,)),
    "both": Framing(before=(1, 2), after=(3,)),
    "opening": Framing(before=(1,), opening=(2,), after=(3, 4), ends=(3,)),
}


ROWS = Ragged(
    np.array([token for text in TEXTS for token in text], dtype=np.uint16), np.cumsum([len(text) for text in TEXTS])
)


@pytest.mark.parametrize("name", FRAMES)
@pytest.mark.parametrize("filled", [True, False])
@pytest.mark.parametrize("width", [6, 9])
def test_rows_are_framed_as_lists_are(name, filled, width):
    frame, which = FRAMES[name], np.array([3, 0, 1, 2])
    ids, texts, lengths = frame_rows(ROWS, Rows(which, width, 4), width, frame, 0, filled=filled)
    for row, place in enumerate(which):
        expected = frame.around(TEXTS[place], width - frame.size)
        assert lengths[row] == len(expected)
        assert texts[row] == len(expected) - frame.size
        assert ids[row].tolist() == expected + [0] * (ids.shape[1] - len(expected))
    assert ids.shape[1] == (width if filled else int(lengths.max()))


def test_an_id_beyond_the_vocabulary_is_named():
    FRAMES["both"].check(4, "model.json")
    with pytest.raises(OptionError, match=r"model\.json: after: the id 3 is not one of 0 to 2"):
        FRAMES["both"].check(3, "model.json")
