"""Dropout whose masks follow from seed, step, row, site and place alone, so that every split of a batch has the same.

torch draws the mask of a whole tensor from one generator: the mask of a row depends on the rows beside it, and so on
the number of processes. Here every row of a batch carries a key, drawn from the seed and the batch's number, and a mask
is an integer hash of the row's key, the site (the how-manieth dropout of the pass) and the place within the row. It is
arithmetic on integers, so that a GPU and a CPU make the same masks too.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from clearhead.attention.modes import BLOCK_DROPOUT, BlockDropout
from clearhead.attention.sequence_split import SequenceSplit
from clearhead.errors import OptionError

ROW_KEYS = "row_keys"
"""The name in a batch under which its rows carry their keys."""

SPLITMIX = (0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64))
"""SplitMix64's multipliers (Steele, Lea and Flood, 2014), as signed numbers."""
GOLDEN = 0x9E3779B9
"""2**32 over the golden ratio: its multiples are spread evenly."""
LOWBIAS = (0x7FEB352D, 0x846CA68B - (1 << 32))
"""Multipliers of lowbias32, a 32-bit mixer that was found by a search for the least bias (Wellons, 2018)."""


def draw_row_keys(random: np.random.Generator, rows: int) -> Int[Tensor, "row"]:
    """Return keys for the rows of a batch."""
    return torch.from_numpy(random.integers(np.iinfo(np.int64).max, size=rows))


def mix64(x: Int[Tensor, "row"]) -> Int[Tensor, "row"]:
    """Return SplitMix64's hash of each number; integers wrap around."""
    x = (x ^ (x >> 30 & (1 << 34) - 1)) * SPLITMIX[0]
    x = (x ^ (x >> 27 & (1 << 37) - 1)) * SPLITMIX[1]
    return x ^ (x >> 31 & (1 << 33) - 1)


def keep_mask(
    keys: Int[Tensor, "row"], site: int, places: int | Int[Tensor, "place"], share: float
) -> Bool[Tensor, "row place"]:
    """Return which of the places of every row are kept, all but about a `share` of them. `places` are the first so
    many, or the numbers (int32) of some.

    >>> keys = torch.tensor([5, 6])
    >>> mask = keep_mask(keys, 0, 100_000, 0.25)
    >>> round(mask.float().mean().item(), 2)
    0.75
    >>> torch.equal(mask[1:], keep_mask(keys[1:], 0, 100_000, 0.25))
    True
    """
    mixed = mix64(keys + (site + 1) * GOLDEN)
    low, high = mixed.to(torch.int32), (mixed >> 32).to(torch.int32)
    # From here on there are as many numbers as in the tensor: 32 bits, in place. The second half of the key goes in
    # between, so that no row has the mask of another in another order. The mixer's last shift would change low bits
    # alone, and the comparison goes by the high ones.
    if isinstance(places, int):
        places = torch.arange(places, dtype=torch.int32, device=keys.device)
    hashed = places * (GOLDEN - (1 << 32)) ^ low.unsqueeze(1)
    hashed.bitwise_xor_((hashed >> 16).bitwise_and_(0xFFFF)).mul_(LOWBIAS[0]).bitwise_xor_(high.unsqueeze(1))
    hashed.bitwise_xor_((hashed >> 15).bitwise_and_(0x1FFFF)).mul_(LOWBIAS[1])
    return hashed >= round((share - 0.5) * (1 << 32))


class KeyedDropout(TorchFunctionMode):
    """Within it, torch's dropout and the dropout of its attention take their masks from the keys of the rows.

    The first axis of what is dropped must be the rows of the batch. OptionError if it is another, or if a
    function with a backward pass of its own drops: it may compute again there, outside of this mode. Attention that is
    computed block by block is given masks for both times. With a `split` the second axis is this process's places of
    the rows, which have the masks that they have in whole rows. With `part` the heads of attention are that one of the
    equal parts into which processes have divided them.
    """

    def __init__(self, keys: Int[Tensor, "row"], split: SequenceSplit | None = None, part: int = 0) -> None:
        super().__init__()
        self.keys, self.sites, self.split, self.part = keys, 0, split, part

    def __enter__(self) -> "KeyedDropout":
        self.before = BLOCK_DROPOUT.set(self.drop_blocks)
        return super().__enter__()

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        BLOCK_DROPOUT.reset(self.before)

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        keywords: Mapping[str, Any] = kwargs or {}
        if func is F.dropout:
            return self.drop(*bind_dropout(*args, **keywords))
        if func is torch.dropout:
            return self.drop(*args, **keywords)
        if func is F.scaled_dot_product_attention:
            named = {**dict(zip(ATTENTION, args, strict=False)), **keywords}
            return self.attend(**named) if named.get("dropout_p") else func(*args, **keywords)
        if func in OTHER_DROPOUTS:
            raise OptionError(
                f"keyed_dropout: {func.__name__} has no keyed masks; use torch.nn.functional.dropout in this part, or "
                "train with --no-keyed-dropout"
            )
        return func(*args, **keywords)

    def drop(self, input: Tensor, p: float, train: bool) -> Tensor:
        """Return a tensor with a share of `p` of its numbers set to 0, and the others made larger for it."""
        if not train or p == 0:
            return input
        check_rows(input, self.keys)
        if not torch.is_grad_enabled():  # as in the forward pass of a function that has a backward pass of its own
            raise OptionError(RECOMPUTED)
        mask = keep_mask(self.keys, self.sites, self.places_of(input), p)
        self.sites += 1
        return input * scaled(mask, input, p)

    def places_of(self, input: Tensor) -> int | Int[Tensor, "place"]:
        """Return the number of places in a row, or the numbers of those that this process has of them."""
        size = math.prod(input.shape[1:])
        if self.split is None:
            first = self.part * size if input.ndim == 4 else 0  # weights of attention come after those of earlier heads
            return torch.arange(first, first + size, dtype=torch.int32, device=input.device) if first else size
        indices = self.split.indices(input.device).to(torch.int32)
        if input.ndim != 3 or input.shape[1] != len(indices):
            raise OptionError(
                f"keyed_dropout: what is dropped of a split sequence must be (row, place, number); came "
                f"{tuple(input.shape)}. Train with --no-keyed-dropout, or without context"
            )
        width = input.shape[2]
        return (indices.unsqueeze(1) * width + torch.arange(width, dtype=torch.int32, device=input.device)).flatten()

    def drop_blocks(self, p: float) -> BlockDropout:
        """Take the next site, and return what drops of the weights of attention there, a block of queries at a time.

        A block has the part of the mask that it has in the whole, so the size of blocks has no say.
        """
        keys, site = self.keys, self.sites
        self.sites += 1

        def drop(weight: Tensor, queries: slice, key_places: slice, size: tuple[int, int]) -> Tensor:
            check_rows(weight, keys)
            n_query, n_key = size
            n_heads = weight.shape[1]
            heads = slice(self.part * n_heads, (self.part + 1) * n_heads)
            head_indices, query_indices, key_indices = (
                torch.arange(places.start, places.stop, dtype=torch.int32, device=keys.device)
                for places in (heads, queries, key_places)
            )
            indices = (head_indices.view(-1, 1, 1) * n_query + query_indices.view(-1, 1)) * n_key + key_indices
            return weight * scaled(keep_mask(keys, site, indices.flatten(), p), weight, p)

        return drop

    def attend(
        self,
        *,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """Return softmax attention with dropout on the weights, which are formed, as torch forms them on a CPU."""
        if enable_gqa:
            times = query.shape[-3] // key.shape[-3]
            key, value = key.repeat_interleave(times, -3), value.repeat_interleave(times, -3)
        scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
        if is_causal:
            attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        if attn_mask is not None:
            hides = attn_mask.dtype == torch.bool
            scores = scores.masked_fill(~attn_mask, -math.inf) if hides else scores + attn_mask
        return self.drop(scores.softmax(-1), dropout_p, True) @ value


def check_rows(input: Tensor, keys: Int[Tensor, "row"]) -> None:
    """Raise OptionError if the first axis of what is dropped is not the rows of the batch."""
    if input.shape[0] != len(keys):
        raise OptionError(
            f"keyed_dropout: the first axis of what is dropped must be the {len(keys)} rows of the batch; "
            f"came {tuple(input.shape)}. Train with --no-keyed-dropout"
        )


def scaled(mask: Bool[Tensor, "row place"], input: Tensor, p: float) -> Tensor:
    """Return what a tensor is multiplied by: 0, or as much as makes up for what is dropped."""
    return mask.view(input.shape).to(input.dtype).mul_(1 / (1 - p))


RECOMPUTED = (
    "keyed_dropout: dropout inside of an autograd function, whose backward pass may compute it again, has no keyed "
    "masks; drop outside of it, or train with --no-keyed-dropout"
)
ATTENTION = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
"""The arguments of torch's attention that may be given without their names."""
OTHER_DROPOUTS = frozenset(
    [
        *(F.alpha_dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.feature_alpha_dropout),
        *(torch.alpha_dropout, torch.feature_dropout, torch.feature_alpha_dropout, torch.native_dropout),
        *(torch.dropout_, torch.alpha_dropout_, torch.feature_dropout_, torch.feature_alpha_dropout_),
    ]
)
"""What else of torch draws masks, for a user's own part."""


def bind_dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> tuple[Any, ...]:
    """Return the arguments of `F.dropout` in the order of `torch.dropout`."""
    return input, p, training
