"""Random models of every kind, in float64, with every bias, gamma and beta away from where it starts."""

from dataclasses import dataclass
from typing import Any

import torch

import clearhead as ch
from clearhead import model as m
from clearhead.circuits import Texts
from clearhead.model.outputs import NgramLogits

D, VOCABULARY = 12, 11


def block(arrangement, *, heads=None, cross=None, position=None, similarity=None, weighting=None, network=None):
    return m.BlockSpec(
        attention=m.AttentionSpec(
            heads=heads or ch.Heads(3, bias=True), position=position, similarity=similarity, weighting=weighting
        ),
        cross=cross,
        feed_forward=network or m.ReLU(9),
        arrangement=arrangement,
    )


def encoder(*blocks, output: m.Output | None = m.Blanks(), **embedding):
    return m.EncoderSpec(
        vocabulary=VOCABULARY, d_model=D, blocks=blocks, output=output, embedding=m.Embedding(**embedding)
    )


def decoder(*blocks, **embedding):
    return m.DecoderSpec(vocabulary=VOCABULARY, d_model=D, blocks=blocks, embedding=m.Embedding(**embedding))


def both(arrangement, **options):
    cross = m.AttentionSpec(heads=ch.Heads(2, bias=True))
    target = (block(arrangement, cross=cross, **options),) * 2
    return m.EncoderDecoderSpec(
        encoder=encoder(*(block(arrangement, **options),) * 2, output=None), decoder=decoder(*target)
    )


GROUPED = ch.Heads(4, kv=2, d_head=4, bias=True)
SPECS = {
    "none": decoder(*(block(m.NoNorm()),) * 3),
    "pre": decoder(*(block(m.PreNorm()),) * 3),
    "pre-rms-rotary-grouped": decoder(
        *(block(m.PreNorm(m.RMSNorm()), heads=GROUPED, position=ch.positions.Rotary(), network=m.SwiGLU(8)),) * 2
    ),
    "pre-alibi-argmax": decoder(*(block(m.PreNorm(), position=ch.positions.ALiBi(), weighting=ch.weighting.Argmax()),)),
    "pre-qk-norm": decoder(block(m.PreNorm(), heads=ch.Heads(3, qk_norm=m.RMSNorm(), qk_norm_joint=True, bias=True))),
    "pre-sliced-cosine": encoder(
        *(block(m.PreNorm(), heads=ch.SlicedHeads(3), similarity=ch.similarity.Cosine()),) * 2
    ),
    "low-rank-no-output": encoder(*(block(m.NoNorm(), heads=ch.Heads(3, value_rank=2, output=False)),) * 2),
    "kernelized": decoder(*(block(m.PreNorm(), weighting=ch.weighting.Kernelized()),) * 2),
    "parallel": decoder(*(block(m.ParallelNorm()),) * 2),
    "parallel-shared": decoder(*(block(m.ParallelNorm(shared=True)),) * 2),
    "sandwich": decoder(*(block(m.SandwichNorm()),) * 2),
    "branch-norm": decoder(*(block(m.SandwichNorm(before=False)),) * 2),
    "post": encoder(*(block(m.PostNorm()),) * 2),
    "post-last": encoder(*(block(m.PostNorm(last=True)),) * 2),
    "post-bert": encoder(*(block(m.PostNorm()),) * 2, norm=m.LayerNorm(), segments=2, position=ch.positions.Learned(9)),
    "post-grouped": encoder(*(block(m.PostNorm(m.RMSNorm()), heads=GROUPED),) * 2),
    "classes": encoder(*(block(m.PreNorm()),) * 2, output=m.Classes(3, pool="mean", hidden=True)),
    "classes-ngrams": encoder(block(m.PreNorm()), output=m.Classes(3, pool="mean", ngrams=NgramLogits(3, 2, 7))),
    "note": encoder(*(block(m.SingleResidualNorm()),) * 2),
    "no-network": decoder(*(m.BlockSpec(attention=m.AttentionSpec(heads=2), feed_forward=None),) * 2),
    "both-pre": both(m.PreNorm()),
    "both-post": both(m.PostNorm()),
    "both-none-grouped": both(m.NoNorm(), heads=GROUPED),
    "both-t5": both(m.PreNorm(m.RMSNorm()), position=ch.positions.T5Bias()),
}
"""By name, a model of each kind."""
LINEAR = [name for name in SPECS if not name.startswith(("sandwich", "branch", "post", "note", "both-post"))]
"""Those in which no norm stands on the way of an edge."""


@dataclass
class Case:
    model: Any
    clean: Texts
    other: Texts


def make(name, seed=0, batch=2, n=5):
    """Build the model of a name, with two batches of random texts, one of which is padded in encoders."""
    torch.manual_seed(seed)
    model = SPECS[name].build().double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
        for buffer_name, buffer in model.named_buffers():
            if ".wide.table" in buffer_name or ".wide.square" in buffer_name:
                buffer.add_(torch.rand_like(buffer))
            elif ".wide.slots" in buffer_name:
                buffer.random_(0, 2)
    sides = {
        "decoder": n,
        "encoder": n + 1,
    }
    names = ["encoder", "decoder"] if name.startswith("both") else ["decoder" if is_decoder(name) else "encoder"]
    lengths = {"encoder": torch.tensor([n + 1, n - 2])} if "encoder" in names else {}

    def texts():
        segments = torch.randint(2, (batch, n + 1)) if name == "post-bert" else None
        tokens = {side: torch.randint(VOCABULARY, (batch, sides[side])) for side in names}
        return Texts(tokens=tokens, lengths=lengths, segments=segments)

    return Case(model, texts(), texts())


def is_decoder(name):
    return isinstance(SPECS[name], m.DecoderSpec)
