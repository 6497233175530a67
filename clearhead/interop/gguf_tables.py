"""GGUF's names of what Hugging Face's configurations and tensors say: the same table reads a file and writes it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from torch import Tensor

from clearhead.errors import OptionError
from clearhead.interop.peers import import_peer

ENDS = ("eos", "eot", "eom")
"""GGUF's names of tokens that end a text: of all text, of a turn, of a message."""


@final
@dataclass(frozen=True, kw_only=True)
class Family:
    """A family of models in GGUF: `counts` and `numbers` are GGUF's keys with Hugging Face's fields."""

    name: str
    """The `general.architecture` of GGUF."""
    model_type: str
    """The `model_type` of Hugging Face."""
    counts: Mapping[str, str]
    numbers: Mapping[str, str]
    fixed: Mapping[str, Any]
    """Fields of config.json that GGUF does not say, since llama.cpp knows no other."""
    interleaved: bool = False
    """Whether GGUF pairs entries (0, 1), (2, 3) to rotate them, where Hugging Face pairs halves."""
    has_bias_field: bool = False
    """Whether config.json says if attention has biases; in GGUF they are there or not."""
    transposed: tuple[str, ...] = ()
    """How the names of tensors end that Hugging Face has with the inputs first."""


SHARED = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
}
ROTATED = {"attention.layer_norm_rms_epsilon": "rms_norm_eps", "rope.freq_base": "rope_theta"}
GATED = {"hidden_act": "silu"}
FAMILIES: Mapping[str, Family] = {
    one.name: one
    for one in (
        Family(
            name="llama",
            model_type="llama",
            counts=SHARED,
            numbers=ROTATED,
            fixed=GATED,
            interleaved=True,
            has_bias_field=True,
        ),
        Family(name="qwen2", model_type="qwen2", counts=SHARED, numbers=ROTATED, fixed=GATED),
        Family(name="qwen3", model_type="qwen3", counts=SHARED, numbers=ROTATED, fixed=GATED),
        Family(
            name="gpt2",
            model_type="gpt2",
            counts={
                "context_length": "n_positions",
                "embedding_length": "n_embd",
                "block_count": "n_layer",
                "feed_forward_length": "n_inner",
                "attention.head_count": "n_head",
            },
            numbers={"attention.layer_norm_epsilon": "layer_norm_epsilon"},
            fixed={"activation_function": "gelu_new"},
            transposed=("c_attn.weight", "c_proj.weight", "c_fc.weight"),
        ),
    )
}
"""By the `general.architecture` of GGUF."""


def find_family(name: object, where: str) -> Family:
    """Return the family of this name; OptionError where it is none of these."""
    if not isinstance(name, str) or name not in FAMILIES:
        raise OptionError(
            f"{where}: the architecture {str(name)[:60]!r} cannot be read; there are {', '.join(FAMILIES)}"
        )
    return FAMILIES[name]


def tensor_names(family: Family, n_blocks: int) -> Callable[[str], str | None]:
    """Return a function from Hugging Face's name of a tensor to GGUF's, by the table of the gguf package."""
    gguf = import_peer("gguf")
    kind = next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == family.name)
    table = gguf.get_tensor_name_map(kind, n_blocks)
    return lambda name: table.get_name(name, try_suffixes=(".weight", ".bias"))


def interleave_rotary(tensor: Tensor, n_heads: int) -> Tensor:
    """Return a map to queries or keys, its halves of each head as pairs next to each other."""
    return regroup(tensor, n_heads, 2, tensor.shape[0] // n_heads // 2)


def split_rotary(tensor: Tensor, n_heads: int) -> Tensor:
    """Return a map to queries or keys, its pairs of each head as halves: the inverse of `interleave_rotary`."""
    return regroup(tensor, n_heads, tensor.shape[0] // n_heads // 2, 2)


def regroup(tensor: Tensor, n_heads: int, outer: int, inner: int) -> Tensor:
    grouped = tensor.reshape(n_heads, outer, inner, *tensor.shape[1:])
    return grouped.swapaxes(1, 2).reshape(tensor.shape).contiguous()


def shortest_float(number: float) -> float:
    """Return the float32 of a file as people wrote it: 1e-06 and not 9.999999974752427e-07.

    >>> shortest_float(9.999999974752427e-07)
    1e-06
    """
    return float(str(np.float32(number)))
