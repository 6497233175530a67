"""Passages: their jobs, decoded one after another, write what the run writes."""

from dataclasses import replace

import pytest

from clearhead.decoding import Beam, Greedy, Rules, Sample, generate
from clearhead.training.answers import continued
from clearhead.training.tasks.passages import WritingOptions

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
