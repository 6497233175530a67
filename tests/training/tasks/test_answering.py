"""What a task that says only `answer` is asked: lines, blank ones and pairs among them."""

import pytest

from clearhead.decoding import Greedy, Rules
from clearhead.errors import OptionError
from clearhead.model import presets
from clearhead.training.tasks.answering import Decoding
from clearhead.training.tasks.passages import WritingOptions
from tests.training.tasks.echo import Echo, echo_task

MODEL = presets.gpt2("tiny", vocabulary=9).build()
"""A model that is not asked."""


def test_a_blank_text_has_a_blank_answer_and_is_not_asked():
    class Strict(Echo):
        def answer(self, model, texts):
            assert all(text.strip() for text in texts)
            return [{"output": text, "more": 1} for text in texts]

    task = Strict(tokenizers=echo_task().tokenizers, context=8)
    assert task.answer_items(MODEL, ["a", " ", "b"]) == [
        {"output": "a", "more": 1},
        {"output": ""},
        {"output": "b", "more": 1},
    ]
    assert task.answer_items(MODEL, []) == task.answer_items(MODEL, [""])[1:] == []


def test_pairs_are_refused_by_name():
    with pytest.raises(OptionError, match="to echo takes single texts, and no pairs"):
        echo_task().answer_items(MODEL, [("a", "b")])
    with pytest.raises(OptionError, match="some of the texts are pairs and some are not"):
        echo_task().answer_items(MODEL, ["a", ("a", "b")])


def test_what_writes_nothing_has_nothing_to_decode():
    with pytest.raises(OptionError, match="to echo writes nothing, so there is nothing to decode"):
        echo_task().passage([1], Greedy(), WritingOptions())


def test_what_decoding_begins_with_is_all_that_a_writing_task_must_say():
    class Writes(Echo):
        target = "writes"

        def decoding(self, ids, *, max_new, usual):
            rules = Rules(max_new=max_new or usual, end=(3,))
            return Decoding(source=ids["encoder"], prefix=[[2]], rules=rules, writes=self.tokenizer, before=[])

    task = Writes(tokenizers=echo_task().tokenizers, context=8)
    passage = task.passage([5] * 9, Greedy(), WritingOptions(rules=Rules(max_new=4), candidates=2))
    assert passage.first.inputs == (task.tokenizer.start, *[5] * 7)
    assert (passage.first.prefix, passage.first.rules.max_new, passage.first.candidates) == ((2,), 4, 2)
    assert (passage.unread, passage.following([1])) == (2, None)
    assert task.written_inputs(passage, [7, 3]).ids == {"encoder": list(passage.first.inputs), "decoder": [2, 7]}
