"""Tiny models of every kind, drawn so that every pair of choices that fit together is in one of them.

A model is one choice on each axis. `models()` draws them around pairs not shown so far until none is left; a pair is
left out only where the library refuses it, and `refused_pairs()` says which those are.
"""

import functools
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, cast

import torch
from torch import nn

from clearhead import masks, positions, similarity, weighting
from clearhead.attention.heads import Heads, SlicedHeads
from clearhead.attention.positions import Learned, Sinusoidal
from clearhead.decoding.request import Model
from clearhead.model.arrangements import NoNorm, ParallelNorm, PostNorm, PreNorm, SandwichNorm, SingleResidualNorm
from clearhead.model.blocks import AttentionSpec, BlockSpec
from clearhead.model.embedding import Embedding
from clearhead.model.feedforward import GELU, GeGLU, ReLU, SwiGLU
from clearhead.model.norms import LayerNorm, RMSNorm
from clearhead.model.outputs import NextToken
from clearhead.model.transformers import DecoderSpec, EncoderDecoderSpec, EncoderSpec

D_MODEL, VOCABULARY, LONGEST = 16, 11, 48
AT_LEAST, DECODERS = 200, 30
TRIES = 4
"""Candidates looked at for each model: the one that shows most new pairs is kept."""

HEADS = {
    "whole": Heads(2),
    "grouped keys": Heads(4, kv=2, d_head=6),
    "one key head": Heads(4, kv=1),
    "low-rank values": Heads(2, value_rank=3),
    "wide values": Heads(4, kv=2, d_value=7),
    "sliced": SlicedHeads(2),
    "sliced without W_O": SlicedHeads(4, output=False),
    "without W_O": Heads(4, d_head=6, d_value=4, output=False),
    "bias": Heads(2, kv=1, bias=True),
    "bias and low rank": Heads(4, value_rank=2, bias=True),
    "normed": Heads(2, bias=True, output_bias=False, qk_norm=RMSNorm()),
    "normed in groups": Heads(4, kv=2, d_head=6, qk_norm=LayerNorm()),
    "normed together": Heads(4, kv=2, d_head=6, qk_norm=RMSNorm(), qk_norm_joint=True),
}
PLACES = torch.arange(LONGEST)
OWN_MASKS = {
    "causal": None,
    "window 0": masks.window(0),
    "window 2": masks.window(2),
    "window wider than the text": masks.window(2 * LONGEST),
    "window with right": masks.window(3, 2),
    "two windows": masks.window(5) & masks.window(1, 4),
    "function": masks.function(lambda query, key: (query - key) % 2 == 0),
    "window and function": masks.window(4) & masks.function(lambda query, key: (query + key) % 3 > 0),
    "nothing for the first": ~masks.window(0),
    "documents": masks.document(PLACES // 3),
    "scattered documents": masks.document(PLACES % 2),
    "window and documents": masks.window(2) & masks.document(PLACES // 4),
    "union": masks.window(1) | masks.function(lambda query, key: key == 0),
}
CROSS_MASKS = {
    "none": None,
    "window": masks.window(4, 2),
    "causal": masks.causal(),
    "function": masks.function(lambda query, key: (query + key) % 2 == 0),
}
ARRANGEMENTS = {
    "pre": PreNorm(),
    "pre rms": PreNorm(RMSNorm()),
    "post": PostNorm(),
    "post rms": PostNorm(RMSNorm()),
    "no norm": NoNorm(),
    "note": SingleResidualNorm(),
    "note rms": SingleResidualNorm(RMSNorm()),
    "pre without beta": PreNorm(LayerNorm(bias=False)),
    "pre rms from one": PreNorm(RMSNorm(from_one=True)),
    "parallel": ParallelNorm(),
    "parallel shared": ParallelNorm(RMSNorm(), shared=True),
    "sandwich": SandwichNorm(RMSNorm(from_one=True)),
    "norm of the branch": SandwichNorm(LayerNorm(), before=False),
    "post and last": PostNorm(last=True),
}
FEED_FORWARD = {
    "relu": ReLU(24),
    "relu without bias": ReLU(24, bias=False),
    "gelu": GELU(24),
    "gelu tanh": GELU(24, form="tanh"),
    "swiglu": SwiGLU(24),
    "geglu": GeGLU(24),
    "none": None,
}
EMBEDDINGS = {
    "no position": Embedding(position=None),
    "sinusoidal": Embedding(),
    "sinusoidal halves": Embedding(position=Sinusoidal(layout="halves"), scaled=False),
    "learned": Embedding(position=Learned(LONGEST)),
    "learned and norm": Embedding(position=Learned(LONGEST), scaled=False, norm=LayerNorm()),
    "learned from row 2": Embedding(position=Learned(LONGEST, first=2)),
    "segments": Embedding(position=None, segments=2),
    "segments and norm": Embedding(position=Learned(LONGEST), segments=2, norm=LayerNorm()),
}
OUTPUTS = {
    "tied": NextToken(),
    "own table": NextToken(tied=False),
    "tied with bias": NextToken(bias=True),
    "scaled": NextToken(scaled=True),
}
SIMILARITIES = {"default": None, **similarity.TABLE}

LINEAR = [name for name, part in weighting.TABLE.items() if part.form == "kernelized"]
SOFTMAX = [name for name, part in weighting.TABLE.items() if part.form == "softmax"]
ROUTES: dict[str, dict[str, list[str]]] = {
    "any": {},
    "softmax": {
        "weighting": SOFTMAX,
        "similarity": ["default", "dot", "scaled dot"],
        "position": ["none", "rotary", "rotary halves", "rotary partial"],
        "heads": ["whole", "grouped keys", "one key head", "bias", "normed", "normed in groups"],
        "mask": ["causal"],
        "kernel": ["auto"],
    },
    "sum": {"weighting": LINEAR, "mask": ["causal"], "kernel": ["auto"]},
}
"""What decoding has a short way for takes several choices at once, which would seldom come together by chance."""
CROSS_ROUTES = {
    "any": {},
    "softmax": {**ROUTES["softmax"], "position": ["none"], "mask": ["none"]},
    "sum": {**ROUTES["sum"], "mask": ["none"]},
}

AXES: dict[str, list[str]] = {
    "kind": ["decoder", "same cross", "other cross"],
    "route": list(ROUTES),
    "cross route": list(CROSS_ROUTES),
    "layers": ["one", "two", "two that differ"],
    "weighting": list(weighting.TABLE),
    "similarity": list(SIMILARITIES),
    "position": list(positions.TABLE),
    "heads": list(HEADS),
    "mask": list(OWN_MASKS),
    "kernel": ["auto", "reference", "blockwise"],
    "arrangement": list(ARRANGEMENTS),
    "feed-forward": list(FEED_FORWARD),
    "embedding": list(EMBEDDINGS),
    "output": list(OUTPUTS),
    "tables": ["none", "two", "three"],
    "cross weighting": list(weighting.TABLE),
    "cross similarity": list(SIMILARITIES),
    "cross position": list(positions.TABLE),
    "cross heads": list(HEADS),
    "cross mask": list(CROSS_MASKS),
}
PLAIN = {
    "kind": "decoder",
    "route": "any",
    "cross route": "any",
    "layers": "one",
    "weighting": "softmax",
    "similarity": "default",
    "position": "none",
    "heads": "whole",
    "mask": "causal",
    "kernel": "auto",
    "arrangement": "pre",
    "feed-forward": "relu",
    "embedding": "sinusoidal",
    "output": "tied",
    "tables": "three",
    "cross weighting": "softmax",
    "cross similarity": "default",
    "cross position": "none",
    "cross heads": "whole",
    "cross mask": "none",
}
"""What goes with every single choice: a pair is allowed if it is allowed beside these."""

FREE = ("layers", "embedding", "output", "tables")
"""Axes on which every choice goes with every other."""

Choice = tuple[str, str]
Pair = tuple[Choice, Choice]


@dataclass(frozen=True)
class Choices:
    """One choice on every axis that such a model has."""

    parts: tuple[Choice, ...]
    seed: int = 0

    @property
    def chosen(self) -> dict[str, str]:
        return dict(self.parts)

    def pairs(self) -> Iterator[Pair]:
        return combinations(self.parts, 2)

    def __str__(self) -> str:
        usual = set(PLAIN.items()) - {("kind", "decoder")}
        return "+".join(f"{name}" for axis, name in self.parts if (axis, name) not in usual).replace(" ", "-")


def on_axes(chosen: dict[str, str], seed: int = 0) -> Choices:
    """Without the axes that such a model does not have."""
    return Choices(tuple((axis, chosen[axis]) for axis in AXES if there(axis, chosen["kind"])), seed)


def there(axis: str, kind: str) -> bool:
    """Whether a model of this kind has the axis at all."""
    if axis.startswith("cross "):
        return kind == "other cross"
    return axis != "tables" or kind != "decoder"


def refused(chosen: dict[str, str]) -> bool:
    """Whether the library refuses it, by design."""
    if refused_attention(chosen["weighting"], chosen["position"], chosen["similarity"]):
        return True
    crossed = chosen["cross weighting"], chosen["cross position"], chosen["cross similarity"]
    if chosen["kind"] == "other cross" and refused_attention(*crossed):
        return True
    return chosen["feed-forward"] == "none" and chosen["arrangement"].startswith(("note", "parallel"))


@functools.cache
def refused_attention(weight: str, position: str, compared: str) -> bool:
    """Kernelized attention has no similarity but its own, and no score to add a bias to."""
    if weighting.TABLE[weight].form != "kernelized":
        return False
    return positions.TABLE[position].bias_kind != "none" or compared != "default"


def off_route(chosen: dict[str, str]) -> bool:
    """Whether a choice lies beside a route that was chosen."""
    return any(chosen[axis] not in names for axis, names in on_route(chosen).items())


def on_route(chosen: dict[str, str]) -> dict[str, list[str]]:
    """What there is to choose from on the axes that the routes narrow down."""
    return narrowed(chosen["route"], chosen["cross route"] if chosen["kind"] == "other cross" else "any")


@functools.cache
def narrowed(route: str, cross_route: str) -> dict[str, list[str]]:
    cross = CROSS_ROUTES[cross_route]
    return {axis if axis == "kernel" else f"cross {axis}": names for axis, names in cross.items()} | ROUTES[route]


def beside_plain(pair: Pair) -> dict[str, str] | None:
    """The pair beside the plainest of all else; None where no model has both."""
    for kind in AXES["kind"]:
        chosen = PLAIN | {"kind": kind} | dict(pair)
        if all(there(axis, chosen["kind"]) for axis, _ in pair):
            for prefix in ("", "cross "):
                if chosen[f"{prefix}route"] == "sum":
                    chosen = chosen | {f"{prefix}weighting": LINEAR[0]} | dict(pair)
            return None if off_route(chosen) else chosen
    return None


@functools.cache
def every_pair() -> tuple[list[Pair], list[Pair]]:
    """The pairs that are allowed, and those that are refused."""
    allowed, out = [], []
    for one, other in combinations(AXES, 2):
        for pair in (((one, first), (other, second)) for first in AXES[one] for second in AXES[other]):
            chosen = beside_plain(pair)
            if chosen is not None:
                (out if refused(chosen) else allowed).append(pair)
    return allowed, out


def allowed_pairs() -> list[Pair]:
    return every_pair()[0]


def refused_pairs() -> list[Pair]:
    return every_pair()[1]


@functools.cache
def models() -> list[Choices]:
    """Models in which every allowed pair is shown, and some more decoders; the same ones each time."""
    draw, left, found = random.Random(0), dict.fromkeys(allowed_pairs()), []
    beside: dict[Choice, set[Choice]] = defaultdict(set)
    for one, other in left:
        beside[one].add(other)
        beside[other].add(one)
    while left:
        candidates = [fitted(draw, next(iter(left)), beside) for _ in range(TRIES)]
        best = max(candidates, key=lambda made: sum(pair in left for pair in made.pairs()))
        for one, other in best.pairs():
            left.pop((one, other), None)
            beside[one].discard(other)
            beside[other].discard(one)
        found.append(replace(best, seed=len(found)))
    more = max(DECODERS, AT_LEAST - len(found))
    return found + [
        drawn(draw, {"kind": "decoder", "route": AXES["route"][i % len(ROUTES)]}, len(found) + i) for i in range(more)
    ]


def fitted(draw: random.Random, wanted: Pair, beside: Mapping[Choice, set[Choice]]) -> Choices:
    """This pair, and on each other axis, in any order, what shows most new pairs beside what is chosen so far.

    `beside` has, for each choice, those that it was not shown with so far.
    """
    chosen = beside_plain(wanted)
    assert chosen is not None
    if "kind" not in dict(wanted) and draw.random() < 0.9:
        chosen["kind"] = "other cross"
    axes = {axis for axis, _ in wanted}
    settled = {(axis, chosen[axis]) for axis in axes}
    rest = [axis for axis in AXES if axis not in axes and axis != "kind" and there(axis, chosen["kind"])]
    for axis in draw.sample(rest, len(rest)):
        names = [name for name in AXES[axis] if axis in FREE or possible(chosen | {axis: name})]
        new = {name: len(beside[axis, name] & settled) for name in names}
        most = max(new.values())
        chosen[axis] = draw.choice([name for name in names if new[name] == most])
        settled.add((axis, chosen[axis]))
    return on_axes(chosen)


def possible(chosen: dict[str, str]) -> bool:
    return not refused(chosen) and not off_route(chosen)


def drawn(draw: random.Random, wanted: dict[str, str], seed: int) -> Choices:
    """Choices at random, these among them."""
    axes = AXES | on_route(PLAIN | wanted)
    while True:
        chosen = PLAIN | {axis: draw.choice(axes[axis]) for axis in AXES if "route" not in axis} | wanted
        if possible(chosen):
            return on_axes(chosen, seed)


def attention_spec(chosen: dict[str, str], prefix: str = "") -> AttentionSpec:
    table = CROSS_MASKS if prefix else OWN_MASKS
    return AttentionSpec(
        heads=HEADS[chosen[f"{prefix}heads"]],
        similarity=SIMILARITIES[chosen[f"{prefix}similarity"]],
        weighting=weighting.TABLE[chosen[f"{prefix}weighting"]],
        position=positions.TABLE[chosen[f"{prefix}position"]],
        mask=table[chosen[f"{prefix}mask"]],
        kernel=chosen["kernel"],
    )


def block_spec(chosen: dict[str, str]) -> BlockSpec:
    attention = attention_spec(chosen)
    cross = {
        "decoder": lambda: None,
        "same cross": lambda: replace(attention, mask=None),
        "other cross": lambda: attention_spec(chosen, "cross "),
    }
    return BlockSpec(
        attention=attention,
        cross=cross[chosen["kind"]](),
        feed_forward=FEED_FORWARD[chosen["feed-forward"]],
        arrangement=ARRANGEMENTS[chosen["arrangement"]],
    )


def block_specs(choices: Choices) -> tuple[BlockSpec, ...]:
    """One block, the same again, or another one drawn at random in which all but the kind may differ."""
    first = block_spec(choices.chosen)
    if choices.chosen["layers"] == "one":
        return (first,)
    if choices.chosen["layers"] == "two":
        return (first, first)
    other = drawn(random.Random(choices.seed), {"kind": choices.chosen["kind"]}, choices.seed)
    return (first, block_spec(other.chosen))


def spec_of(choices: Choices, vocabulary: int = VOCABULARY) -> DecoderSpec | EncoderDecoderSpec:
    chosen, blocks = choices.chosen, block_specs(choices)
    embedding = EMBEDDINGS[chosen["embedding"]]
    decoder = DecoderSpec(
        vocabulary=vocabulary,
        d_model=D_MODEL,
        blocks=blocks,
        embedding=embedding,
        output=OUTPUTS[chosen["output"]],
    )
    if chosen["kind"] == "decoder":
        return decoder
    encoder = EncoderSpec(
        vocabulary=vocabulary,
        d_model=D_MODEL,
        blocks=tuple(replace(block, cross=None) for block in blocks),
        embedding=embedding,
        output=None,
    )
    return EncoderDecoderSpec(encoder=encoder, decoder=decoder, tied=cast(Any, chosen["tables"]))


def build(choices: Choices, vocabulary: int = VOCABULARY) -> Model:
    """In float64, with weights of our own: a bias of 0, a gamma of 1 and a small table would hide a mistake."""
    with torch.random.fork_rng():
        torch.manual_seed(choices.seed)
        model = spec_of(choices, vocabulary).build().double().eval()
        for name, parameter in model.named_parameters():
            spread = 0.3 if parameter.ndim == 1 else 1.5 * parameter.shape[-1] ** -0.5
            nn.init.normal_(parameter, mean=1.0 if name.endswith("gamma") else 0.0, std=spread)
    return model
