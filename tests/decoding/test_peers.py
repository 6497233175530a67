"""Beam search and greedy choice are Hugging Face's `generate`, on the same weights: tokens, scores, log-probabilities.

The models are random, of three families, and so is all that is asked of them. They are in float64; Hugging Face's
search rounds their logits to float32, so that scores are compared to 1e-5, relative where they are above one.
"""

import random
from collections import Counter
from dataclasses import dataclass, replace

import pytest
import torch

from clearhead.decoding import Beam, Greedy, Rules, Sample
from clearhead.model.presets import Size
from tests.decoding.hf import START, Ask, beams, found_here, generated, twins

TOLERANCE, TIE = 1e-5, 1e-6
SIZES = [Size(1, 16, 2, 2, 24), Size(2, 24, 3, 3, 20), Size(3, 12, 2, 2, 16)]
SHARED = [Size(2, 16, 4, 2, 40), Size(1, 24, 3, 1, 20)]
pytestmark = pytest.mark.slow


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model, and what is asked of it."""

    kind: str
    size: Size
    vocabulary: int
    sharpness: float
    lift: float
    ask: Ask
    method: Beam

    def twins(self):
        end = self.ask.rules.end
        return twins(self.kind, self.size, self.vocabulary, sharpness=self.sharpness, end=end, lift=self.lift)


def drawn(seed):
    """The case of this number. Its weights are drawn after it, from the same seed."""
    torch.manual_seed(seed)
    draw = random.Random(seed)
    kind = ("marian", "gpt2", "marian", "llama")[seed % 4]
    width, n_end = draw.randint(2, 6), draw.randint(1, 2)
    vocabulary = 2 * (1 + n_end) * width + draw.randint(0, 20)
    end = tuple(draw.sample(range(1, vocabulary), n_end))
    return Case(
        kind=kind,
        size=draw.choice(SIZES + SHARED * (kind == "llama")),
        vocabulary=vocabulary,
        sharpness=draw.choice([1.0, 2.0, 3.0]),
        lift=draw.choice([1.5, 2.0, 2.5, 3.0]),
        ask=drawn_ask(draw, kind, end, [token for token in range(vocabulary) if token not in end]),
        method=Beam(
            width=width,
            length_penalty=draw.choice([0.0, 0.5, 1.0, 2.0, -0.5]),
            n_best=draw.choice([draw.randint(1, width), width]),
            stop=draw.choice(["exact", "heuristic", "early"]),
        ),
    )


def drawn_ask(draw, kind, end, words):
    """One to four inputs, of one length or not; an encoder-decoder starts from up to five tokens of the output."""
    longest, ragged, n_prefix = draw.randint(1, 9), draw.random() < 0.6, draw.choice([0, 0, 1, 3, 5])
    lengths = [draw.randint(1, longest) if ragged else longest for _ in range(draw.randint(1, 4))]
    rules = Rules(
        max_new=draw.randint(4, 12),
        min_new=draw.choice([0, 0, 1, 2, 3, 4]),
        end=end,
        no_repeat=draw.choice([0, 0, 2, 3]),
    )
    inputs = [draw.choices(words, k=length) for length in lengths]
    prefix = [[START, *draw.choices(words, k=n_prefix)] for _ in lengths]
    return Ask(inputs, rules, prefix if kind == "marian" else None)


def assert_same(mine, theirs, case):
    """The same outputs in the same order, but where two scores are one to within float32's rounding."""
    near = pytest.approx([one.score for one in theirs], abs=TOLERANCE, rel=TOLERANCE)
    assert [one.score for one in mine] == near, case
    for rank, one in enumerate(mine):
        other = next((hypothesis for hypothesis in theirs if hypothesis.tokens == one.tokens), None)
        assert other is not None, (rank, case)
        assert other is theirs[rank] or abs(other.score - theirs[rank].score) < TIE, (rank, case)
        assert one.ended == other.ended, (rank, case)
        assert one.log_probs == pytest.approx(other.log_probs, abs=TOLERANCE), (rank, case)


FEW = (55, 130, 175, 220, 250, 261, 297, 329, 344, 350, 366, 383)
"""Cases that notice most: each of thirty wrong rules (of length, rank, stop, n-gram, cache) changes some of them."""

MANY = [seed for seed in range(150) if seed not in FEW]


@pytest.mark.parametrize(
    "seeds", [FEW, pytest.param(MANY, marks=[pytest.mark.slow, pytest.mark.thorough])], ids=["few", "many"]
)
def test_beam_search_is_hugging_faces(seeds):
    every = []
    for seed in seeds:
        case = drawn(seed)
        peer, ours = case.twins()
        mine, theirs = found_here(ours, case.ask, case.method), beams(peer, case.ask, case.method)
        for one, other in zip(mine, theirs, strict=True):
            assert_same(one, other, case)
        every += [hypothesis for found in mine for hypothesis in found]
    lengths = Counter(len(hypothesis.tokens) for hypothesis in every if hypothesis.ended)
    n_ended = lengths.total()
    print(f"{len(seeds)} models, {len(every)} hypotheses, {n_ended} ended, at {dict(sorted(lengths.items()))}")
    assert len(every) / 3 < n_ended < len(every)
    assert len(lengths) > 5


@pytest.mark.parametrize("seed", range(4))
def test_beam_search_without_end_tokens(seed):
    case = drawn(seed)
    ask = case.ask._replace(rules=replace(case.ask.rules, end=(), min_new=0))
    peer, ours = case.twins()
    mine, theirs = found_here(ours, ask, case.method), beams(peer, ask, case.method)
    assert {len(hypothesis.tokens) for found in mine for hypothesis in found} == {ask.rules.max_new}
    for one, other in zip(mine, theirs, strict=True):
        assert_same(one, other, case)


@pytest.mark.parametrize("seed", range(0, 8, 2))
def test_beams_of_a_batch_whose_prefixes_differ_in_length_are_those_of_each_alone(seed):
    """Hugging Face has one length for all: it is asked one by one."""
    case = drawn(seed)
    peer, ours = case.twins()
    prefix = [[START], [START, 3, 2, 3], [START, 5, 1]]
    ask = case.ask._replace(inputs=[[4, 1, 2, 6], [2], [1, 1, 3]], prefix=prefix)
    mine, theirs = found_here(ours, ask, case.method), [beams(peer, one, case.method)[0] for one in ask.alone()]
    for one, other in zip(mine, theirs, strict=True):
        assert_same(one, other, case)


def greedy(peer, ask):
    return generated(peer, ask, {"do_sample": False})


def assert_tokens_and_log_probs(mine, tokens, log_probs, case):
    assert [found[0].tokens for found in mine] == tokens, case
    for (one,), steps in zip(mine, log_probs.tolist(), strict=True):
        assert one.log_probs == pytest.approx(steps[: len(one.tokens)], abs=TOLERANCE), case


@pytest.mark.parametrize("seed", range(12))
def test_greedy_choice_is_hugging_faces(seed):
    """Whatever the rules forbid, log-probabilities are the model's own: those of its logits as they were."""
    case = drawn(seed)
    peer, ours = case.twins()
    given, tokens = greedy(peer, case.ask)
    own = torch.stack(given.logits, 1).log_softmax(-1)
    new = given.sequences[:, -own.shape[1] :]
    log_probs = own.gather(-1, new.unsqueeze(-1)).squeeze(-1)
    assert_tokens_and_log_probs(found_here(ours, case.ask, Greedy()), tokens, log_probs, case)


@pytest.mark.parametrize("penalty", [0.7, 1.0, 1.5])
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.slow
@pytest.mark.pairs(1)
def test_repetition_penalty_is_hugging_faces(seed, penalty):
    """One input at a time: Hugging Face punishes the padding token too."""
    case = drawn(seed)
    peer, ours = case.twins()
    rules = Rules(max_new=12, end=case.ask.rules.end, repetition_penalty=penalty)
    for ask in case.ask._replace(rules=rules).alone():
        given, tokens = greedy(peer, ask)
        log_probs = peer.compute_transition_scores(given.sequences, given.scores, normalize_logits=True)
        assert_tokens_and_log_probs(found_here(ours, ask, Greedy()), tokens, log_probs, case)


@pytest.mark.parametrize("seed", range(4))
def test_a_sample_from_the_likeliest_alone_is_hugging_faces_and_greedy(seed):
    case = drawn(seed)
    peer, ours = case.twins()
    mine = found_here(ours, case.ask, Sample(top_k=1, temperature=0.7))
    assert mine == found_here(ours, case.ask, Greedy())
    theirs = generated(peer, case.ask, {"do_sample": True, "top_k": 1, "temperature": 0.7})
    assert [found[0].tokens for found in mine] == theirs.tokens
