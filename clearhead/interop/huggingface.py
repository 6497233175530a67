"""Read a model folder of Hugging Face's: config.json and the tensors beside it. No code of a file is run.

BERT and RoBERTa without an output are saved with a pooler, a map that their vectors do not pass through. Nothing here
computes with it; it lies in the run folder in a file of its own, and an export has it again bit by bit.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from clearhead.errors import OptionError, RunError, unreadable
from clearhead.interop.architectures import Architecture, find_architecture
from clearhead.interop.tables import Config, TensorRow, fill, unplaced_error
from clearhead.interop.tensor_files import Tensors, read_object
from clearhead.model.sizes import SMALL, Bounded, Spec, TooManyNumbers
from clearhead.model.transformers import Transformer

CONFIG, GENERATION = "config.json", "generation_config.json"
OUTPUT = "lm_head.weight"
ADAPTER = "adapter_config.json"
NEAR, NEAR_HALF = 2e-4, 1e-2
"""How far sinusoids in a file may be from ours: they were computed, or kept, in fewer digits."""


class Imported(NamedTuple):
    """A model that was read: its spec, the built model with its weights, in eval mode, and the task it is for."""

    spec: Spec
    model: Transformer
    task: str
    """`generate`, `fill`, `classify`, `translate` or `embed`: by the class that config.json names."""
    context: int
    """Number of tokens of the longest text."""
    labels: tuple[str, ...]
    """Names of a classifier's classes in order; none for other tasks."""
    start: int | None
    """Id that decoding begins with: of an encoder-decoder its `decoder_start_token_id`, else `bos_token_id`."""
    end: tuple[int, ...]
    """Ids that end a text."""
    config: Config
    pooler: Mapping[str, Tensor] = {}
    """The map of a bare BERT that its vectors do not pass through, by its names there."""
    left_out: tuple[str, ...] = ()
    """Names of tensors that hold weights for another task than this one."""


def read_hugging_face(folder: str | Path) -> Imported:
    """Read the model in a folder that `save_pretrained` wrote, in float32; `ARCHITECTURES` lists what can be read.

    OptionError if the architecture or a field of its configuration is not supported, if a tensor is missing, is
    left over or has another shape, and where a file cannot be read. Nothing is guessed.
    """
    home = Path(folder)
    if (home / ADAPTER).exists():
        raise OptionError(
            f"{home}: has {ADAPTER}, an adapter of PEFT's beside a model; merge the two first: "
            "peft.AutoPeftModel.from_pretrained(FOLDER).merge_and_unload().save_pretrained(NEW)"
        )
    config = Config(read_object(home, CONFIG), str(home / CONFIG))
    architecture = find_architecture(config)
    config = architecture.standardize(config)
    config.require("quantization_config")
    with Tensors(home) as theirs:
        config = untie_if_apart(config, architecture, theirs)
        task, spec = config.task(architecture.classes), architecture.spec(config)
        labels = read_labels(config, spec) if task == "classify" else ()
        rows = table_rows(architecture, config, theirs)
        check_names(rows, theirs, architecture, config, str(home))
        check_values(theirs, architecture, config, spec, str(home))
        model = build_bounded(spec, theirs, str(home))
        fill(dict(model.named_parameters()), rows, theirs, str(home))
        unused = unused_weights(rows, theirs, architecture, config)
        poolers = [name for name in unused if task == "embed" and is_pooler(name)]
        pooler = {name.removeprefix(architecture.prefix): theirs[name] for name in poolers}
    generation = read_generation(home, config)
    return Imported(
        spec,
        model.eval(),
        task=task,
        context=architecture.context(config),
        labels=labels,
        start=first_token(generation),
        end=generation.tokens("eos_token_id"),
        config=config,
        pooler=pooler,
        left_out=tuple(name for name in unused if name not in poolers),
    )


def unused_weights(rows: list[TensorRow], theirs: "Tensors", architecture: Architecture, config: Config) -> list[str]:
    """Return the names of weights that the model has no use for: numbers that can be computed again are none."""
    used = {*(row.theirs for row in rows), *architecture.copies(config)}
    return sorted(name for name in theirs if name not in used and not name.endswith(architecture.computed))


def untie_if_apart(config: Config, architecture: Architecture, theirs: Tensors) -> Config:
    """Return the configuration without tied tables if the files have an output table that differs all the same.

    transformers does the same: since version 5 it writes every T5 as tied, even one whose tables differ.
    """
    table = architecture.copies(config).get(OUTPUT)
    if table is None or OUTPUT not in theirs or table not in theirs or theirs[table].equal(theirs[OUTPUT]):
        return config
    return Config({**config.values, "tie_word_embeddings": False}, config.where)


def read_generation(home: Path, config: Config) -> Config:
    """Return the configuration with the fields that generation_config.json, if there is one, has for decoding."""
    if not (home / GENERATION).exists():
        return config
    settings = {name: value for name, value in read_object(home, GENERATION).items() if value is not None}
    return Config({**config.values, **settings}, str(home / GENERATION))


def first_token(config: Config) -> int | None:
    """Return the id that decoding begins with."""
    start = config.tokens("decoder_start_token_id") if config.get("is_encoder_decoder") else ()
    return next(iter((*start, *config.tokens("bos_token_id"))), None)


def read_labels(config: Config, spec: Spec) -> tuple[str, ...]:
    """Return the names of a classifier's classes; OptionError if there is not one for each."""
    names, count = config.get("id2label"), getattr(spec.output, "count", 0)
    if names is None:
        return tuple(f"LABEL_{i}" for i in range(count))
    if not isinstance(names, dict) or sorted(names) != sorted(map(str, range(count))):
        raise config.error("id2label", f"expected a name for each class from 0 to {count - 1}")
    return tuple(str(names[str(i)]) for i in range(count))


def table_rows(architecture: Architecture, config: Config, theirs: Mapping[str, Any]) -> list[TensorRow]:
    """Return every row of the model, with the names as they are in the files: a bare body's lack the prefix."""
    rows, prefix = architecture.rows(config), architecture.prefix
    if any(name.startswith(prefix) for name in theirs):
        return rows
    return [replace(row, theirs=row.theirs.removeprefix(prefix)) for row in rows]


def check_names(
    rows: list[TensorRow], theirs: "Tensors", architecture: Architecture, config: Config, where: str
) -> None:
    """Raise OptionError if a tensor is left over that the model has no place for, or a copy differs."""
    used, copies = {row.theirs for row in rows}, architecture.copies(config)
    unused = sorted(name for name in theirs if name not in used and not name.endswith(architecture.ignored))
    for name in unused:
        first = copies.get(name)
        if first is None:
            raise unplaced_error(unused, where)
        if first in theirs and not theirs[first].equal(theirs[name]):
            raise OptionError(f"{where}: {name[:80]} must be {first} once more, as {CONFIG} ties them, and it differs")


def check_values(theirs: "Tensors", architecture: Architecture, config: Config, spec: Spec, where: str) -> None:
    """Raise OptionError if a tensor that is computed here, and that `transformers` reads, has other numbers."""
    stored = [name for name in theirs if name.endswith(architecture.computed)]
    if architecture.values is None or not stored:
        return
    shape = [architecture.context(config), spec.stacks[0].d_model]  # before memory is taken for as many
    values = architecture.values(config) if all(theirs.shape(name) == shape for name in stored) else {}
    for name in stored:
        value = values.get(name, values.get(f"{architecture.prefix}{name}"))
        found = theirs[name]
        near = NEAR if found.dtype.itemsize > 2 else NEAR_HALF
        if value is None or not found.float().allclose(value, rtol=0, atol=near):
            raise OptionError(
                f"{where}: {name} was changed in training or has another size: this model computes its positions"
            )


def build_bounded(spec: Spec, theirs: "Tensors", where: str) -> Transformer:
    """Build the model; raise OptionError, before memory is taken, where it is larger than what the files hold."""
    numbers = sum(math.prod(theirs.shape(name)) for name in theirs)
    try:
        with Bounded(2 * numbers + SMALL):
            return spec.build()
    except TooManyNumbers:
        raise OptionError(f"{where}: {CONFIG} describes a larger model than the tensors are of") from None


FILE = "pooler.safetensors"
NAMES = {"pooler.dense.weight": 2, "pooler.dense.bias": 1}
"""Its tensors, and how many axes each has."""


def is_pooler(name: str) -> bool:
    """Return whether a tensor of this name, with or without the prefix of its model, is the pooler's."""
    return name.endswith(tuple(NAMES))


def write_pooler(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write the tensors of a pooler, by the names they have in a bare model, into a run folder."""
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / FILE)


def read_pooler(folder: Path, d_model: int) -> dict[str, Tensor]:
    """Return the pooler in a run folder, as float32: nothing if there is none; RunError if it does not fit."""
    path = folder / FILE
    if not path.is_file():
        return {}
    with unreadable(path, SafetensorError, after="; remove it to go on without the pooler"):
        tensors = load_file(path)
    shapes = {name: list(tensor.shape) for name, tensor in tensors.items()}
    if shapes != {name: [d_model] * n for name, n in NAMES.items()}:
        raise RunError(f"{path}: is no pooler of {d_model} numbers; remove it to go on without")
    return {name: tensor.to(torch.float32) for name, tensor in tensors.items()}
