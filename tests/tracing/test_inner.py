"""Every inner value has a name in the trace, and is what passed there; what is not stored is made again."""

import contextlib
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import clearhead as ch
from clearhead.errors import OptionError, TraceError
from clearhead.model import presets
from clearhead.model.arrangements import Arrangement, BranchConnection, ConnectionStep, ParallelNorm, SandwichNorm
from clearhead.model.blocks import AttentionSpec
from clearhead.model.fast_step import ModuleStep
from clearhead.model.feedforward import FeedForward, Network
from clearhead.model.norms import LayerNorm, Norm
from clearhead.model.outputs import Blanks, Classes
from clearhead.serve.explorer import Explorer
from clearhead.taps import replacing
from clearhead.tracing import inner as surprise_module
from clearhead.tracing.names import Names
from clearhead.tracing.recording import recording
from clearhead.tracing.trace import make_trace, trace_model
from tests.circuits.random_models import make
from tests.covering import few
from tests.decoding.models import build, models
from tests.model.small import SIZE, WORDS, block_spec, both_spec, built, decoder_spec, encoder_spec, words
from tests.rounding import assert_equal_but_rounding
from tests.serve.asking import ask
from tests.tracing.observing import observed
from tests.tracing.test_trace import inputs

MODELS = models()
SPECS = {
    "encoder-decoder": both_spec(),
    "gpt2": presets.gpt2(SIZE, vocabulary=WORDS),
    "llama": presets.llama(SIZE, vocabulary=WORDS),
    "bert": presets.bert(SIZE, vocabulary=WORDS),
    "fill": encoder_spec(output=Blanks()),
    "classes of the mean": encoder_spec(output=Classes(3, pool="mean")),
    "classes as BERT has them": encoder_spec(output=Classes(3, hidden=True)),
    "vectors": encoder_spec(),
    **{
        name: decoder_spec(blocks=(block_spec(arrangement=arrangement),) * 2)
        for name, arrangement in {
            "parallel": ParallelNorm(),
            "one norm for both": ParallelNorm(shared=True),
            "sandwich": SandwichNorm(),
            "norm of the branch": SandwichNorm(before=False),
        }.items()
    },
    "capped, with one norm for all heads": decoder_spec(
        blocks=(
            block_spec(
                attention=AttentionSpec(
                    heads=ch.Heads(3, kv=1, d_head=4, qk_norm=ch.model.RMSNorm(), qk_norm_joint=True),
                    similarity=ch.similarity.CappedDot(cap=1.5),
                    position=ch.positions.Rotary(),
                )
            ),
        )
        * 2,
        output=ch.model.NextToken(cap=2.0),
    ),
    "a token without a position": encoder_spec(
        embedding=ch.model.Embedding(position=ch.positions.Learned(9, first=1, skips=3), segments=2)
    ),
    "low-rank values": decoder_spec(
        blocks=(block_spec(attention=AttentionSpec(heads=ch.Heads(4, kv=2, value_rank=2))),)
    ),
    "low-rank values of slices": encoder_spec(
        blocks=(block_spec(attention=AttentionSpec(heads=ch.SlicedHeads(3, value_rank=2, bias=True))),)
    ),
}


def tokens_for(model):
    return [words(1, 7), words(1, 5)] if len(model.stacks) > 1 else [words(1, 5)]


def assert_complete(trace, wanted):
    assert set(trace.names) == set(wanted)
    assert len(trace.names) == len(set(trace.names))
    for name in trace.names:
        found = trace.value(name)
        assert found.shape == wanted[name].shape, name
        torch.testing.assert_close(found, wanted[name].to(found.dtype), rtol=1e-6, atol=1e-9, msg=name)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_every_name_has_the_value_that_passed_there(spec):
    model = built(spec)
    tokens = tokens_for(model)
    assert_complete(trace_model(model, *tokens), observed(model, *tokens))


@pytest.mark.parametrize("choices", few(MODELS[::9], 8), ids=str)
def test_every_name_of_every_kind_of_model(choices):
    model = build(choices)
    tokens = inputs(model)
    assert_complete(trace_model(model, *tokens), observed(model, *tokens))


@pytest.mark.parametrize("choices", few(MODELS[4::40], 3), ids=str)
@pytest.mark.slow
def test_a_few_rows_are_rows_of_the_whole(choices):
    model = build(choices)
    trace = trace_model(model, *inputs(model))
    for name in trace.names:
        whole, part = trace.value(name), trace.value(name, slice(2, 4))
        if part.shape != whole.shape:
            torch.testing.assert_close(part, whole[:, 2:4] if whole.ndim == 3 else whole[2:4], rtol=1e-9, atol=1e-9)


def test_the_feed_forward_s_hidden_units_have_their_name():
    model = built(decoder_spec())
    trace = trace_model(model, words(1))
    network = model.stack.blocks[0].feed_forward
    with torch.no_grad():
        before = network.up(trace.value("decoder.0.feed_forward.normed"))
    torch.testing.assert_close(trace.value("decoder.0.feed_forward.pre_activation"), before)
    torch.testing.assert_close(trace.value("decoder.0.feed_forward.hidden"), before.relu())


def test_nothing_more_is_stored_than_the_stream_and_the_attentions():
    model = built(both_spec())
    with recording(model) as record:
        model(words(1, 7), words(1, 5))
    assert set(record.stream) == set(Names(model).stream.values())
    assert len(record.stream) < len(Names(model).all) / 5


def test_a_name_there_is_not_is_told_with_those_near_it():
    trace = trace_model(built(decoder_spec()), words(1))
    with pytest.raises(OptionError, match=r"no 'decoder\.0\.feed_forward\.hid'.*decoder\.0\.feed_forward\.hidden"):
        trace.value("decoder.0.feed_forward.hid")


@pytest.mark.parametrize(
    "name",
    ["decoder.1.feed_forward.hidden", "decoder.1.attention.normed", "decoder.norm.mean", "decoder.embedding.position"],
)
def test_weights_that_have_changed_since_are_an_error(name):
    model = built(decoder_spec(embedding=ch.model.Embedding(position=ch.positions.Learned(8))))
    trace = trace_model(model, words(1))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1e-3)
    with pytest.raises(TraceError, match=r"made again from what was recorded it is off by .* Trace it anew"):
        trace.value(name)


def test_a_pass_with_dropout_is_not_passed_off_as_one_without():
    spec = decoder_spec(blocks=(block_spec(dropout=0.5),) * 2)
    model = built(spec).train()
    with recording(model) as record:
        model(words(1))
    trace = make_trace(model, record, {"decoder": words(1)[0].tolist()})
    with pytest.raises(TraceError, match="traced in training mode with dropout"):
        trace.value("decoder.0.feed_forward.hidden")


def test_half_precision_is_held_to_its_own_tolerance():
    model = built(decoder_spec()).to(torch.bfloat16)
    trace = trace_model(model, words(1))
    for name in trace.names:
        assert trace.value(name).isfinite().all() or name.endswith(".masked")


EDITS = {
    "a hidden unit": ch.Edit(at="encoder.0.feed_forward", step="hidden", unit=3, to=2.0),
    "before the non-linearity": ch.Edit(at="decoder.1.feed_forward", step="pre_activation", query=2, times=-1.0),
    "after a norm": ch.Edit(at="decoder.0.cross", step="normed", query=1, times=0.0),
    "out of an attention": ch.Edit(at="decoder.0.attention", step="out", times=2.0),
    "one number of the concatenation": ch.Edit(at="encoder.1.attention", step="concat", unit=0, to=1.0),
    "the position of a token": ch.Edit(at="encoder.embedding", step="position", query=2, times=0.0),
    "a logit": ch.Edit(at="decoder.output", step="logits", query=4, unit=1, to=9.0),
    "a number of a head's context": ch.Edit(at="decoder.1.cross", step="context", head=1, unit=2, times=0.0),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
@pytest.mark.slow
def test_what_is_changed_by_name_is_changed_there_and_after_it(edit):
    """The same as putting the value in by a tap; and the changed trace is complete."""
    model, tokens = built(both_spec()), [words(1, 7), words(1, 5)]
    path = {name: path for path, name in Names(model).taps.items()}.get(edit.name)
    path = path or f"{Names(model).paths[edit.at]}.{edit.step}"

    def replaced(seen, value):
        if seen != path:
            return value
        value = value.clone()
        rows = value[..., slice(None) if edit.query is None else edit.query, :]
        rows = rows if edit.head is None else value[:, edit.head]
        part = rows[..., slice(None) if edit.unit is None else edit.unit]
        part.copy_(part * edit.times if edit.to is None else torch.full_like(part, edit.to))
        changed.append(value)
        return value

    changed = []
    with torch.no_grad():
        plain = model(*tokens)
        with replacing(model, replaced):
            wanted = model(*tokens)
        with recording(model, [edit]):
            found = model(*tokens)
    assert not torch.equal(plain, wanted)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    trace = trace_model(model, *tokens, changes=[edit])
    torch.testing.assert_close(trace.value("decoder.output.logits"), wanted[0])
    found = trace.value(edit.name)
    torch.testing.assert_close(found, changed[0].view_as(found))  # of a batch of one
    for name in trace.names:
        assert trace.value(name, slice(1, 2)).isfinite().all() or name.endswith(".masked")


@pytest.mark.parametrize("name", ["encoder.0.attention.norm.mean", "decoder.output.probability"])
def test_what_is_worked_out_or_learned_cannot_be_changed(name):
    at, _, step = name.rpartition(".")
    with pytest.raises(OptionError, match=f"{name} cannot be changed"):
        trace_model(built(both_spec()), words(1), words(1), changes=[ch.Edit(at=at, step=step, times=0.0)])


def test_a_unit_that_is_not_there_is_told():
    edit = ch.Edit(at="decoder.0.feed_forward", step="hidden", unit=20, times=0.0)
    with pytest.raises(OptionError, match=r"unit 20 is changed, and there are 20, counted from 0"):
        trace_model(built(decoder_spec()), words(1), changes=[edit])


@pytest.mark.slow
def test_a_loaded_trace_has_everything_with_its_model_and_says_what_is_missing_without(tmp_path):
    model = built(both_spec())
    trace = trace_model(model, words(1, 7), words(1, 5))
    trace.save(tmp_path / "a.trace")
    whole, alone = ch.Trace.load(tmp_path / "a.trace", model), ch.Trace.load(tmp_path / "a.trace")
    assert whole.names == trace.names
    assert set(alone.names) < set(trace.names)
    assert {"encoder.0.attention.weight", "encoder.0.attention.residual"} < set(alone.names)
    for name in trace.names:
        for loaded in (whole, alone) if name in alone.names else (whole,):
            assert_equal_but_rounding(loaded.value(name), trace.value(name), name)
            assert name not in trace.stream or torch.equal(loaded.value(name), trace.value(name)), name
    with pytest.raises(TraceError, match=r"made by its model: Trace\.load\(path, model\)"):
        alone.value("encoder.0.feed_forward.hidden")


def test_the_terms_of_a_linear_map_come_to_its_number():
    model = built(presets.llama(SIZE, vocabulary=WORDS))
    trace = trace_model(model, words(1))
    assert trace.inner is not None
    for name in trace.inner.names.maps:
        value = trace.value(name, slice(2, 3))
        place = (1, 3) if value.ndim == 3 else (3,)
        made = trace.inner.products(name, 2, place)
        wanted = value[1, 0, 3] if value.ndim == 3 else value[0, 3]
        torch.testing.assert_close((made.x * made.weight).sum() + made.bias, wanted, msg=name)
    with pytest.raises(OptionError, match="no sum of products"):
        trace.inner.products("decoder.0.feed_forward.hidden", 2, (3,))


class Sandwich(BranchConnection):
    """A connection of the user's own: a norm before the branch and one after it."""

    steps: ClassVar[tuple[ConnectionStep, ...]] = (
        ConnectionStep("norm", "normed", "norm"),
        ConnectionStep("branch"),
        ConnectionStep("norm", "renormed", "second"),
        ConnectionStep("add", "residual"),
    )

    def __init__(self, d_model):
        super().__init__(0.0, LayerNorm().build(d_model))
        self.second = LayerNorm().build(d_model)

    def forward(self, x, branch):
        normed = self.tap("normed", self.norm(x))
        return self.tap("residual", x + self.tap("renormed", self.second(branch(normed))))


@dataclass(frozen=True)
class Sandwiched(Arrangement):
    def around(self, branch, d_model, dropout):
        return Sandwich(d_model)


@dataclass(frozen=True)
class PlainNorm(Norm):
    """A norm that says nothing of its steps."""

    def build(self, d_model):
        return nn.LayerNorm(d_model)


@dataclass(frozen=True)
class Shifted(FeedForward):
    """A feed-forward that also reads the token before."""

    def build(self, d_model):
        return ShiftedNetwork(d_model, self.d_ff)


class ShiftedNetwork(Network):
    def __init__(self, d_model, d_ff):
        super().__init__()
        self.up, self.down = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)

    @property
    def steps(self):
        return (ModuleStep("hidden", "the token and the one before"), ModuleStep("out", map="down", of="hidden"))

    def forward(self, x):
        shifted = nn.functional.pad(x, (0, 0, 1, 0))[..., :-1, :]
        return self.tap("out", self.down(self.tap("hidden", self.up(x + shifted).tanh())))


@pytest.mark.slow
def test_parts_of_the_user_s_own_are_named_and_made_again():
    own = block_spec(arrangement=Sandwiched(), feed_forward=Shifted(20))
    other = block_spec(arrangement=replace(block_spec().arrangement, norm=PlainNorm()))
    model = built(decoder_spec(blocks=(own, other)))
    tokens = words(1)
    trace, wanted = trace_model(model, tokens), observed(model, tokens)
    assert_complete(trace, wanted)
    assert "decoder.0.feed_forward.second.variance" in trace.names
    torch.testing.assert_close(
        trace.value("decoder.0.feed_forward.hidden", slice(3, 4)), wanted["decoder.0.feed_forward.hidden"][3:4]
    )


class Untapped(Network):
    """A network of a user's own that says nothing of what it makes."""

    def __init__(self, d_model, d_ff):
        super().__init__()
        self.up, self.down = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)

    def forward(self, x):
        return self.down(torch.tanh(self.up(x)))


@dataclass(frozen=True)
class Tanh(FeedForward):
    def build(self, d_model):
        return Untapped(d_model, self.d_ff)


def test_a_network_that_taps_nothing_has_the_value_it_returns():
    model = built(decoder_spec(blocks=(block_spec(feed_forward=Tanh(12)),)))
    [network] = [module for module in model.modules() if isinstance(module, Untapped)][:1]
    returned = []
    with contextlib.ExitStack() as hooks:
        hooks.callback(network.register_forward_hook(lambda module, args, out: returned.append(out[0])).remove)
        trace = trace_model(model, words(1, 5))
    torch.testing.assert_close(trace.value("decoder.0.feed_forward.out"), returned[0])


def test_terms_of_sliced_heads_are_those_of_the_slice():
    """Head 2 of 3 reads numbers 8 to 11 of 12: four products, and no zeros for the rest."""
    model = built(encoder_spec(blocks=(block_spec(attention=AttentionSpec(heads=ch.SlicedHeads(3, value_rank=2))),)))
    trace = trace_model(model, words(1, 5))
    assert trace.inner is not None
    x = trace.value("encoder.0.attention.normed").numpy()
    for step, matrix in (("query", "query.weight"), ("latent_value", "value.down")):
        terms = trace.inner.products(f"encoder.0.attention.{step}", 4, (2, 1))
        weight = model.stack.blocks[0].attention.get_parameter(matrix).detach().numpy()
        assert (terms.start, terms.x.tolist()) == (8, x[4, 8:12].tolist())
        np.testing.assert_allclose(terms.weight.numpy(), weight[2, :, 1])
        np.testing.assert_allclose(trace.value(f"encoder.0.attention.{step}")[2, 4, 1], x[4, 8:12] @ weight[2, :, 1])
    up = trace.inner.products("encoder.0.attention.value", 4, (2, 3))
    assert up.start == 0
    np.testing.assert_allclose(up.x.numpy(), trace.value("encoder.0.attention.latent_value")[2, 4])


def test_rows_of_what_comes_before_rotary_are_those_asked_for_in_a_changed_model():
    """A change makes it compute all rows; the row of another token is then not the answer."""
    model = built(presets.llama(SIZE, vocabulary=WORDS))
    off = ch.Edit(at="decoder.0.attention", step="context", head=0, times=0.0)
    trace = trace_model(model, words(1, 5), changes=[off])
    for name in ("decoder.1.attention.projected_query", "decoder.1.attention.projected_key"):
        assert_equal_but_rounding(trace.value(name, slice(3, 4)), trace.value(name)[:, 3:4])


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


def test_a_language_model_is_surprised_at_the_place_before(monkeypatch):
    monkeypatch.setattr(surprise_module, "ROWS", 2)
    case = make("pre")
    tokens = case.clean.tokens["decoder"][:1]
    with torch.no_grad():
        expected = F.cross_entropy(case.model(tokens)[0, :-1], tokens[0, 1:], reduction="none")
    found = trace_model(case.model, tokens).surprise
    assert found[0].isnan()
    assert found[1:].tolist() == pytest.approx(expected.tolist(), abs=1e-12)


def test_a_model_of_blanks_at_the_token_itself():
    case = make("post")
    tokens = case.clean.tokens["encoder"][:1]
    with torch.no_grad():
        expected = F.cross_entropy(case.model(tokens)[0], tokens[0], reduction="none")
    assert trace_model(case.model, tokens).surprise.tolist() == pytest.approx(expected.tolist(), abs=1e-12)


def test_a_translator_is_surprised_by_its_target_and_a_classifier_by_nothing():
    case = make("both-pre")
    trace = trace_model(case.model, *(rows[:1] for rows in case.clean.tokens.values()))
    assert len(trace.surprise) == 5
    assert trace.surprise[0].isnan()
    case = make("classes")
    with pytest.raises(OptionError, match="does not predict tokens"):
        _ = trace_model(case.model, case.clean.tokens["encoder"][:1]).surprise
