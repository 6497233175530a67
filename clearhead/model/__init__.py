"""Models: blocks of attention, feed-forward, norms and residuals; encoder, decoder, and both together.

>>> import torch
>>> from clearhead import Heads, model, positions
>>> block = model.BlockSpec(
...     attention=model.AttentionSpec(heads=Heads(4, kv=2), position=positions.Rotary()),
...     feed_forward=model.SwiGLU(96),
...     arrangement=model.PreNorm(model.RMSNorm()),
... )
>>> spec = model.DecoderSpec(vocabulary=50, d_model=32, blocks=(block,) * 2, embedding=model.Embedding(position=None))
>>> spec.build()(torch.randint(50, (2, 7))).shape
torch.Size([2, 7, 50])
"""

from clearhead.model.arrangements import (
    Arrangement,
    NoNorm,
    ParallelNorm,
    PostNorm,
    PreNorm,
    SandwichNorm,
    SingleResidualNorm,
)
from clearhead.model.blocks import AttentionSpec, BlockSpec
from clearhead.model.embedding import Embedding
from clearhead.model.fast_step import Explained, ModuleStep
from clearhead.model.feedforward import GELU, FeedForward, GeGLU, ReLU, SiLU, SwiGLU
from clearhead.model.int8 import Int8Linear, round_inputs
from clearhead.model.norms import FrozenNorm, LayerNorm, Norm, RMSNorm
from clearhead.model.outputs import Blanks, Classes, NextToken, Output, Tags
from clearhead.model.transformers import Decoder, DecoderSpec, Encoder, EncoderDecoder, EncoderDecoderSpec, EncoderSpec

__all__ = [
    "GELU",
    "Arrangement",
    "AttentionSpec",
    "Blanks",
    "BlockSpec",
    "Classes",
    "Decoder",
    "DecoderSpec",
    "Embedding",
    "Encoder",
    "EncoderDecoder",
    "EncoderDecoderSpec",
    "EncoderSpec",
    "Explained",
    "FeedForward",
    "FrozenNorm",
    "GeGLU",
    "Int8Linear",
    "LayerNorm",
    "ModuleStep",
    "NextToken",
    "NoNorm",
    "Norm",
    "Output",
    "ParallelNorm",
    "PostNorm",
    "PreNorm",
    "RMSNorm",
    "ReLU",
    "SandwichNorm",
    "SiLU",
    "SingleResidualNorm",
    "SwiGLU",
    "Tags",
    "round_inputs",
]
