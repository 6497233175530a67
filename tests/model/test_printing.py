"""print(model): heads, parts, sizes; equal blocks once; and nothing of a model changes by it."""

import copy
import importlib
import pkgutil
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

import clearhead as ch
from clearhead import attention, model
from clearhead.attention.layer import Attention
from clearhead.model import presets
from clearhead.model.int8 import count_weights, quantize
from clearhead.model.lora import Lora, add_adapters, share_adapters
from clearhead.model.outputs import NgramLogits, Tags

KERNELIZED = ch.weighting.Kernelized


def decoder(norm=model.LayerNorm(), feed_forward=model.ReLU(16), arrangement=model.PreNorm, output=None, **layer):
    attending = model.AttentionSpec(**{"heads": 2, **layer})
    if arrangement is model.NoNorm:
        block = model.BlockSpec(attention=attending, feed_forward=feed_forward, arrangement=model.NoNorm())
    else:
        block = model.BlockSpec(attention=attending, feed_forward=feed_forward, arrangement=arrangement(norm))
    return model.DecoderSpec(vocabulary=50, d_model=8, blocks=(block,), output=output or model.NextToken()).build()


def with_shared_adapters():
    plain = presets.gpt2("tiny", vocabulary=50).build()
    share_adapters(plain, [add_adapters(copy.deepcopy(plain), Lora(rank=4))])
    return plain


ZOO = {
    "encoder-decoder": lambda: presets.tiny(vocabulary=50).build(),
    "gpt2": lambda: presets.gpt2("tiny", vocabulary=50).build(),
    "bert": lambda: presets.bert("tiny", vocabulary=50).build(),
    "llama": lambda: presets.llama("tiny", vocabulary=50).build(),
    "cosine": lambda: decoder(similarity=ch.similarity.Cosine(), arrangement=model.ParallelNorm),
    "additive": lambda: decoder(similarity=ch.similarity.Additive(5), arrangement=model.SandwichNorm),
    "elu": lambda: decoder(weighting=KERNELIZED("elu"), arrangement=model.NoNorm),
    "random": lambda: decoder(weighting=KERNELIZED("random"), arrangement=model.SingleResidualNorm),
    "random sum": lambda: decoder(weighting=KERNELIZED("random", normalised=False)),
    "t5": lambda: decoder(position=ch.positions.T5Bias(), arrangement=partial(model.SandwichNorm, before=False)),
    "low rank": lambda: decoder(heads=ch.Heads(2, value_rank=3)),
    "slices": lambda: decoder(heads=ch.SlicedHeads(2, value_rank=3)),
    "gated": lambda: decoder(feed_forward=model.GeGLU(9, form="tanh")),
    "tags": lambda: decoder(output=Tags(3)),
    "classes": lambda: decoder(output=model.Classes(3, hidden=True, ngrams=NgramLogits(buckets=64))),
    "lora": lambda: add_adapters(presets.gpt2("tiny", vocabulary=50).build(), Lora(rank=4)),
    "shared adapters": with_shared_adapters,
    "int8": lambda: quantize(presets.gpt2("tiny", vocabulary=50).build()),
}


def module_classes():
    """Return the classes of modules in `clearhead.attention` and `clearhead.model` that have values or sizes."""
    for package in (attention, model):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if "_triton" not in found.name:
                importlib.import_module(found.name)

    def below(base):
        for child in base.__subclasses__():
            yield child
            yield from below(child)

    ours = {one for one in below(nn.Module) if one.__module__.startswith(("clearhead.attention", "clearhead.model"))}
    return {one for one in ours if not one.__subclasses__() and "kernels" not in one.__module__}


def test_every_module_of_ours_is_in_the_zoo_and_shows_its_sizes():
    modules = [module for build in ZOO.values() for module in build().modules()]
    met = {type(module) for module in modules}
    assert module_classes() - met == set()
    for module in modules:
        if type(module) in module_classes() and not list(module.children()):
            said = module.extra_repr()
            assert said or type(module).__name__ in ("ResidualOnly", "BranchOnly"), type(module)
            sizes = {str(n) for parameter in module.parameters() for n in parameter.shape if n > 1}
            assert not sizes or any(size in said for size in sizes), (type(module), said)


def test_a_layer_shows_heads_parts_and_sizes():
    layer = ch.Attention(
        16,
        heads=ch.Heads(4, kv=2),
        mask=ch.masks.causal() & ch.masks.window(3),
        position=ch.positions.Rotary(),
        similarity=ch.similarity.ScaledDot(0.5),
        weighting=ch.weighting.Softmax(temperature=2.0),
        dropout=0.1,
        kernel="reference",
    )
    assert repr(layer).splitlines()[1:3] == [
        "  d_model=16, heads=4, kv=2, d_head=4, dropout=0.1, kernel='reference'",
        "  similarity=ScaledDot(factor=0.5), weighting=Softmax(temperature=2.0), mask=causal() & window(3), "
        "position=Rotary()",
    ]
    learned = repr(ch.Attention(16, heads=4, similarity=ch.similarity.Cosine(), position=ch.positions.T5Bias()))
    assert "(similarity): LearnedCosine(heads=4)" in learned
    assert "(position): LearnedT5Bias(T5Bias(), heads=4)" in learned
    assert "similarity=" not in learned


def test_equal_blocks_are_shown_once_and_others_apart():
    spec = presets.gpt2("tiny", vocabulary=50)
    twelve = repr(replace(spec, blocks=spec.blocks[:1] * 12).build())
    assert "(0-11): 12 x Block(" in twelve
    assert twelve.count("Attention(") == 1
    other = replace(spec.blocks[0], feed_forward=model.SwiGLU(24))
    assert repr(replace(spec, blocks=(spec.blocks[0], other)).build()).count("Attention(") == 2


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("encoder-decoder", ["d_model=128, tied='three', parameters=", "Plain(\nReLU(256)"]),
        ("gpt2", ["vocabulary=50, d_model=64, n_layers=2, tied=True, parameters=", "length=1024, d_model=64"]),
        ("bert", ["BuiltLayerNorm(128, epsilon=1e-12, bias=True)", "vocabulary=50, d_model=128, bias=True"]),
        ("llama", ["BuiltRMSNorm(64, epsilon=1e-06)", "kv=2", "SwiGLU(176)", "tied=False"]),
        ("gated", ["GeGLU(9, form='tanh')"]),
        ("classes", ["classes=3, pool='first', activation='tanh'", "classes=3, pairs=0, triples=0, buckets=64"]),
        ("lora", ["AdaptedLinear(in_features=64, out_features=64, bias=True, rank=4, scale=2)"]),
    ],
)  # fmt: skip
def test_a_model_shows(name, lines):
    built = ZOO[name]()
    shown = "\n".join(line.strip() for line in repr(built).splitlines())
    assert shown.splitlines()[1].endswith(f"parameters={count_weights(built):,}")
    for line in lines:
        assert line in shown


def test_an_int8_model_counts_what_it_keeps_as_int8():
    plain, rounded = (repr(ZOO[name]()).splitlines()[1] for name in ("gpt2", "int8"))
    assert plain == rounded


def test_printing_changes_nothing():
    torch.manual_seed(0)
    layer = Attention(8, heads=2, mask=ch.masks.causal())
    x = torch.randn(1, 3, 8)
    before = layer(x)
    twin = copy.deepcopy(layer)
    assert repr(twin) == repr(layer)
    assert torch.equal(twin(x), before)
    assert list(layer.state_dict()) == list(twin.state_dict())
