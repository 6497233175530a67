"""Attention rollout, held against numpy and the paper's formula, written out from the heads' weights."""

import numpy as np
import pytest
import torch

import clearhead as ch
from clearhead.model import presets
from clearhead.serve.explorer import Explorer
from clearhead.tracing.trace import trace_model
from tests.serve.asking import ask

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def translated():
    torch.manual_seed(0)
    model = presets.tiny(vocabulary=40).build().eval()
    return trace_model(model, torch.randint(40, (1, 9)), torch.randint(40, (1, 6)))


def by_the_paper(trace, side, layers):
    """A~(l) = A(l) A~(l - 1), where A(l) = 0.5 W(l) + 0.5 I and W(l) is the mean over heads."""
    rolled = np.eye(len(trace.sides[side].ids))
    for layer in range(layers):
        site = trace[f"{side}.{layer}.attention"]
        heads = np.stack([head.weight.double().numpy() for head in site.head])
        rolled = (0.5 * heads.mean(0) + 0.5 * np.eye(rolled.shape[0])) @ rolled
    return rolled


@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_a_side_is_rolled_out_by_the_papers_formula(translated, side):
    layers = translated.sides[side].n_layers
    np.testing.assert_allclose(translated.rollout(side).numpy(), by_the_paper(translated, side, layers), atol=1e-6)
    for layer in range(layers):
        found = translated.rollout(f"{side}.{layer}.attention").numpy()
        np.testing.assert_allclose(found, by_the_paper(translated, side, layer + 1), atol=1e-6)
        np.testing.assert_allclose(found.sum(-1), 1, atol=1e-5)


def test_a_cross_attention_looks_through_the_encoder(translated):
    site = translated["decoder.1.cross"]
    mean = np.stack([head.weight.double().numpy() for head in site.head]).mean(0)
    wanted = mean @ by_the_paper(translated, "encoder", translated.sides["encoder"].n_layers)
    np.testing.assert_allclose(translated.rollout("decoder.1.cross").numpy(), wanted, atol=1e-6)


def test_a_decoder_never_looks_ahead():
    model = presets.gpt2("tiny", vocabulary=40).build().eval()
    found = trace_model(model, torch.randint(40, (1, 8))).rollout("decoder")
    assert torch.equal(found.triu(1), torch.zeros_like(found))


def test_what_is_not_there_is_told(translated):
    with pytest.raises(ch.errors.OptionError, match=r"no 'decoder\.9\.cross' to roll out"):
        translated.rollout("decoder.9.cross")


@pytest.mark.parametrize(("run", "text"), [("translator", "zwei null vier"), ("documents", "the cat eats")])
def test_the_page_has_it_in_tiles(request, run, text):
    explorer = Explorer(request.getfixturevalue(run))
    meta = ask(explorer, "trace", {"source": text})
    trace = explorer.find_trace(meta["id"]).trace
    for site in meta["sites"]:
        asked = {"site": site["name"], "head": "0", "rollout": "1", "step": "weight"}
        wanted = trace.rollout(site["name"])
        assert torch.equal(ask(explorer, "tile", asked, meta["id"]), wanted)
        coarse = ask(explorer, "tile", {**asked, "level": "1"}, meta["id"])
        assert coarse.max() == wanted.max()
        assert coarse.shape == tuple(-(-n // 2) for n in wanted.shape)
        mask = ask(explorer, "tile", {**asked, "step": "allowed"}, meta["id"])
        assert torch.equal(mask, (wanted > 0).float())
    with pytest.raises(ch.errors.OptionError, match="rolled out"):
        ask(explorer, "tile", {**asked, "step": "score"}, meta["id"])
    with pytest.raises(ch.errors.OptionError, match="no tile"):
        ask(explorer, "tile", {**asked, "row": "7"}, meta["id"])
