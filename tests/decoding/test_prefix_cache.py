"""Prompts that begin alike are read once, and every job gets what it gets alone."""

import random

import pytest
import torch

from clearhead.decoding import Greedy, Rules, Sample
from clearhead.decoding.continuous import ContinuousBatch
from clearhead.decoding.method import DecodingMethod
from clearhead.decoding.prefix_cache import PrefixCache, ReadPrompts, count_bytes
from clearhead.decoding.scheduler import Job
from clearhead.errors import OptionError
from clearhead.model import presets
from tests.covering import few
from tests.decoding.models import LINEAR, PLAIN, VOCABULARY, build, models, on_axes
from tests.decoding.serving import decode, draw_job, unlike_alone

RULES = Rules(max_new=3)
DECODERS = [choices for choices in models() if choices.chosen["kind"] == "decoder"]


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(3)
    return presets.gpt2("tiny", vocabulary=20).build().double().eval()


def job(*inputs, method: DecodingMethod = Greedy()):
    return Job(inputs=inputs, rules=RULES, method=method)


def memory_of(rows, columns):
    """The memory of two caches, which differs everywhere."""
    return [[torch.randn(rows, 2, columns, 3) for _ in range(2)] for _ in range(2)]


def check_model(choices, seed: int) -> tuple[list[str], int]:
    """What differs from each job alone, and how many tokens were shared; jobs come at random steps."""
    model, draw = build(choices), random.Random(seed)
    prefixes = PrefixCache(block=draw.choice((1, 2, 3)), most_bytes=draw.choice((4_000, 1 << 20)))
    batch = ContinuousBatch(model, slots=4, columns=40, prompt_tokens=draw.choice((2, 5, 64)), prefixes=prefixes)
    beginnings = [[draw.randrange(VOCABULARY) for _ in range(9)] for _ in range(2)]
    jobs = []
    for _ in range(9):
        one = draw_job(draw, VOCABULARY, encoder=False, longest=5)
        begin = draw.choice(beginnings)[: draw.randint(0, 9)]
        jobs.append(Job(inputs=(*begin, *one.inputs), rules=one.rules, method=one.method, candidates=one.candidates))
    found = decode(batch, jobs, draw, cancelled=(2,))
    pairs = [(job, hypotheses) for job, hypotheses in zip(jobs, found, strict=True) if hypotheses is not None]
    unlike = [told for job, hypotheses in pairs for told in unlike_alone(model, job, hypotheses)]
    assert prefixes.bytes <= prefixes.most_bytes
    return unlike, batch.counts.shared_tokens


@pytest.mark.parametrize("place", few(range(len(DECODERS)), 12))
def test_every_kind_of_decoder_gives_what_generate_gives(place):
    assert check_model(DECODERS[place], place)[0] == []


@pytest.mark.thorough
@pytest.mark.parametrize("place", range(len(DECODERS)))
def test_every_decoder_gives_what_generate_gives(place):
    assert check_model(DECODERS[place], place + 1000)[0] == []


@pytest.mark.parametrize(
    ("part", "shares"), [({}, True), ({"weighting": LINEAR[0]}, False), ({"mask": "window 2"}, False)]
)
def test_a_cache_says_whether_its_columns_can_be_shared(part, shares):
    unlike, shared = check_model(on_axes(PLAIN | part), 4)
    assert (unlike, shared > 0) == ([], shares)


def test_the_same_prompt_is_read_once_for_all_that_wait_with_it(model):
    """As n choices of one request: without a prefix cache too, and of a translator's source too."""
    prompt = tuple(range(1, 18))
    batch = ContinuousBatch(model, slots=6, prompt_tokens=8)
    jobs = [job(*prompt, method=Sample(seeds=seed)) for seed in range(9)]
    found = decode(batch, jobs)
    assert batch.counts.prompt_tokens == len(prompt) - 1
    assert [
        told for one, hypotheses in zip(jobs, found, strict=True) for told in unlike_alone(model, one, hypotheses)
    ] == []
    translator = presets.tiny(vocabulary=20).build().eval()
    batch = ContinuousBatch(translator, slots=4)
    decode(batch, [Job(inputs=(4, 5, 6), prefix=(1, 2), rules=RULES, method=Sample(seeds=seed)) for seed in range(4)])
    assert batch.counts.prompt_tokens == 3 + 1


def test_only_what_is_new_is_read(model):
    batch = ContinuousBatch(model, slots=4, prefixes=PrefixCache(block=4))
    read = []
    for inputs in ([*range(10)], [*range(12)], [*range(10)], [*range(6), 19, 18, 17], [1, *range(1, 10)], [0, 1, 2, 3]):
        before = batch.counts.prompt_tokens
        one = job(*inputs)
        [found] = decode(batch, [one])
        assert unlike_alone(model, one, found) == []
        read.append(batch.counts.prompt_tokens - before)
    assert read == [9, 3, 1, 4, 9, 3]  # the last token of a prompt is not read ahead


def test_prompts_that_come_together_wait_for_their_common_beginning(model):
    batch = ContinuousBatch(model, slots=8, prefixes=PrefixCache(block=4))
    jobs = [job(*range(16), last) for last in range(5)]
    found = decode(batch, jobs)
    assert batch.counts.prompt_tokens == 16  # they differ in the last token alone
    assert [
        told for one, hypotheses in zip(jobs, found, strict=True) for told in unlike_alone(model, one, hypotheses)
    ] == []


def test_with_nothing_in_common_as_much_is_read_and_each_token_is_looked_at_twice(model, monkeypatch):
    """Once to find its block, and once to keep it: the cost of a request that shares nothing."""
    looked_at, counting = [], PrefixCache(block=4)

    def count(prompt):
        for tokens in PrefixCache.cut(counting, prompt):
            looked_at.extend(tokens)
            yield tokens

    monkeypatch.setattr(counting, "cut", count)
    jobs = [job(first, *range(12)) for first in range(4)]
    counts = []
    for prefixes in (None, counting):
        batch = ContinuousBatch(model, slots=4, prefixes=prefixes)
        decode(batch, jobs)
        counts.append((batch.counts.prompt_tokens, batch.counts.steps))
    assert counts[0] == counts[1]
    assert len(looked_at) == 4 * (4 + 12)  # to find stops at the first block that is not there


def test_a_block_is_found_after_the_same_tokens_only():
    prefixes = PrefixCache(block=2)
    memory = memory_of(2, 6)
    prefixes.keep([[1, 2, 3, 4, 5], [3, 4, 9, 9, 9, 9, 9]], memory, 0)
    lengths = [
        len(prefixes.find(prompt)) for prompt in ([1, 2, 3, 4, 5], [1, 2, 3, 4], [3, 4, 5], [9, 9, 5], [2, 1, 3])
    ]
    assert lengths == [2, 1, 1, 0, 0]
    rows = [prefixes.find([3, 4, 9, 9, 1]), prefixes.find([1, 2, 3, 4, 1])]
    for cache, gathered in zip(memory, prefixes.gather(rows), strict=True):
        for before, part in zip(cache, gathered, strict=True):
            assert torch.equal(part, before[[1, 0], :, :4])


def test_blocks_of_several_prompts_are_gathered_in_order():
    prefixes, first = PrefixCache(block=2), memory_of(1, 2)
    prefixes.keep([[1, 2, 7]], first, 0)
    second = memory_of(1, 6)
    prefixes.keep([[1, 2, 3, 4, 5, 6, 7]], second, 2)
    [[key, _], _] = prefixes.gather([prefixes.find([1, 2, 3, 4, 5, 6, 9])])
    assert torch.equal(key, torch.cat([first[0][0], second[0][0][:, :, 2:]], 2))


def test_what_was_used_longest_ago_is_dropped_and_never_before_what_follows_it():
    one = count_bytes(memory_of(1, 2))
    prefixes = PrefixCache(block=2, most_bytes=3 * one)
    prefixes.keep([[1, 2, 0]], memory_of(1, 2), 0)
    prefixes.keep([[1, 2, 3, 4, 0]], memory_of(1, 4), 2)
    prefixes.keep([[5, 6, 0]], memory_of(1, 2), 0)
    assert len(prefixes.find([1, 2, 3, 4, 0])) == 2  # used, so [5, 6] is the next to go
    prefixes.keep([[7, 8, 0]], memory_of(1, 2), 0)
    assert [len(prefixes.find(prompt)) for prompt in ([5, 6, 0], [7, 8, 0], [1, 2, 3, 4, 0])] == [0, 1, 2]
    prefixes.keep([[9, 9, 0]], memory_of(1, 2), 0)
    prefixes.keep([[8, 8, 0]], memory_of(1, 2), 0)
    assert [len(prefixes.find(prompt)) for prompt in ([7, 8, 0], [1, 2, 3, 4, 0])] == [0, 1]
    assert prefixes.bytes == 3 * one == sum(count_bytes(read.memory) for read in prefixes.read.values())
    assert len(prefixes.blocks) == 3


def test_what_was_dropped_while_the_rest_was_read_is_not_kept():
    prefixes = PrefixCache(block=2, most_bytes=0)
    prefixes.keep([[1, 2, 3, 4, 0]], memory_of(1, 4), 2)
    assert not prefixes.blocks
    assert not prefixes.read
    assert ReadPrompts().n_bytes == 0


def test_a_block_has_tokens():
    with pytest.raises(OptionError, match="block must be 1 token or more; came 0"):
        PrefixCache(block=0)
