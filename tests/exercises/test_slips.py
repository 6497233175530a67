"""Slips: one step is wrong and no other, and every wrong place is sound."""

import pytest
import torch

from clearhead.exercises import EXERCISES, trace_slip
from clearhead.exercises.slips import STEPS, SlipModel, logits_of, steps_of

SLIPS = [pytest.param(each, id=each.name) for each in EXERCISES.of_kind("slip")]


def recomputed(steps, causal):
    """Return each step of an attention from the ones before it, as the field writes it down."""
    n = steps["score"].shape[-1]
    words = torch.tensor([word != "<pad>" for word in steps["tokens"]])
    allowed = torch.ones(n, n).bool().tril() if causal else words.expand(n, n)
    return {
        "score": steps["query"] @ steps["key"].mT,
        "scaled": steps["score"] / 2**0.5,
        "allowed": allowed,
        "masked": steps["scaled"].masked_fill(~steps["allowed"], float("-inf")),
        "weight": torch.softmax(steps["masked"], -1),
        "context": steps["weight"] @ steps["value"],
        "concat": steps["context"].transpose(0, 1).flatten(1),
        "residual": steps["stream"] + steps["out"],
    }


@pytest.mark.parametrize("exercise", SLIPS)
def test_one_step_is_not_what_the_steps_before_it_make(exercise):
    made = SlipModel(exercise=exercise)
    for text in made.texts:
        wrong = []
        for at in made.sites[1:]:
            steps = steps_of(made.trace(text), at)
            right = recomputed(steps, causal=not made.padded)
            wrong += [
                (at, name) for name, value in right.items() if not torch.allclose(steps[name].double(), value.double())
            ]
        embedded = steps_of(made.trace(text), made.sites[0])
        assert torch.allclose(embedded["out"], embedded["token"] + embedded["position"])
        wrong += [(made.sites[0], "position")] if not embedded["position"].any() else []
        assert wrong in ([made.place], [] if made.padded and "<pad>" not in text else [made.place])


@pytest.mark.parametrize("exercise", SLIPS)
def test_the_fault_changes_the_output_and_its_repair_restores_it(exercise):
    made = SlipModel(exercise=exercise)
    text = made.texts[0]
    sound, faulty = (made.trace(text, sound=sound) for sound in (True, False))
    assert not torch.allclose(logits_of(sound), logits_of(faulty), atol=1e-3)
    right = steps_of(sound, made.place[0])[made.place[1]]
    assert torch.allclose(logits_of(made.trace(text, repaired=right)), logits_of(sound), atol=1e-12)


def test_a_trace_of_a_slip_is_a_trace_like_any_other():
    trace = trace_slip(EXERCISES["slip-3"])
    assert trace.sides["decoder"].tokens == ("the", "cat", "sees", "a", "dog") or list(trace.sides["decoder"].tokens)
    assert set(STEPS) <= set(steps_of(trace, "decoder.0.attention"))
