"""The names of everything inside a model, the same in code, traces, pictures and changes.

A side is `encoder` or `decoder`; a site is one attention slot: `encoder.0.attention`, `decoder.1.cross`. What is made
inside it follows the dot: `decoder.1.cross.weight`. What flows between the sites is the stream:
`decoder.embedding.out`, `decoder.1.cross.residual`, `decoder.normed`.

>>> from clearhead.model import presets
>>> names = Names(presets.tiny(vocabulary=20).build())
>>> [*names.sites][-1], [*names.stream.values()][-1]
('decoder.3.cross', 'decoder.3.feed_forward.normed')
"""

from collections.abc import Iterator

from torch import nn

from clearhead.attention.layer import Attention
from clearhead.errors import OptionError
from clearhead.model.blocks import Block
from clearhead.model.transformers import Decoder, Encoder, EncoderDecoder

__all__ = ["STEPS", "Model", "Names", "sides_of"]

Model = Encoder | Decoder | EncoderDecoder
STEPS = ("query", "key", "value", "score", "scaled", "masked", "weight", "context")
"""The steps of one attention, in their order."""


def sides_of(model: nn.Module) -> dict[str, tuple[str, Encoder | Decoder]]:
    """The sides of a model by name, each with its path inside the model."""
    if isinstance(model, EncoderDecoder):
        return {"encoder": ("encoder.", model.encoder), "decoder": ("decoder.", model.decoder)}
    if isinstance(model, Encoder):
        return {"encoder": ("", model)}
    if isinstance(model, Decoder):
        return {"decoder": ("", model)}
    raise OptionError(
        f"expected an Encoder, a Decoder or an EncoderDecoder of clearhead.model; came {type(model).__name__}"
    )


class Names:
    """What a model's attention slots and the taps of its stream are called."""

    def __init__(self, model: nn.Module) -> None:
        self.sites: dict[str, Attention] = {}
        self.stream: dict[str, str] = {}
        """From the path of a tap to the name of what passes there."""
        self.paths: dict[str, str] = {}
        """From the name of a site to its path in the model."""
        for side, (path, part) in sides_of(model).items():
            self.add_side(side, path, part)

    def add_side(self, side: str, path: str, part: Encoder | Decoder) -> None:
        self.stream[f"{path}embedding.token"] = f"{side}.embedding.token"
        self.stream[f"{path}embedding.out"] = f"{side}.embedding.out"
        for number, block in enumerate(part.stack.blocks):
            for slot, layer in slots(block):
                self.sites[f"{side}.{number}.{slot}"] = layer
                self.paths[f"{side}.{number}.{slot}"] = f"{path}stack.blocks.{number}.{slot}"
            for branch in branches(block):
                passes = getattr(block, f"around_{branch}").passes
                tap = f"{path}stack.blocks.{number}.around_{branch}.{passes}"
                self.stream[tap] = f"{side}.{number}.{branch}.{passes}"
        if part.stack.norm is not None:
            self.stream[f"{path}stack.normed"] = f"{side}.normed"

    def check_site(self, name: str) -> None:
        if name not in self.sites:
            raise OptionError(f"there is no attention called {name!r} in this model; there are {', '.join(self.sites)}")


def slots(block: Block) -> Iterator[tuple[str, Attention]]:
    yield "attention", block.attention
    if block.cross is not None:
        yield "cross", block.cross


def branches(block: Block) -> Iterator[str]:
    """The branches whose connection has a name of its own, in their order."""
    for branch in ("attention", "cross", "feed_forward"):
        if getattr(block, branch) is not None:
            yield branch
