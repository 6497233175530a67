"""Speculative decoding by look-up: greedy's output, token for token, in fewer passes where it repeats itself."""

import pytest
import torch

from clearhead.decoding import Greedy, Rules, generate
from clearhead.decoding.lookup import NGrams
from clearhead.errors import OptionError
from clearhead.model import presets
from tests.covering import few
from tests.decoding.laws import case_of
from tests.decoding.models import LINEAR, PLAIN, build, models, on_axes
from tests.decoding.plain import all_unlike
from tests.rounding import same_but_rounding

RULES = (
    Rules(max_new=12, end=(2, 7)),
    Rules(max_new=9, min_new=4, end=(2, 5), never=(4,)),
    Rules(max_new=9, no_repeat=2, repetition_penalty=1.3, frequency_penalty=0.5, logit_bias=((3, 1.0),)),
)


def unlike_greedy(case, lookup: int) -> list[str]:
    """The same hypothesis, for a prompt that repeats itself too."""
    found = []
    for prompt in ([3], [4, 5, 6, 4, 5, 6, 4, 5], case.prompts[2]):
        one = case.only([0]).after([[]])
        one.prompts[0] = prompt
        for rules in RULES:
            mine, wanted = one.generate(Greedy(lookup=lookup), rules), one.generate(Greedy(), rules)
            found += all_unlike(f"{prompt}, {rules}", mine[0], wanted[0])
    return found


@pytest.mark.parametrize("place", few(range(len(models())), 12))
@pytest.mark.parametrize("lookup", [1, 5])
def test_every_kind_of_model_writes_what_greedy_writes(place, lookup):
    assert unlike_greedy(case_of(build(models()[place])), lookup) == []


@pytest.mark.thorough
@pytest.mark.parametrize("place", range(len(models())))
def test_every_model_writes_what_greedy_writes(place):
    assert unlike_greedy(case_of(build(models()[place])), 3) == []


def count_passes(model, method, inputs, rules):
    """The hypothesis, and how often the decoder's stack was called by its forward."""
    calls = []
    handle = model.decoder.stack.register_forward_hook(lambda *_: calls.append(1))
    try:
        [found] = generate(model, inputs, method, rules=rules)
    finally:
        handle.remove()
    return found, len(calls)


def test_an_output_that_repeats_itself_takes_fewer_passes():
    torch.manual_seed(0)
    model = presets.gpt2("tiny", vocabulary=20).build().double().eval()
    plain, _ = count_passes(model, Greedy(), [5, 6], Rules(max_new=60))
    found, passes = count_passes(model, Greedy(lookup=8), [5, 6], Rules(max_new=60))
    assert found.tokens == plain.tokens
    assert len(set(found.tokens)) < 20  # an untrained model soon goes in circles
    assert passes < 30  # 60 without


def test_caches_that_cannot_take_back_are_decoded_step_by_step():
    case = case_of(build(on_axes(PLAIN | {"weighting": LINEAR[0]}))).only([2])
    assert same_but_rounding(*(case.generate(method, RULES[0]) for method in (Greedy(lookup=4), Greedy())))


def test_what_followed_last_is_proposed():
    seen = NGrams([1, 2, 3, 1, 2, 4, 1, 2])
    assert seen.draft(5) == [4, 1, 2, 4, 1]
    seen.add(9)
    assert seen.draft(2) == []


@pytest.mark.parametrize("lookup", [-1, 65])
def test_too_many_proposals_are_refused(lookup):
    with pytest.raises(OptionError, match="lookup is a number of tokens, 0 to 64"):
        Greedy(lookup=lookup)
