"""Small models for tests: specs with what a test is not about left at its plainest."""

import torch
from torch import nn

from clearhead.model.blocks import AttentionSpec, BlockSpec
from clearhead.model.feedforward import ReLU
from clearhead.model.presets import Size
from clearhead.model.transformers import DecoderSpec, EncoderDecoderSpec, EncoderSpec

D, N, MEMORY, WORDS = 12, 5, 7, 13
SIZE = Size(2, D, 3, 3, 20)


def block_spec(**changes):
    return BlockSpec(**{"attention": AttentionSpec(heads=3), "feed_forward": ReLU(20), **changes})


def encoder_spec(**changes):
    return EncoderSpec(**{"vocabulary": WORDS, "d_model": D, "blocks": (block_spec(),) * 2, "output": None, **changes})


def decoder_spec(**changes):
    return DecoderSpec(**{"vocabulary": WORDS, "d_model": D, "blocks": (block_spec(),) * 2, **changes})


def both_spec(**changes):
    return EncoderDecoderSpec(
        **{
            "encoder": encoder_spec(),
            "decoder": decoder_spec(blocks=(block_spec(cross=AttentionSpec(heads=3)),) * 2),
            **changes,
        }
    )


def built(spec):
    """The model in float64, with nothing left as it starts out: norms and biases too."""
    model = spec.build().double().eval()
    for parameter in model.parameters():
        if parameter.ndim == 1:
            nn.init.normal_(parameter, mean=0.5)
    return model


def words(batch=2, n=N):
    return torch.randint(WORDS, (batch, n))
