"""The lean step gives what the forward gives; a model that is looked at takes the forward itself."""

import pytest
import torch
from torch import nn

import clearhead as ch
from clearhead.decoding.session import Session, open_session
from clearhead.model import presets

SPECS = {
    "tiny": presets.tiny(23),
    "gpt2": presets.gpt2("tiny", vocabulary=23, length=30),
    "llama": presets.llama("tiny", vocabulary=23),
    "pre-norm": presets.classic(23, size=presets.Size(2, 16, 4, 2, 32), arrangement=ch.model.PreNorm()),
}
PROMPTS = {"equal": [[1, 2], [3, 4]], "ragged": [[1, 2, 5], [3]], "single": [[1], [2]]}


def logits(model, prompts):
    """Of the prompts and of three more tokens, the second row going on from the first's at the end."""
    with torch.no_grad():
        session = open_session(model, [[5, 6, 7], [8, 9]], prompts)
        found = [session.logits, session.extend(torch.tensor([4, 5]))]
        session.select(torch.tensor([0, 0]))
        return torch.stack([*found, session.extend(torch.tensor([6, 7]))]), session


@pytest.mark.parametrize("prompts", PROMPTS.values(), ids=PROMPTS)
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_it_is_the_forward(spec, prompts, monkeypatch):
    model = spec.build().double().eval()
    lean, session = logits(model, prompts)
    assert session.lean is not None
    with ch.watching(model, lambda name, value: value):
        plain, session = logits(model, prompts)
    assert session.lean is None
    torch.testing.assert_close(lean, plain, rtol=0, atol=1e-11)
    monkeypatch.setattr(products, "WIDE", 1)
    monkeypatch.setattr(products, "LARGE", 1)
    torch.testing.assert_close(logits(model, prompts)[0], plain, rtol=0, atol=1e-11)


def test_a_hook_is_called():
    model, called = presets.gpt2("tiny", vocabulary=23).build().eval(), []
    model.stack.blocks[0].attention.output.register_forward_hook(lambda *_: called.append(1))
    with torch.no_grad():
        Session(model, [[1]]).extend(torch.tensor([2]))
    assert len(called) == 2


def test_a_map_of_another_class_runs_as_it_is():
    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    model = presets.gpt2("tiny", vocabulary=23).build().double().eval()
    for block in model.stack.blocks:
        for owner, name in ((block.attention.query, "linear"), (block.attention, "output"), (block.feed_forward, "up")):
            old = getattr(owner, name)
            new = Doubled(old.in_features, old.out_features, dtype=torch.float64)
            new.load_state_dict(old.state_dict())
            setattr(owner, name, new)
    with torch.no_grad():
        session = Session(model, [[1]])
        found = session.extend(torch.tensor([2]))
        torch.testing.assert_close(found, model(torch.tensor([[1, 2]]))[:, -1], rtol=0, atol=1e-11)


def test_many_logits_are_the_outputs(monkeypatch):
    """Written into memory that is used again, and smaller when rows have left."""
    monkeypatch.setattr("clearhead.decoding.session.MUCH", 1)
    monkeypatch.setattr("clearhead.decoding.session.FEW", 0)
    model = presets.gpt2("tiny", vocabulary=23).build().double().eval()
    with torch.no_grad():
        session = Session(model, [[1], [2], [3]])
        first = session.extend(torch.tensor([4, 5, 6])).clone()
        session.select(torch.tensor([2, 0]), torch.tensor([2, 0]))
        second = session.extend(torch.tensor([7, 8]))
        for row, tokens in ((first[1], [2, 5]), (second[0], [3, 6, 7]), (second[1], [1, 4, 8])):
            torch.testing.assert_close(row, model(torch.tensor([tokens]))[0, -1], rtol=0, atol=1e-11)
