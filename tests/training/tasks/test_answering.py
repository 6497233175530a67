"""What answers: lines and pairs of text, and passages as jobs, the same for Run, command line and server."""

from dataclasses import replace

import pytest
import torch

from clearhead.decoding import Beam, Greedy, Rules, Sample, generate
from clearhead.errors import OptionError
from clearhead.model import presets
from clearhead.model.presets import Size
from clearhead.text.tokenizer import Tokenizer
from clearhead.training.answers import continued
from clearhead.training.tasks import Classify
from clearhead.training.tasks.answering import Decoding, WritingOptions, split_pair
from clearhead.training.tasks.framing import Framing, share_room
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


pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]


def decode(run, job):
    """The best hypothesis of one job."""
    prefix = None if job.prefix is None else [list(job.prefix)]
    [[best, *_]] = generate(run.model, [job.inputs], job.method, rules=job.rules, prefix=prefix)
    return list(best.tokens)


@pytest.mark.parametrize("method", [Greedy(), Sample(temperature=0.8, seeds=5)])
def test_a_continuation_past_the_context_is_several_jobs(stretch, method):
    """Of the second text alone too: what is drawn for it does not depend on the one beside it."""
    texts, new = ["the red", "an old cow"], 2 * stretch.task.context + 3
    expected = stretch.generate(texts, max_new=new, method=method)
    for index, text in enumerate(texts):
        row = stretch.tokenizer.encode(text)
        passage = stretch.task.passage(row, method.for_sequences([index]), WritingOptions(rules=Rules(max_new=new)))
        written, job, jobs = [], passage.first, 0
        while job is not None:
            tokens = decode(stretch, job)
            written, jobs = written + tokens, jobs + 1
            job = passage.following(written) if len(tokens) == job.rules.max_new else None
        assert continued(passage.tokenizer, passage.before, written) == expected[index]
        assert jobs > 2


@pytest.mark.parametrize("method", [Greedy(), Beam(width=3)])
def test_a_translation_is_one_job(translator, method):
    text = "the red cow"
    beam = getattr(method, "width", 1)
    passage = translator.task.passage(translator.tokenizer.encode(text), method, WritingOptions())
    assert passage.following([1, 2]) is None
    tokens = decode(translator, passage.first)
    assert passage.tokenizer.decode(tokens) == translator.translate(text, beam=beam)
    inputs = translator.task.written_inputs(passage, tokens)
    assert inputs.ids == translator.task.trace_inputs(text, passage.tokenizer.decode(tokens)).ids


def test_what_is_not_read_is_counted(translator):
    row = translator.tokenizer.encode("the red cow") * 100
    short = replace(translator.task, context=20)
    passage = short.passage(row, Greedy(), WritingOptions())
    assert passage.unread == len(row) - (20 - short.frame("source").size)
    assert passage.prompt_tokens == 20


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
    made = task.frame_items(model, [("abc", "de"), ("a", "g")])
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
