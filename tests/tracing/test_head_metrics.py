"""Readings say of a head what was put into it, and of a layer what it would answer."""

import math

import numpy as np
import pytest
import torch

import clearhead as ch
from clearhead.model.blocks import AttentionSpec
from clearhead.tracing.head_metrics import effects, lens, read_head, readings, sample_spans
from clearhead.tracing.recording import recording
from clearhead.tracing.trace import trace_model
from tests.model.small import block_spec, both_spec, built, decoder_spec, encoder_spec, words

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


def test_a_key_that_the_mask_hides_is_none_to_look_at():
    """In a decoder the first of several like tokens sees none of the others: it does not count."""
    trace = trace_model(built(decoder_spec()), torch.tensor([TOKENS]))
    for head in trace.decoder[0].attention.head:
        found, weight = read_head(head, TOKENS), head.weight
        assert found.same == pytest.approx((weight[3, 1] + weight[5, [1, 3]].sum()).item() / 2)
    alone = read_head(head, [1, 2, 3, 4, 5, 6])
    assert alone.same is alone.induction is None


def test_cross_attention_has_no_tokens_in_common():
    trace = trace_model(built(both_spec()), words(1, 7), words(1, 5))
    found = readings(trace, trace.decoder[0].cross)
    assert len(found) == 3
    assert all(head.previous is head.same is head.induction is None for head in found)
    assert all(0 < head.entropy <= math.log2(7) for head in found)


@pytest.mark.parametrize("spec", [decoder_spec(), both_spec()], ids=["decoder", "both"])
def test_the_last_of_the_lens_is_the_answer(spec):
    model = built(spec)
    given = [words(1, 7), words(1, 5)] if len(model.stacks) > 1 else [words(1, 5)]
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


def test_a_head_on_the_first_token_and_one_on_itself():
    sink = read_head(head_with(one_hot([3, 0, 0, 0, 0, 0])), TOKENS)
    assert (sink.first, sink.itself) == (1, 0)  # where the first token itself looks does not count
    own = read_head(head_with(one_hot(range(N))), TOKENS)
    assert (own.first, own.itself) == (0, 1)


def test_cross_attention_has_a_first_token_and_no_place_of_its_own():
    trace = trace_model(built(both_spec()), words(1, 7), words(1, 5))
    site = trace.decoder[0].cross
    for head, found in zip(site.head, readings(trace, site), strict=True):
        assert found.first == pytest.approx(head.weight[:, 0].mean().item())
        assert found.itself is None


@pytest.mark.parametrize("spec", [decoder_spec, encoder_spec])
def test_some_rows_of_a_long_text_stand_for_all(spec):
    """A sample is the mean over its own rows, near that over all; of a short text it is all of it."""
    trace = trace_model(built(spec()), words(1, 300))
    [side] = trace.sides
    head, ids = trace.sites[f"{side}.0.attention"].head[1], trace.sides[side].ids
    whole, some = read_head(head, ids), read_head(head, ids, rows=96)
    read = torch.cat([torch.arange(*span) for span in sample_spans(300, 96)])
    assert len(read) == len(read.unique()) == 96
    assert (int(read[0]), int(read[-1])) == (0, 299)
    later = read[read > 0]
    assert some.first == pytest.approx(head.weight[later, 0].mean().item())
    assert some.previous == pytest.approx(head.weight[later, later - 1].mean().item())
    assert some.entropy == pytest.approx(whole.entropy, rel=0.2)
    assert read_head(head, ids, rows=300) == whole
    assert read_head(head, ids, rows=10_000) == whole


@pytest.mark.parametrize("n", [1, 5, 31, 32, 33, 40])
def test_a_short_text_is_read_in_full_however_few_rows_are_asked_for(n):
    trace = trace_model(built(decoder_spec()), words(1, n))
    head, ids = trace.decoder[0].attention.head[0], trace.sides["decoder"].ids
    found = read_head(head, ids, rows=1)
    if n <= 32:
        assert found == read_head(head, ids)
    assert 0 <= found.itself <= 1


def test_gain_is_what_w_o_makes_of_each_head_by_itself():
    """Worked out in numpy from the contexts and the head's own rows of W_O, a bias left out."""
    model = built(encoder_spec(blocks=(block_spec(attention=AttentionSpec(heads=ch.Heads(3, bias=True))),)))
    with torch.no_grad():
        model.stack.blocks[0].attention.output.weight[:, 4:8] *= 10.0  # head 1
    trace = trace_model(model, words(1, 6))
    w_o = np.split(model.stack.blocks[0].attention.output.weight.detach().numpy().T, 3)
    contexts = trace["encoder.0.attention"].context.numpy()
    wanted = [
        np.linalg.norm(context @ rows) / np.linalg.norm(context) for context, rows in zip(contexts, w_o, strict=True)
    ]
    gains = [one.gain for one in readings(trace, "encoder.0.attention")]
    assert gains == pytest.approx(wanted)
    assert gains[1] > 3 * max(gains[0], gains[2])
    without = built(encoder_spec(blocks=(block_spec(attention=AttentionSpec(heads=ch.Heads(3, output=False))),)))
    found = readings(trace_model(without, words(1, 6)), "encoder.0.attention")
    assert [one.gain for one in found] == pytest.approx([1, 1, 1])
