"""Spaces: the cosines are of the trace's own vectors, the scores the head's, and what cannot be compared is told."""

import pytest
import torch

from clearhead.attention.heads import Heads
from clearhead.attention.positions import Rotary
from clearhead.errors import OptionError
from clearhead.model import presets
from clearhead.model.blocks import AttentionSpec
from clearhead.tracing import trace_model
from clearhead.tracing.head_metrics import compare_spaces

TOKENS = torch.tensor([[7, 3, 7, 1, 9]])


def cosine(a, b):
    return torch.cosine_similarity(a[:, None], b[None], dim=-1)


@pytest.mark.parametrize("position", [None, Rotary()])
@pytest.mark.parametrize("heads", [Heads(4), Heads(4, kv=2, d_value=8)])
def test_the_numbers_are_the_traces(heads, position):
    torch.manual_seed(3)
    attention = AttentionSpec(heads=heads, position=position)
    trace = trace_model(presets.gpt2("tiny", vocabulary=20, attention=attention).build(), TOKENS)
    for head in range(4):
        found = compare_spaces(trace, "decoder.1.attention", head)
        own = trace["decoder.1.attention"].head[head]
        embedding = trace.value("decoder.embedding.token")
        torch.testing.assert_close(found.embedding, cosine(embedding, embedding))
        torch.testing.assert_close(found.query_key, cosine(own.query, own.key))
        torch.testing.assert_close(found.value, cosine(own.value, own.value))
        torch.testing.assert_close(found.score, own.score)
    assert found.embedding[0, 2].item() == pytest.approx(1)
    assert (found.places, found.tokens) == ((0, 1, 2, 3, 4), ("7", "3", "7", "1", "9"))


def test_some_tokens_in_the_order_asked_for():
    trace = trace_model(presets.gpt2("tiny", vocabulary=20).build(), TOKENS)
    every = compare_spaces(trace, "decoder.0.attention", 1)
    some = compare_spaces(trace, "decoder.0.attention", 1, [4, 0])
    assert some.tokens == ("9", "7")
    for name in ("embedding", "query_key", "score", "value"):
        torch.testing.assert_close(getattr(some, name), getattr(every, name)[[4, 0]][:, [4, 0]])


def test_what_cannot_be_compared_is_told():
    trace = trace_model(presets.tiny(vocabulary=20).build(), TOKENS, TOKENS[:, :2])
    assert compare_spaces(trace, "decoder.0.attention", 0).value.shape == (2, 2)
    with pytest.raises(OptionError, match="choose a self-attention"):
        compare_spaces(trace, "decoder.0.cross", 0)
    with pytest.raises(OptionError, match="there is no head 9; there are 4"):
        compare_spaces(trace, "decoder.0.attention", 9)
    for places in ([], [2], [-1]):
        with pytest.raises(OptionError, match="places: expected one or more from 0 to 1"):
            compare_spaces(trace, "decoder.0.attention", 0, places)
