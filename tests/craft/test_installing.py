"""A design in a head of a model: what it does there, and that it stays as it is while the rest is trained."""

import copy
import gc
import weakref
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load, save
from torch.nn import functional as F

import clearhead as ch
from clearhead.craft import ready
from clearhead.craft.designs import by_position
from clearhead.craft.fitting import fit_content, fit_position, vectors_reaching
from clearhead.craft.inputs import inputs
from clearhead.craft.installing import install
from clearhead.craft.ready import model_of
from clearhead.model import presets
from clearhead.tracing.head_metrics import readings
from clearhead.tracing.trace import trace_model

WORDS, N, AT = 20, 16, "decoder.0.attention"
SIZE = presets.Size(2, 64, 4, 4, 64)


def gpt2(**changes):
    return presets.gpt2(SIZE, vocabulary=WORDS, length=N, dropout=0.0, **changes).build()


def sinusoidal():
    block = replace(presets.classic(WORDS, size=SIZE, dropout=0.0).decoder.blocks[0], cross=None)
    return ch.model.DecoderSpec(vocabulary=WORDS, d_model=64, blocks=(block,) * 2).build()


def rotary():
    return presets.llama(SIZE, vocabulary=WORDS).build()


def texts(count=32):
    """Each token often follows from the one before it, so that there is something to learn."""
    ids = torch.randint(WORDS, (count, N))
    for i in range(1, N):
        ids[:, i] = torch.where(torch.rand(count) < 0.7, (3 * ids[:, i - 1] + 1) % WORDS, ids[:, i])
    return ids


def trained(model, steps=5, decay=0.5):
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=decay)
    for _ in range(steps):
        ids = texts(8)
        optimiser.zero_grad()
        F.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
        optimiser.step()
    return model


def slices(model, head, at=0):
    """The numbers of one head: W_Q, W_K, W_V, their biases, W_O."""
    layer, width = model.stack.blocks[at].attention, 16
    own = slice(head * width, (head + 1) * width)
    maps = (layer.query.linear, layer.key.linear, layer.value.linear)
    biases = [one.bias[own] for one in maps if one.bias is not None]
    return [
        part.detach().clone() for part in (*(one.weight[own] for one in maps), *biases, layer.output.weight[:, own])
    ]


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("make", [sinusoidal, rotary])
@pytest.mark.slow
def test_one_back_is_read_off_the_positions_of_a_model(make):
    model = trained(make())
    put = install(model, fit_position(model, texts(), at=AT, offset=-1), at=AT, head=2)
    found = put.measure(texts())
    assert found.right == 1
    assert found.weight > 0.98
    trace = trace_model(model, texts(1))
    assert readings(trace, trace[AT])[2].previous > 0.98
    assert max(one.previous for i, one in enumerate(readings(trace, trace[AT])) if i != 2) < 0.9


@pytest.mark.slow
def test_the_first_place_is_read_off_learned_positions():
    model = trained(gpt2())
    before = install(model, fit_position(model, texts(), at=AT, absolute=0), at=AT, head=1).measure(texts())
    assert before.right > 0.9
    assert before.weight > 0.8


@pytest.mark.parametrize("make", [gpt2, sinusoidal, rotary])
@pytest.mark.parametrize("at", [AT, "decoder.1.attention"])
@pytest.mark.pairs(1)
@pytest.mark.slow
def test_the_same_token_is_read_off_the_stream(make, at):
    model = trained(make())
    found = install(model, fit_content(model, texts(64), at=at), at=at, head=0).measure(texts())
    assert found.right > 0.95
    assert found.weight > 0.9


@pytest.mark.slow
def test_a_fit_is_for_other_texts_as_well_and_no_better_than_measured():
    model = gpt2()  # random vectors of positions and of tokens, more of them than the stream is wide
    found = install(model, fit_position(model, texts(), at=AT, offset=-1), at=AT, head=0).measure(texts())
    assert 0.3 < found.weight < 0.999  # told as it is, not promised


@pytest.mark.slow
def test_in_an_encoder_decoder_each_side_is_fitted_to_its_own_texts():
    model = presets.classic(WORDS, size=SIZE, dropout=0.0).build()
    at = "encoder.0.attention"
    source, target = texts(16), texts(16)[:, :9]
    put = install(model, fit_position(model, source, target, at=at, offset=1), at=at, head=3)
    assert put.measure(source, target).right > 0.95


def test_what_reaches_a_head_is_what_its_trace_says():
    model, ids = gpt2(), texts(1)
    out = trace_model(model, ids).value("decoder.embedding.out").clone()
    normed = model.stack.blocks[0].around_attention.norm(out)
    assert torch.allclose(vectors_reaching(model, ids, at=AT)[0], normed, atol=1e-6)
    assert not model.stack.blocks[0].attention.query._forward_hooks


def test_a_design_for_the_stream_of_a_model_of_designs_replaces_a_head():
    read = inputs(["a", "b", "c"], 8, room={"found": ["a", "b", "c"]})
    model = model_of(ready.first_token(read), answer="found")
    ids = torch.tensor([[2, 0, 1, 1]])
    assert model(ids).argmax(-1).tolist() == [[2, 2, 2, 2]]
    install(model, ready.previous_token(read), at=AT, head=0)
    assert model(ids).argmax(-1).tolist() == [[2, 2, 0, 1]]


@pytest.mark.slow
@pytest.mark.parametrize("carried", [False, True])
def test_a_frozen_head_stays_bit_for_bit_while_the_rest_is_trained(carried):
    model = trained(gpt2())
    design = fit_content(model, texts(), at=AT)
    if carried:
        design = design.carrying(torch.randn(64, 16), to=torch.randn(16, 64))
    install(model, design, at=AT, head=3)
    own, other = slices(model, 3), slices(model, 2)
    trained(model)
    same = [torch.equal(one, then) for one, then in zip(own, slices(model, 3), strict=True)]
    assert same == ([True] * 7 if carried else [True, True, False, True, True, False, False])
    assert not any(torch.equal(one, then) for one, then in zip(other, slices(model, 2), strict=True))


def test_momentum_from_before_does_not_move_it():
    model = gpt2()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)

    def step():
        optimiser.zero_grad()
        model(texts(4)).pow(2).mean().backward()
        optimiser.step()

    step()
    put = install(model, fit_content(model, texts(), at=AT), at=AT, head=1)
    own = slices(model, 1)[:2]
    step()
    assert all(map(torch.equal, own, slices(model, 1)[:2]))
    gradient = model.stack.blocks[0].attention.query.linear.weight.grad
    assert not gradient[16:32].any()
    assert gradient[:16].any()
    put.release()
    step()
    assert not any(map(torch.equal, own, slices(model, 1)[:2]))


@pytest.mark.slow
@pytest.mark.parametrize("frozen", [True, False])
def test_another_design_takes_the_place_of_a_frozen_one(frozen):
    model = gpt2()
    install(model, fit_content(model, texts(), at=AT), at=AT, head=1)
    install(model, fit_position(model, texts(), at=AT, offset=-1), at=AT, head=1, frozen=frozen)
    own = slices(model, 1)[:2]
    trained(model, steps=2)
    moved = [(one - then).abs().max().item() for one, then in zip(own, slices(model, 1)[:2], strict=True)]
    assert moved == [0, 0] if frozen else 0 < max(moved) < 2  # the first one's numbers do not come back


def test_two_heads_of_a_layer_are_kept_each_and_one_that_may_learn_learns():
    model = gpt2()
    same = fit_content(model, texts(), at=AT)
    install(model, same, at=AT, head=0)
    install(model, same, at=AT, head=1)
    loose = install(model, same, at=AT, head=2, frozen=False)
    before = [slices(model, head)[:2] for head in range(3)]
    trained(model)
    kept = [all(map(torch.equal, one, slices(model, head)[:2])) for head, one in enumerate(before)]
    assert kept == [True, True, False]
    assert "may learn" in str(loose)


def loss(model):
    torch.manual_seed(1)
    ids = texts(64)
    return F.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).item()


@pytest.mark.slow
def test_the_rest_learns_around_it_and_its_sharpness_stays_where_its_inputs_do():
    model = sinusoidal()
    model.embedding.table.requires_grad_(False)  # what reaches the first layer is then always the same
    put = install(model, fit_position(model, texts(), at=AT, offset=-1), at=AT, head=0)
    start, held = loss(model), texts()
    before = put.measure(held)
    trained(model, steps=40, decay=0.01)
    assert loss(model) < 0.7 * start
    assert put.measure(held) == before
    assert before.right == 1


@pytest.mark.slow
def test_what_it_reads_may_move_away_and_measuring_tells():
    model = sinusoidal()
    put = install(model, fit_position(model, texts(), at=AT, offset=-1), at=AT, head=0)
    before = put.measure(texts())
    trained(model, steps=40, decay=0.01)  # the embeddings are learned too, at a high rate
    after = put.measure(texts())
    assert after.weight < before.weight - 0.1
    again = install(model, fit_position(model, texts(), at=AT, offset=-1), at=AT, head=0)
    assert again.measure(texts()).weight > after.weight + 0.1


@pytest.mark.slow
def test_a_saved_model_has_the_weights_and_nothing_frozen():
    model = gpt2()
    install(model, fit_content(model, texts(), at=AT), at=AT, head=3)
    again = gpt2()
    again.load_state_dict(load(save({name: one.clone() for name, one in model.state_dict().items()})))
    assert all(map(torch.equal, slices(again, 3), slices(model, 3)))
    trained(again)
    assert not torch.equal(slices(again, 3)[0], slices(model, 3)[0])
    trained(copied := copy.deepcopy(model))
    assert not torch.equal(slices(copied, 3)[0], slices(model, 3)[0])


@pytest.mark.slow
def test_a_frozen_head_does_not_keep_its_model():
    model = gpt2()
    install(model, fit_content(model, texts(), at=AT), at=AT, head=3)
    layer = weakref.ref(model.stack.blocks[0].attention)
    del model
    gc.collect()
    assert layer() is None
    trained(gpt2(), steps=1)


def test_the_factor_of_the_layer_is_made_up_for():
    read = inputs(["a", "b", "c"], 5)
    design = by_position(read, offset=-1, scale=7.0)
    heads = ch.model.AttentionSpec(heads=ch.Heads(2, d_head=6, d_value=3))
    block = ch.model.BlockSpec(attention=heads, feed_forward=None, arrangement=ch.model.NoNorm())
    model = ch.model.EncoderSpec(vocabulary=3, d_model=8, blocks=(block,), output=None).build()
    install(model, design, at="encoder.0.attention", head=1)
    x = read.vectors(["c", "a", "b", "b", "a"])
    found = model.stack.blocks[0].attention.explain(x)
    assert torch.allclose(found.weight[1], design.weights(["c", "a", "b", "b", "a"]), atol=1e-6)
    assert found.scaled[1].max().item() == pytest.approx(7)


def test_what_does_not_fit_is_refused():
    model, ids = gpt2(), texts(4)
    same = fit_content(model, ids, at=AT)
    narrow = by_position(inputs(["a"], 5), offset=-1)
    wide = by_position(inputs(["a"], 63), offset=-1)
    cosine = gpt2(attention=ch.model.AttentionSpec(heads=4, similarity=ch.similarity.Cosine()))
    sliced = gpt2(attention=ch.model.AttentionSpec(heads=ch.SlicedHeads(4)))
    shared = presets.llama("tiny", vocabulary=WORDS).build()
    both = presets.classic(WORDS, size=SIZE).build()
    for wrong, said in [
        (lambda: install(model, same, at="decoder.7.attention", head=0), "no attention called 'decoder.7.attention'"),
        (lambda: install(model, same, at=AT, head=4), "heads 0 to 3; came 4"),
        (lambda: install(model, narrow, at=AT, head=0), "reads 64 numbers, and 1 back is designed for 6"),
        (lambda: install(model, wide, at=AT, head=0), "a head has 16 numbers .* 1 back needs 63 and 1"),
        (lambda: install(cosine, same, at=AT, head=0), "scores must be dot products"),
        (lambda: install(sliced, same, at=AT, head=0), "see the whole input"),
        (lambda: install(shared, same, at=AT, head=0), "4 query heads share 2 of keys"),
        (lambda: fit_position(model, ids, at=AT), "give offset or absolute"),
        (lambda: fit_position(rotary(), ids, at=AT, absolute=0), "knows distances alone"),
        (
            lambda: fit_position(both, ids, ids, at="decoder.0.cross", offset=0),
            "within one, such as decoder.0.attention",
        ),
        (lambda: fit_position(both, ids, at=AT, offset=0), "token ids for encoder and decoder; came 1"),
        (lambda: same.weights(["a"]), "no block 'token'; there are none: it is the stream of a model"),
    ]:
        with pytest.raises(ch.ClearheadError, match=said):
            wrong()
