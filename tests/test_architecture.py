"""The walks of docs/architecture.md are as short as it says, counted strictly (tests/hops.py)."""

import pytest
import torch

import clearhead as ch
from tests.hops import Hops
from tests.serve.api_serving import serving

RULES = ch.Rules(max_new=4)


@pytest.mark.parametrize("method", [ch.Greedy(), ch.Sample(), ch.Beam(width=2)])
def test_one_generate(method):
    torch.manual_seed(0)
    model = ch.presets.gpt2("tiny", vocabulary=20).build()
    with Hops() as hops:
        ch.generate(model, [[5, 6, 7]], method, rules=RULES)
    [chain] = hops.deepest.values()
    assert any("FullCache" in name for name in chain), chain
    assert len(chain) <= 12, "\n".join(chain)


def test_one_completion(stretch):
    """The event loop's walk to where the job is handed over, and the model's from there."""
    with Hops("Jobs.add", "QueueLink.put") as hops, serving([stretch]) as client:
        hops.deepest.clear()
        client.answer("/v1/completions", prompt="the cat", max_tokens=4)
    walks = "\n\n".join("\n".join(chain) for chain in hops.deepest.values())
    assert "FullCache" in walks, walks
    assert sum(map(len, hops.deepest.values())) <= 25, walks
