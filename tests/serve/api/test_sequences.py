"""Sequences: how an output finishes."""

from types import SimpleNamespace

import pytest

from clearhead.decoding import Grammar, Rules
from clearhead.decoding.hypotheses import Hypothesis
from clearhead.decoding.scheduler import Finished, Job
from clearhead.serve.api.sequences import follow
from clearhead.serve.api.writing import OutputText
from clearhead.text.tokenizer import Tokenizer
from tests.serve.api_serving import run_apart


@pytest.mark.parametrize(("complete", "finish"), [(True, "stop"), (False, "length")])
def test_a_grammar_that_passes_its_bounds_has_not_stopped(complete, finish):
    """Its job has fewer tokens than it may have; no second job follows, which would come no further."""
    pytest.importorskip("llguidance")
    tokenizer = Tokenizer.train(["one two"] * 3, "byte")
    job = Job(inputs=(1,), rules=Rules(max_new=9, grammar=Grammar("regex", "[a-z]+!")))
    hypothesis = Hypothesis(tokens=tuple(tokenizer.encode("one")), log_probs=(-1.0,) * 3, score=-3.0, ended=complete)
    begun = []

    async def next_event():
        return Finished(1, [hypothesis])

    def decode(asked, *, each_token):
        begun.append(asked)
        return SimpleNamespace(next_event=next_event, each_token=each_token)

    served = SimpleNamespace(job=lambda one: one, worker=SimpleNamespace(decode=decode, cancel=lambda decoding: None))
    writing = OutputText(tokenizer)

    async def read():
        return [
            piece
            async for piece in follow(
                served, SimpleNamespace(first=job, following=lambda ids: job), writing, each_token=False
            )
        ]

    assert run_apart(read()) == ["one"]
    assert (writing.finish, len(begun)) == (finish, 1)
