"""Rules: what may come next is what plain Python and Hugging Face's processors say."""

import random
from dataclasses import replace

import pytest
import torch

from clearhead.decoding import Beam, Greedy, Rules, Sample
from clearhead.decoding.continuous import ContinuousBatch
from clearhead.decoding.rules import followers
from clearhead.decoding.scheduler import Chosen, Job
from tests.decoding.laws import case_of
from tests.decoding.models import PLAIN, VOCABULARY, build, on_axes
from tests.decoding.plain import Case, apart
from tests.peers import transformers

METHODS = [Greedy(), Sample(temperature=3.0), Beam(width=3, n_best=3)]
methods = pytest.mark.parametrize("method", METHODS, ids=["greedy", "sample", "beam"])
NEVER = float("-inf")


@pytest.fixture(scope="module")
def case():
    return case_of(build(on_axes(PLAIN)))


def rows_of_tokens(count: int, length: int, vocabulary: int) -> list[list[int]]:
    draw = random.Random(length)
    return [[draw.randrange(vocabulary) for _ in range(length)] for _ in range(count)]


def forbid(rules: Rules, logits: torch.Tensor, n_new: int, rows: list[list[int]]) -> torch.Tensor:
    """Return a copy of the logits with -inf at what the rules forbid after each row."""
    forbidden = logits.clone()
    for row, tokens in zip(forbidden, rows, strict=True):
        row[rules.forbidden(n_new, tokens)] = NEVER
    return forbidden


def has_twice(tokens: list[int], n: int) -> bool:
    runs = [tuple(tokens[start : start + n]) for start in range(len(tokens) - n + 1)]
    return len(set(runs)) < len(runs)


@pytest.mark.slow
@pytest.mark.parametrize("length", [1, 2, 5, 20])
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_no_repeat_forbids_what_would_make_a_run_twice(n, length):
    rows, logits = rows_of_tokens(8, length, 6), torch.randn(8, 6)
    mine = forbid(Rules(max_new=9, no_repeat=n), logits, 0, rows)
    theirs = transformers.NoRepeatNGramLogitsProcessor(n)(torch.tensor(rows), logits.clone())
    assert torch.equal(mine, theirs)
    for tokens, row in zip(rows, mine.tolist(), strict=True):
        runs = {tuple(tokens[start : start + n]) for start in range(length - n + 1)}
        plain = {token for token in range(6) if (*tokens[length - n + 1 :], token)[-n:] in runs and length >= n}
        assert followers(tokens, n) == plain
        assert {token for token, value in enumerate(row) if value == NEVER} == plain


@pytest.mark.slow
@pytest.mark.parametrize("penalty", [0.5, 1.0, 1.3, 4.0])
def test_repetition_penalty_is_that_of_hugging_face(penalty):
    rows, logits = rows_of_tokens(8, 7, 30), torch.randn(8, 30, dtype=torch.float64)
    before = logits.clone()
    mine = Rules(max_new=9, repetition_penalty=penalty).change(logits, rows, [[]] * 8)
    theirs = transformers.RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor(rows), logits.clone())
    torch.testing.assert_close(mine, theirs, rtol=0, atol=0)
    assert torch.equal(logits, before)
    for tokens, row, old in zip(rows, mine.tolist(), logits.tolist(), strict=True):
        for token in range(30):
            worth = old[token] / penalty if old[token] > 0 else old[token] * penalty
            assert row[token] == pytest.approx(worth if token in tokens else old[token], abs=1e-12)


@pytest.mark.parametrize("presence", [0.0, 0.5, -1.0])
@pytest.mark.parametrize("frequency", [0.0, 0.25])
def test_penalties_of_openai_count_what_is_written_and_a_bias_is_added(presence, frequency):
    rows, logits = rows_of_tokens(4, 7, 5), torch.randn(4, 5, dtype=torch.float64)
    before, bias = logits.clone(), ((1, -3.0), (4, 2.5), (1, 1.0))
    rules = Rules(max_new=9, presence_penalty=presence, frequency_penalty=frequency, logit_bias=bias)
    written = [tokens[n:] for n, tokens in enumerate(rows)]
    found = rules.change(logits, rows, written)
    assert torch.equal(logits, before)
    for tokens, row, old in zip(written, found.tolist(), logits.tolist(), strict=True):
        for token in range(5):
            count = tokens.count(token)
            worth = old[token] - presence * (count > 0) - frequency * count + {1: -2.0, 4: 2.5}.get(token, 0.0)
            assert row[token] == pytest.approx(worth, abs=1e-12)


@methods
def test_a_bias_brings_a_token_always_or_never(case, method):
    for bias, share in (((3, 100.0),), 1.0), (((3, -100.0),), 0.0):
        for row in case.generate(method, Rules(max_new=4, logit_bias=bias)):
            assert {made.tokens.count(3) / 4 for made in row[:1]} == {share}


def test_what_an_earlier_job_wrote_is_counted(case):
    """An output in two jobs is the output of one, though the second has read only its end."""
    rules = Rules(max_new=8, frequency_penalty=1.5)
    [[whole]] = case.only([0]).generate(Greedy(), rules)
    assert [[whole]] != case.only([0]).generate(Greedy(), Rules(max_new=8))
    begun = (*case.prompts[0], *whole.tokens[:4])
    for written, same in ((whole.tokens[:4], True), ((), False)):
        batch = ContinuousBatch(case.model, slots=1)
        batch.add(Job(inputs=begun, rules=replace(rules, max_new=4), begun=written))
        rest = [event.token for _ in range(4) for event in batch.step() if isinstance(event, Chosen)]
        assert (tuple(rest) == whole.tokens[4:]) is same


@pytest.mark.slow
@pytest.mark.parametrize("end", [(3,), (3, 0)])
@pytest.mark.parametrize("n_new", range(5))
def test_min_new_forbids_the_end_as_hugging_face_does_one_token_longer(end, n_new):
    """Hugging Face counts the tokens before the end; here the end itself is one of them."""
    prompt, logits = 4, torch.randn(2, 6)
    mine = forbid(Rules(max_new=9, min_new=4, end=end), logits, n_new, [[]] * 2)
    processor = transformers.MinLengthLogitsProcessor(prompt + 4 - 1, list(end), device="cpu")
    theirs = processor(torch.zeros(2, prompt + n_new, dtype=torch.long), logits.clone())
    assert torch.equal(mine, theirs)
    assert torch.equal(mine == NEVER, torch.tensor([token in end and n_new < 3 for token in range(6)]).expand(2, 6))


def test_rules_that_forbid_nothing_leave_the_logits_as_they_are():
    logits = torch.randn(2, 6)
    before, rules = logits.clone(), Rules(max_new=3, end=(1,))
    assert rules.change(logits, [[]] * 2, [[]] * 2) is logits
    assert rules.forbidden(0, []) == []
    assert torch.equal(logits, before)
    assert not rules.need_host


@methods
@pytest.mark.parametrize("n", [1, 2, 3])
def test_no_output_has_a_run_twice(case, method, n):
    for prompt, hypotheses in zip(case.prompts, case.generate(method, Rules(max_new=6, no_repeat=n)), strict=True):
        for hypothesis in hypotheses:
            before = [start for start in range(len(prompt)) if has_twice(prompt[: start + 1], n)]
            assert before or not has_twice([*prompt, *hypothesis.tokens], n)


def test_without_the_rule_runs_do_come_twice(case):
    (found,) = case.only([0]).generate(Greedy(), Rules(max_new=8))[0]
    assert has_twice([*case.prompts[0], *found.tokens], 2)


@methods
def test_lengths_lie_between_min_and_max(case, method):
    every = tuple(range(VOCABULARY))
    assert {
        len(made.tokens) for row in case.generate(method, Rules(max_new=6, min_new=4, end=every[:-1])) for made in row
    } <= {4, 5, 6}
    for row in case.generate(method, Rules(max_new=5, min_new=5, end=every[::2])):
        assert {len(made.tokens) for made in row} == {5}
        assert not any(token in every[::2] for made in row for token in made.tokens[:-1])


@methods
def test_without_min_new_an_output_may_be_its_end_alone(case, method):
    every = tuple(range(VOCABULARY))
    for row in case.generate(method, Rules(max_new=6, end=every)):
        assert all((len(made.tokens), made.ended) == (1, True) for made in row)


@methods
def test_each_end_token_ends(case, method):
    """The end token is the last of the tokens, and no other of them is one."""
    ends, ended = (1, 2, 3, 4, 5), set()
    for row in case.generate(method, Rules(max_new=7, end=ends)):
        for made in row:
            assert made.ended == (made.tokens[-1] in ends)
            assert made.ended or len(made.tokens) == 7
            assert not set(made.tokens[:-1]) & set(ends)
            ended |= {made.tokens[-1]} & set(ends)
    assert ended


@methods
def test_log_probs_are_those_after_the_penalty(case, method):
    """A penalty changes the model's distribution; what is forbidden does not, and keeps its share."""
    rules = Rules(max_new=4, repetition_penalty=1.7, no_repeat=2, min_new=3, end=(2,))
    for row, hypotheses in enumerate(case.generate(method, rules)):
        for made in hypotheses:
            logits = case.logits(row, [list(made.tokens)])[0]
            for place, (token, log_prob) in enumerate(zip(made.tokens, made.log_probs, strict=True)):
                so_far = [*case.prompts[row], *made.tokens[:place]]
                plain = [
                    (value / 1.7 if value > 0 else value * 1.7) if other in so_far else value
                    for other, value in enumerate(logits[place].tolist())
                ]
                wanted = torch.tensor(plain, dtype=torch.float64).log_softmax(-1)[token]
                assert apart("log-probability", log_prob, wanted) == []


@pytest.mark.parametrize(
    "method", [Greedy(), Sample(), Sample(top_k=3, top_p=0.5, min_p=0.2)], ids=["greedy", "sample", "cut"]
)
def test_where_everything_is_forbidden_the_output_ends_before_it(case, method):
    """With no token twice there are as many as the vocabulary has, less those of the prompt."""
    for prompt, (made,) in zip(case.prompts, case.generate(method, Rules(max_new=30, no_repeat=1)), strict=True):
        assert sorted([*set(prompt), *made.tokens]) == list(range(VOCABULARY))
        assert made.ended is False


@pytest.mark.parametrize("width", [1, 3, 20])
def test_where_everything_is_forbidden_a_beam_ends_before_it(case, width):
    """And where a sentence has fewer beginnings than another, nothing comes of the rows that fill it up."""
    found = case.generate(Beam(width=width, n_best=width), Rules(max_new=30, no_repeat=1))
    for row, (prompt, hypotheses) in enumerate(zip(case.prompts, found, strict=True)):
        assert hypotheses
        assert len({made.tokens for made in hypotheses}) == len(hypotheses)
        for made in hypotheses:
            assert sorted([*set(prompt), *made.tokens]) == list(range(VOCABULARY))
            assert made.ended is False
            table = case.log_probs(row, [list(made.tokens)])[0]
            assert apart("row", made.log_probs, [table[place, token] for place, token in enumerate(made.tokens)]) == []


@methods
def test_where_everything_is_forbidden_at_once_the_output_is_empty(case, method):
    whole = Case(case.model, [list(range(VOCABULARY)), [0]])
    (first, *_), second = whole.generate(method, Rules(max_new=3, no_repeat=1))
    assert (first.tokens, first.log_probs, first.score, first.ended) == ((), (), 0.0, False)
    assert len(second[0].tokens) == 3
