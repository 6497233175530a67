"""Cross-attention of a translation: what is rebuilt is what the model computed, by hand and by its own kernels."""

import math

import pytest
import torch

import clearhead as ch
from clearhead.attention.heads import Heads
from clearhead.errors import OptionError
from clearhead.model import presets
from clearhead.model.arrangements import PostNorm, PreNorm
from clearhead.model.blocks import AttentionSpec
from clearhead.model.presets import Size
from clearhead.taps import watching
from clearhead.text.tokenizer import Tokenizer
from clearhead.training import answers
from clearhead.training.folder import RunFolder
from clearhead.training.looking import CrossWeights, View, clearest, cross_weights, information, views
from clearhead.training.run import Run
from clearhead.training.tasks import Generate, Translate

SOURCE, TARGET = "vier und zwanzig", "twenty-four"
SIZE = Size(2, 32, 4, 2, 48)


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train([SOURCE, TARGET], "char")


@pytest.fixture
def make_run(tmp_path, tokenizer):
    """A run, untrained, of a model with these parts."""

    def made(**parts):
        torch.manual_seed(0)
        task = Translate(tokenizers={"source": tokenizer, "target": tokenizer}, context=40)
        spec = presets.classic(tokenizer.vocabulary, size=SIZE, dropout=0.1, **parts)
        return Run(RunFolder(tmp_path), task, spec.build().eval(), 0)

    return made


def by_hand(run):
    """softmax(QKᵀ / √d) of each decoder block from its weights, walking through the model step by step."""
    model, tokenizer = run.model, run.tokenizer
    source = torch.tensor([[*tokenizer.encode(SOURCE), tokenizer.end]])
    memory, found = model.encoder(source), []
    x = model.decoder.embedding(torch.tensor([[tokenizer.start, *tokenizer.encode(TARGET)]]))
    for block in model.decoder.stack.blocks:
        x = block.around_attention(x, block.attention)
        before = isinstance(run.model.spec.decoder.blocks[0].arrangement, PreNorm)
        inner = block.around_cross.norm(x) if before else x
        query = (inner @ block.cross.query.linear.weight.T)[0].unflatten(-1, (SIZE.n_heads, -1))
        key = (memory @ block.cross.key.linear.weight.T)[0].unflatten(-1, (SIZE.n_kv_heads, -1))
        key = key.repeat_interleave(SIZE.n_heads // SIZE.n_kv_heads, dim=1)
        scores = torch.einsum("qhd,khd->hqk", query, key) / math.sqrt(query.shape[-1])
        found.append(scores.softmax(-1))
        x = block.around_cross(x, lambda inner, cross=block.cross: cross(inner, memory))
        x = block.around_feed_forward(x, block.feed_forward)
    return found


@pytest.mark.parametrize("arrangement", [PreNorm(), PostNorm()])
@torch.no_grad()
def test_the_weights_are_those_computed_by_hand(make_run, arrangement):
    run = make_run(arrangement=arrangement)
    look = cross_weights(run, SOURCE, TARGET)
    assert look.source == [*SOURCE.replace(" ", "▁"), "</s>"]
    assert look.target == [*TARGET, "</s>"]
    for weight, wanted in zip(look.layers, by_hand(run), strict=True):
        assert weight.shape == (SIZE.n_heads, len(look.target), len(look.source))
        torch.testing.assert_close(weight.sum(-1), torch.ones(weight.shape[:-1]), atol=1e-5, rtol=0)
        torch.testing.assert_close(weight, wanted, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    "attention",
    [
        AttentionSpec(heads=Heads(4)),
        AttentionSpec(heads=Heads(4), similarity=ch.similarity.Cosine()),
        AttentionSpec(heads=Heads(4), weighting=ch.weighting.Argmax()),
        AttentionSpec(heads=Heads(4), weighting=ch.weighting.Kernelized("elu")),
        AttentionSpec(heads=Heads(4), position=ch.positions.Rotary()),
    ],
    ids=["softmax", "cosine", "argmax", "kernelized", "rotary"],
)
def test_whatever_the_parts_the_weights_give_the_context_that_the_kernel_gave(make_run, attention):
    run, tapped = make_run(attention=attention), {}
    tokenizer = run.tokenizer
    source = torch.tensor([[*tokenizer.encode(SOURCE), tokenizer.end]])
    target = torch.tensor([[tokenizer.start, *tokenizer.encode(TARGET)]])
    with torch.no_grad(), watching(run.model, tapped.setdefault):
        run.model(source, target)
    for number, weight in enumerate(cross_weights(run, SOURCE, TARGET).layers):
        path = f"decoder.stack.blocks.{number}.cross"
        torch.testing.assert_close(weight @ tapped[f"{path}.value"][0], tapped[f"{path}.context"][0])


def test_without_a_target_it_looks_at_its_own_translation(make_run):
    run = make_run()
    [[hypothesis]] = answers.translate(run.model, run.task, [run.tokenizer.encode(SOURCE)])
    own = cross_weights(run, SOURCE)
    written = [token for token in hypothesis.tokens if token != run.tokenizer.end]
    assert own.target == [*run.tokenizer.pieces(written)[: run.task.context - 1], "</s>"]
    assert [weight.shape[1] for weight in own.layers] == [len(own.target)] * 2


def test_a_text_longer_than_the_context_is_cut(make_run):
    look = cross_weights(make_run(), SOURCE * 10, TARGET * 10)
    assert (len(look.source), len(look.target)) == (40, 40)
    assert [weight.shape[1:] for weight in look.layers] == [(40, 40)] * 2


def test_a_model_in_training_stays_in_training(make_run):
    run = make_run()
    run.model.train()
    one, other = cross_weights(run, SOURCE, TARGET), cross_weights(run, SOURCE, TARGET)
    assert all(map(torch.equal, one.layers, other.layers))
    assert all(module.training for module in run.model.modules())


def test_what_cannot_be_looked_at_is_told(make_run, tokenizer):
    run = make_run()
    with pytest.raises(OptionError, match="there is no source to look into"):
        cross_weights(run, "  ")
    other = Run(run.folder, Generate(tokenizers={"text": tokenizer}, context=40), run.model, 0)
    with pytest.raises(OptionError, match="was trained to generate, and was asked to translate"):
        cross_weights(other, SOURCE)


def test_the_clearest_view_is_the_one_whose_rows_differ_most():
    sharp, vague, same = torch.eye(3), torch.full((3, 3), 1 / 3), torch.eye(3)[:1].expand(3, 3)
    look = CrossWeights(list("abc"), list("xyz"), [torch.stack([vague, same]), torch.stack([vague, sharp, same])])
    assert views(look) == [View(0, None), View(0, 0), View(0, 1), View(1, None), View(1, 0), View(1, 1), View(1, 2)]
    assert clearest([look, look], views(look)) == View(1, 1)
    assert clearest([look], [View(0, 0), View(1, None)]) == View(1, None)
    assert torch.equal(View(1, 1).of(look), sharp)
    torch.testing.assert_close(View(0, None).of(look), (vague + same) / 2)


def test_information_is_between_nothing_and_the_number_of_rows():
    torch.manual_seed(0)
    for _ in range(20):
        assert 0 <= information(torch.randn(5, 7).softmax(-1)) <= math.log2(5)
    assert information(torch.eye(8)) == 3
