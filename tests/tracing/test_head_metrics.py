"""Readings say of a head what was put into it, and of a layer what it would answer."""

import math

import pytest
import torch

import clearhead as ch
from clearhead.tracing.head_metrics import effects, lens, read_head, readings
from clearhead.tracing.recording import recording
from clearhead.tracing.trace import trace_model
from tests.model.small import both_spec, built, decoder_spec, encoder_spec, words

N = 6
TOKENS = [3, 1, 4, 1, 5, 1]


def head_with(weight):
    """A head of a decoder whose weights are these, whatever its scores are."""
    model = built(encoder_spec())
    to = torch.tensor(weight, dtype=torch.float64)
    change = ch.Edit(at="encoder.0.attention", step="weight", to=to)
    return trace_model(model, torch.tensor([TOKENS]), changes=[change]).encoder[0].attention.head[1]


def one_hot(columns):
    return [[float(column == key) for key in range(N)] for column in columns]


def test_a_head_on_the_previous_token():
    found = read_head(head_with(one_hot([0, 0, 1, 2, 3, 4])), TOKENS)
    assert found.previous == 1
    assert found.entropy == 0
    assert found.distance == pytest.approx(5 / 6)


def test_a_head_that_looks_everywhere_alike():
    found = read_head(head_with([[1 / N] * N] * N), TOKENS)
    assert found.entropy == pytest.approx(math.log2(N))
    assert found.previous == pytest.approx(1 / N)
    assert found.same == pytest.approx(2 / N)  # each 1 sees two others; 3, 4 and 5 stand once and do not count


def test_a_head_on_the_same_token_and_one_on_what_followed_it():
    same = read_head(head_with(one_hot([0, 3, 2, 1, 4, 3])), TOKENS)
    assert (same.same, same.induction) == (1, 0)
    after = read_head(head_with(one_hot([0, 1, 2, 2, 4, 4])), TOKENS)
    assert after.induction == 1  # the 1 at 3 looks at the 4 after the first 1, that at 5 at the 5 after the second


def test_cross_attention_has_no_tokens_in_common():
    trace = trace_model(built(both_spec()), words(1, 7), words(1, 5))
    found = readings(trace, trace.decoder[0].cross)
    assert len(found) == 3
    assert all(head.previous is head.same is head.induction is None for head in found)
    assert all(0 < head.entropy <= math.log2(7) for head in found)


@pytest.mark.parametrize("spec", [decoder_spec(), both_spec()], ids=["decoder", "both"])
def test_the_last_of_the_lens_is_the_answer(spec):
    model = built(spec)
    given = [words(1, 7), words(1, 5)] if hasattr(model, "encoder") else [words(1, 5)]
    trace = trace_model(model, *given)
    found = lens(trace, model, shown=3)
    assert [one.name for one in found] == [
        "decoder.embedding.out",
        "decoder.0.feed_forward.residual",
        "decoder.1.feed_forward.residual",
        "decoder.normed",
    ]
    assert found[-1].rows == [row[:3] for row in trace.candidates]
    assert found[-2].rows == found[-1].rows  # the last block through the last norm
    logits = model(*given)[0].log_softmax(-1)
    for row, own in zip(found[-1].rows, logits, strict=True):
        assert row[0].id == int(own.argmax())
        assert row[0].log_prob == pytest.approx(own.max().item(), abs=1e-5)


def test_the_effect_of_a_head_is_that_of_its_absence():
    model, tokens = built(decoder_spec()), words(1)

    def forward(changes):
        with recording(model, changes):
            return model(tokens)

    found = effects(model, forward, "decoder.1.attention", 3)
    whole = model(tokens).log_softmax(-1)
    best = whole.argmax(-1, keepdim=True)
    with torch.no_grad():
        model.stack.blocks[1].attention.output.weight[:, 8:] = 0
        without = model(tokens).log_softmax(-1)
    assert found[2].change == pytest.approx((without.gather(-1, best) - whole.gather(-1, best)).mean().item())
    assert all(one.divergence > 0 for one in found)
