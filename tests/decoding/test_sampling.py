"""Greedy and sampling: the cuts are those of plain Python and Hugging Face, draws follow the distribution, and what a
sequence becomes depends on its own seed alone."""

import random
from collections import Counter
from dataclasses import replace

import pytest
import torch

from clearhead.decoding import Greedy, Rules, Sample
from clearhead.errors import OptionError
from tests.decoding.laws import case_of
from tests.decoding.models import PLAIN, build, on_axes
from tests.decoding.plain import Case, apart, kept
from tests.peers import transformers
from tests.rounding import same_but_rounding

CUTS = [
    {},
    {"temperature": 0.4},
    {"temperature": 3.0},
    {"top_k": 1},
    {"top_k": 4},
    {"top_k": 99},
    {"top_p": 0.001},
    {"top_p": 0.6},
    {"top_p": 0.999},
    {"min_p": 0.05},
    {"min_p": 0.7},
    {"min_p": 1.0},
    {"temperature": 0.7, "top_k": 6, "top_p": 0.8},
    {"top_k": 9, "top_p": 0.9, "min_p": 0.1},
    {"temperature": 1.6, "top_k": 12, "top_p": 0.95, "min_p": 0.2},
]
cuts = pytest.mark.parametrize(
    "cut", CUTS, ids=lambda cut: ",".join(f"{name}={value}" for name, value in cut.items()) or "none"
)
NEVER = float("-inf")


@pytest.fixture(scope="module")
def case():
    return case_of(build(on_axes(PLAIN)), (3, 1, 5, 2))


def spread(method: Sample, logits: torch.Tensor) -> torch.Tensor:
    """The logits as they are cut, in the order of the vocabulary."""
    values, tokens = method.remaining(logits / method.temperature)
    return torch.full_like(logits, NEVER).scatter(-1, tokens, values)


def theirs(logits: torch.Tensor, temperature=1.0, top_k=None, top_p=1.0, min_p=0.0) -> torch.Tensor:
    """The same by Hugging Face's warpers, in the order in which it has them."""
    warpers = [transformers.TemperatureLogitsWarper(temperature)]
    warpers += [transformers.TopKLogitsWarper(top_k)] if top_k else []
    warpers += [transformers.TopPLogitsWarper(top_p)] if top_p < 1 else []
    warpers += [transformers.MinPLogitsWarper(min_p)] if min_p else []
    for warper in warpers:
        logits = warper(None, logits)
    return logits


@pytest.mark.slow
@cuts
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_what_remains_is_what_hugging_face_leaves(cut, dtype):
    logits = (torch.randn(60, 20) * 3).to(dtype)
    mine, other = spread(Sample(**cut), logits), theirs(logits, **cut)
    assert torch.equal(mine == NEVER, other == NEVER)
    torch.testing.assert_close(mine, other)


@cuts
def test_what_remains_is_what_plain_python_leaves(cut):
    logits = torch.randn(60, 20, dtype=torch.float64) * 3
    shares = torch.softmax(spread(Sample(**cut), logits), -1)
    for row, mine in zip(logits.tolist(), shares.tolist(), strict=True):
        wanted = kept(row, **cut)
        assert {token for token, share in enumerate(mine) if share > 0} == set(wanted)
        assert apart("shares", [mine[token] for token in wanted], list(wanted.values())) == []


def test_the_cuts_cut():
    """Each of them leaves out something that the others leave in."""
    logits = torch.randn(60, 20) * 3
    for cut in ({"top_k": 4}, {"top_p": 0.6}, {"min_p": 0.05}):
        left = (spread(Sample(**cut), logits) > NEVER).sum(-1)
        assert left.min() >= 1
        assert left.float().mean() < 20


@cuts
def test_the_likeliest_always_remains(cut):
    logits = torch.randn(40, 20) * 10
    best = logits.argmax(-1)
    left = spread(Sample(**cut), logits)
    assert (left.gather(-1, best.unsqueeze(-1)) > NEVER).all()


def drawn(method: Sample, logits: list[float], count: int) -> Counter:
    """As many draws from one distribution, each with its own seed."""
    rows = torch.tensor(logits, dtype=torch.float64).expand(count, -1)
    return Counter(method.choose(rows, method.draws(count)).tolist())


@cuts
def test_draws_follow_the_distribution(cut):
    """χ² of 6,000 draws with fixed seeds, against what is exceeded once in ten thousand times."""
    logits = [(token * 7 % 12) / 4 for token in range(12)]
    wanted, count = kept(logits, **cut), 6_000
    found = drawn(Sample(**cut, seeds=17), logits, count)
    assert set(found) <= set(wanted)
    expected = {token: share * count for token, share in wanted.items()}
    chi = sum((found[token] - amount) ** 2 / amount for token, amount in expected.items())
    assert chi <= EXCEEDED_SELDOM[len(wanted) - 1]


EXCEEDED_SELDOM = [0.0, 15.14, 18.42, 21.11, 23.51, 25.74, 27.86, 29.88, 31.83, 33.72, 35.56, 37.37]
"""Of χ² with so many degrees of freedom: the value exceeded with a probability of 0.0001."""


def test_a_wrong_distribution_would_be_found():
    logits = [(token * 7 % 12) / 4 for token in range(12)]
    wanted, count = kept(logits, temperature=1.2), 6_000
    found = drawn(Sample(seeds=17), logits, count)
    assert (
        sum((found[token] - share * count) ** 2 / (share * count) for token, share in wanted.items())
        > EXCEEDED_SELDOM[-1]
    )


def test_what_is_forbidden_is_never_drawn():
    logits = torch.tensor([NEVER, 0.0, NEVER, 0.0, NEVER]).expand(500, -1)
    for cut in CUTS:
        method = Sample(**cut)
        assert set(method.choose(logits, method.draws(500)).tolist()) <= {1, 3}


def test_a_number_just_below_one_draws_a_token_that_remains(monkeypatch):
    """Rounding may leave the shares a little short of one."""
    monkeypatch.setattr(torch, "rand", lambda *size, generator: torch.tensor(1 - 2**-24))
    logits = torch.tensor([[3.0, NEVER, 2.0, 1.0, NEVER]])
    for method in (Sample(), Sample(top_k=3), Sample(top_p=0.9), Sample(min_p=0.2)):
        token = method.choose(logits.float(), [torch.Generator()]).item()
        assert spread(method, logits)[0, token] > NEVER


def test_a_hot_sample_is_more_various_than_a_cold_one(case):
    many = Case(case.model, [case.prompts[0]] * 60)
    different = [
        len({made.tokens for (made,) in many.generate(Sample(temperature=temperature), Rules(max_new=4))})
        for temperature in (0.05, 1.0, 20.0)
    ]
    assert different == sorted(different)
    assert different[0] < different[1] < different[2]


@pytest.mark.parametrize(
    "method", [Sample(top_k=1), Sample(top_p=1e-9), Sample(min_p=1.0), Sample(temperature=1e-9)], ids=str
)
def test_the_likeliest_alone_is_greedy(case, method):
    rules = Rules(max_new=6, end=(2,))
    for (mine,), (wanted,) in zip(case.generate(method, rules), case.generate(Greedy(), rules), strict=True):
        assert mine.tokens == wanted.tokens
        assert mine.log_probs == wanted.log_probs


def test_greedy_takes_the_likeliest(case):
    for row, (made,) in enumerate(case.generate(Greedy(), Rules(max_new=5))):
        logits = case.logits(row, [list(made.tokens)])[0, :-1]
        assert logits.argmax(-1).tolist() == list(made.tokens)


METHOD = Sample(temperature=1.5, seeds=(11, 7, 3, 5))


def alone(case, row, method, rules):
    return case.only([row]).generate(replace(method, seeds=(method.seeds[row],)), rules)[0][0]


def test_a_sample_depends_on_its_seed_and_not_on_its_batch(case):
    rules = Rules(max_new=6, end=(2, 4))
    wanted = [alone(case, row, METHOD, rules) for row in range(4)]
    draw = random.Random(0)
    for _ in range(6):
        rows = draw.sample(range(4), draw.randint(2, 4))
        method = replace(METHOD, seeds=tuple(METHOD.seeds[row] for row in rows))
        for row, (made,) in zip(rows, case.only(rows).generate(method, rules), strict=True):
            assert made.tokens == wanted[row].tokens
            assert apart("log-probabilities", made.log_probs, wanted[row].log_probs) == []


def test_a_sample_goes_on_with_its_own_numbers_when_others_have_ended(case):
    """Its neighbours end at the first token; it does not notice."""
    wanted = alone(case, 2, METHOD, Rules(max_new=6))
    firsts = {made.tokens[0] for row, (made,) in enumerate(case.generate(METHOD, Rules(max_new=1))) if row != 2}
    ends = tuple(sorted(firsts - set(wanted.tokens)))
    made = case.generate(METHOD, Rules(max_new=6, end=ends))
    assert ends
    assert min(len(hypothesis.tokens) for (hypothesis,) in made) == 1
    assert made[2][0].tokens == wanted.tokens


def test_one_number_stands_for_those_that_follow_it(case):
    rules = Rules(max_new=5)
    assert same_but_rounding(*(case.generate(Sample(seeds=seeds), rules) for seeds in (4, (4, 5, 6, 7))))


def test_seeds_repeat_and_differ(case):
    """The same seed gives the same again; others give others, to the same prompt too."""
    many, rules = Case(case.model, [case.prompts[0]] * 8), Rules(max_new=6)
    one, other = (Case(*vars(many).values()).generate(Sample(seeds=3, temperature=2.0), rules) for _ in range(2))
    assert one == other
    assert len({made.tokens for (made,) in one}) > 4
    same = many.generate(Sample(seeds=(9,) * 8), rules)
    assert len({made.tokens for (made,) in same}) == 1


def test_sampling_leaves_the_random_numbers_of_torch_alone(case):
    before = torch.get_rng_state()
    case.generate(Sample(temperature=1.25), Rules(max_new=3))
    assert torch.equal(torch.get_rng_state(), before)


def test_the_log_probability_of_a_sample_is_the_models_own(case):
    """Whatever it was drawn after: no cut and no temperature is in it."""
    for row, (made,) in enumerate(case.generate(Sample(temperature=2.5, top_k=3), Rules(max_new=4))):
        table = case.log_probs(row, [list(made.tokens)])[0]
        assert apart("row", made.log_probs, [table[place, token] for place, token in enumerate(made.tokens)]) == []


@pytest.mark.parametrize("seeds", [2**64 - 1, (0, -(2**63) - 1)], ids=["the second is too large", "too small"])
def test_a_seed_that_torch_does_not_take_is_told(seeds):
    with pytest.raises(OptionError, match="Sample: a seed has at most 64 bits; came"):
        Sample(seeds=seeds).draws(2)
    assert len(Sample(seeds=2**64 - 2).draws(2)) == 2
