"""The attention that `clearhead steps` shows: a designed head on a short sentence, explained and run by its kernel."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from clearhead.attention import masks
from clearhead.attention.attend import attend
from clearhead.attention.kernels import Choice
from clearhead.attention.layer import Attention
from clearhead.attention.masks import Mask
from clearhead.attention.reference import Steps
from clearhead.attention.weighting import Weighting
from clearhead.tracing.sentence import TOKENS, designed_layer, embeddings


@final
@dataclass(frozen=True, kw_only=True)
class Demonstration:
    """One attention on the sentence: the layer, every step of it, and what the kernel makes of the same."""

    mask: Mask
    mask_name: str
    weighting: Weighting
    weighting_name: str
    layer: Attention
    embedding: Tensor
    steps: Steps
    """Of the one head: `(query, key)`, `(token, d)`."""
    choice: Choice
    differences: Mapping[str, float]
    """The largest difference from the steps' context of what each way of calling it gives."""

    @property
    def allowed(self) -> Tensor:
        """Return True where the query may attend to the key."""
        return masks.show(self.mask, n_query=len(TOKENS), n_key=len(TOKENS))[0]


@torch.no_grad()
def demonstrate(mask_name: str, mask: Mask, weighting_name: str, weighting: Weighting) -> Demonstration:
    torch.manual_seed(0)
    layer, embedding = designed_layer(weighting, mask), embeddings()
    explained = layer.explain(embedding)
    context = attend(
        explained.query,
        explained.key,
        explained.value,
        similarity=layer.similarity,
        weighting=layer.weighting,
        mask=layer.mask,
    )
    return Demonstration(
        mask=mask,
        mask_name=mask_name,
        weighting=weighting,
        weighting_name=weighting_name,
        layer=layer,
        embedding=embedding,
        steps=explained.without_batch(),
        choice=layer.which_kernel(embedding),
        differences={
            "attend": (context - explained.context).abs().max().item(),
            "layer": (layer(embedding) - explained.context[0]).abs().max().item(),
        },
    )
