"""Prompts read before their sequences join, whole or in pieces."""

import pytest
import torch

from clearhead.decoding.caches import Growing
from clearhead.decoding.slots import Prefill
from clearhead.model import presets

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_prompt_in_pieces_leaves_the_keys_it_leaves_as_a_whole():
    torch.manual_seed(0)
    model = presets.gpt2("tiny", vocabulary=20).build().double().eval()
    prompt = list(range(11))
    with torch.inference_mode():
        whole, pieces = (Prefill(model, [prompt], None, at_once) for at_once in (64, 4))
        assert whole.read_next() == 11
        assert [pieces.read_next() for _ in range(3)] == [4, 4, 3]
    assert whole.done
    assert pieces.done
    for one, other in zip(whole.caches, pieces.caches, strict=True):
        assert isinstance(one, Growing)
        torch.testing.assert_close(other.keys[:, :, :11], one.keys[:, :, :11], rtol=0, atol=1e-12)
