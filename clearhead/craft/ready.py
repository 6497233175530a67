"""Ready heads: previous token, k back, first token, same token, matching bracket, and induction by two layers.

Each is at the scale where softmax puts 0.999 on what it wants in the longest text of its inputs, and exact with
argmax. A head carries the token it finds into the block `found` where the inputs have one, else over its own token.

>>> import torch
>>> from clearhead.craft.inputs import inputs
>>> words = inputs(["a", "b", "c"], 8, room={"found": ["a", "b", "c"]})
>>> previous_token(words).weights(["a", "b", "c", "a"]).argmax(-1).tolist()
[0, 0, 1, 2]
>>> same_token(words).weights(["a", "b", "c", "a"])[3].round().int().tolist()
[1, 0, 0, 0]
>>> model = induction_model(["a", "b", "c"], 8)
>>> model(torch.tensor([[0, 1, 2, 0]]))[0, -1].argmax().item()                      # a came before b, so b comes again
1

Building: designs as an attention layer, and as an ordinary model whose stream is what they read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.attention import masks
from clearhead.attention.positions import Learned
from clearhead.attention.weighting import Weighting
from clearhead.calls import public
from clearhead.craft.design import Design, attention_spec, write_layer
from clearhead.craft.designs import by_content, by_position, combine
from clearhead.craft.inputs import Inputs, inputs
from clearhead.errors import OptionError
from clearhead.model import BlockSpec, Decoder, DecoderSpec, Embedding, Encoder, EncoderSpec, NoNorm
from clearhead.model.feedforward import Plain, ReLU
from clearhead.model.outputs import Blanks, NextToken, ToVocabulary


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


LEFT_OVER = 0.001
OPENING, CLOSING = "(", ")"


def finish_head(design: Design, name: str) -> Design:
    """Return a head at its scale, carrying the token into the room there is for it."""
    length = design.inputs.length
    assert length is not None
    to = "found" if "found" in design.inputs.blocks else "token"
    return design.sharpened(length, LEFT_OVER).named(name).carrying("token", to=to)


def positioned(read: Inputs) -> Inputs:
    if read.length is None:
        raise OptionError("a ready head needs positions in its inputs; make them with a length")
    return read


@public
def previous_token(read: Inputs) -> Design:
    """Return a head that looks at the token before. The first looks at all alike, or at itself if causally masked."""
    return tokens_back(read, 1).named("previous token")


@public
def tokens_back(read: Inputs, count: int) -> Design:
    """Return a head that looks `count` places back; the first tokens, which have none there, look at all alike."""
    if not 0 <= count < (positioned(read).length or 0):
        raise OptionError(f"tokens_back: count must be from 0 to {(read.length or 0) - 1} here; came {count}")
    return finish_head(by_position(read, offset=-count), f"{count} back")


@public
def first_token(read: Inputs) -> Design:
    """Return a head that looks at the first token."""
    return finish_head(by_position(positioned(read), absolute=0), "first token")


@public
def same_token(read: Inputs) -> Design:
    """Return a head that looks at the query's own token wherever else it stands: the same content at another place.

    A token that stands nowhere else looks at all alike.
    """
    by_token = by_content(read, lambda query, key: query == key)
    elsewhere = by_position(positioned(read), offset=0)
    return finish_head(combine(by_token, elsewhere, weights=(1.0, -1.0)), "same token")


@public
def induction_inputs(vocabulary: Sequence[str], length: int) -> Inputs:
    """Return inputs with room for the token before, and for what induction finds."""
    return inputs(vocabulary, length, room={"before": vocabulary, "found": vocabulary})


@public
def induction(read: Inputs) -> tuple[Design, Design]:
    """Return the induction heads, one for each of two layers: they look at what followed the query's token earlier.

    The first writes the token before each place into the block `before` there; the first place has none, and its mask
    leaves it empty. The second looks for places whose `before` is the query's own token, and carries what stands there.
    """
    before = previous_token(read).carrying("token", to="before").seeing(masks.causal() & ~masks.window(0))
    match = by_content(read, lambda query, key: query == key, query="token", key="before").seeing(masks.causal())
    return before, finish_head(match, "induction")


@public
def induction_model(vocabulary: Sequence[str], length: int, *, weighting: Weighting | None = None) -> Decoder:
    """Return a model of two layers that answers with what followed the last token, where it stood before."""
    model = model_of(*induction(induction_inputs(vocabulary, length)), answer="found", weighting=weighting)
    assert model.decoder is not None
    return model.decoder


@public
def bracket_levels(length: int) -> list[str]:
    """Return each bracket with the depth outside it: what a closing bracket and the one it closes share."""
    return [f"{bracket} {depth}" for bracket in (OPENING, CLOSING) for depth in range(-length, length)]


@public
def bracket_inputs(length: int) -> Inputs:
    """Return inputs of brackets, with room for their balance so far, for their depth, and for what is found."""
    room = {"balance": ["mean"], "level": bracket_levels(length), "found": [OPENING, CLOSING]}
    return inputs([OPENING, CLOSING], length, room=room)


@public
def matching_bracket(read: Inputs) -> Design:
    """Return a head by which a closing bracket looks at the one it closes, and all else at itself.

    One head cannot count. Its inputs must hold each bracket's depth in the block `level`; `bracket_model` has a layer
    that puts it there. Among opening brackets of the same depth the latest is meant, so a key also says how late it is:
    the margin is one part in the length.
    """
    length = positioned(read).length or 0
    levels = read["level"].labels
    asks = {f"{CLOSING} {depth}": [f"{OPENING} {depth}"] for depth in range(-length, length)}
    if not set(asks) <= set(levels):
        raise OptionError("matching_bracket: the block `level` must have the labels of bracket_levels(length)")
    match = by_content(read, asks, query="level", key="level").seeing(masks.causal())
    latest = by_position(read, scores=lambda _, key: (key + 1 - length) / length).seeing(masks.causal())
    return finish_head(combine(match, latest), "matching bracket")


@public
def bracket_model(length: int, *, weighting: Weighting | None = None) -> Decoder:
    """Return two layers: a head averages what opens and closes so far, units turn it into a depth, a head matches."""
    read = bracket_inputs(length)
    # This head attends to all brackets so far alike; an opening bracket carries +1 and a closing one -1.
    sign = read.reading("token") @ torch.tensor([[1.0], [-1.0]])
    every = by_content(read, {}).seeing(masks.causal()).named("balance")
    model = model_of(
        every.carrying(sign, to=read.reading("balance").T),
        matching_bracket(read),
        answer="found",
        weighting=weighting,
        units={0: depth_units(read)},
    )
    assert model.decoder is not None
    return model.decoder


def depth_units(read: Inputs) -> Units:
    """Return three units for each place, bracket and depth: together 1 where all of them are met, and 0 elsewhere.

    The mean balance times the place is the depth after the bracket, a whole number; max(0, d - 1) - 2 max(0, d) +
    max(0, d + 1) is 1 where d is 0. A unit that is not at its place, or not at its bracket, is pushed below 0.
    """
    length = read.length or 0
    push = 4.0 * length
    levels = dict(zip(read["level"].labels, read.spread("level"), strict=True))
    up, bias, down = [], [], []
    for position in range(length):
        for kind, bracket in enumerate((OPENING, CLOSING)):
            conditions = read.spread("position")[position] + read.spread("token")[kind]
            reads = read.spread("balance")[0] * (position + 1) + push * conditions
            for depth in range(-position - 1, position + 2):
                level = levels.get(f"{bracket} {depth - (bracket == OPENING)}", torch.zeros(read.d_model))
                for step, share in ((-1, 1.0), (0, -2.0), (1, 1.0)):
                    up.append(reads)
                    bias.append(step - depth - 2 * push)
                    down.append(share * level)
    return Units(up=torch.stack(up, 1), bias=torch.tensor(bias), down=torch.stack(down))
