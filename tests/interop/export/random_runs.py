"""Runs with random weights and drawn arrangements, in no folder of their own: what exports are tried on."""

import random
from dataclasses import replace

import torch

from clearhead.attention.heads import Heads
from clearhead.attention.positions import ALiBi, Learned, Rotary, Sinusoidal
from clearhead.attention.similarity import Dot, ScaledDot
from clearhead.attention.weighting import Softmax
from clearhead.model.arrangements import PostNorm, PreNorm
from clearhead.model.blocks import AttentionSpec, BlockSpec
from clearhead.model.embedding import Embedding
from clearhead.model.feedforward import GELU, ReLU, SiLU, SwiGLU
from clearhead.model.norms import LayerNorm, RMSNorm
from clearhead.model.outputs import Blanks, Classes, NextToken
from clearhead.model.transformers import DecoderSpec, EncoderDecoderSpec, EncoderSpec
from clearhead.text.tokenizer import Tokenizer
from clearhead.training.folder import RunFolder
from clearhead.training.run import Run
from clearhead.training.tasks import Classify, Fill, Generate, Translate

CONTEXT = 20
TEXTS = ["abcdefgh", "ijklmnop", "qrstuvwxyz", "ab ba cd dc"]
TOKENIZER = Tokenizer.train(TEXTS, kind="char")


def run_of(spec, folder, tokenizer=TOKENIZER):
    """Return a run of a spec with random weights, none of them at the value it starts with."""
    kinds = {EncoderDecoderSpec: Translate, DecoderSpec: Generate}
    kind = kinds.get(type(spec)) or (Classify if isinstance(spec.output, Classes) else Fill)
    fields = ("source", "target") if kind is Translate else ("text",)
    labels = ("no", "yes", "what") if kind is Classify else ()
    task = kind(tokenizers=dict.fromkeys(fields, tokenizer), context=CONTEXT, labels=labels)
    model = task.fitted(spec).build().eval()
    with torch.no_grad():
        for one in model.parameters():
            one.add_(0.1 * torch.randn_like(one))
    return Run(RunFolder(folder), task, model, 0)


def draw_attention(draw, position=None):
    # Where heads share keys CTranslate2 computes another bias, and a temperature is not for it.
    shared, weightings = ([], [None]) if isinstance(position, ALiBi) else ([(4, 2)], [None, Softmax(temperature=0.7)])
    count, kv = draw.choice([(4, None), (4, 1), (2, None), *shared])
    return AttentionSpec(
        heads=Heads(count, kv=kv, d_head=draw.choice([None, 16]), bias=draw.random() < 0.5),
        similarity=draw.choice([None, None, Dot(), ScaledDot(0.3)]),
        weighting=draw.choice(weightings),
        position=position,
        dropout=0.1,
    )


def draw_block(draw, attention, norm, *, crossed=False):
    feed_forward = draw.choice([ReLU, GELU, SiLU, SwiGLU])(24, bias=draw.random() < 0.5)
    if isinstance(feed_forward, GELU):
        feed_forward = replace(feed_forward, form=draw.choice(["exact", "tanh"]))
    return BlockSpec(
        attention=attention,
        cross=replace(attention, position=None, similarity=ScaledDot()) if crossed else None,
        feed_forward=feed_forward,
        arrangement=draw.choice([PreNorm, PostNorm])(norm),
        dropout=0.1,
    )


def draw_spec(family, seed):
    """Return a spec of a family that CTranslate2 can express."""
    draw = random.Random(f"{family} {seed}")
    norm = draw.choice([LayerNorm(1e-3), LayerNorm(1e-5, bias=False), RMSNorm(1e-4)])
    inside = draw.choice([None, Rotary(base=500.0), Rotary(pairing="halves"), Rotary(width=4), ALiBi()])
    inside = None if family == "encoder-decoder" or (family == "encoder" and isinstance(inside, ALiBi)) else inside
    added = draw.choice([Sinusoidal(), Sinusoidal(layout="halves"), Learned(CONTEXT)]) if inside is None else None
    embedding = Embedding(position=added, scaled=draw.random() < 0.5, norm=draw.choice([None, norm]))
    body = {"vocabulary": TOKENIZER.vocabulary, "d_model": 32, "embedding": embedding}
    plain = draw_block(draw, draw_attention(draw, inside), norm)
    n_layers = draw.randint(1, 3)
    output = NextToken(tied=draw.random() < 0.5, bias=draw.random() < 0.5)
    if family == "encoder":
        head = draw.choice([Blanks(), Classes(3, hidden=True), None])
        return EncoderSpec(**body, blocks=(plain,) * n_layers, output=head)
    if family == "decoder":
        return DecoderSpec(**body, blocks=(plain,) * n_layers, output=output)
    crossed = draw_block(draw, draw_attention(draw), norm, crossed=True)
    return EncoderDecoderSpec(
        encoder=EncoderSpec(**body, blocks=(plain,) * n_layers, output=None),
        decoder=DecoderSpec(**body, blocks=(crossed,) * draw.randint(1, 3), output=output),
        tied=draw.choice(["none", "two", "three"]),
    )
