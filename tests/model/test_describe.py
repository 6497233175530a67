"""`describe` beside torch: parameters as it lists them, operations as its own counter finds them in a forward pass."""

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import clearhead as ch
from clearhead.attention.mask_numbers import Extent
from clearhead.errors import OptionError, ShapeError
from clearhead.model import presets
from clearhead.model.arrangements import NoNorm, PostNorm
from clearhead.model.blocks import AttentionSpec, BlockSpec
from clearhead.model.describe import allowed_pairs, describe
from clearhead.model.embedding import Embedding
from clearhead.model.feedforward import GELU, GeGLU, ReLU, SwiGLU
from clearhead.model.norms import RMSNorm
from clearhead.model.outputs import Blanks, Classes, NextToken
from clearhead.model.presets import Size
from clearhead.model.transformers import DecoderSpec, EncoderSpec
from tests.decoding.rows import Rows

SMALL = Size(2, 16, 4, 4, 24)
BATCH, N_SOURCE, N_TARGET = 3, 7, 5


def reference(**parts):
    return AttentionSpec(heads=parts.pop("heads", 4), kernel="reference", **parts)


def encoder(attention=None, **changes):
    block = BlockSpec(attention=attention or reference(), feed_forward=ReLU(24))
    return EncoderSpec(**{"vocabulary": 11, "d_model": 16, "blocks": (block, block), **changes})


def decoder(attention=None, **changes):
    block = BlockSpec(attention=attention or reference(), feed_forward=ReLU(24))
    return DecoderSpec(**{"vocabulary": 11, "d_model": 16, "blocks": (block, block), **changes})


def ran(model):
    """The operations torch counts in a forward of that model."""
    source, target = torch.randint(11, (BATCH, N_SOURCE)), torch.randint(11, (BATCH, N_TARGET))
    inputs = {"EncoderDecoder": (source, target), "Encoder": (source,), "Decoder": (target,)}[type(model).__name__]
    with FlopCounterMode(display=False) as counter:
        model(*inputs)
    return counter.get_total_flops()


def told(model):
    return describe(model, batch=BATCH, source=N_SOURCE, target=N_TARGET)


def by_name(made):
    """The parts of all sections, by the names of both; numbers of all blocks together."""
    return {
        f"{section.name}: {part.name}": (section.count * part.parameters, section.count * part.operations)
        for section in made.sections
        for part in section.parts
    }


LAYOUTS = {
    "plain": ch.Heads(4),
    "bias": ch.Heads(4, bias=True),
    "grouped": ch.Heads(4, kv=2),
    "widths": ch.Heads(2, d_head=6, d_value=10),
    "low rank": ch.Heads(4, kv=2, value_rank=3, bias=True),
    "no W_O": ch.Heads(4, output=False),
    "sliced": ch.SlicedHeads(4),
}
OUTPUTS = {
    "none": None,
    "blanks": Blanks(),
    "untied blanks": Blanks(tied=False, transform=False),
    "classes": Classes(5, hidden=True),
    "mean": Classes(5, pool="mean"),
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_operations_of_an_encoder_are_those_torch_counts(layout):
    model = encoder(reference(heads=layout)).build()
    assert told(model).operations == ran(model)


@pytest.mark.parametrize("output", OUTPUTS.values(), ids=OUTPUTS)
def test_operations_of_every_output_are_those_torch_counts(output):
    model = encoder(output=output).build()
    assert told(model).operations == ran(model)


@pytest.mark.parametrize("similarity", ch.similarity.TABLE.values(), ids=ch.similarity.TABLE)
@pytest.mark.parametrize("position", ["none", "t5", "rotary"])
@pytest.mark.pairs(1)
def test_operations_of_every_similarity_are_those_torch_counts(similarity, position):
    model = encoder(reference(similarity=similarity, position=ch.positions.TABLE[position])).build()
    assert told(model).operations == ran(model)


@pytest.mark.parametrize("features", ["elu", "relu", "softmax", "random"])
@pytest.mark.parametrize("heads", [ch.Heads(4), ch.Heads(4, kv=2, d_value=10)], ids=["equal", "grouped"])
@pytest.mark.slow
@pytest.mark.pairs(1)
def test_kernelized_attention_is_counted_in_its_linear_form(features, heads):
    spec = encoder(AttentionSpec(heads=heads, weighting=ch.weighting.Kernelized(features), kernel="chunked"))
    assert told(spec).operations == ran(spec.build())
    once, twice = (describe(spec, source=n).operations for n in (64, 128))
    assert twice == 2 * once


@pytest.mark.parametrize("feed_forward", [None, ReLU(24), GELU(20), SwiGLU(24)], ids=str)
@pytest.mark.parametrize("tied", [True, False])
def test_operations_of_a_decoder_are_those_torch_counts_but_for_what_the_mask_blocks(feed_forward, tied):
    block = BlockSpec(attention=reference(heads=ch.Heads(4, d_value=6)), feed_forward=feed_forward)
    model = decoder(blocks=(block,) * 3, output=NextToken(tied=tied)).build()
    # The reference forms the scores of the future too, and multiplies them, as zeros, with the values.
    blocked = N_TARGET * (N_TARGET - 1) // 2
    assert ran(model) - told(model).operations == 3 * BATCH * 4 * blocked * 2 * (4 + 6)


@pytest.mark.slow
def test_operations_of_an_encoder_decoder_are_those_torch_counts_but_for_what_the_mask_blocks():
    model = presets.classic(11, size=SMALL, attention=reference(), dropout=0.0).build()
    blocked = N_TARGET * (N_TARGET - 1) // 2
    assert ran(model) - told(model).operations == 2 * BATCH * 4 * blocked * 2 * (4 + 4)


@pytest.mark.slow
def test_operations_by_hand():
    spec, n, m = presets.base(37_000), 20, 10
    parts = by_name(describe(spec, source=n, target=m))
    d, d_ff, maps = 512, 2048, 2 * 512 * 512
    assert parts["encoder blocks: attention query map"] == (6 * d * d, 6 * n * maps)
    assert parts["encoder blocks: attention scores"] == (0, 6 * n * n * 2 * d)
    assert parts["encoder blocks: attention weighted sum"] == (0, 6 * n * n * 2 * d)
    assert parts["encoder blocks: feed-forward"] == (6 * (2 * d * d_ff + d_ff + d), 6 * n * 2 * 2 * d * d_ff)
    assert parts["encoder blocks: norms"] == (6 * 2 * 2 * d, 0)
    assert parts["decoder blocks: attention scores"] == (0, 6 * m * (m + 1) // 2 * 2 * d)
    assert parts["decoder blocks: cross query map"] == (6 * d * d, 6 * m * maps)
    assert parts["decoder blocks: cross key map"] == (6 * d * d, 6 * n * maps)
    assert parts["decoder blocks: cross scores"] == (0, 6 * n * m * 2 * d)
    assert parts["decoder output: output"] == (0, m * 2 * d * 37_000)
    assert parts["encoder embedding: tokens"] == (37_000 * d, 0)
    assert parts["decoder embedding: tokens"] == (0, 0)


@pytest.mark.parametrize("n", [1, 5, 300])
@pytest.mark.parametrize("name", ch.masks.TABLE)
@pytest.mark.pairs(1)
def test_pairs_are_those_the_mask_allows(name, n):
    extent = Extent(2, 4, n, n + 3, torch.device("cpu"))
    mask = ch.masks.TABLE[name](extent)
    positions = {"query_positions": torch.arange(n), "key_positions": torch.arange(n + 3)}
    q, k = torch.zeros(2, 4, n, 1), torch.zeros(2, 4, n + 3, 1)
    weight = ch.explain(q, k, k, mask=mask, **positions).weight
    assert allowed_pairs(mask, extent) == (weight > 0).sum()


def test_pairs_of_long_sequences_are_counted_in_pieces(monkeypatch):
    monkeypatch.setattr("clearhead.model.describe.CELLS", 100)
    extent = Extent(2, 4, 31, 17, torch.device("cpu"))
    mask = ch.masks.prefix([3, 9])
    assert allowed_pairs(mask, extent) == 4 * ch.masks.show(mask, batch=2, n_query=31, n_key=31)[..., :17].sum()


def test_a_window_costs_its_width():
    spec = decoder(reference(mask=ch.masks.window(3)))
    scores = [by_name(describe(spec, target=n))["blocks: attention scores"][1] for n in (100, 200)]
    assert scores[1] - scores[0] == 2 * 4 * 100 * 4 * 2 * 4  # layers, heads, queries, keys of the window, 2 d_head
    assert scores[0] == 2 * 4 * (1 + 2 + 3 + 97 * 4) * 2 * 4


MODELS = {
    "tiny": lambda: presets.tiny(50),
    "two tables": lambda: replace(presets.tiny(50), tied="two"),
    "three tables": lambda: replace(presets.tiny(50), tied="none"),
    "gpt2": lambda: presets.gpt2("tiny", vocabulary=50),
    "bert": lambda: presets.bert("tiny", vocabulary=50),
    "llama": lambda: presets.llama("tiny", vocabulary=50),
    "learned parts": lambda: encoder(reference(similarity=ch.similarity.Additive(), position=ch.positions.T5Bias())),
    "cosine": lambda: encoder(reference(similarity=ch.similarity.Cosine())),
    "frozen": lambda: encoder(embedding=Embedding(frozen=True)),
}


@pytest.mark.slow
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_parameters_are_those_torch_lists(make):
    spec = make()
    model = spec.build()
    made = describe(model)
    assert made == describe(spec)
    assert made.parameters == sum(parameter.numel() for parameter in model.parameters())
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    assert (made.trainable, made.frozen) == (trained, made.parameters - trained)
    assert made.parameters == sum(section.parameters for section in made.sections)


@pytest.mark.parametrize(
    ("tied", "shared"),
    [
        ("none", {}),
        ("two", {"decoder output": ("decoder.embedding.table",)}),
        ("three", {"decoder embedding": ("encoder.embedding.table",), "decoder output": ("encoder.embedding.table",)}),
    ],
)
@pytest.mark.slow
def test_shared_tables_are_counted_once_and_named(tied, shared):
    made = describe(replace(presets.tiny(50), tied=tied))
    found = {section.name: part.shares for section in made.sections for part in section.parts if part.shares}
    assert found == shared
    assert (
        made.parameters == describe(replace(presets.tiny(50), tied="three")).parameters + (2 - len(shared)) * 50 * 128
    )


def test_freezing_is_read_from_the_model():
    model = presets.gpt2("tiny", vocabulary=50).build()
    model.stack.blocks[1].requires_grad_(False)
    made = describe(model)
    block = sum(parameter.numel() for parameter in model.stack.blocks[1].parameters())
    assert made.frozen == block
    # What differs is a section of its own, though the spec knows of no difference.
    assert [(section.name, section.count) for section in made.sections[1:3]] == [("block 1", 1), ("block 2", 1)]


def test_equal_blocks_are_one_section_and_others_their_own():
    narrow = BlockSpec(attention=reference(), feed_forward=ReLU(24))
    wide = replace(narrow, feed_forward=ReLU(48))
    made = describe(encoder(blocks=(narrow, narrow, wide, narrow), output=None))
    named = [(section.name, section.count) for section in made.sections[1:]]
    assert named == [("blocks 1 to 2", 2), ("block 3", 1), ("block 4", 1), ("output", 1)]
    assert made.parameters == sum(
        parameter.numel()
        for parameter in encoder(blocks=(narrow, narrow, wide, narrow), output=None).build().parameters()
    )


def test_a_bias_shared_by_all_layers_is_counted_in_the_first():
    bias = ch.positions.T5Bias().build(ch.HeadShape(n_heads=4, n_kv_heads=4, d_head=4))
    before = bias.table.device
    spec = encoder(reference(position=bias))
    made = describe(spec)
    assert bias.table.device == before
    assert made.parameters == sum(parameter.numel() for parameter in spec.build().parameters())
    assert [(section.name, section.count) for section in made.sections[1:3]] == [("block 1", 1), ("block 2", 1)]


def test_a_model_that_is_no_longer_its_spec_is_refused():
    model = encoder().build()
    model.adapter = torch.nn.Linear(2, 2)
    with pytest.raises(OptionError, match=r"parameters that its spec knows nothing of: adapter.weight, adapter.bias"):
        describe(model)


def test_nothing_is_run_on_the_model_and_nothing_changes_in_it():
    model = presets.tiny(50).build()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    calls, drawn = [], torch.get_rng_state()
    model.decoder.register_forward_hook(lambda *_: calls.append(1))
    describe(model)
    assert calls == []
    assert torch.equal(torch.get_rng_state(), drawn)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert {parameter.device.type for parameter in model.parameters()} == {"cpu"}


def test_lengths_that_cannot_be_are_told():
    with pytest.raises(OptionError, match="source must be 1 or more; came 0"):
        describe(presets.tiny(50), source=0)
    with pytest.raises(OptionError, match="batch must be 1 or more; came -1"):
        describe(presets.tiny(50), batch=-1)
    with pytest.raises(ShapeError, match="positions 0 to 511, and 0 to 512"):
        describe(presets.bert("tiny"), source=513)


@pytest.mark.slow
def test_a_model_without_a_source_or_a_target_says_so():
    assert (describe(presets.gpt2("tiny")).source, describe(presets.gpt2("tiny")).target) == (0, 128)
    assert (describe(presets.bert("tiny")).source, describe(presets.bert("tiny")).target) == (128, 0)
    assert (describe(presets.tiny(50)).source, describe(presets.tiny(50)).target) == (128, 128)


def test_memory_of_the_parameters_goes_with_the_dtype():
    made = describe(presets.base(37_000))
    assert made.memory().parameters == 4 * 63_045_632
    assert made.memory(torch.bfloat16).parameters == 2 * 63_045_632
    assert made.memory(torch.float64).token == 8 * 6 * 2 * 512


@torch.inference_mode()
def cached(model, n, n_source=1):
    """The bytes that decoding holds after n tokens."""
    session = Rows(model, torch.randint(11, (1, n)).tolist(), torch.randint(11, (1, n_source)).tolist(), slots=1)
    return sum(kept.numel() * kept.element_size() for cache in session.caches for kept in cache.tensors())


CACHED = {
    "softmax": {},
    "grouped": {"heads": ch.Heads(4, kv=2, d_value=7)},
    "linear": {"weighting": ch.weighting.Kernelized()},
    "linear grouped": {"heads": ch.Heads(4, kv=2, d_value=7), "weighting": ch.weighting.Kernelized("random")},
    "linear window": {"weighting": ch.weighting.Kernelized(), "mask": ch.masks.window(6)},
    "window": {"mask": ch.masks.window(6)},
}


@pytest.mark.parametrize("parts", CACHED.values(), ids=CACHED)
@pytest.mark.slow
def test_memory_of_the_caches_is_what_decoding_holds(parts):
    spec = decoder(AttentionSpec(**{"heads": 4, **parts}))
    model, memory, n = spec.build(), describe(spec).memory(), 64  # columns are allocated by 64
    assert cached(model, n) == memory.token * n + memory.fixed
    assert (memory.token == 0) == ("weighting" in parts or "mask" in parts)


@pytest.mark.parametrize("weighting", [ch.weighting.Softmax(), ch.weighting.Kernelized()], ids=["softmax", "linear"])
def test_memory_of_the_caches_of_a_source_is_what_decoding_holds(weighting):
    spec = presets.classic(11, size=SMALL, attention=AttentionSpec(heads=4, weighting=weighting), dropout=0.0)
    memory = describe(spec).memory()
    wanted = memory.token * 64 + memory.source_token * 16 + memory.fixed  # those of a source by 16
    assert cached(spec.build(), 64, n_source=16) == wanted
    assert (memory.source_token == 0) == (weighting.form == "kernelized")


def test_an_encoder_keeps_nothing():
    memory = describe(presets.bert("tiny")).memory()
    assert (memory.token, memory.source_token, memory.fixed) == (0, 0, 0)


def test_arrangements_differ_in_their_norms_alone():
    specs = [
        encoder(blocks=(BlockSpec(attention=reference(), feed_forward=ReLU(24), arrangement=arrangement),) * 2)
        for arrangement in (NoNorm(), PostNorm())
    ]
    bare, post = (by_name(describe(spec)) for spec in specs)
    assert post.pop("blocks: norms") == (2 * 2 * 2 * 16, 0)
    assert bare == post


def test_segments_rows_before_the_first_position_and_shared_biases_are_counted():
    bert = presets.bert("tiny", vocabulary=50)
    bert = replace(bert, embedding=replace(bert.embedding, segments=2, position=ch.positions.Learned(200, first=2)))
    heads = ch.Heads(2, qk_norm=RMSNorm(), bias=True, output_bias=False)
    position = ch.positions.T5Bias(two_sided=False, shared=True)
    block = BlockSpec(attention=AttentionSpec(heads=heads, position=position), feed_forward=GeGLU(9))
    decoder = DecoderSpec(vocabulary=9, d_model=8, blocks=(block,) * 3, embedding=Embedding(position=None))
    for spec in (bert, decoder):
        counted = sum(part.parameters * one.count for one in describe(spec).sections for part in one.parts)
        assert counted == sum(parameter.numel() for parameter in spec.build().parameters())
