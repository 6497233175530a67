"""The fast step gives what the forward gives; a model that is watched or hooked runs the forward itself."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn

import clearhead as ch
from clearhead.attention import cpu_matmul
from clearhead.model import presets
from clearhead.model.arrangements import BranchConnection, NormFirst
from clearhead.model.fast_step import linear_step
from clearhead.model.feedforward import Network
from clearhead.model.norms import BuiltLayerNorm
from tests.decoding.rows import Rows

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
        session = Rows(model, prompts, [[5, 6, 7], [8, 9]])
        found = [session.logits, session.extend(torch.tensor([4, 5]))]
        session.select(torch.tensor([0, 0]))
        return torch.stack([*found, session.extend(torch.tensor([6, 7]))]), session


@pytest.mark.parametrize("prompts", PROMPTS.values(), ids=PROMPTS)
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_it_is_the_forward(spec, prompts, monkeypatch):
    model = spec.build().double().eval()
    fast, session = logits(model, prompts)
    assert session.fast_step is not None
    with ch.watching(model, lambda name, value: value):
        plain, session = logits(model, prompts)
    assert session.fast_step is None
    torch.testing.assert_close(fast, plain, rtol=0, atol=1e-11)
    monkeypatch.setattr(cpu_matmul, "WIDE", 1)
    monkeypatch.setattr(cpu_matmul, "LARGE", 1)
    torch.testing.assert_close(logits(model, prompts)[0], plain, rtol=0, atol=1e-11)
    monkeypatch.setattr(cpu_matmul, "ONEDNN", torch.ops.mkldnn._linear_pointwise.default)
    packed, _ = logits(model.float(), prompts)
    torch.testing.assert_close(packed.double(), plain, rtol=0, atol=1e-4)


def test_a_hook_is_called():
    model, called = presets.gpt2("tiny", vocabulary=23).build().eval(), []
    model.stack.blocks[0].attention.output.register_forward_hook(lambda *_: called.append(1))
    with torch.no_grad():
        Rows(model, [[1]]).extend(torch.tensor([2]))
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
        session = Rows(model, [[1]])
        found = session.extend(torch.tensor([2]))
        torch.testing.assert_close(found, model(torch.tensor([[1, 2]]))[:, -1], rtol=0, atol=1e-11)


class Shifted(nn.Module):
    """A user's own norm: an ordinary torch module, without a fast step."""

    def forward(self, x):
        return x - x.mean(-1, keepdim=True) + 0.25


@dataclass(frozen=True)
class Shift(ch.model.Norm):
    def build(self, d_model):
        return Shifted()


class Squared(Network):
    """A user's own feed-forward. `calls` counts how often its forward runs."""

    def __init__(self, d_model, d_ff):
        super().__init__()
        self.up, self.down = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.down(self.up(x).relu().square())


class QuickSquared(Squared):
    """The same with a fast step of its own."""

    def fast_step(self):
        up, down = linear_step(self.up), linear_step(self.down)
        return lambda x: down(up(x).relu().square())


@dataclass(frozen=True)
class Square(ch.model.FeedForward):
    kind: type = Squared

    def build(self, d_model):
        return self.kind(d_model, self.d_ff)


class Halved(BranchConnection):
    """A user's own connection: half of the branch."""

    def forward(self, x, branch):
        return x + 0.5 * branch(x)


@dataclass(frozen=True)
class Half(ch.model.Arrangement):
    def around(self, branch, d_model, dropout):
        return Halved(dropout)


@pytest.mark.parametrize("kind", [Squared, QuickSquared])
@pytest.mark.parametrize("arrangement", [ch.model.PreNorm(Shift()), ch.model.PostNorm(Shift()), Half()])
def test_parts_of_the_users_own(kind, arrangement):
    """A norm, feed-forward or connection without a fast step is called; one that has a step is not."""
    block = ch.model.BlockSpec(
        attention=ch.model.AttentionSpec(heads=2), feed_forward=Square(8, kind), arrangement=arrangement
    )
    model = ch.model.DecoderSpec(vocabulary=11, d_model=8, blocks=(block,) * 2).build().double().eval()
    with torch.no_grad():
        session = Rows(model, [[1]])
        assert session.fast_step is not None
        found = session.extend(torch.tensor([2]))
        calls = [block.feed_forward.calls for block in model.stack.blocks]
        torch.testing.assert_close(found, model(torch.tensor([[1, 2]]))[:, -1], rtol=0, atol=1e-11)
    assert calls == [2 if kind is Squared else 0] * 2


def test_a_subclass_that_changes_the_forward_alone_is_called():
    """It would otherwise inherit a fast step that computes something else."""

    class Louder(BuiltLayerNorm):
        def forward(self, x):
            return 3 * super().forward(x)

    class Backwards(NormFirst):
        def forward(self, x, branch):
            return x - branch(self.norm(x))

    model = presets.gpt2("tiny", vocabulary=23).build().double().eval()
    for block in model.stack.blocks:
        block.around_attention.norm.__class__ = Louder
        block.around_feed_forward.__class__ = Backwards
    with torch.no_grad():
        session = Rows(model, [[1]])
        found = session.extend(torch.tensor([2]))
        torch.testing.assert_close(found, model(torch.tensor([[1, 2]]))[:, -1], rtol=0, atol=1e-11)


def test_many_logits_are_the_outputs(monkeypatch):
    """Written into memory that is used again, and smaller when rows have left."""
    monkeypatch.setattr("clearhead.decoding.session.MUCH", 1)
    monkeypatch.setattr("clearhead.decoding.session.FEW", 0)
    model = presets.gpt2("tiny", vocabulary=23).build().double().eval()
    with torch.no_grad():
        session = Rows(model, [[1], [2], [3]])
        first = session.extend(torch.tensor([4, 5, 6])).clone()
        session.select(torch.tensor([2, 0]))
        second = session.extend(torch.tensor([7, 8]))
        for row, tokens in ((first[1], [2, 5]), (second[0], [3, 6, 7]), (second[1], [1, 4, 8])):
            torch.testing.assert_close(row, model(torch.tensor([tokens]))[0, -1], rtol=0, atol=1e-11)
