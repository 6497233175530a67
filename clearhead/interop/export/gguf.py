"""GGUF: llama.cpp's format, for decoders like Llama or GPT-2. It has a fixed list of layers, and of tokenisers."""

import copy
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from clearhead.decoding import Rules
from clearhead.errors import OptionError
from clearhead.extras import import_peer, peer_version
from clearhead.interop.architectures import ARCHITECTURES
from clearhead.interop.export.base import chat_of, spec_of, task_written_as
from clearhead.interop.export.format import Format, Peer, forward, greedy_tokens
from clearhead.interop.export.huggingface import Expression, frame_of, their_tensors
from clearhead.interop.export.samples import OutputTokens, Samples, special_ids, token_names, written_frame
from clearhead.interop.gguf import ENDS, FAMILIES, Family, interleave_rotary, read_gguf, tensor_names
from clearhead.interop.gguf_file import tokenizer_metadata
from clearhead.interop.tables import Config
from clearhead.model.sizes import Spec
from clearhead.training.run import Run

MODEL = "model.gguf"
WRITTEN = ("llama", "gpt2")
"""The families that are written; more can be read."""
BYTE_KINDS = ("bpe", "byte", "given")
"""Kinds of our tokenisers that may be one of llama.cpp's."""


class GgufModel(NamedTuple):
    """A model as a family of GGUF has it."""

    family: Family
    expression: Expression


@final
class Gguf(Format):
    """model.gguf, with the tokeniser in it."""

    name = "gguf"
    about = "GGUF for llama.cpp: decoders like Llama or GPT-2; f32, f16 or q8_0"
    quantizations = ("f32", "f16", "q8_0")
    packages = ("gguf",)

    def blocks(self, spec: Spec, task: str, tokenizers: Sequence[str] = ()) -> list[str]:
        if task_written_as(task) != "generate":
            return [f"models that {task}"]
        kinds = [f"tokenisers of kind {kind}" for kind in tokenizers if kind not in BYTE_KINDS]
        written = find_written(spec, 2048)
        return kinds + ([] if isinstance(written, GgufModel) else [f"such layers: {reason}" for reason in written])

    def write(self, run: Run, folder: Path, quantization: str) -> None:
        gguf = import_peer("gguf")
        written = find_written(spec_of(run), run.task.context)
        if not isinstance(written, GgufModel):
            raise OptionError(f"gguf: {'; '.join(written)}")
        writer = gguf.GGUFWriter(folder / MODEL, written.family.name)
        for key, value in metadata_of(run, written).items():
            add_value(writer, key, value)
        writer.add_name(run.folder.path.resolve().name)
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
        writer.add_file_type(getattr(gguf.LlamaFileType, FILE_TYPES[quantization]))
        for name, tensor in renamed_tensors(run.model, written).items():
            data, kind = quantized(gguf, tensor, quantization)
            writer.add_tensor(name, data, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

    def open(self, run: Run, folder: Path, quantization: str) -> Peer:
        return GgufPeer(run, folder, quantization)


FILE_TYPES = {"f32": "ALL_F32", "f16": "MOSTLY_F16", "q8_0": "MOSTLY_Q8_0"}


def find_written(spec: Spec, context: int) -> GgufModel | list[str]:
    """Return how the first family that can says a model; where none can, why each cannot."""
    reasons: dict[str, None] = {}
    for name in WRITTEN:
        family, architecture = FAMILIES[name], ARCHITECTURES[FAMILIES[name].model_type]
        try:
            config = architecture.config_of(spec, context=context)
            check_fixed(family, config)
        except OptionError as error:
            reasons[str(error)] = None
            continue
        return GgufModel(family, Expression(architecture, config, spec))
    return list(reasons)


def check_fixed(family: Family, config: Mapping[str, Any]) -> None:
    """Raise OptionError if a configuration says what GGUF has no key for."""
    for field, value in family.fixed.items():
        if config.get(field, value) != value:
            raise OptionError(f"{family.name} in llama.cpp has {field} {value}, and this model has {config[field]}")
    if config.get("scale_attn_weights") is False:
        raise OptionError(f"{family.name} in llama.cpp scales its scores, and this model does not")
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if rope.get("rope_type", "default") != "default":
        raise OptionError(f"rotary positions that are scaled ({rope['rope_type']}) are not written")


def metadata_of(run: Run, written: GgufModel) -> dict[str, Any]:
    """Return the metadata: the model's sizes, the tokeniser and its special tokens."""
    tokenizer_config = json.loads(run.tokenizer.to_json())
    tokens = tokenizer_metadata(tokenizer_config, token_names(run.tokenizer))
    return size_metadata(written) | tokens | special_metadata(run)


def size_metadata(written: GgufModel) -> dict[str, Any]:
    """Return the metadata that say the model's sizes."""
    family, config = written.family, written.expression.config
    rope = config.get("rope_parameters") or {}
    settings = {**config, "rope_theta": config.get("rope_theta", rope.get("rope_theta", 10_000.0))}
    head_dim = settings.get("head_dim")
    if "hidden_size" in settings and head_dim is None:
        head_dim = settings["head_dim"] = settings["hidden_size"] // settings["num_attention_heads"]
    named = {f"{family.name}.{key}": int(settings[field]) for key, field in family.counts.items()}
    named |= {f"{family.name}.{key}": float(settings[field]) for key, field in family.numbers.items()}
    if family.interleaved:
        named |= {
            f"{family.name}.attention.value_length": head_dim,
            f"{family.name}.rope.dimension_count": head_dim,
            f"{family.name}.vocab_size": settings["vocab_size"],
        }
    return named


def special_metadata(run: Run) -> dict[str, Any]:
    """Return the ids of special tokens. What the task puts before a text is what llama.cpp calls BOS.

    OptionError if the run has more of them than GGUF has keys for.
    """
    places, (before, _), frame = special_ids(run.tokenizer), frame_of(run), written_frame(run)
    if len(before) > 1:
        raise OptionError(f"gguf: a text begins with {len(before)} special tokens here, and in llama.cpp with one")
    if frame.never:
        raise OptionError(f"gguf: {len(frame.never)} tokens are never to be written, and GGUF has no key for that")
    if len(frame.ends) > len(ENDS):
        raise OptionError(f"gguf: {len(frame.ends)} tokens end a text, and GGUF has keys for {len(ENDS)}")
    ids = {
        "bos": before[0] if before else places["start"],
        "unknown": places["unknown"],
        "padding": places["pad"],
        **dict(zip(ENDS, frame.ends or (places["end"],), strict=False)),
    }
    # An imported model's tokeniser may lack some of them, and has no id for those.
    named: dict[str, Any] = {
        f"tokenizer.ggml.{name}_token_id": token_id for name, token_id in ids.items() if token_id is not None
    }
    if chat := chat_of(run):
        named["tokenizer.chat_template"] = chat.text
    return named | {"tokenizer.ggml.add_bos_token": bool(before), "tokenizer.ggml.add_eos_token": False}


def add_value(writer: Any, key: str, value: Any) -> None:
    """Add a value with the kind that llama.cpp reads it by."""
    kinds = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    if not isinstance(value, list):
        kinds[type(value)](key, value)
    elif value:  # an empty list has no kind
        writer.add_array(key, value)


def renamed_tensors(model: Any, written: GgufModel) -> dict[str, Tensor]:
    """Return the tensors by GGUF's names, laid out as llama.cpp has them."""
    family, config = written.family, Config(written.expression.config, "config.json")
    rename = tensor_names(family, config.count(family.counts["block_count"]))
    renamed: dict[str, Tensor] = {}
    for name, tensor in their_tensors(model, written.expression).items():
        theirs = rename(name)
        if theirs is None:
            raise OptionError(f"gguf: there is no name for {name} in {family.name}")
        if family.interleaved and ".q_proj." in name:
            tensor = interleave_rotary(tensor, config.count("num_attention_heads"))  # noqa: PLW2901
        elif family.interleaved and ".k_proj." in name:
            tensor = interleave_rotary(tensor, config.count("num_key_value_heads"))  # noqa: PLW2901
        elif name.endswith(family.transposed) and tensor.ndim == 2:
            tensor = tensor.T.contiguous()  # noqa: PLW2901
        renamed[theirs] = tensor
    return renamed


def quantized(gguf: Any, tensor: Tensor, quantization: str) -> tuple[Any, Any]:
    """Return a tensor's data and its kind. Vectors stay float32, and rows that Q8_0's blocks do not divide float16."""
    kinds, data = gguf.GGMLQuantizationType, tensor.numpy()
    if tensor.ndim == 1 or quantization == "f32":
        return data, kinds.F32
    kind = kinds.Q8_0 if quantization == "q8_0" and tensor.shape[-1] % 32 == 0 else kinds.F16
    return gguf.quants.quantize(data, kind), kind


@final
class GgufPeer(Peer):
    """The file as gguf dequantises it, in our model.

    What is quantised is held to the run's weights after the same rounding, which tests hold to transformers' reading of
    the file.
    """

    def __init__(self, run: Run, folder: Path, quantization: str) -> None:
        super().__init__(run)
        self.name, self.exact = f"{peer_version('gguf')} and our reader", quantization == "f32"
        self.read = read_gguf(folder / MODEL).model
        self.model = run.model if self.exact else round_weights(run, quantization)

    def theirs(self, samples: Samples) -> list[Tensor]:
        return samples.split(forward(self.read, samples))

    def greedy(self, rows: Sequence[list[int]], written: OutputTokens, n_new: int) -> list[list[int]]:
        return greedy_tokens(self.read, rows, Rules(max_new=n_new, end=written.ends, never=written.never))


def round_weights(run: Run, quantization: str) -> Any:
    """Return the run's model with its matrices rounded as they are written.

    Q8_0 rounds 32 numbers of a row together, and a row of ours is a row of theirs: only their order differs.
    """
    gguf = import_peer("gguf")
    model = copy.deepcopy(run.model)
    for weight in model.parameters():
        if weight.ndim > 1:
            data, kind = quantized(gguf, weight.detach(), quantization)
            weight.data = torch.from_numpy(gguf.quants.dequantize(data, kind).copy()).reshape(weight.shape)
    return model
