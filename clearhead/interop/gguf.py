"""Read a model from a GGUF file, llama.cpp's format: the Llama family and GPT-2, dequantised to float32. The tables of
GGUF's names for what configurations and tensors say serve for writing too.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from clearhead import extras, serialization
from clearhead.errors import OptionError
from clearhead.interop.architectures import find_architecture
from clearhead.interop.gguf_file import GGUF
from clearhead.interop.huggingface import Imported
from clearhead.interop.tables import Config, fill, unplaced_error
from clearhead.model.sizes import SMALL, Bounded, TooManyNumbers

ENDS = ("eos", "eot", "eom")
"""GGUF's names of tokens that end a text: of all text, of a turn, of a message."""


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
    """Return the family of this name; OptionError if it is none of these."""
    if not isinstance(name, str) or name not in FAMILIES:
        raise OptionError(
            f"{where}: the architecture {str(name)[:60]!r} cannot be read; there are {', '.join(FAMILIES)}"
        )
    return FAMILIES[name]


def tensor_names(family: Family, n_blocks: int) -> Callable[[str], str | None]:
    """Return a function from Hugging Face's name of a tensor to GGUF's, by the table of the gguf package."""
    gguf = extras.import_peer("gguf")
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


COMPUTED = ("rope_freqs.weight", ".rotary_emb.inv_freq")
"""How the names of tensors end that hold no weights."""


def read_gguf(path: str | Path) -> Imported:
    """Read the model in a GGUF file, whatever it is quantised to; its tensors are those `gguf` dequantises.

    OptionError if the architecture is none of `FAMILIES`, if a tensor is missing, is left over or has another
    shape, and where a header says what the file does not hold.
    """
    with GGUF(path) as file:
        family = find_family(file.metadata.get("general.architecture"), str(path))
        check_keys(family, file)
        config = read_config(family, file)
        architecture = find_architecture(config)
        spec = architecture.spec(config)
        rows = architecture.rows(config)
        theirs = Renamed(file, family, config, [row.theirs for row in rows])
        unused = sorted(name for name in set(file) - set(theirs.names.values()) if not name.endswith(COMPUTED))
        if unused:
            raise unplaced_error(unused, str(path))
        numbers = sum(info.n_bytes for info in file.infos.values()) * 8
        try:
            with Bounded(numbers + SMALL):
                model = spec.build()
        except TooManyNumbers:
            raise OptionError(f"{path}: its metadata describes a larger model than its tensors are of") from None
        fill(dict(model.named_parameters()), rows, theirs, str(path))
        end = config.tokens("eos_token_id")
    return Imported(
        spec,
        model.eval(),
        task="generate",
        context=architecture.context(config),
        labels=(),
        start=next(iter(config.tokens("bos_token_id")), None),
        end=end,
        config=config,
    )


def check_keys(family: Family, file: GGUF) -> None:
    """Raise OptionError for a key of the model that nothing here reads, unless its value changes nothing."""
    said = {key.removeprefix(f"{family.name}."): value for key, value in file.metadata.items()}
    heads, width = said.get("attention.head_count"), said.get("embedding_length")
    d_head = said.get("attention.key_length")
    if d_head is None and isinstance(heads, int) and isinstance(width, int) and heads > 0:
        d_head = width // heads
    neutral = {
        "attention.value_length": (d_head,),
        "rope.dimension_count": (d_head,),
        "attention.head_count_kv": (heads,),
        "vocab_size": (file.infos["token_embd.weight"].shape[:1] if "token_embd.weight" in file else ()),
        "rope.scaling.type": ("none",),
        "rope.scaling.factor": (0, 1),
        "rope.scale_linear": (0, 1),
    }
    for key, value in said.items():
        if f"{family.name}.{key}" not in file.metadata or key in family.counts or key in family.numbers:
            continue
        longest = said.get("context_length")
        if (
            key == "attention.sliding_window"
            and isinstance(value, int)
            and isinstance(longest, int)
            and value >= longest
        ):
            continue
        if value not in neutral.get(key, (0, "", "none")):
            raise OptionError(f"{file.where}: {family.name}.{key}: {serialization.shorten(value)} is not supported yet")


def read_config(family: Family, file: GGUF) -> Config:
    """Return the metadata as the config.json of the same model."""
    metadata, where = file.metadata, file.where
    if "rope_freqs.weight" in file:
        raise OptionError(f"{where}: rotary positions that are scaled for longer texts are not read from GGUF")
    values: dict[str, Any] = {"model_type": family.model_type, **family.fixed}
    for key, field in family.counts.items():
        values[field] = metadata.get(f"{family.name}.{key}")
    for key, field in family.numbers.items():
        number = metadata.get(f"{family.name}.{key}")
        values[field] = shortest_float(number) if isinstance(number, float) else number
    table = file.infos.get("token_embd.weight")
    if table is None or len(table.shape) != 2:
        raise OptionError(f"{where}: token_embd.weight, the table of the embedding, is missing")
    values |= {"vocab_size": table.shape[0], "tie_word_embeddings": "output.weight" not in file}
    if family.has_bias_field:
        values["attention_bias"] = "blk.0.attn_output.bias" in file
    values["bos_token_id"] = metadata.get("tokenizer.ggml.bos_token_id")
    ends = [metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ENDS]
    values["eos_token_id"] = list(dict.fromkeys(end for end in ends if end is not None))
    config = Config({name: value for name, value in values.items() if value is not None}, where)
    n_blocks = config.count(family.counts["block_count"])
    if n_blocks > len(file):  # a spec and a table of so many blocks are not even begun
        raise OptionError(f"{where}: says {n_blocks:,} blocks, and has {len(file):,} tensors")
    return config


class Renamed(Mapping[str, Tensor]):
    """The tensors of a file by Hugging Face's names, and laid out as those are."""

    def __init__(self, file: GGUF, family: Family, config: Config, names: list[str]) -> None:
        self.file, self.family, self.config = file, family, config
        rename = tensor_names(family, config.count(family.counts["block_count"]))
        renamed = {name: rename(name) for name in names}
        self.names = {name: theirs for name, theirs in renamed.items() if theirs is not None and theirs in file}

    def __getitem__(self, name: str) -> Tensor:
        tensor, family = self.file[self.names[name]], self.family
        if family.interleaved and ".q_proj." in name:
            return split_rotary(tensor, self.config.count("num_attention_heads"))
        if family.interleaved and ".k_proj." in name:
            heads = self.config.count("num_attention_heads")
            return split_rotary(tensor, self.config.count("num_key_value_heads", heads))
        return tensor.T if name.endswith(family.transposed) and tensor.ndim == 2 else tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)
