"""Looking at cross-attention: which pieces of the source each piece of a translation was written from.

The model runs as it always does, with its own kernels; the weights are rebuilt afterwards from the queries and keys
that were tapped on the way.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.attention.attend import explain
from clearhead.decoding.generating import inferring
from clearhead.errors import OptionError
from clearhead.model.transformers import EncoderDecoder
from clearhead.taps import watching
from clearhead.training import answers
from clearhead.training.run import Run
from clearhead.training.tasks import Translate

__all__ = ["CrossWeights", "View", "clearest", "cross_weights", "information", "views"]

END = "</s>"
"""How the end of a text is shown, on both sides."""

Weights = Float[Tensor, "head query key"]


class CrossWeights(NamedTuple):
    """The cross-attention of one translation: the weights of each decoder block, the first block first.

    Keys are the pieces of the source. A query is the place from which a piece of the target was written: its row looks
    into the source before that piece is there. Both sides end with the end token.
    """

    source: list[str]
    target: list[str]
    layers: list[Weights]


def cross_weights(run: Run, source: str, target: str | None = None) -> CrossWeights:
    """The weights for this source; `target` None is the model's own greedy translation of it."""
    task, model = run.asked(Translate), run.model
    assert isinstance(model, EncoderDecoder)
    if not source.strip():
        raise OptionError("there is no source to look into: expected a text; came a blank one")
    reads, writes = task.tokenizers["source"], task.tokenizers["target"]
    read = [*reads.encode(source)[: task.context - 1], reads.end]
    written = (own_translation(run, task, read) if target is None else writes.encode(target))[: task.context - 1]
    device = next(model.parameters()).device
    with inferring(model):
        layers = rebuilt(
            model,
            torch.tensor([read], device=device),
            torch.tensor([[writes.start, *written]], device=device),
        )
    return CrossWeights([*reads.pieces(read[:-1]), END], [*writes.pieces(written), END], layers)


def own_translation(run: Run, task: Translate, read: list[int]) -> list[int]:
    """Its greedy output, without the end token."""
    [[hypothesis]] = answers.translate(run.model, task, [read[:-1]])
    end = task.tokenizers["target"].end
    return [token for token in hypothesis.tokens if token != end]


def rebuilt(model: EncoderDecoder, source: Tensor, target: Tensor) -> list[Weights]:
    """Runs the model once, and explains the cross-attention of each decoder block by its tapped queries and keys."""
    tapped: dict[str, Tensor] = {}
    with watching(model, tapped.setdefault):
        model(source, target)
    layers = []
    for number, block in enumerate(model.decoder.stack.blocks):
        layer, path = block.cross, f"decoder.stack.blocks.{number}.cross"
        assert layer is not None
        steps = explain(
            *(tapped[f"{path}.{role}"] for role in ("query", "key", "value")),
            similarity=layer.similarity,
            weighting=layer.weighting,
            position=layer.position,
            mask=layer.mask,
            query_positions=torch.arange(target.shape[1], device=target.device),
            key_positions=torch.arange(source.shape[1], device=source.device),
        )
        layers.append(steps.weight[0])
    return layers


class View(NamedTuple):
    """One way to look at a translation: a decoder block, and one of its heads or (None) the mean of them."""

    layer: int
    head: int | None

    def of(self, look: CrossWeights) -> Float[Tensor, "query key"]:
        """What it shows of a translation."""
        weight = look.layers[self.layer]
        return weight.mean(0) if self.head is None else weight[self.head]


def views(look: CrossWeights) -> list[View]:
    """Every view there is: of each block the mean, then its heads."""
    return [View(i, head) for i, weight in enumerate(look.layers) for head in (None, *range(len(weight)))]


def clearest(looks: Sequence[CrossWeights], among: Sequence[View]) -> View:
    """The view of these translations in which the weights say most: sharp, and each row elsewhere than the others."""
    return max(among, key=lambda view: sum(information(view.of(look)) for look in looks))


def information(weight: Float[Tensor, "query key"]) -> float:
    """How many bits the row of a map tells about its column: 0 if all rows are alike, log2(rows) at most.

    >>> information(torch.eye(4)), information(torch.full((4, 4), 0.25)), information(torch.eye(4)[:1].expand(4, 4))
    (2.0, 0.0, 0.0)
    """
    usual = weight.mean(0, keepdim=True)
    bits = torch.where(weight > 0, weight * (weight / usual).log2(), 0.0)
    return bits.sum(-1).mean().item()
