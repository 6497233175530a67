"""Saved specs: every preset and every part comes back equal; one that could not come back is refused at once."""

import json
from dataclasses import dataclass, is_dataclass, replace

import pytest
import torch

from clearhead.attention import mask_rules, masks, positions, similarity, weighting
from clearhead.attention.heads import Heads, SlicedHeads
from clearhead.errors import OptionError, RunError
from clearhead.model import arrangements, feedforward, norms, outputs
from clearhead.model.blocks import AttentionSpec, BlockSpec
from clearhead.model.embedding import Embedding
from clearhead.model.outputs import NgramLogits
from clearhead.model.sizes import PARTS, PRESETS, named, spec_from_json, spec_to_json
from clearhead.model.transformers import DecoderSpec, EncoderSpec

BLOCK = BlockSpec(attention=AttentionSpec(), feed_forward=None)
RMS = norms.RMSNorm(1e-3)

HEADS = [Heads(4, kv=2, d_head=3, d_value=5, value_rank=2, bias=True), SlicedHeads(2, bias=True, value_rank=3), 4]
SIMILARITIES = [
    similarity.Dot(),
    similarity.ScaledDot(0.3),
    similarity.CappedDot(3.0, factor=0.4),
    similarity.Cosine(0.2, learned=False),
    similarity.Additive(9),
]
FEATURES = [
    weighting.Elu(),
    weighting.Relu(),
    weighting.SoftmaxFeatures(),
    weighting.RandomFeatures(7, factor=0.5, seed=3),
]
WEIGHTINGS = [
    weighting.Softmax(0.7),
    weighting.Argmax(tolerance=0.1),
    weighting.Sigmoid(-2.0),
    weighting.Sparsemax(),
    weighting.Kernelized("relu", normalised=False),
    *(weighting.Kernelized(features) for features in FEATURES),
]
SCALINGS = [
    positions.LinearScaling(2.0),
    positions.Llama3Scaling(8.0, low=1.0, high=4.0, original=99),
    positions.YaRNScaling(4.0, original=99, fast=7.0, whole=False),
]
POSITIONS = [
    positions.Rotary(pairing="halves", base=500.0, width=4),
    *(positions.Rotary(scaling=scaling) for scaling in SCALINGS),
    positions.ALiBi(),
    positions.T5Bias(8, 20),
    positions.T5Bias(8, 20, shared=True),
]
if is_dataclass(positions.NoPosition):
    POSITIONS.append(positions.NoPosition())
EMBEDDED = [positions.Sinusoidal(base=99.0, first=2), positions.Learned(17), positions.Learned(17, first=2), None]
MASKS = [masks.everything(), masks.causal(), masks.window(3, 1)]
FEED_FORWARD = [
    feedforward.ReLU(9, bias=False),
    feedforward.GELU(9, form="tanh"),
    feedforward.SiLU(9),
    feedforward.SwiGLU(9, bias=True),
    feedforward.GeGLU(9, form="tanh"),
    None,
]
ARRANGEMENTS = [
    arrangements.PreNorm(RMS),
    arrangements.PostNorm(norms.LayerNorm(1e-3, bias=False)),
    arrangements.NoNorm(),
    arrangements.PreNorm(norms.RMSNorm(from_one=True)),
    arrangements.SingleResidualNorm(RMS),
    arrangements.ParallelNorm(RMS, shared=True),
    arrangements.SandwichNorm(before=False),
]
WIDE = outputs.Classes(3, ngrams=NgramLogits(pairs=3, triples=2, buckets=7))
OUTPUTS = [
    outputs.Blanks(tied=False, transform=False),
    outputs.Classes(3, pool="mean", hidden=True),
    WIDE,
    outputs.Tags(3),
    None,
]


def with_attention(name, part):
    return replace(BLOCK, attention=AttentionSpec(**{name: part}, dropout=0.25, kernel="reference"))


BLOCKS = [
    *(with_attention("heads", part) for part in HEADS),
    *(with_attention("similarity", part) for part in SIMILARITIES),
    *(with_attention("weighting", part) for part in WEIGHTINGS),
    *(with_attention("position", part) for part in POSITIONS),
    *(with_attention("mask", part) for part in MASKS),
    *(replace(BLOCK, feed_forward=part) for part in FEED_FORWARD),
    *(replace(BLOCK, arrangement=part, dropout=0.5, feed_forward=feedforward.ReLU(4)) for part in ARRANGEMENTS),
]
SPECS = [
    *(EncoderSpec(vocabulary=9, d_model=8, blocks=(block,)) for block in BLOCKS),
    *(EncoderSpec(vocabulary=9, d_model=8, blocks=(BLOCK, BLOCK), output=output) for output in OUTPUTS),
    *(
        EncoderSpec(vocabulary=9, d_model=8, blocks=(BLOCK,), embedding=Embedding(position=position, norm=RMS))
        for position in EMBEDDED
    ),
    DecoderSpec(vocabulary=9, d_model=8, blocks=(), output=outputs.NextToken(tied=False, bias=True)),
    *(named(name) for name in PRESETS),
]


def again(spec):
    """By way of text that any reader of JSON takes."""
    return spec_from_json(json.loads(json.dumps(spec_to_json(spec), allow_nan=False)))


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: type(spec).__name__)
def test_a_spec_comes_back_equal(spec):
    assert again(spec) == spec
    assert hash(again(spec)) == hash(spec)


def classes_in(written):
    if isinstance(written, list):
        return set().union(*map(classes_in, written))
    if isinstance(written, dict):
        return {written.get("is")}.union(*map(classes_in, written.values()))
    return set()


def test_every_part_is_among_those_that_come_back():
    seen = set().union(*(classes_in(spec_to_json(spec)) for spec in SPECS))
    joined = {"Both", "Either", "Not"}
    rooms = ("clearhead.training", "clearhead.circuits", "clearhead.text")
    others = {name for name, part in PARTS.items() if part.__module__.startswith(rooms)}
    assert (seen | joined) - {None} == {name for name in PARTS if ":" not in name} - others


@pytest.mark.parametrize(
    "mask", [masks.window(3) & ~masks.window(1), masks.causal() | masks.window(0, 2), ~masks.causal()], ids=repr
)
def test_masks_made_of_masks_come_back_the_same(mask):
    """They are never equal, not even to themselves made twice; what they allow is."""
    spec = EncoderSpec(vocabulary=9, d_model=8, blocks=(with_attention("mask", mask),))
    found = again(spec)
    assert spec_to_json(found) == spec_to_json(spec)
    shown = (masks.show(one.blocks[0].attention.mask, n_query=6, n_key=6) for one in (spec, found))
    assert torch.equal(*shown)


def test_a_model_from_a_saved_spec_is_the_same_model():
    spec = named("tiny", 50)
    one, two = spec.build(), again(spec).build()
    assert [(name, tensor.shape) for name, tensor in one.state_dict().items()] == [
        (name, tensor.shape) for name, tensor in two.state_dict().items()
    ]


@pytest.mark.parametrize(
    "mask",
    [
        masks.function(lambda query, key: query == key),
        masks.tensor(torch.ones(3, 3, dtype=torch.bool)),
        masks.causal() & masks.document([0, 0, 1]),
    ],
    ids=["function", "tensor", "document"],
)
def test_masks_that_hold_tensors_or_functions_are_refused(mask):
    spec = EncoderSpec(vocabulary=9, d_model=8, blocks=(with_attention("mask", mask),))
    with pytest.raises(
        OptionError, match=r"cannot be written to a file: .* is no part of Clearhead that could be read again"
    ):
        spec_to_json(spec)


@dataclass(frozen=True)
class Shout(weighting.Weighting):
    """A user's own that is not registered."""

    def weigh(self, scores):
        return scores.exp()


def test_a_part_that_is_not_registered_is_refused():
    spec = EncoderSpec(vocabulary=9, d_model=8, blocks=(with_attention("weighting", Shout()),))
    with pytest.raises(OptionError, match=r"Shout is not registered; put @clearhead\.register above"):
        spec_to_json(spec)


def test_what_is_no_model_is_told():
    with pytest.raises(RunError, match="a model was expected, and a Softmax was written"):
        spec_from_json({"is": "Softmax", "temperature": 1.0})
    with pytest.raises(RunError, match="there is no 'EncoderSpec2'"):
        spec_from_json({"is": "EncoderSpec2"})
    with pytest.raises(RunError, match=r"model\.json: the field 'd_model' is missing; EncoderSpec has vocabulary"):
        spec_from_json({"is": "EncoderSpec", "vocabulary": 9}, where="model.json")


def test_a_part_in_the_wrong_place_is_told():
    """Where any part was taken for any other, a model was built from it, or a method was not found later."""
    written = spec_to_json(EncoderSpec(vocabulary=9, d_model=8, blocks=(with_attention("mask", mask_rules.Causal()),)))
    written["blocks"][0]["attention"]["mask"] = {"is": "NoNorm"}
    message = r"model\.json: blocks\[0\]\.attention\.mask: expected a Mask or null; came NoNorm NoNorm\(\)"
    with pytest.raises(RunError, match=message):
        spec_from_json(written, where="model.json")


def test_a_number_that_json_does_not_have_is_refused():
    spec = EncoderSpec(vocabulary=9, d_model=8, blocks=(with_attention("similarity", similarity.ScaledDot(0.5)),))
    with pytest.raises(OptionError, match="inf cannot be written to a file"):
        spec_to_json(replace(spec, embedding=Embedding(position=positions.Sinusoidal(base=float("inf")))))
