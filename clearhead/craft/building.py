"""Building: designs as an attention layer, and as an ordinary model whose stream is what they read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.attention.positions import Learned
from clearhead.attention.weighting import Weighting
from clearhead.calls import public
from clearhead.craft.design import Design, attention_spec, write_layer
from clearhead.craft.inputs import Inputs
from clearhead.errors import OptionError
from clearhead.model import BlockSpec, Decoder, DecoderSpec, Embedding, Encoder, EncoderSpec, NoNorm
from clearhead.model.feedforward import Plain, ReLU
from clearhead.model.outputs import Blanks, NextToken, ToVocabulary


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Units:
    """A network of rectified units after a layer: `max(0, x up + bias) down` is added to the stream."""

    up: Float[Tensor, "d_model d_ff"]
    bias: Float[Tensor, "d_ff"]
    down: Float[Tensor, "d_ff d_model"]


@public
def model_of(
    *layers: Design | Sequence[Design],
    answer: str = "token",
    causal: bool = True,
    weighting: Weighting | None = None,
    units: Mapping[int, Units] | None = None,
) -> Decoder | Encoder:
    """Return a model whose layers have these heads: blocks without norms, so what they write stays where it was put.

    Args:
        layers: For each layer a design, or several.
        answer: The block that has the answer: at each place, the token it holds there.
        causal: Make a decoder; an encoder if False.
        weighting: The weighting; softmax if None.
        units: Feed-forward networks, by the number of the layer they follow.

    Returns:
        The model.

    Raises:
        OptionError: If there are no layers, or designs have different inputs, or the answer is not a token.
    """
    stacked = [[layer] if isinstance(layer, Design) else list(layer) for layer in layers]
    networks = units or {}
    if not stacked:
        raise OptionError("a model needs at least one layer of designs")
    read = stacked[0][0].inputs
    if any(design.inputs is not read for designs in stacked for design in designs):
        raise OptionError("the layers of a model read one stream; make all designs from the same inputs")
    if len(read[answer].labels) != len(read["token"].labels):
        raise OptionError(f"the answer is a token, and {answer!r} has {len(read[answer].labels)} labels")
    blocks = tuple(
        BlockSpec(
            attention=attention_spec(designs, weighting),
            feed_forward=ReLU(len(networks[number].bias)) if number in networks else None,
            arrangement=NoNorm(),
        )
        for number, designs in enumerate(stacked)
    )
    model = build_model(read, blocks, causal=causal)
    write_model(model, read, answer)
    for number, (block, designs) in enumerate(zip(model.stack.blocks, stacked, strict=True)):
        write_layer(block.attention, designs)
        if isinstance(block.feed_forward, Plain):
            write_units(block.feed_forward, networks[number])
    return model.eval()


def build_model(read: Inputs, blocks: tuple[BlockSpec, ...], *, causal: bool) -> Decoder | Encoder:
    position = None if read.length is None else Learned(read.length)
    embedding = Embedding(position=position, scaled=False)
    size = {"vocabulary": len(read["token"].labels), "d_model": read.d_model, "blocks": blocks, "embedding": embedding}
    if causal:
        return DecoderSpec(**size, output=NextToken(tied=False)).build()
    return EncoderSpec(**size, output=Blanks(tied=False, bias=False, transform=False)).build()


@torch.no_grad()
def write_model(model: Decoder | Encoder, read: Inputs, answer: str) -> None:
    model.embedding.table.copy_(read.spread("token"))
    if model.embedding.position is not None:
        model.embedding.position.table.copy_(read.spread("position"))  # pyright: ignore
    assert isinstance(model.output, ToVocabulary)
    model.output.table.copy_(read.spread(answer))


@torch.no_grad()
def write_units(network: Plain, units: Units) -> None:
    network.up.weight.copy_(units.up.T)
    network.up.bias.copy_(units.bias)
    network.down.weight.copy_(units.down.T)
    network.down.bias.zero_()
