"""Caches: what each keeps after a prompt and some steps, which one a layer gets, and that rows which stay are found."""

import weakref
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import pytest
import torch
from torch.nn import functional as F

from clearhead import masks, positions, weighting
from clearhead.attention.heads import Heads
from clearhead.decoding import Beam, Greedy, Rules, caches, generate
from clearhead.decoding.caches import FullCache, SourceCache, SourceStateCache, StateCache, WindowCache, attend_few
from clearhead.decoding.clock import Clock
from clearhead.decoding.session import Session
from clearhead.model import presets
from clearhead.model.arrangements import SingleResidualNorm
from clearhead.model.blocks import AttentionSpec, BlockSpec
from clearhead.model.embedding import Embedding
from clearhead.model.feedforward import ReLU
from clearhead.model.norms import LayerNorm
from clearhead.model.transformers import DecoderSpec
from clearhead.taps import replacing, watching
from tests.decoding.laws import LAWS, case_of, step_by_step, steps_of
from tests.decoding.models import PLAIN, VOCABULARY, build, on_axes, spec_of
from tests.decoding.plain import all_unlike, apart

KINDS: dict[type, dict[str, Any]] = {
    FullCache: {"kind": "decoder", "position": "rotary"},
    WindowCache: {"kind": "decoder", "mask": "window 2", "position": "rotary"},
    StateCache: {"kind": "decoder", "weighting": "linear elu", "position": "rotary"},
    SourceCache: {"kind": "same cross"},
    SourceStateCache: {"kind": "same cross", "weighting": "linear elu"},
}
"""Choices of a model that has such a cache."""


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


def model_of(seed=0, **chosen):
    return build(on_axes(PLAIN | {name.replace("_", "-"): value for name, value in chosen.items()}, seed))


def cache_in(session, kind):
    return next(cache for cache in session.caches if type(cache) is kind)


def stepped(case, n_steps):
    """A session after its prompt and each of some steps."""
    session, tokens = case.session(), steps_of(len(case.prompts), n_steps)
    yield session
    for step in range(n_steps):
        session.extend(tokens[:, step])
        yield session


class Stuck:
    """Slots that are not copied: who goes on there goes on from what was there before."""

    def __init__(self, kind, monkeypatch):
        self.copied = 0

        def copy(cache, origins, slots):
            self.copied += 1

        for name in ("copy", "copy_written"):
            monkeypatch.setattr(kind, name, copy)


@pytest.mark.parametrize("kind", [FullCache, WindowCache, StateCache])
@pytest.mark.parametrize("law", ["searched_is_plain", "selected_is_fresh", "scored_is_generated"])
@pytest.mark.pairs(1)
def test_rows_that_are_not_reordered_are_found(kind, law, monkeypatch):
    model = model_of(**KINDS[kind])
    assert LAWS[law](case_of(model)) == []
    with monkeypatch.context() as patch:
        stuck = Stuck(kind, patch)
        assert LAWS[law](case_of(model)) != []
    assert stuck.copied


def is_unlike_alone(model, method, end):
    """Whether with this end token, and two others, a sentence in a batch becomes what it does not become alone."""
    case, rules = case_of(model), Rules(max_new=4, end=(end, (end + 3) % VOCABULARY, (end + 4) % VOCABULARY))
    alone = [case.only([row]).generate(method, rules)[0] for row in range(len(case.prompts))]
    return any(all_unlike("", *pair) for pair in zip(case.generate(method, rules), alone, strict=True))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", [Greedy(), Beam(width=2, stop="early")], ids=["greedy", "beam"])
@pytest.mark.slow
@pytest.mark.pairs(1)
def test_sentences_that_do_not_move_up_are_found(kind, method, monkeypatch):
    """Where one sentence ends before another, whose rows then take its place."""
    model = model_of(seed=3, **KINDS[kind])
    with monkeypatch.context() as patch:
        stuck = Stuck(kind, patch)
        unlike = next(end for end in range(VOCABULARY) if is_unlike_alone(model, method, end))
    assert stuck.copied
    assert not is_unlike_alone(model, method, unlike)


@pytest.mark.slow
def test_positions_that_do_not_move_up_are_found(monkeypatch):
    model = model_of(kind="decoder")
    monkeypatch.setattr(Clock, "copy", lambda clock, origins, slots: None)
    assert any(is_unlike_alone(model, Greedy(), end) for end in range(VOCABULARY))


@pytest.mark.parametrize("position", ["none", "rotary", "rotary partial"])
def test_growing_keeps_every_key_and_value(position):
    """In their columns stands what a forward of each row alone makes at its positions, turned by them."""
    model = model_of(kind="decoder", layers="two", heads="grouped keys", position=position)
    case, tokens = case_of(model), steps_of(3, 4)
    *_, session = stepped(case, 4)
    turn = positions.TABLE[position].turn
    for row, prompt in enumerate(case.prompts):
        whole, seen = torch.tensor([prompt + tokens[row].tolist()]), {}
        with watching(model, seen.setdefault):
            model(whole)
        for place, cache in enumerate(session.caches):
            key, value = (seen[f"stack.blocks.{place}.attention.{name}"] for name in ("key", "value"))
            keys, values = (cached[row, :, : len(prompt) + 4] for cached in cache.memory)
            assert apart("keys", keys, turn(key, torch.arange(whole.shape[1]))[0]) == []
            assert apart("values", values, value[0]) == []


def test_growing_allocates_ahead_and_doubles(monkeypatch):
    monkeypatch.setattr(caches, "FIRST_COLUMNS", 4)
    monkeypatch.setattr(caches, "ALIGNED", 4)
    model = model_of(kind="decoder", heads="grouped keys")
    columns = [cache_in(session, FullCache).memory[0].shape[2] for session in stepped(case_of(model, (3, 2)), 7)]
    assert columns == [4, 4, 8, 8, 8, 8, 16, 16]
    assert columns == sorted(columns)


def test_growing_holds_64_columns_at_first():
    session = case_of(model_of(kind="decoder", heads="grouped keys", layers="two")).session()
    rows, key_heads, d_head, float64 = 16, 2, 6, 8
    d_value = 6
    assert session.caches.bytes() == 2 * rows * key_heads * 64 * (d_head + d_value) * float64


@pytest.mark.parametrize("left", [0, 1, 3, 50])
def test_sliding_never_keeps_more_than_the_window(left):
    spec = spec_of(on_axes(PLAIN | {"mask": "window 2"}))
    assert isinstance(spec, DecoderSpec)
    block = replace(spec.blocks[0], attention=replace(spec.blocks[0].attention, mask=masks.window(left)))
    case = case_of(replace(spec, blocks=(block,)).build().double())
    for session in stepped(case, 6):
        for kept in cache_in(session, WindowCache).tensors():
            assert kept.shape[2] == left
            assert kept.untyped_storage().nbytes() == kept.numel() * 8


def test_sliding_has_the_memory_of_a_window_however_long_the_prompt():
    model = model_of(kind="decoder", mask="window 2")
    short, long = (case_of(model, lengths).session().caches.bytes() for lengths in ((3, 4), (20, 30)))
    assert 0 < short == long


@final
@dataclass(frozen=True)
class Waves(positions.Position):
    """A user's bias that reads where a key is, and not only how far away."""

    bias_kind: ClassVar[str] = "fixed"

    def bias(self, cells, dtype):
        return 2 * torch.cos(0.7 * cells.key.to(dtype)) + 0 * cells.head


@pytest.mark.parametrize("lengths", [(1,), (5, 5), (3, 1, 5)], ids=str)
def test_a_bias_knows_where_the_keys_of_a_window_are(lengths):
    attention = AttentionSpec(heads=2, mask=masks.window(2), position=Waves())
    block = BlockSpec(attention=attention, feed_forward=None)
    model = DecoderSpec(vocabulary=VOCABULARY, d_model=16, blocks=(block, block)).build().double().eval()
    assert step_by_step(case_of(model, lengths), 5) == []


@pytest.mark.parametrize("name", [name for name, part in weighting.TABLE.items() if part.form == "kernelized"])
def test_summed_has_one_size_however_long_the_text(name):
    model = model_of(kind="decoder", weighting=name, heads="grouped keys")
    sizes = {session.caches.bytes() for session in stepped(case_of(model), 5)}
    sizes.add(case_of(model, (9, 30, 12)).session().caches.bytes())
    rows, heads, d_head, d_value = 16, 4, 6, 6
    features, peak = (128, 1) if name == "linear random" else (d_head, 0)
    assert sizes == {rows * heads * features * (d_value + 1 + peak) * 8}


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("kind", ["decoder", "same cross"])
@pytest.mark.pairs(1)
def test_random_features_of_any_size_are_decoded_as_they_are_trained(kind, law):
    """Queries and keys so large that their features would underflow: exponents of -1,000 and less."""
    model = model_of(kind=kind, weighting="linear random", layers="two")
    for name, parameter in model.named_parameters():
        if ".attention.query" in name or ".attention.key" in name or ".cross.query" in name or ".cross.key" in name:
            parameter.mul_(30)
    assert LAWS[law](case_of(model)) == []


def test_summed_is_the_sum_over_keys():
    model = model_of(kind="decoder", weighting="linear elu")
    case, seen = case_of(model, (4,)), {}
    state = cache_in(case.session(), StateCache).state()
    assert state is not None
    with watching(model, seen.setdefault):
        model(torch.tensor(case.prompts))
    key = torch.nn.functional.elu(seen["stack.blocks.0.attention.key"]) + 1
    assert apart("Σ φ(k) vᵀ", state.total, key.mT @ seen["stack.blocks.0.attention.value"]) == []
    assert apart("Σ φ(k)", state.normaliser, key.sum(2)) == []


class Counted:
    """How often the keys of a layer are made."""

    def __init__(self, layer, monkeypatch):
        self.calls, original = 0, layer.key.forward

        def forward(source):
            self.calls += 1
            return original(source)

        monkeypatch.setattr(layer.key, "forward", forward)


@pytest.mark.parametrize("method", [Greedy(), Beam(width=3)], ids=["greedy", "beam"])
@pytest.mark.parametrize("choice", ["softmax", "linear elu", "argmax"])
def test_the_keys_of_a_source_are_made_once(choice, method, monkeypatch):
    model = model_of(kind="same cross", weighting=choice, layers="two")
    counted = [Counted(block.cross, monkeypatch) for block in model.decoder.stack.blocks]
    case_of(model).generate(method, Rules(max_new=5))
    assert [layer.calls for layer in counted] == [1, 1]


def test_the_source_is_let_go_once_its_keys_are_made(monkeypatch):
    for kind in (SourceCache, SourceStateCache):
        model, sources = model_of(**KINDS[kind]), []
        original = kind.read

        def read(cache, layer, source, original=original, sources=sources):
            sources.append(weakref.ref(source.vectors))
            original(cache, layer, source)

        monkeypatch.setattr(kind, "read", read)
        session = case_of(model).session()
        assert cache_in(session, kind).memory
        assert sources
        assert all(source() is None for source in sources)


@pytest.mark.parametrize("kind", [SourceCache, SourceStateCache])
def test_cross_caches_do_not_grow_with_the_text_or_the_beams(kind, monkeypatch):
    sizes = {
        sum(map(torch.Tensor.numel, cache_in(one, kind).memory)) for one in stepped(case_of(model_of(**KINDS[kind])), 3)
    }
    assert len(sizes) == 1
    rows, original = [], Session.compute_step

    def compute(session):
        rows.append((session.clock.rows, *{len(cached) for cached in cache_in(session, kind).memory}))
        return original(session)

    monkeypatch.setattr(Session, "compute_step", compute)
    case_of(model_of(**KINDS[kind])).generate(Beam(width=4), Rules(max_new=3))
    assert set(rows) == {(12, 3)}


LAYERS = [
    ({}, FullCache),
    ({"mask": masks.window(4)}, WindowCache),
    ({"mask": masks.window(4) & masks.window(2)}, WindowCache),
    ({"mask": masks.window(4) | masks.window(2)}, FullCache),
    ({"mask": ~masks.window(4)}, FullCache),
    ({"mask": masks.document(torch.arange(9))}, FullCache),
    ({"weighting": weighting.Kernelized()}, StateCache),
    ({"weighting": weighting.Kernelized(), "kernel": "recurrent"}, StateCache),
    ({"weighting": weighting.Kernelized(), "kernel": "chunked"}, StateCache),
    ({"weighting": weighting.Kernelized(), "kernel": "blockwise"}, FullCache),
    ({"weighting": weighting.Kernelized(), "mask": masks.window(4)}, WindowCache),
    ({"weighting": weighting.Kernelized(), "mask": masks.document(torch.arange(9))}, FullCache),
]


@pytest.mark.parametrize(("parts", "kind"), LAYERS, ids=[f"{place}" for place in range(len(LAYERS))])
def test_which_cache_a_layer_gets(parts, kind):
    block = BlockSpec(attention=AttentionSpec(heads=2, **parts), feed_forward=None)
    model = DecoderSpec(vocabulary=VOCABULARY, d_model=16, blocks=(block,)).build()
    assert [type(cache) for cache in case_of(model, (2,)).session().caches] == [kind]


CROSS_LAYERS = [
    ({}, SourceCache),
    ({"weighting": weighting.Kernelized()}, SourceStateCache),
    ({"weighting": weighting.Kernelized(), "kernel": "blockwise"}, SourceCache),
    ({"weighting": weighting.Kernelized(), "mask": masks.window(3, 3)}, SourceCache),
]


@pytest.mark.parametrize(("parts", "kind"), CROSS_LAYERS, ids=[f"{place}" for place in range(len(CROSS_LAYERS))])
def test_which_cache_a_cross_layer_gets(parts, kind):
    spec = spec_of(on_axes(PLAIN | {"kind": "same cross"}))
    block = replace(spec.decoder.blocks[0], cross=AttentionSpec(heads=2, **parts))
    model = replace(spec, decoder=replace(spec.decoder, blocks=(block,))).build()
    assert [type(cache) for cache in case_of(model, (2,)).session().caches] == [FullCache, kind]


LONG = {
    "softmax": {},
    "rotary": {"position": "rotary", "heads": "one key head"},
    "alibi": {"position": "alibi"},
    "linear": {"weighting": "linear elu"},
    "window": {"mask": "window 2"},
    "argmax": {"weighting": "argmax last", "heads": "grouped keys"},
    "cross": {"kind": "same cross"},
    "cross rotary": {"kind": "same cross", "position": "rotary"},
    "cross alibi": {"kind": "same cross", "position": "alibi"},
    "cross linear": {"kind": "same cross", "position": "rotary", "weighting": "linear elu"},
}


@pytest.mark.parametrize("name", LONG)
@pytest.mark.slow
def test_cached_is_uncached_past_every_allocation(name):
    """Past 64 columns, past 128, and over chunks of 64; one prompt short, one long."""
    case = case_of(model_of(**{"kind": "decoder", "layers": "two"} | LONG[name]), (2, 70))
    tokens = steps_of(2, 70)
    wanted = [case.logits(row, [tokens[row].tolist()])[0] for row in range(2)]
    for step, session in enumerate(stepped(case, 70)):
        assert apart(f"step {step}", session.logits, torch.stack([row[step] for row in wanted])) == []


WIDE = presets.Size(2, 256, 4, 2, 512)
"""So wide that a step of a few rows multiplies its weights the other way round."""


@pytest.mark.parametrize(
    "spec", [presets.gpt2(WIDE, vocabulary=600), presets.llama(WIDE, vocabulary=600)], ids=["gpt2", "llama"]
)
@pytest.mark.parametrize("lengths", [(1, 1), (3, 1, 5)], ids=str)
def test_cached_is_uncached_in_a_wide_model(spec, lengths):
    assert step_by_step(case_of(spec.build().double().eval(), lengths), 3) == []


@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.pairs
def test_plain_attention_keeps_float32_for_a_model_in_bfloat16(kind, watched):
    model = model_of(**KINDS[kind]).bfloat16()
    case, tokens = case_of(model), steps_of(3, 3)
    wanted = [case.logits(row, [tokens[row].tolist()])[0] for row in range(3)]
    kept = set()
    with watching(model, lambda name, value: None) if watched else nullcontext():
        for step, session in enumerate(stepped(case, 3)):
            rows = torch.stack([row[step] for row in wanted]).double()
            torch.testing.assert_close(session.logits.double(), rows, rtol=0, atol=0.05 * float(rows.abs().max()))
            kept |= {one.dtype for cache in session.caches if type(cache) is kind for one in cache.memory}
    assert kept == {torch.bfloat16 if kind is WindowCache else torch.float32}


@pytest.mark.parametrize("kind", KINDS)
def test_a_watched_or_hooked_model_goes_on_the_same(kind):
    """Whatever short way a step takes, whoever looks on sees every value of the ordinary forward, and changes none."""
    model = model_of(**KINDS[kind], layers="two")
    case = case_of(model)
    wanted = [session.logits for session in stepped(case, 3)]
    seen = []
    with watching(model, lambda name, value: seen.append(name)):
        mine = [session.logits for session in stepped(case, 3)]
    path = "" if case.sources is None else "decoder."
    assert seen.count(f"{path}stack.blocks.1.attention.query") == 5  # the prompt, its last token and three steps
    assert seen.count(f"{path}output.logits") == 4
    assert apart("watched", torch.stack(mine), torch.stack(wanted)) == []
    calls = []
    network = model.decoder.stack.blocks[0].feed_forward
    assert network is not None
    handle = network.register_forward_hook(lambda *given: calls.append(1))
    mine = [session.logits for session in stepped(case, 3)]
    handle.remove()
    assert len(calls) == 5
    assert apart("hooked", torch.stack(mine), torch.stack(wanted)) == []


def test_what_replaces_a_value_reaches_the_logits_of_every_step():
    model = model_of(kind="decoder")
    case = case_of(model)
    plain = [session.logits for session in stepped(case, 2)]
    double = lambda name, value: 2 * value if name == "stack.blocks.0.attention.context" else value  # noqa: E731
    with replacing(model, double):
        changed = [session.logits for session in stepped(case, 2)]
    for mine, other in zip(changed, plain, strict=True):
        assert apart("changed", mine, other) != []


def test_nothing_of_padding_reaches_a_token():
    """A norm without epsilon makes NaN of the zeros that padding, which sees nothing, comes to."""
    block = BlockSpec(
        attention=AttentionSpec(heads=2),
        feed_forward=ReLU(8, bias=False),
        arrangement=SingleResidualNorm(LayerNorm(epsilon=0.0)),
    )
    model = DecoderSpec(vocabulary=11, d_model=16, blocks=(block, block), embedding=Embedding(position=None)).build()
    (_, (ragged,)), ((alone,),) = (generate(model, rows, rules=Rules(max_new=3)) for rows in ([[1, 2, 3], [4]], [[4]]))
    assert ragged.tokens == alone.tokens
    assert ragged.score == pytest.approx(alone.score)


DOCUMENTS = masks.document(torch.arange(30) // 3)
NAMED = [
    *((kernel, mask) for kernel in ("chunked", "fused", "blockwise") for mask in (None, masks.window(2), DOCUMENTS)),
    *(("recurrent", mask) for mask in (None, DOCUMENTS)),
]
"""Kernels that may be asked for by name, and masks that they serve."""


@pytest.mark.parametrize(("kernel", "mask"), NAMED, ids=[f"{kernel} {mask and mask.kind}" for kernel, mask in NAMED])
def test_a_kernel_asked_for_by_name_serves_ragged_prompts(kernel, mask):
    """Where it serves a whole text of the model, it goes on from prompts of different lengths."""
    weight = None if kernel == "fused" else weighting.Kernelized()
    attention = AttentionSpec(heads=Heads(2), weighting=weight, mask=mask, kernel=kernel)
    block = BlockSpec(attention=attention, feed_forward=None)
    model = DecoderSpec(vocabulary=VOCABULARY, d_model=16, blocks=(block,)).build().double()
    assert LAWS["cached_is_uncached"](case_of(model)) == []


@pytest.mark.parametrize(("rows", "heads", "columns"), [(1, 1, 1), (3, 4, 7), (8, 2, 16)])
def test_attention_by_products_is_torchs_own(rows, heads, columns):
    torch.manual_seed(rows)
    query = torch.randn(rows, heads, 1, 8, dtype=torch.float64)
    # As in the slots: rows and columns of a larger memory.
    keys, values = (torch.randn(rows + 2, heads, columns + 5, 8, dtype=torch.float64)[:rows, :, :columns] for _ in "kv")
    seen = torch.rand(rows, 1, 1, columns) < 0.5
    seen[..., 0] = True
    added = seen.double().log()
    expected = F.scaled_dot_product_attention(query, keys, values, added, scale=0.3)
    bias = added.expand(-1, heads, -1, -1).reshape(-1, 1, columns)
    torch.testing.assert_close(attend_few(query, keys, values, bias, 0.3), expected)


@pytest.mark.parametrize("lengths", [None, [7, 3, 1]])
def test_beams_attend_to_their_source_as_torchs_kernel_lets_them(lengths):
    torch.manual_seed(0)
    query, (keys, values) = torch.randn(3, 2, 5, 4).double(), torch.randn(2, 3, 2, 7, 4).double()
    real = None if lengths is None else (torch.arange(7) < torch.tensor(lengths)[:, None])[:, None, None]
    bias = None if real is None else real.double().log().expand(-1, 2, -1, -1).flatten(0, 1)
    expected = F.scaled_dot_product_attention(query, keys, values, real, scale=0.3)
    torch.testing.assert_close(attend_few(query, keys, values, bias, 0.3), expected, rtol=0, atol=1e-12)
