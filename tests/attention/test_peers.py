"""Agreement with implementations nobody here wrote: outputs and gradients, on the same weights.

Float64 to 1e-10 where the peer computes in it; HF's eager attention takes its softmax in float32, so there 1e-5.
The layers run on the peer's own parameters, so that both sides differentiate with respect to the same tensors.
"""

import math
from types import SimpleNamespace

import pytest
import torch
from einops import rearrange, repeat
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

import clearhead as ch
from clearhead.attention.kernels import KERNELS
from clearhead.errors import UnsupportedError
from tests.peers import Late, late, transformers

[causal_lower_right] = late("torch.nn.attention.bias", "causal_lower_right")

modeling_bloom = Late("transformers.models.bloom.modeling_bloom")
modeling_gpt_neox = Late("transformers.models.gpt_neox.modeling_gpt_neox")
modeling_gptj = Late("transformers.models.gptj.modeling_gptj")
modeling_llama = Late("transformers.models.llama.modeling_llama")
modeling_marian = Late("transformers.models.marian.modeling_marian")
modeling_minimax = Late("transformers.models.minimax.modeling_minimax")
modeling_t5 = Late("transformers.models.t5.modeling_t5")
attend = Late("x_transformers.attend")

EXACT, SINGLE = 1e-10, 1e-5
pytestmark = pytest.mark.slow

CAUSAL = ch.masks.causal()


@pytest.fixture(autouse=True, params=[1, 2, 3])
def seed(request):
    """Every test of this file runs on three draws."""
    torch.manual_seed(request.param)


def draw(*shape, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


def qkv(*, batch=2, heads=3, kv=None, n_query=5, n_key=7, d_head=6, d_value=4, dtype=torch.float64):
    kv = kv or heads
    return (
        draw(batch, heads, n_query, d_head, dtype=dtype),
        draw(batch, kv, n_key, d_head, dtype=dtype),
        draw(batch, kv, n_key, d_value, dtype=dtype),
    )


def close(ours, theirs, tolerance=EXACT):
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


def agree(ours, theirs, wrt, tolerance=EXACT):
    """The same output, and the same gradient with respect to each of `wrt`."""
    close(ours, theirs, tolerance)
    upstream = torch.randn_like(theirs)
    mine, other = (torch.autograd.grad(out, wrt, upstream, retain_graph=True) for out in (ours, theirs))
    for a, b in zip(mine, other, strict=True):
        close(a, b, tolerance)


def agree_attend(inputs, theirs, *learned, tolerance=EXACT, **parts):
    """`attend` agrees, on every kernel that takes these parts; gradients also of what is `learned`."""
    for kernel in kernels_able(*inputs, **parts):
        agree(ch.attend(*inputs, kernel=kernel, **parts), theirs, [*inputs, *learned], tolerance)


def kernels_able(*inputs, **parts):
    """How `auto` chooses, and every kernel that takes these parts."""

    def able(name):
        try:
            return bool(ch.which_kernel(*inputs, kernel=name, **parts))
        except UnsupportedError:
            return False

    names = ["auto", *filter(able, KERNELS)]
    assert "reference" in names
    return names


def agree_layer(ours, theirs, sources, peer, tolerance=EXACT, **options):
    """The layer agrees, by the definition and by what `auto` picks; gradients of sources and weights."""
    for kernel in ("reference", "auto"):
        agree(ours(*sources, kernel=kernel, **options), theirs, [*sources, *peer.parameters()], tolerance)


def randomised(module):
    """With weights that keep unit variance, and none of them left at 0 or 1: attention far from uniform."""
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
    return module.eval()


def on_weights(layer, *, query, key, value, output, **others):
    """The layer as a function, on someone else's `(weight, bias or None)` for each map, and on none of its own."""
    maps = {"query.linear": query, "key.linear": key, "value.linear": value, "output": output}
    tensors = {f"{name}.weight": weight for name, (weight, _) in maps.items()}
    tensors |= {f"{name}.bias": bias for name, (_, bias) in maps.items() if bias is not None}
    tensors |= {name.replace("__", "."): tensor for name, tensor in others.items()}

    def run(*sources, kernel, **options):
        layer.kernel = kernel
        return functional_call(layer, tensors, sources, options, strict=True)

    return run


def pair(linear):
    return linear.weight, linear.bias


def thirds(linear, n_heads):
    """The query, key and value parts of a map that gives them head by head, `(head, three, d)`."""
    weights = rearrange(linear.weight, "(head three d) m -> three (head d) m", head=n_heads, three=3)
    biases = rearrange(linear.bias, "(head three d) -> three (head d)", head=n_heads, three=3)
    return list(zip(weights, biases, strict=True))


def additive(allowed, dtype):
    """Their kind of mask: 0 where a query may attend, the least number elsewhere."""
    return torch.zeros(allowed.shape, dtype=dtype).masked_fill(~allowed, torch.finfo(dtype).min)


def lower_right(n_query, n_key):
    return torch.ones(n_query, n_key, dtype=torch.bool).tril(n_key - n_query)


# --- Softmax: torch's kernel, torch's layer, Hugging Face's eager attention


@pytest.mark.parametrize(("n_query", "n_key", "d_value"), [(5, 7, 4), (1, 9, 6), (8, 3, 7)])
def test_softmax_is_torch_sdpa(n_query, n_key, d_value):
    q, k, v = inputs = qkv(n_query=n_query, n_key=n_key, d_value=d_value)
    agree_attend(inputs, F.scaled_dot_product_attention(q, k, v))


@pytest.mark.parametrize("n", [1, 6, 11])
def test_causal_softmax_is_torch_sdpa_on_a_square(n):
    q, k, v = inputs = qkv(n_query=n, n_key=n)
    theirs = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    agree_attend(inputs, theirs, mask=CAUSAL)


@pytest.mark.parametrize(("n_query", "n_key"), [(2, 5), (1, 4), (5, 7)])
def test_causal_softmax_of_few_queries_is_torch_lower_right(n_query, n_key):
    q, k, v = inputs = qkv(n_query=n_query, n_key=n_key, d_value=6)
    theirs = F.scaled_dot_product_attention(q, k, v, attn_mask=causal_lower_right(n_query, n_key))
    agree_attend(inputs, theirs, mask=CAUSAL)


@pytest.mark.parametrize("shape", [(5, 7), (2, 1, 1, 7), (2, 1, 5, 7), (1, 3, 5, 7), (2, 3, 5, 7)])
def test_masked_softmax_is_torch_sdpa(shape):
    q, k, v = inputs = qkv()
    mask = torch.rand(shape) < 0.5
    mask[..., 2] = True
    theirs = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    agree_attend(inputs, theirs, mask=mask)


@pytest.mark.parametrize("kv", [1, 2, 3])
def test_grouped_heads_are_torch_sdpa_gqa(kv):
    q, k, v = inputs = qkv(heads=6, kv=kv, n_query=7)
    theirs = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    agree_attend(inputs, theirs, mask=CAUSAL)


@pytest.mark.parametrize("factor", [0.05, 1.0, 3.0])
def test_a_given_scale_is_torch_sdpa(factor):
    q, k, v = inputs = qkv()
    theirs = F.scaled_dot_product_attention(q, k, v, scale=factor)
    agree_attend(inputs, theirs, similarity=ch.similarity.ScaledDot(factor))
    cooled = ch.weighting.Softmax(temperature=1 / factor)
    agree_attend(inputs, theirs, similarity=ch.similarity.Dot(), weighting=cooled)


def multihead(n_heads, d_model, **options):
    peer = nn.MultiheadAttention(d_model, n_heads, batch_first=True, dtype=torch.float64, **options)
    return randomised(peer)


def as_layer(peer, **parts):
    """Our layer on a torch `MultiheadAttention`'s own weights."""
    weights = peer.in_proj_weight.chunk(3)
    biases = [None] * 3 if peer.in_proj_bias is None else peer.in_proj_bias.chunk(3)
    query, key, value = zip(weights, biases, strict=True)
    layer = ch.Attention(peer.embed_dim, heads=ch.Heads(peer.num_heads, bias=peer.in_proj_bias is not None), **parts)
    return on_weights(layer, query=query, key=key, value=value, output=pair(peer.out_proj))


@pytest.mark.parametrize("bias", [True, False])
def test_layer_is_torch_multihead_attention(bias):
    peer, x = multihead(3, 15, bias=bias), draw(2, 7, 15)
    theirs, _ = peer(x, x, x, need_weights=False)
    agree_layer(as_layer(peer), theirs, [x], peer)


def test_layer_from_three_sources_is_torch_multihead_attention():
    peer, x, keys, values = multihead(5, 10), draw(3, 4, 10), draw(3, 9, 10), draw(3, 9, 10)
    theirs, _ = peer(x, keys, values)
    agree_layer(as_layer(peer), theirs, [x, keys, values], peer)


def test_masked_layer_is_torch_multihead_attention_with_the_opposite_masks():
    peer, x, lengths = multihead(3, 15), draw(2, 7, 15), torch.tensor([7, 4])
    padded, future = torch.arange(7) >= lengths[:, None], ~lower_right(7, 7)
    theirs, weight = peer(x, x, x, key_padding_mask=padded, attn_mask=future, average_attn_weights=False)
    agree_layer(as_layer(peer, mask=CAUSAL & ch.masks.padding(lengths)), theirs, [x], peer)
    q, k, v = (rearrange(F.linear(x, *pair), "b n (h d) -> b h n d", h=3) for pair in in_projections(peer))
    close(ch.explain(q, k, v, mask=CAUSAL & ch.masks.padding(lengths)).weight, weight)


def in_projections(peer):
    return zip(peer.in_proj_weight.chunk(3), peer.in_proj_bias.chunk(3), strict=True)


@pytest.mark.parametrize(("heads", "kv"), [(3, 3), (6, 2), (4, 1)])
def test_softmax_is_hugging_face_eager(heads, kv):
    q, k, v = inputs = qkv(heads=heads, kv=kv, dtype=torch.float32)
    allowed = torch.rand(2, 1, 5, 7) < 0.5
    allowed[..., 0] = True
    module = SimpleNamespace(num_key_value_groups=heads // kv, training=False)
    mask = additive(allowed, torch.float32)
    theirs, weight = modeling_llama.eager_attention_forward(module, q, k, v, mask, scaling=0.4)
    theirs = theirs.transpose(1, 2)
    parts = {"similarity": ch.similarity.ScaledDot(0.4), "mask": allowed}
    agree_attend(inputs, theirs, tolerance=SINGLE, **parts)
    close(ch.explain(q, k, v, **parts).weight, weight, SINGLE)


# --- Rotary: Llama (halves), GPT-J (interleaved, part of the width), GPT-NeoX (halves, part of the width)

PLACES = {
    "from 0": [[0, 1, 2, 3, 4, 5, 6]] * 2,
    "from 5": [[5, 6, 7, 8, 9, 10, 11]] * 2,
    "ragged": [[3, 4, 5, 6, 7, 8, 9], [41, 42, 43, 44, 45, 46, 47]],
    "gaps": [[0, 1, 5, 6, 20, 21, 40], [2, 3, 7, 11, 12, 13, 60]],
}
places = pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)


def turned_tables(positions, width, theta):
    """cos and sin of position x theta^(-2i/width), in float64: the peers make theirs in float32."""
    frequency = torch.tensor([theta ** (-2 * i / width) for i in range(width // 2)], dtype=torch.float64)
    angle = positions[..., None].double() * frequency
    return angle.cos(), angle.sin()


def llama(implementation="eager"):
    """A Llama attention layer with grouped heads and a width of its own, and our layer on its weights."""
    config = transformers.LlamaConfig(
        hidden_size=18,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=10,
        attention_bias=True,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0},
        attn_implementation=implementation,
    )
    peer = randomised(modeling_llama.LlamaAttention(config, layer_idx=0))
    layer = ch.Attention(
        18,
        heads=ch.Heads(6, kv=2, d_head=10, bias=True),
        position=ch.positions.Rotary(pairing="halves", base=500.0),
        mask=CAUSAL,
    )
    if implementation == "sdpa":
        peer.double()
    maps = {"query": peer.q_proj, "key": peer.k_proj, "value": peer.v_proj, "output": peer.o_proj}
    return peer, on_weights(layer, **{name: pair(linear) for name, linear in maps.items()})


@places
def test_rotary_halves_is_hugging_face_llama(place):
    peer, ours = llama()
    x, positions = draw(2, 7, 18, dtype=torch.float32), torch.tensor(place)
    tables = modeling_llama.LlamaRotaryEmbedding(peer.config)(x, positions)
    theirs, _ = peer(x, tables, additive(lower_right(7, 7), x.dtype))
    agree_layer(ours, theirs, [x], peer, SINGLE, query_positions=positions, key_positions=positions)


@places
def test_rotary_halves_is_hugging_face_llama_in_float64(place):
    peer, ours = llama("sdpa")
    x, positions = draw(2, 7, 18), torch.tensor(place)
    cos, sin = (torch.cat([table, table], -1) for table in turned_tables(positions, 10, 500.0))
    theirs, _ = peer(x, (cos, sin), lower_right(7, 7)[None, None])
    agree_layer(ours, theirs, [x], peer, query_positions=positions, key_positions=positions)


def test_rotary_of_new_queries_is_hugging_face_llama_with_a_cache():
    peer, ours = llama()
    x, cache = draw(2, 7, 18, dtype=torch.float32), transformers.DynamicCache()
    rotary, positions = modeling_llama.LlamaRotaryEmbedding(peer.config), torch.arange(7)[None]
    peer(x[:, :5], rotary(x, positions[:, :5]), additive(lower_right(5, 5), x.dtype), cache)
    theirs, _ = peer(x[:, 5:], rotary(x, positions[:, 5:]), additive(lower_right(2, 7), x.dtype), cache)
    for kernel in ("reference", "auto"):
        agree(ours(x[:, 5:], x, kernel=kernel), theirs, [x, *peer.parameters()], SINGLE)


@places
def test_rotary_halves_turns_as_llama_does(place):
    q, k, v = inputs = qkv(n_query=7)
    positions = torch.tensor(place)
    cos, sin = (torch.cat([table, table], -1) for table in turned_tables(positions, 6, 10_000.0))
    theirs = modeling_llama.apply_rotary_pos_emb(q, k, cos, sin)
    rotary = ch.positions.Rotary(pairing="halves")
    steps = ch.explain(q, k, v, position=rotary, query_positions=positions, key_positions=positions)
    for ours, other in zip((steps.query, steps.key), theirs, strict=True):
        agree(ours, other, [inputs[0]] if ours is steps.query else [inputs[1]])


@places
@pytest.mark.parametrize("width", [2, 4, 8])
@pytest.mark.pairs(1)
def test_rotary_interleaved_turns_as_gptj_does(place, width):
    q, k, v = qkv(n_query=7, d_head=8)
    positions = torch.tensor(place)
    cos, sin = turned_tables(positions, width, 10_000.0)
    rotary = ch.positions.Rotary(width=width)
    steps = ch.explain(q, k, v, position=rotary, query_positions=positions, key_positions=positions)
    for ours, given in ((steps.query, q), (steps.key, k)):
        turned = modeling_gptj.apply_rotary_pos_emb(given.transpose(1, 2)[..., :width], sin, cos).transpose(1, 2)
        agree(ours, torch.cat([turned, given[..., width:]], -1), [given])


@places
@pytest.mark.parametrize("width", [4, 8])
@pytest.mark.pairs(1)
def test_rotary_interleaved_is_hugging_face_gptj(place, width):
    config = transformers.GPTJConfig(
        n_embd=24, n_head=3, rotary_dim=width, n_positions=64, attn_pdrop=0.0, resid_pdrop=0.0
    )
    peer = randomised(modeling_gptj.GPTJAttention(config, layer_idx=0))
    x, positions = draw(2, 7, 24, dtype=torch.float32), torch.tensor(place)
    theirs, _ = peer(x, attention_mask=additive(lower_right(7, 7), x.dtype), position_ids=positions)
    layer = ch.Attention(24, heads=3, position=ch.positions.Rotary(width=width), mask=CAUSAL)
    maps = {"query": peer.q_proj, "key": peer.k_proj, "value": peer.v_proj, "output": peer.out_proj}
    ours = on_weights(layer, **{name: pair(linear) for name, linear in maps.items()})
    agree_layer(ours, theirs, [x], peer, SINGLE, query_positions=positions, key_positions=positions)


@places
@pytest.mark.parametrize("share", [0.25, 0.5, 1.0])
@pytest.mark.pairs(1)
def test_partial_rotary_halves_is_hugging_face_gpt_neox(place, share):
    config = transformers.GPTNeoXConfig(
        hidden_size=24,
        num_attention_heads=3,
        attention_dropout=0.0,
        rope_parameters={"rope_type": "default", "rope_theta": 700.0, "partial_rotary_factor": share},
        attn_implementation="eager",
    )
    peer = randomised(modeling_gpt_neox.GPTNeoXAttention(config, layer_idx=0))
    x, positions = draw(2, 7, 24, dtype=torch.float32), torch.tensor(place)
    tables = modeling_gpt_neox.GPTNeoXRotaryEmbedding(config)(x, positions)
    theirs, _ = peer(x, additive(lower_right(7, 7), x.dtype), position_embeddings=tables)
    rotary = ch.positions.Rotary(pairing="halves", base=700.0, width=int(8 * share))
    layer = ch.Attention(24, heads=ch.Heads(3, bias=True), position=rotary, mask=CAUSAL)
    query, key, value = thirds(peer.query_key_value, 3)
    ours = on_weights(layer, query=query, key=key, value=value, output=pair(peer.dense))
    agree_layer(ours, theirs, [x], peer, SINGLE, query_positions=positions, key_positions=positions)


@pytest.mark.parametrize("d_model", [2, 10, 64])
def test_sinusoidal_halves_is_hugging_face_marian(d_model):
    config = transformers.MarianConfig(d_model=d_model, max_position_embeddings=70)
    theirs = modeling_marian.MarianSinusoidalPositionalEmbedding(
        config.max_position_embeddings, d_model
    ).create_weight()
    encoding = ch.positions.Sinusoidal(layout="halves").embed(d_model)
    close(encoding(70), theirs, 1e-6)
    interleaved = ch.positions.Sinusoidal().embed(d_model)(70)
    close(interleaved, rearrange(theirs, "n (two pair) -> n (pair two)", two=2), 1e-6)


# --- T5's relative bias


@pytest.mark.parametrize("two_sided", [True, False])
@pytest.mark.parametrize(("buckets", "reach"), [(32, 128), (8, 20), (64, 256), (16, 300)])
def test_t5_buckets_are_hugging_face_t5(two_sided, buckets, reach):
    ahead = torch.arange(-300, 301)
    theirs = modeling_t5.T5Attention._relative_position_bucket(
        ahead, bidirectional=two_sided, num_buckets=buckets, max_distance=reach
    )
    ours = ch.positions.T5Bias(buckets=buckets, reach=reach, two_sided=two_sided).bucket(ahead)
    assert torch.equal(ours, theirs)
    assert ours.unique().numel() == (buckets - 1 if two_sided else buckets)


def t5(*, two_sided, n_heads=3):
    config = transformers.T5Config(
        d_model=14,
        d_kv=5,
        num_heads=n_heads,
        dropout_rate=0.0,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=20,
        is_decoder=not two_sided,
        attn_implementation="eager",
    )
    return randomised(modeling_t5.T5Attention(config, has_relative_attention_bias=True, layer_idx=0).double())


@pytest.mark.parametrize("two_sided", [True, False])
@pytest.mark.parametrize("causal", [True, False])
def test_t5_bias_is_a_hugging_face_t5_layer(two_sided, causal):
    peer, x = t5(two_sided=two_sided), draw(2, 27, 14)
    theirs = peer(x, mask=additive(lower_right(27, 27), x.dtype) if causal else None)[0]
    layer = ch.Attention(
        14,
        heads=ch.Heads(3, d_head=5),
        similarity=ch.similarity.Dot(),
        position=ch.positions.T5Bias(buckets=8, reach=20, two_sided=two_sided),
        mask=CAUSAL if causal else None,
    )
    maps = {name: pair(getattr(peer, name[0])) for name in ("query", "key", "value", "output")}
    ours = on_weights(layer, **maps, position__table=peer.relative_attention_bias.weight)
    agree_layer(ours, theirs, [x], peer)


@pytest.mark.parametrize("two_sided", [True, False])
def test_t5_bias_of_new_queries_is_hugging_face_t5_with_a_cache(two_sided):
    peer = t5(two_sided=two_sided)
    theirs = peer.compute_bias(4, 30, past_seen_tokens=26)
    shape = ch.HeadShape(n_heads=3, n_kv_heads=3, d_head=5)
    position = ch.positions.T5Bias(buckets=8, reach=20, two_sided=two_sided).build(shape).double()
    position.load_state_dict({"table": peer.relative_attention_bias.weight})
    q, k, v = qkv(batch=1, n_query=4, n_key=30, d_head=5)
    steps = ch.explain(q, k, v, position=position)
    close(steps.masked - steps.scaled, theirs)


# --- ALiBi: BLOOM adds slope x key position, which is the same weights, softmax not noticing a shift of its row


@pytest.mark.parametrize("n_heads", [1, 2, 3, 6, 8])
def test_alibi_weights_are_hugging_face_blooms(n_heads):
    q, k, v = qkv(heads=n_heads, n_query=11, n_key=11)
    bias = modeling_bloom.build_alibi_tensor(torch.ones(2, 11), n_heads, torch.float64).view(2, n_heads, 1, 11)
    scores = q @ k.mT / math.sqrt(6) + bias
    theirs = torch.softmax(scores.masked_fill(~lower_right(11, 11), float("-inf")), -1)
    agree(ch.explain(q, k, v, position=ch.positions.ALiBi(), mask=CAUSAL).weight, theirs, [q, k])


def alibi_slopes_of_the_paper(n):
    """Press et al.: powers of 2^(-8/n); if n is no power of two, those of the one below and every other of the next."""
    if math.log2(n).is_integer():
        return [2 ** (-8 / n * (i + 1)) for i in range(n)]
    below = 2 ** math.floor(math.log2(n))
    return alibi_slopes_of_the_paper(below) + alibi_slopes_of_the_paper(2 * below)[0::2][: n - below]


@pytest.mark.parametrize("n_heads", [4, 6, 12, 16])
def test_alibi_is_the_papers_in_float64(n_heads):
    q, k, v = inputs = qkv(heads=n_heads, n_query=9, n_key=9)
    slopes = torch.tensor(alibi_slopes_of_the_paper(n_heads), dtype=torch.float64)
    back = torch.arange(9)[:, None] - torch.arange(9)
    bias = (-slopes[:, None, None] * back).masked_fill(back < 0, float("-inf"))
    theirs = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    agree_attend(inputs, theirs, position=ch.positions.ALiBi(), mask=CAUSAL)


def bloom(n_heads):
    config = transformers.BloomConfig(
        hidden_size=4 * n_heads, n_head=n_heads, hidden_dropout=0.0, attention_dropout=0.0
    )
    peer = randomised(modeling_bloom.BloomAttention(config, layer_idx=0))
    layer = ch.Attention(4 * n_heads, heads=ch.Heads(n_heads, bias=True), position=ch.positions.ALiBi(), mask=CAUSAL)
    query, key, value = thirds(peer.query_key_value, n_heads)
    return peer, on_weights(layer, query=query, key=key, value=value, output=pair(peer.dense))


@pytest.mark.parametrize("n_heads", [6, 8, 12])
def test_alibi_is_a_hugging_face_bloom_layer(n_heads):
    peer, ours = bloom(n_heads)
    x = draw(2, 9, 4 * n_heads, dtype=torch.float32)
    alibi = modeling_bloom.build_alibi_tensor(torch.ones(2, 9), n_heads, x.dtype)
    theirs, weight = peer(x, torch.zeros_like(x), alibi, additive(lower_right(9, 9), x.dtype))
    agree_layer(ours, theirs, [x], peer, SINGLE)
    q, k, v = (
        rearrange(F.linear(x, *third), "b n (h d) -> b h n d", h=n_heads)
        for third in thirds(peer.query_key_value, n_heads)
    )
    close(ch.explain(q, k, v, position=ch.positions.ALiBi(), mask=CAUSAL).weight, weight, SINGLE)


def test_alibi_with_padding_on_the_left_is_hugging_face_bloom():
    peer, ours = bloom(6)
    x, lengths = draw(2, 9, 24, dtype=torch.float32), torch.tensor([9, 5])
    positions = torch.arange(9) - (9 - lengths[:, None])
    real = positions >= 0
    allowed = lower_right(9, 9) & real[:, None, None, :]
    theirs, _ = peer(
        x, torch.zeros_like(x), modeling_bloom.build_alibi_tensor(real.int(), 6, x.dtype), additive(allowed, x.dtype)
    )
    places = {"query_positions": positions, "key_positions": positions}
    for kernel in ("reference", "auto"):
        made = ours(x, mask=ch.masks.padding(lengths), kernel=kernel, **places)
        agree(made[real], theirs[real], [x, *peer.parameters()], SINGLE)


# --- Kernelized: plain sums, and Hugging Face's MiniMax, which works chunk by chunk

PHI = {
    "elu": lambda x: torch.where(x > 0, x + 1, x.exp()),
    "relu": lambda x: x.clamp(min=0),
    "softmax": lambda x: x.exp() / x.exp().sum(-1, keepdim=True),
}
features = pytest.mark.parametrize("name", PHI)
normalisations = pytest.mark.parametrize("normalised", [True, False])


def plain_sums(q, k, v, *, causal, normalised):
    """φ(q)·Σ φ(k)vᵀ over φ(q)·Σ φ(k), the sums running if causal; q, k as features."""
    products = torch.einsum("bhnf,bhnd->bhnfd", k, v)
    if causal:
        state, total = (sums.cumsum(2)[:, :, -q.shape[2] :] for sums in (products, k))
    else:
        state, total = products.sum(2, keepdim=True), k.sum(2, keepdim=True)
    amount = (q.unsqueeze(-2) @ state).squeeze(-2)
    norm = (q * total).sum(-1, keepdim=True)
    return torch.where(norm > 0, amount / torch.where(norm > 0, norm, 1), 0) if normalised else amount


@features
@normalisations
@pytest.mark.parametrize("n", [1, 13, 150])
@pytest.mark.pairs
def test_causal_kernelized_is_a_cumulative_sum(name, normalised, n):
    q, k, v = inputs = qkv(n_query=n, n_key=n, d_head=4, d_value=3)
    theirs = plain_sums(PHI[name](q), PHI[name](k), v, causal=True, normalised=normalised)
    agree_attend(inputs, theirs, weighting=ch.weighting.Kernelized(name, normalised=normalised), mask=CAUSAL)


@features
@normalisations
@pytest.mark.parametrize(("n_query", "n_key"), [(7, 7), (3, 11), (140, 5)])
@pytest.mark.pairs
def test_kernelized_is_a_sum_also_across_two_sequences(name, normalised, n_query, n_key):
    q, k, v = inputs = qkv(n_query=n_query, n_key=n_key)
    theirs = plain_sums(PHI[name](q), PHI[name](k), v, causal=False, normalised=normalised)
    agree_attend(inputs, theirs, weighting=ch.weighting.Kernelized(name, normalised=normalised))


@normalisations
@pytest.mark.parametrize(("n_query", "n_key"), [(1, 4), (3, 11), (70, 150)])
@pytest.mark.pairs(1)
def test_causal_kernelized_of_new_queries_is_the_end_of_a_cumulative_sum(normalised, n_query, n_key):
    q, k, v = inputs = qkv(n_query=n_query, n_key=n_key, d_head=4, d_value=3)
    theirs = plain_sums(PHI["elu"](q), PHI["elu"](k), v, causal=True, normalised=normalised)
    agree_attend(inputs, theirs, weighting=ch.weighting.Kernelized(normalised=normalised), mask=CAUSAL)


@normalisations
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("n", [11, 130])
@pytest.mark.pairs
def test_padded_kernelized_is_a_sum_over_the_real_keys(normalised, causal, n):
    q, k, v = inputs = qkv(heads=4, kv=2, n_query=n, n_key=n, d_head=4, d_value=3)
    lengths = torch.tensor([n, n - 5])
    real = (torch.arange(n) < lengths[:, None])[:, None, :, None]
    phi_k, values = (repeat(x, "b h n d -> b (h two) n d", two=2) for x in (PHI["elu"](k) * real, v))
    theirs = plain_sums(PHI["elu"](q), phi_k, values, causal=causal, normalised=normalised)
    mask = ch.masks.padding(lengths) & CAUSAL if causal else ch.masks.padding(lengths)
    agree_attend(inputs, theirs, weighting=ch.weighting.Kernelized(normalised=normalised), mask=mask)


@pytest.mark.parametrize("causal", [True, False])
def test_random_features_are_the_papers(causal):
    q, k, v = inputs = qkv(n_query=7, d_head=4)
    shape = ch.HeadShape(n_heads=3, n_kv_heads=3, d_head=4)
    built = ch.weighting.RandomFeatures(count=9).build(shape)
    projection = built.projection.double()

    def phi(vectors):
        scaled = vectors / 4**0.25
        along = torch.einsum("bhnd,md->bhnm", scaled, projection)
        return torch.exp(along) * torch.exp(-(scaled**2).sum(-1, keepdim=True) / 2) / 3

    theirs = plain_sums(phi(q), phi(k), v, causal=causal, normalised=True)
    weighting = ch.weighting.Kernelized(built)
    agree_attend(inputs, theirs, weighting=weighting, mask=CAUSAL if causal else None)


def minimax(n_heads=3, d_head=6, block=4):
    """MiniMax's linear attention with its decay, its norm and its gate switched off: relu features, not normalised."""
    config = transformers.MiniMaxConfig(
        hidden_size=12,
        num_attention_heads=n_heads,
        head_dim=d_head,
        num_hidden_layers=2,
        layer_types=["linear_attention", "full_attention"],
        block_size=block,
        hidden_act="relu",
    )
    peer = randomised(modeling_minimax.MiniMaxLightningAttention(config, layer_idx=0).double())
    peer.norm = peer.out_proj = nn.Identity()
    nn.init.zeros_(peer.output_gate.weight)
    peer.slope_rate.fill_(1e-15)  # not 0: its causal mask is made from the sign of slope x distance
    peer.query_decay, peer.key_decay, peer.diagonal_decay = peer.decay_factors(peer.slope_rate)
    return peer


@pytest.mark.parametrize("n", [3, 8, 19])
def test_causal_kernelized_is_hugging_face_minimax(n):
    peer, x = minimax(), draw(2, n, 12)
    theirs = 2 * peer(x, None, None)[0]
    q, k, v = rearrange(peer.qkv_proj(x), "b n (head three d) -> three b head n d", head=3, three=3)
    parts = {"weighting": ch.weighting.Kernelized("relu", normalised=False), "mask": CAUSAL}
    for kernel in kernels_able(q, k, v, **parts):
        context = ch.attend(q, k, v.relu(), kernel=kernel, **parts)
        agree(rearrange(context, "b head n d -> b n (head d)"), theirs, [x, peer.qkv_proj.weight])


# --- Argmax and sigmoid: x-transformers


def tied(*shape):
    """Small whole numbers, so that many scores are equal."""
    return torch.randint(-1, 2, shape).double().requires_grad_()


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kv", [1, 3])
def test_argmax_is_x_transformers_hard_attention(causal, kv):
    q, k, v = inputs = qkv(kv=kv)
    theirs, inner = attend.Attend(hard=True, causal=causal)(q, k, v)
    parts = {"weighting": ch.weighting.Argmax(ties="first"), "mask": CAUSAL if causal else None}
    agree_attend(inputs, theirs, **parts)
    weight = ch.explain(q, k, v, **parts).weight
    assert torch.equal(weight, inner.post_softmax_attn.round())
    agree(weight, inner.post_softmax_attn, [q, k])


def test_argmax_with_ties_is_x_transformers_hard_attention():
    q, k, v = inputs = tied(2, 3, 9, 4), tied(2, 3, 8, 4), draw(2, 3, 8, 5)
    theirs, inner = attend.Attend(hard=True)(q, k, v)
    best = inner.pre_softmax_attn.amax(-1, keepdim=True)
    assert ((inner.pre_softmax_attn == best).sum(-1) > 1).any()
    agree_attend(inputs, theirs, weighting=ch.weighting.Argmax(ties="first"))


def test_masked_argmax_is_x_transformers_hard_attention_rows_without_keys_included():
    q, k, v = inputs = qkv()
    mask = torch.rand(2, 1, 5, 7) < 0.5
    mask[0, :, 3] = False
    theirs, _ = attend.Attend(hard=True)(q, k, v, mask=mask)
    assert not theirs[0, :, 3].any()
    agree_attend(inputs, theirs, weighting=ch.weighting.Argmax(ties="first"), mask=mask)


def test_sigmoid_is_x_transformers():
    q, k, v = inputs = qkv()
    mask = torch.rand(2, 1, 5, 7) < 0.5
    theirs, _ = attend.Attend(sigmoid=True)(q, k, v, mask=mask)
    agree_attend(inputs, theirs, weighting=ch.weighting.Sigmoid(offset=0.0), mask=mask)


def test_sigmoid_by_itself_is_shifted_by_the_number_of_keys():
    q, k, v = inputs = qkv(n_query=7)
    count = torch.arange(1, 8)[:, None]
    weight = 1 / (1 + count * torch.exp(-(q @ k.mT) / math.sqrt(6))) * lower_right(7, 7)
    agree_attend(inputs, weight @ v, weighting=ch.weighting.Sigmoid(), mask=CAUSAL)


# --- Sparsemax, cosine, additive: the definition, by other means


def nearest_distribution(scores):
    """The point of the simplex nearest to each row: the threshold by bisection, then as a function of the support."""
    low, high = scores.detach().amax(-1, keepdim=True) - 1, scores.detach().amax(-1, keepdim=True)
    for _ in range(100):
        middle = (low + high) / 2
        heavy = (scores.detach() - middle).clamp(min=0).sum(-1, keepdim=True) > 1
        low, high = torch.where(heavy, middle, low), torch.where(heavy, high, middle)
    inside = scores.detach() > high
    threshold = (scores.masked_fill(~inside, 0).sum(-1, keepdim=True) - 1) / inside.sum(-1, keepdim=True)
    return torch.where(inside, scores - threshold, 0)


@pytest.mark.parametrize("factor", [0.1, 1.0, 20.0])
def test_sparsemax_is_the_nearest_distribution(factor):
    q, k, v = inputs = qkv(n_query=7)
    scores = (q @ k.mT * factor).masked_fill(~lower_right(7, 7), float("-inf"))
    theirs = nearest_distribution(scores) @ v
    parts = {"similarity": ch.similarity.ScaledDot(factor), "weighting": ch.weighting.Sparsemax(), "mask": CAUSAL}
    agree_attend(inputs, theirs, **parts)


def test_sparsemax_has_the_papers_jacobian():
    scores, allowed = draw(1, 1, 1, 9), torch.ones(1, 1, 1, 9, dtype=torch.bool)
    weigh = ch.weighting.Sparsemax().weigh
    inside = (nearest_distribution(scores) > 0).double().flatten()
    paper = torch.diag(inside) - torch.outer(inside, inside) / inside.sum()
    jacobian = torch.autograd.functional.jacobian(lambda row: weigh(row, allowed), scores)
    close(jacobian.view(9, 9), paper)
    assert torch.autograd.gradcheck(lambda row: weigh(row, allowed), scores)


@pytest.mark.parametrize("size", [1.0, 1e4, 1e6, 1e8, 1e12])
def test_sparsemax_of_large_scores_sums_to_one(size):
    """In float32 a score of 2^24 swallows the 1 that the weights must sum to, unless the maximum is taken off first."""
    q, k, v = torch.ones(1, 1), torch.tensor([[size], [size], [size / 2 - 1]]), torch.eye(3)
    parts = {"similarity": ch.similarity.Dot(), "weighting": ch.weighting.Sparsemax()}
    close(ch.attend(q, k, v, **parts), torch.tensor([[0.5, 0.5, 0.0]]), SINGLE)


@pytest.mark.parametrize("kv", [1, 2, 4])
def test_cosine_is_torch_cosine_similarity(kv):
    q, k, v = inputs = qkv(heads=4, kv=kv)
    keys, values = (x.repeat_interleave(4 // kv, 1) for x in (k, v))
    cosine = F.cosine_similarity(q[:, :, :, None], keys[:, :, None], dim=-1)
    theirs = torch.softmax(cosine / 0.3, -1) @ values
    agree_attend(inputs, theirs, similarity=ch.similarity.Cosine(temperature=0.3))
    close(ch.explain(q, k, v, similarity=ch.similarity.Cosine()).score, cosine)


def test_cosine_with_a_learned_temperature_is_torch_cosine_similarity():
    q, k, v = qkv()
    shape = ch.HeadShape(n_heads=3, n_kv_heads=3, d_head=6)
    similarity = randomised(ch.similarity.Cosine().build(shape).double())
    temperature = similarity.log_temperature.exp()
    cosine = F.cosine_similarity(q[:, :, :, None], k[:, :, None], dim=-1)
    theirs = torch.softmax(cosine / temperature, -1) @ v
    agree_attend((q, k, v), theirs, similarity.log_temperature, similarity=similarity)


@pytest.mark.parametrize("width", [None, 3])
def test_additive_is_an_explicit_loop(width):
    q, k, v = qkv(n_query=3, n_key=4)
    shape = ch.HeadShape(n_heads=3, n_kv_heads=3, d_head=6)
    similarity = ch.similarity.Additive(width=width).build(shape).double()
    scores = torch.stack(
        [
            similarity.out[head] @ torch.tanh(query @ similarity.query[head] + key @ similarity.key[head])
            for batch in range(2)
            for head in range(3)
            for query in q[batch, head]
            for key in k[batch, head]
        ]
    ).view(2, 3, 3, 4)
    close(ch.explain(q, k, v, similarity=similarity).score, scores)
    theirs = torch.softmax(scores, -1) @ v
    agree_attend((q, k, v), theirs, *similarity.parameters(), similarity=similarity)
