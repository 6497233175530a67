"""Frames: jobs and hypotheses come out as they went in, however the bytes are cut."""

import math

import pytest

from clearhead.decoding import Beam, Grammar, Greedy, Rules, Sample, TokenBytes
from clearhead.decoding.hypotheses import Hypothesis
from clearhead.decoding.scheduler import Job
from clearhead.serve.api.frames import Frames, pack

RULES = Rules(
    max_new=9,
    min_new=2,
    end=(2, 3),
    no_repeat=4,
    repetition_penalty=1.1,
    never=(0, 7),
    logit_bias=((3, -1.5), (4, 2.0)),
)


@pytest.mark.parametrize(
    "job",
    [
        Job(inputs=(1,), rules=Rules(max_new=3)),
        Job(inputs=(), rules=RULES, method=Greedy(), prefix=(), candidates=5),
        Job(inputs=(1, 2), rules=RULES, method=Beam(width=4, length_penalty=0.6, n_best=3, stop="early"), prefix=(1,)),
        Job(inputs=(1, 2), rules=RULES, method=Sample(temperature=0.7, top_k=3, top_p=0.9, min_p=0.1, seeds=2**63)),
        Job(inputs=(1, 2), rules=RULES, method=Sample(seeds=(4,)), begun=(7, 8)),
    ],
)
def test_a_job_comes_out_as_it_went_in(job):
    assert Frames().take(pack({"job": job})) == [{"job": job}]


def test_a_grammar_comes_out_without_its_tokens():
    pytest.importorskip("llguidance")
    grammar = Grammar("regex", "ü+", TokenBytes(lambda: [b"a"]))
    job = Job(inputs=(1,), rules=Rules(max_new=3, grammar=grammar))
    [frame] = Frames().take(pack({"job": job}))
    found = frame["job"]
    assert found == job
    assert found.rules.grammar is not None
    assert found.rules.grammar.tokens is None


def test_numbers_keep_every_bit():
    values = (-0.1, -1 / 3, -5e-324, -1.7976931348623157e308, float("-inf"))
    one = Hypothesis(
        tokens=(3, 1, 4, 1, 5), log_probs=values, score=math.pi, ended=True, candidates=(((3, -0.1), (9, -0.2)), ())
    )
    assert Frames().take(pack({"it": one})) == [{"it": one}]


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_frames_are_whole_however_the_bytes_are_cut(size):
    told = [{"n": n, "text": "ü" * n} for n in range(20)]
    data, frames = b"".join(map(pack, told)), Frames()
    found = [frame for i in range(0, len(data), size) for frame in frames.take(data[i : i + size])]
    assert found == told
    assert not frames.buffer
