"""Methods say what they are: a user's own is decoded, streamed, traced and served like ours."""

from dataclasses import dataclass

import pytest
import torch

from clearhead.decoding import Beam, Greedy, Rules, Sample, generate, stream
from clearhead.decoding.continuous import ContinuousBatch
from clearhead.decoding.method import DecodingMethod
from clearhead.decoding.sampling import Chooser
from clearhead.decoding.scheduler import Job
from clearhead.errors import OptionError
from clearhead.model import presets
from clearhead.tracing.decoding import trace_decoding
from tests.decoding.serving import decode
from tests.rounding import same_but_rounding


@dataclass(frozen=True)
class Second(Chooser):
    """The second best token each time."""

    def choose(self, logits, draws):
        return logits.topk(2, -1).indices[:, 1]


@dataclass(frozen=True)
class Narrow(DecodingMethod):
    """A beam search of two beams that gives both, under a name of its own."""

    streams = False
    n_best = 2

    @property
    def rows(self):
        return 2

    def start(self, start):
        return Beam(width=2, n_best=2).start(start)


@pytest.fixture
def model():
    torch.manual_seed(3)
    return presets.gpt2("tiny", vocabulary=20).build().double().eval()


def by_forward(model, prompt, n):
    tokens = list(prompt)
    for _ in range(n):
        tokens.append(int(model(torch.tensor([tokens]))[0, -1].topk(2).indices[1]))
    return tuple(tokens[len(prompt) :])


@torch.no_grad()
def test_a_users_own_chooser_is_a_method_like_ours(model):
    prompts, rules = [[5, 6], [7, 8, 9]], Rules(max_new=4)
    wanted = [by_forward(model, prompt, 4) for prompt in prompts]
    assert [made.tokens for (made,) in generate(model, prompts, Second(), rules=rules)] == wanted
    streamed = list(stream(model, prompts, Second(), rules=rules))
    assert [tuple(one.token for one in streamed if one.sequence == row) for row in (0, 1)] == wanted
    jobs = [Job(inputs=tuple(prompt), rules=rules, method=Second()) for prompt in prompts]
    assert [made.tokens for (made,) in decode(ContinuousBatch(model, slots=2), jobs)] == wanted
    assert [made.hypothesis.tokens for made in trace_decoding(model, prompts[0], Second(), rules=rules)] == wanted[:1]


def test_a_users_own_search_is_a_method_like_ours(model):
    rules, own, ours = Rules(max_new=5, end=(2, 7)), Narrow(), Beam(width=2, n_best=2)
    assert same_but_rounding(*(generate(model, [[5, 6], [7]], method, rules=rules) for method in (own, ours)))
    with pytest.raises(OptionError, match="until the end"):
        stream(model, [[5]], own)


@pytest.mark.parametrize(
    ("method", "rows", "n_best", "streams"),
    [(Greedy(), 1, 1, True), (Sample(), 1, 1, True), (Beam(width=4, n_best=3), 4, 3, False), (Narrow(), 2, 2, False)],
)
def test_a_method_says_what_it_takes_and_gives(method, rows, n_best, streams):
    assert (method.rows, method.n_best, method.streams) == (rows, n_best, streams)
