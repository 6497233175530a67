"""Blocks are their formulas, whatever stands in their slots; embeddings and outputs likewise."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import clearhead as ch
from clearhead.attention.positions import T5Bias
from clearhead.errors import OptionError, ShapeError
from clearhead.model.arrangements import NoNorm, PostNorm, PreNorm, SingleResidualNorm
from clearhead.model.blocks import (
    AttentionSpec,
    Block,
    BlockSpec,
    FromMemory,
    FromSelf,
    KVSources,
    Stack,
    checkpoint_module,
)
from clearhead.model.embedding import Embedding
from clearhead.model.feedforward import GELU, GeGLU, ReLU, SiLU, SwiGLU
from clearhead.model.norms import LayerNorm, RMSNorm
from clearhead.model.outputs import Blanks, Classes, NextToken
from clearhead.model.sizes import named
from clearhead.model.transformers import DecoderSpec
from clearhead.taps import watching
from tests.model.small import MEMORY, WORDS, D, N, block_spec, both_spec, built, decoder_spec, encoder_spec, words

FEED_FORWARDS = {
    "relu": ReLU(20),
    "relu without bias": ReLU(20, bias=False),
    "gelu": GELU(20),
    "gelu by tanh": GELU(20, form="tanh"),
    "silu": SiLU(20),
    "swiglu": SwiGLU(20),
    "swiglu with bias": SwiGLU(20, bias=True),
    "geglu": GeGLU(20, form="tanh"),
    "none": None,
}
NORMS = {
    "layer": LayerNorm(),
    "layer without beta": LayerNorm(bias=False),
    "rms": RMSNorm(),
    "rms from one": RMSNorm(from_one=True),
}
ARRANGEMENTS = {
    "pre": PreNorm,
    "post": PostNorm,
    "note": SingleResidualNorm,
    "no norm": lambda norm: NoNorm(),
}


def plain_attention(layer, x, memory):
    query, key, value = (
        (source @ getattr(layer, name).linear.weight.T).unflatten(-1, (3, -1)).transpose(1, 2)
        for name, source in (("query", x), ("key", memory), ("value", memory))
    )
    weight = torch.softmax(query @ key.mT / math.sqrt(D / 3), -1)
    return (weight @ value).transpose(1, 2).flatten(2) @ layer.output.weight.T


def plain_map(linear, x):
    return x @ linear.weight.T + (0 if linear.bias is None else linear.bias)


def plain_feed_forward(name, network, x):
    if name.startswith("swiglu"):
        gate = plain_map(network.gate, x)
        return plain_map(network.down, gate * torch.sigmoid(gate) * plain_map(network.up, x))
    hidden = plain_map(network.up, x)
    if name == "geglu":
        gate = plain_map(network.gate, x)
        tanh = torch.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3))
        return plain_map(network.down, gate * (1 + tanh) / 2 * hidden)
    kinds = {
        "relu": hidden.clamp(min=0),
        "silu": hidden * torch.sigmoid(hidden),
        "gelu": hidden * (1 + torch.erf(hidden / math.sqrt(2))) / 2,
        "gelu by tanh": hidden * (1 + torch.tanh(math.sqrt(2 / math.pi) * (hidden + 0.044715 * hidden**3))) / 2,
    }
    return plain_map(network.down, kinds[name.removesuffix(" without bias")])


def plain_norm(name, norm, x):
    if name.startswith("rms"):
        gamma = 1 + norm.gamma if name == "rms from one" else norm.gamma
        return gamma * x / torch.sqrt(x.square().mean(-1, keepdim=True) + 1e-6)
    mean = x.mean(-1, keepdim=True)
    variance = (x - mean).square().mean(-1, keepdim=True)
    return norm.gamma * (x - mean) / torch.sqrt(variance + 1e-5) + (0 if norm.beta is None else norm.beta)


def plain_block(arrangement, block, branches, norm):
    """From the input on, through the branches, each with the connection around it."""

    def run(x):
        for branch, around in branches:
            if arrangement == "pre":
                x = x + branch(norm(around.norm, x))
            elif arrangement == "post":
                x = norm(around.norm, x + branch(x))
            elif arrangement == "no norm":
                x = x + branch(x)
            else:  # the note's: attention alone, and norm(FFN(a) + a)
                x = norm(around.norm, branch(x) + x) if around is block.around_feed_forward else branch(x)
        return x

    return run


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
@pytest.mark.parametrize("feed_forward", FEED_FORWARDS)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("crossing", [False, True], ids=["alone", "crossing"])
@pytest.mark.pairs
def test_a_block_is_its_formula(arrangement, feed_forward, norm, crossing):
    if arrangement == "note" and feed_forward == "none":
        with pytest.raises(
            OptionError, match=r"SingleResidualNorm is norm\(FFN\(a\) \+ a\): this block has no feed-forward"
        ):
            block_spec(arrangement=SingleResidualNorm(), feed_forward=None)
        return
    spec = block_spec(
        arrangement=ARRANGEMENTS[arrangement](NORMS[norm]),
        feed_forward=FEED_FORWARDS[feed_forward],
        cross=AttentionSpec(heads=3) if crossing else None,
    )
    block = Block(spec, D).double()
    for parameter in block.parameters():
        nn.init.normal_(parameter)
    x, memory = torch.randn(2, N, D, dtype=torch.float64), torch.randn(2, MEMORY, D, dtype=torch.float64)
    branches = [(lambda x: plain_attention(block.attention, x, x), block.around_attention)]
    if crossing:
        branches.append((lambda x: plain_attention(block.cross, x, memory), block.around_cross))
    if block.feed_forward is not None:
        branches.append((lambda x: plain_feed_forward(feed_forward, block.feed_forward, x), block.around_feed_forward))
    wanted = plain_block(arrangement, block, branches, lambda module, x: plain_norm(norm, module, x))(x)
    torch.testing.assert_close(block(x, KVSources(FromSelf(), FromMemory(memory))), wanted, rtol=1e-9, atol=1e-9)


def test_the_notes_block_is_the_notes_formula():
    block = Block(block_spec(arrangement=SingleResidualNorm()), D).double()
    x = torch.randn(1, N, D, dtype=torch.float64)
    a = plain_attention(block.attention, x, x)
    hidden = F.relu(a @ block.feed_forward.up.weight.T + block.feed_forward.up.bias)
    wanted = F.layer_norm(hidden @ block.feed_forward.down.weight.T + block.feed_forward.down.bias + a, (D,))
    torch.testing.assert_close(block(x, KVSources(FromSelf())), wanted)


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
@pytest.mark.parametrize("feed_forward", FEED_FORWARDS)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.pairs
def test_every_block_learns_in_every_part(arrangement, feed_forward, norm):
    if arrangement == "note" and feed_forward == "none":
        return
    spec = block_spec(arrangement=ARRANGEMENTS[arrangement](NORMS[norm]), feed_forward=FEED_FORWARDS[feed_forward])
    crossing = replace(spec, cross=AttentionSpec(heads=3))
    model = both_spec(encoder=encoder_spec(blocks=(spec,) * 2), decoder=decoder_spec(blocks=(crossing,) * 2)).build()
    logits = model(words(), words(n=4))
    assert logits.shape == (2, 4, WORDS)
    F.cross_entropy(logits.flatten(0, 1), words(n=4).flatten()).backward()
    still = [name for name, parameter in model.named_parameters() if not parameter.grad.abs().sum() > 0]
    assert still == []


@pytest.mark.parametrize("n_axes", [1, 2, 3])
@pytest.mark.parametrize("epsilon", [1e-5, 1e-12, 0.1])
def test_norms_are_torchs_and_their_formulas(n_axes, epsilon):
    x = torch.randn(3, 4, D, dtype=torch.float64)[(0,) * (3 - n_axes)] * 3 + 1
    layer, without, rms = (
        norm.build(D).double() for norm in (LayerNorm(epsilon), LayerNorm(epsilon, bias=False), RMSNorm(epsilon))
    )
    for norm in (layer, without, rms):
        nn.init.normal_(norm.gamma)
    nn.init.normal_(layer.beta)
    theirs = nn.LayerNorm(D, eps=epsilon, dtype=torch.float64)
    theirs.load_state_dict({"weight": layer.gamma, "bias": layer.beta})
    torch.testing.assert_close(layer(x), theirs(x))
    mean, variance = x.mean(-1, keepdim=True), x.var(-1, unbiased=False, keepdim=True)
    torch.testing.assert_close(layer(x), layer.gamma * (x - mean) / (variance + epsilon).sqrt() + layer.beta)
    torch.testing.assert_close(without(x), without.gamma * (x - mean) / (variance + epsilon).sqrt())
    peer = nn.RMSNorm(D, eps=epsilon, dtype=torch.float64)
    peer.load_state_dict({"weight": rms.gamma})
    torch.testing.assert_close(rms(x), peer(x))
    torch.testing.assert_close(rms(x), rms.gamma * x / (x.square().mean(-1, keepdim=True) + epsilon).sqrt())


def test_norms_start_as_mean_0_and_size_1():
    x = torch.randn(50, 64) * 7 + 3
    normed = LayerNorm().build(64)(x)
    torch.testing.assert_close(normed.mean(-1), torch.zeros(50), atol=1e-5, rtol=0)
    torch.testing.assert_close(normed.var(-1, unbiased=False), torch.ones(50), atol=1e-4, rtol=0)
    torch.testing.assert_close(RMSNorm().build(64)(x).square().mean(-1), torch.ones(50), atol=1e-4, rtol=0)
    assert RMSNorm().build(64)(x).mean() > 0.2  # no mean is taken off
    assert LayerNorm().build(64)(torch.full((1, 64), 5.0)).abs().max() == 0


@pytest.mark.parametrize(
    ("arrangement", "ends"),
    [(PreNorm(), True), (PostNorm(), False), (NoNorm(), False), (SingleResidualNorm(), False)],
    ids=str,
)
def test_only_pre_norm_ends_with_a_norm_of_the_stack(arrangement, ends):
    stack = Stack((block_spec(arrangement=arrangement),) * 2, D)
    assert (stack.norm is not None) == ends
    x, reads = torch.randn(1, N, D), [KVSources(FromSelf())] * 2
    last = stack.blocks[1](stack.blocks[0](x, reads[0]), reads[1])
    wanted = F.layer_norm(last, (D,)) if ends else last
    torch.testing.assert_close(stack(x, reads), wanted)
    if isinstance(arrangement, PostNorm):  # its last vectors are normed, once
        torch.testing.assert_close(stack(x, reads).var(-1, unbiased=False), torch.ones(1, N), atol=1e-3, rtol=0)


@pytest.mark.parametrize("name", ["tiny", "gpt2-tiny", "bert-tiny", "llama-tiny"])
def test_no_two_layers_start_alike(name):
    model = named(name, WORDS).build()
    stacks = [model.stack] if hasattr(model, "stack") else [model.encoder.stack, model.decoder.stack]
    for stack in stacks:
        for one, other in itertools.combinations(stack.blocks, 2):
            theirs = dict(other.named_parameters())
            for part, parameter in one.named_parameters():
                assert parameter is not theirs[part]
                assert parameter.ndim == 1 or not torch.equal(parameter, theirs[part]), part
    tables = {parameter.data_ptr() for parameter in model.parameters()}
    assert len(tables) == len(list(model.parameters()))


def test_layers_of_one_stack_may_differ():
    specs = (
        block_spec(),
        block_spec(attention=AttentionSpec(heads=2, weighting=ch.weighting.Argmax()), feed_forward=SwiGLU(7)),
        block_spec(attention=AttentionSpec(heads=ch.SlicedHeads(4)), feed_forward=None, arrangement=PostNorm()),
    )
    stack = Stack(specs, D)
    x, reads = torch.randn(1, N, D), [KVSources(FromSelf())] * 3
    wanted = x
    for block in stack.blocks:
        wanted = block(wanted, reads[0])
    assert stack.norm is None  # the last is post-norm
    torch.testing.assert_close(stack(x, reads), wanted)
    model = decoder_spec(blocks=specs).build()
    assert model(words()).shape == (2, N, WORDS)


@pytest.mark.parametrize("position", [None, ch.positions.Sinusoidal(), ch.positions.Learned(9)], ids=str)
@pytest.mark.parametrize("norm", [None, LayerNorm()], ids=["bare", "normed"])
@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.pairs
def test_an_embedding_is_its_row_scaled_placed_and_normed(position, norm, scaled):
    embedding, tokens = Embedding(position=position, scaled=scaled, norm=norm).build(WORDS, D), words()
    wanted = embedding.table[tokens] * (math.sqrt(D) if scaled else 1)
    if position is not None:
        wanted = wanted + embedding.position(N)
    if norm is not None:
        wanted = F.layer_norm(wanted, (D,))
    torch.testing.assert_close(embedding(tokens), wanted)
    shifted = embedding(tokens, positions=torch.arange(2, 2 + N))
    torch.testing.assert_close(shifted, embedding(tokens, start=2))
    assert torch.equal(shifted, embedding(tokens)) == (position is None)


@pytest.mark.parametrize("scaled", [True, False])
def test_embeddings_start_with_the_variance_they_say(scaled):
    spec = Embedding(position=None, scaled=scaled)
    vectors = spec.build(500, 64)(torch.arange(500)[None])
    assert vectors.std().item() == pytest.approx(spec.stream(64), rel=0.05)


@pytest.mark.parametrize("frozen", [True, False])
def test_a_frozen_table_gets_no_gradient_and_stays(frozen):
    model = decoder_spec(embedding=Embedding(frozen=frozen), output=NextToken(tied=False)).build()
    before = model.embedding.table.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    F.cross_entropy(model(words()).flatten(0, 1), words().flatten()).backward()
    optimizer.step()
    assert (model.embedding.table.grad is None) == frozen
    assert torch.equal(model.embedding.table, before) == frozen
    assert model.output.table.grad.abs().sum() > 0


@pytest.mark.parametrize("tied", ["none", "two", "three"])
def test_tables_are_tied_as_asked(tied):
    model = both_spec(tied=tied).build()
    source, target, output = model.encoder.embedding.table, model.decoder.embedding.table, model.decoder.output.table
    assert (output is target) == (tied != "none")
    assert (source is target) == (tied == "three")
    assert len({id(table) for table in (source, target, output)}) == {"none": 3, "two": 2, "three": 1}[tied]
    names = [name for name, _ in model.named_parameters() if name.endswith("table")]
    assert len(names) == {"none": 3, "two": 2, "three": 1}[tied]


@pytest.mark.parametrize("of_the_decoder", [True, False])
@pytest.mark.parametrize("tied", ["none", "two", "three"])
def test_the_models_tie_has_the_last_word_over_the_decoders(tied, of_the_decoder):
    crossing = (block_spec(cross=AttentionSpec(heads=3)),) * 2
    spec = both_spec(decoder=decoder_spec(blocks=crossing, output=NextToken(tied=of_the_decoder)), tied=tied)
    model = spec.build()
    assert (model.decoder.output.table is model.decoder.embedding.table) == (tied != "none")


def test_a_tied_table_gets_the_sum_of_the_gradients_of_its_places():
    torch.manual_seed(1)
    tied = both_spec(tied="three").build().double()
    loose = both_spec(tied="none").build().double()
    state = tied.state_dict()
    loose.load_state_dict(state)
    places = ("encoder.embedding.table", "decoder.embedding.table", "decoder.output.table")
    assert all(torch.equal(state[place], state[places[0]]) for place in places)
    source, target, wanted = words(), words(), words()
    for model in (tied, loose):
        F.cross_entropy(model(source, target).flatten(0, 1), wanted.flatten()).backward()
    gradients = [loose.get_parameter(place).grad for place in places]
    assert min(gradient.abs().max() for gradient in gradients) > 0
    torch.testing.assert_close(tied.encoder.embedding.table.grad, sum(gradients))


@pytest.mark.parametrize("tied", [True, False])
def test_a_decoders_output_is_tied_or_not(tied):
    model = decoder_spec(output=NextToken(tied=tied)).build()
    assert (model.output.table is model.embedding.table) == tied
    assert not torch.equal(model.output.table, model.embedding.table) or tied


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("gradients", [True, False])
def test_the_next_token_is_how_well_its_row_fits(bias, gradients):
    model, tokens = built(decoder_spec(output=NextToken(bias=bias))), words()
    seen = {}
    with torch.set_grad_enabled(gradients), watching(model, seen.setdefault):
        logits = model(tokens)
    wanted = seen["stack.normed"] @ model.embedding.table.T + (model.output.bias if bias else 0)
    torch.testing.assert_close(logits, wanted)


def test_blanks_go_through_a_map_gelu_and_a_norm():
    model, tokens = built(encoder_spec(output=Blanks())), words()
    states, output = model.states(tokens), model.output
    first, _, norm = output.transform
    hidden = F.layer_norm(F.gelu(plain_map(first, states)), (D,), norm.gamma, norm.beta, 1e-12)
    torch.testing.assert_close(model(tokens), hidden @ model.embedding.table.T + output.bias)
    plain = built(encoder_spec(output=Blanks(transform=False, bias=False, tied=False)))
    torch.testing.assert_close(plain(tokens), plain.states(tokens) @ plain.output.table.T)


@pytest.mark.parametrize("lengths", [None, [5, 3, 1]], ids=["whole", "ragged"])
@pytest.mark.parametrize("hidden", [True, False])
@pytest.mark.parametrize("pool", ["first", "last", "mean"])
@pytest.mark.pairs
def test_classes_look_at_one_vector_of_each_sequence(pool, hidden, lengths):
    model, tokens = built(encoder_spec(output=Classes(4, pool=pool, hidden=hidden))), words(3)
    given = None if lengths is None else torch.tensor(lengths)
    states = model.states(tokens, lengths=given)
    rows = [states[row, :n] for row, n in enumerate(lengths or [N] * 3)]
    pooled = torch.stack([{"first": row[0], "last": row[-1], "mean": row.mean(0)}[pool] for row in rows])
    if hidden:
        pooled = torch.tanh(plain_map(model.output.hidden, pooled))
    torch.testing.assert_close(model(tokens, lengths=given), plain_map(model.output.out, pooled))


@pytest.mark.parametrize("pool", ["first", "last", "mean"])
def test_padding_does_not_matter_to_classes(pool):
    model, tokens = built(encoder_spec(output=Classes(4, pool=pool))), words(1)
    padded = torch.cat([tokens, words(1, 3)], 1)
    torch.testing.assert_close(model(padded, lengths=torch.tensor([N])), model(tokens), rtol=0, atol=1e-12)


def test_a_shared_position_is_one_table_of_a_stack():
    def tables(*positions):
        blocks = tuple(
            BlockSpec(attention=AttentionSpec(heads=2, position=one), feed_forward=None) for one in positions
        )
        spec = DecoderSpec(vocabulary=9, d_model=8, blocks=blocks, embedding=Embedding(position=None))
        return [block.attention.position.table for block in spec.build().stack.blocks]

    shared, alone = T5Bias(8, 20, two_sided=False, shared=True), T5Bias(8, 20, two_sided=False)
    first, second, third, fourth = tables(shared, shared, alone, replace(shared, reach=30))
    assert first is second
    assert len({id(table) for table in (first, third, fourth)}) == 3


def test_segments_are_added_to_the_tokens_and_checked():
    embedding = Embedding(position=None, scaled=False, segments=2).build(9, 4)
    tokens, segments = torch.tensor([[3, 4, 5]]), torch.tensor([[0, 0, 1]])
    wanted = embedding.table[tokens] + embedding.segment[segments]
    assert torch.equal(embedding(tokens, segments=segments), wanted)
    assert torch.equal(embedding(tokens), embedding(tokens, segments=torch.zeros_like(tokens)))
    with pytest.raises(OptionError, match="segments go from 0 to 1 in this model; there is 2"):
        embedding(tokens, segments=segments * 2)
    with pytest.raises(ShapeError, match=r"segments: expected one for each token \(1, 3\); came \(1, 2\)"):
        embedding(tokens, segments=segments[:, :2])
    with pytest.raises(OptionError, match="this model has no segments"):
        Embedding().build(9, 4)(tokens, segments=segments)
    with pytest.raises(OptionError, match="segments must be 1 or more; came 0"):
        Embedding(segments=0)


class Running(nn.Module):
    """Divides by a running size that it updates in the same pass; a table beside it is only read."""

    def __init__(self, *, assigns):
        super().__init__()
        self.assigns = assigns
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.register_buffer("size", torch.ones(()))
        self.register_buffer("table", torch.arange(3.0))

    def forward(self, x):
        size = 0.9 * self.size + 0.1 * x.detach().abs().mean()
        if self.assigns:
            self.size = size
        else:
            self.size.copy_(size)
        return (x * self.scale / self.size.clone() + self.table).tanh()


def run(module, *, again):
    x = torch.linspace(-2, 3, 6, dtype=torch.float64).view(2, 3).requires_grad_()
    for _ in range(3):  # several passes before one backward, as with shared blocks
        x = checkpoint_module(module, x) if again else module(x)
        x.retain_grad()
    x.square().sum().backward(retain_graph=True)
    x.sum().backward()
    return x.detach(), x.grad, module.scale.grad, module.size, module.table


@pytest.mark.parametrize("assigns", [False, True])
def test_buffers_are_updated_once_and_gradients_are_those_without_it(assigns):
    plain, again = (run(Running(assigns=assigns).double(), again=again) for again in (False, True))
    for one, other in zip(plain, again, strict=True):
        assert torch.equal(one, other)


def test_a_buffer_stays_the_tensor_it_was():
    module = Running(assigns=False)
    tensor = module.size
    checkpoint_module(module, torch.ones(2, 3, requires_grad=True)).sum().backward()
    assert module.size is tensor
    assert tensor.item() == 1.0


def test_an_error_in_the_second_pass_leaves_the_buffers_of_now():
    module = Running(assigns=False)
    out = checkpoint_module(module, torch.full((2, 3), 2.0, requires_grad=True))
    now = module.size.clone()
    module.forward = lambda x: 1 / 0
    with pytest.raises(ZeroDivisionError):
        out.sum().backward()
    assert torch.equal(module.size, now)


def test_compiled_the_gradients_are_those_without_it():
    found = []
    for again in (False, True):
        module = Running(assigns=False)
        x = torch.full((2, 3), 2.0, requires_grad=True)
        compute = torch.compile(
            lambda x, m=module, a=again: checkpoint_module(m, x) if a else m(x), backend="aot_eager"
        )
        compute(x).sum().backward()
        found.append((x.grad, module.size))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])
