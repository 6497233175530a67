"""The plan of a live page: every part of a model is computed as Python does, and a user's own is refused by name."""

import dataclasses

import pytest
import torch

import clearhead as ch
from clearhead.attention.heads import Heads, SlicedHeads
from clearhead.attention.masks import window
from clearhead.attention.positions import Learned, LinearScaling, Sinusoidal
from clearhead.errors import OptionError
from clearhead.model import presets
from clearhead.model.arrangements import NoNorm, PostNorm, PreNorm, SingleResidualNorm
from clearhead.model.blocks import AttentionSpec, BlockSpec
from clearhead.model.embedding import Embedding
from clearhead.model.feedforward import GELU, GeGLU, SiLU, SwiGLU
from clearhead.model.norms import LayerNorm, RMSNorm
from clearhead.model.outputs import NextToken
from clearhead.model.presets import Size
from clearhead.model.transformers import DecoderSpec
from clearhead.serve.live import live_page
from clearhead.text.tokenizer import Tokenizer
from clearhead.training.folder import RunFolder
from clearhead.training.run import Run
from clearhead.training.tasks import Generate, Translate
from tests.serve.asking import ask
from tests.serve.live_engine import Asked, everything

pytestmark = pytest.mark.slow


def untrained(folder, tokenizer, **parts):
    """A run of a model with these parts, as they start."""
    torch.manual_seed(0)
    task = Translate(tokenizers={"source": tokenizer, "target": tokenizer}, context=40)
    spec = presets.classic(tokenizer.vocabulary, size=Size(2, 32, 4, 4, 48), **parts)
    return Run(RunFolder(folder), task, spec.build().eval(), 0)


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train(["<s>", "zwei null vier", "the cow eats the plum"], "char")


ATTENTIONS = {
    "shared keys": AttentionSpec(heads=Heads(4, kv=2), position=ch.positions.Rotary()),
    "halves": AttentionSpec(
        heads=Heads(4, bias=True), position=ch.positions.Rotary("halves", scaling=LinearScaling(2.0))
    ),
    "normed": AttentionSpec(heads=Heads(4, qk_norm=RMSNorm()), position=ch.positions.Rotary(width=4)),
    "warm": AttentionSpec(heads=Heads(4), weighting=ch.weighting.Softmax(temperature=2.0)),
    "alibi": AttentionSpec(heads=Heads(6, d_head=8), position=ch.positions.ALiBi()),
    "t5": AttentionSpec(heads=Heads(4), position=ch.positions.T5Bias(buckets=8, reach=10)),
    "cosine": AttentionSpec(heads=Heads(4), similarity=ch.similarity.Cosine()),
    "dot": AttentionSpec(heads=Heads(4, d_value=6), similarity=ch.similarity.Dot()),
    "additive": AttentionSpec(heads=Heads(4, kv=2), similarity=ch.similarity.Additive(8)),
    "argmax": AttentionSpec(heads=Heads(4), weighting=ch.weighting.Argmax(ties="average")),
    "sigmoid": AttentionSpec(heads=Heads(4), weighting=ch.weighting.Sigmoid()),
    "sparsemax": AttentionSpec(heads=Heads(4), weighting=ch.weighting.Sparsemax(), mask=window(3, 2)),
    "elu": AttentionSpec(heads=Heads(4), weighting=ch.weighting.Kernelized("elu")),
    "softmax features": AttentionSpec(heads=Heads(4), weighting=ch.weighting.Kernelized("softmax")),
    "random": AttentionSpec(heads=Heads(4), weighting=ch.weighting.Kernelized("random")),
    "sum": AttentionSpec(heads=Heads(4), weighting=ch.weighting.Kernelized("relu", normalised=False)),
    "low rank": AttentionSpec(heads=Heads(4, value_rank=2, d_value=8, output=False)),
    "sliced": AttentionSpec(heads=SlicedHeads(4, value_rank=2, bias=True)),
    "window": AttentionSpec(heads=Heads(4), mask=window(2) | ~window(4)),
}
"""Every part of attention that there is."""


def with_attentions(run, attentions):
    """The run with a block for each of these attentions on both sides, as it starts."""
    torch.manual_seed(1)
    spec = run.model.spec
    changed = {}
    for side in ("encoder", "decoder"):
        block = getattr(spec, side).blocks[0]
        blocks = tuple(
            dataclasses.replace(block, attention=one, cross=block.cross and dataclasses.replace(one, mask=None))
            for one in attentions
        )
        changed[side] = dataclasses.replace(getattr(spec, side), blocks=blocks)
    [space] = run.task.tokenizers["source"].encode(" ")
    kind = [Sinusoidal(first=2, skips=space), Learned(40, first=2, skips=space)][len(attentions) % 2]
    changed["encoder"] = dataclasses.replace(changed["encoder"], embedding=Embedding(position=kind))
    return Run(run.folder, run.task, dataclasses.replace(spec, **changed).build().eval(), 0)


@pytest.mark.parametrize("first", range(0, len(ATTENTIONS), 5))
def test_every_part_of_attention(first, tokenizer, script, tmp_path):
    run = with_attentions(untrained(tmp_path, tokenizer), [*ATTENTIONS.values()][first : first + 5])
    asked = Asked(script, run, tmp_path)
    meta = asked.expected("trace", "", {"source": "zwei null", "target": "vier"})
    requests = [["trace", {"source": "zwei null", "target": "vier"}], *everything(meta, ask(asked.explorer, "run"))]
    asked.check([*requests, ["decode", {"source": "zwei", "beam": 3, "candidates": 2, "max_new": 6}]])


BLOCKS = {
    "post": {"arrangement": PostNorm(last=True), "feed_forward": GELU(40)},
    "note": {"arrangement": SingleResidualNorm(), "feed_forward": GELU(40, form="tanh")},
    "bare": {"arrangement": NoNorm(), "feed_forward": SiLU(40, bias=False)},
    "gated": {"arrangement": PreNorm(RMSNorm(from_one=True)), "feed_forward": SwiGLU(40)},
    "geglu": {"arrangement": PreNorm(RMSNorm()), "feed_forward": GeGLU(40, form="tanh")},
    "attention alone": {"arrangement": PreNorm(LayerNorm(bias=False)), "feed_forward": None},
}
"""Every arrangement, norm and feed-forward."""
EMBEDDINGS = [
    Embedding(position=Learned(64, first=2), scaled=False, norm=LayerNorm()),
    Embedding(position=None, norm=RMSNorm()),
    Embedding(position=Sinusoidal(layout="halves"), segments=2),
]


IN_TWOS = [*zip(*[iter(BLOCKS)] * 2, strict=True)]


@pytest.mark.parametrize(
    ("names", "embedding"),
    [
        *zip(IN_TWOS, EMBEDDINGS, strict=True),
        *(
            pytest.param((name, name), embedding, marks=pytest.mark.thorough)
            for name, embedding in zip(BLOCKS, EMBEDDINGS * 2, strict=True)
        ),
    ],
    ids=lambda one: " and ".join(one) if isinstance(one, tuple) else "",
)
def test_every_block_and_embedding(names, embedding, tokenizer, script, tmp_path):
    """Two kinds of blocks in one model; `make test-all` has a model of each as well."""
    torch.manual_seed(0)
    spec = DecoderSpec(
        vocabulary=tokenizer.vocabulary,
        d_model=32,
        blocks=tuple(BlockSpec(attention=AttentionSpec(heads=Heads(4)), **BLOCKS[name]) for name in names),
        embedding=embedding,
        output=NextToken(tied=False, bias=True, scaled=True),
    )
    run = Run(RunFolder(tmp_path), Generate(tokenizers={"text": tokenizer}, context=60), spec.build().eval(), 0)
    asked, request = Asked(script, run, tmp_path), {"source": "the cow eats the plum"}
    meta = asked.expected("trace", "", request)
    more = [["decode", {**request, "beam": 2, "candidates": 3, "max_new": 5}], ["positions", {"n": 80}]]
    asked.check([["trace", request], *everything(meta, ask(asked.explorer, "run")), *more])


class Halved(ch.weighting.Weighting):
    """A user's own weighting."""

    def weigh(self, masked, allowed):
        return torch.where(allowed, 0.5, 0.0)


class Diagonal(ch.masks.Mask):
    """A user's own mask."""

    kind = "diagonal"

    def allowed(self, cells):
        return cells.query == cells.key


@pytest.mark.parametrize(
    ("attention", "name"),
    [
        (AttentionSpec(heads=Heads(4), weighting=Halved()), "Halved"),
        (AttentionSpec(heads=Heads(4), mask=Diagonal()), "Diagonal"),
    ],
)
def test_a_part_of_the_users_own_is_refused_by_name(attention, name, tokenizer, tmp_path):
    run = with_attentions(untrained(tmp_path, tokenizer), [attention])
    with pytest.raises(OptionError, match=rf"encoder\.0\.attention: .* cannot compute .*:{name}: it knows most parts"):
        live_page(run)
