"""The source of an encoder-decoder's cross-attention: the encoder's output, and what of it is padding."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from clearhead.attention.masks import TensorMask


@dataclass(frozen=True)
class EncodedSource:
    """The encoder's output: vectors of each sentence, and how many of them count (None: all)."""

    vectors: Float[Tensor, "sentence n d_model"]
    lengths: Int[Tensor, "sentence"] | None

    def padding(self) -> Bool[Tensor, "sentence n"] | None:
        """Return True at padding; None where there is none."""
        if self.lengths is None:
            return None
        return torch.arange(self.vectors.shape[1], device=self.vectors.device) >= self.lengths.unsqueeze(1)

    def mask(self) -> TensorMask | None:
        padding = self.padding()
        return None if padding is None else TensorMask(~padding[:, None, None, :])
