"""Generated programs: seeded, different, large enough, and neither trivial nor all true."""

import pytest

from clearhead.circuits.grammar import FEWEST_EDGES, SHARES, generate_samples, meaning
from clearhead.rasp import constant, tokens


@pytest.mark.slow
def test_generated_programs_are_what_the_bench_asks_for():
    samples = list(generate_samples(5, seed=3))
    assert [s.program.about for s in samples] == [s.program.about for s in generate_samples(5, seed=3)]
    assert len({meaning(sample.program.output) for sample in samples}) == 5
    for sample in samples:
        assert len(sample.graph.edges) >= FEWEST_EDGES
        assert SHARES[0] <= sample.share <= SHARES[1]
        assert sample.keeps_answers()


def test_constants_mean_nothing_here():
    assert meaning(constant(1)) is None
    assert meaning(tokens) is not None
