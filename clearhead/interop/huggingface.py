"""Read a model folder of Hugging Face's: config.json and safetensors, whole or in shards. Nothing is unpickled."""

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, final

from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from clearhead.errors import OptionError
from clearhead.files import read_json
from clearhead.interop.architectures import Architecture, find_architecture
from clearhead.interop.config import Config
from clearhead.interop.tables import Row, fill
from clearhead.model.sizes import Spec
from clearhead.training.weight_files import SMALL, Bounded, TooManyNumbers

__all__ = ["Imported", "read_hugging_face"]

CONFIG, GENERATION = "config.json", "generation_config.json"
WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"


class Imported(NamedTuple):
    """A model that was read: its spec, itself with its weights in evaluation mode, and what it is for."""

    spec: Spec
    model: nn.Module
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


def read_hugging_face(folder: str | Path) -> Imported:
    """Read the model in a folder that `save_pretrained` wrote, in float32; `ARCHITECTURES` lists what can be read.

    OptionError where the architecture or a field of its configuration is not supported, where a tensor is missing, is
    left over or has another shape, and where a file cannot be read. Nothing is guessed.
    """
    home = Path(folder)
    config = Config(read_object(home / CONFIG), str(home / CONFIG))
    architecture = find_architecture(config)
    task, spec = config.task(architecture.classes), architecture.spec(config)
    labels = read_labels(config, spec) if task == "classify" else ()
    with Tensors(home) as theirs:
        rows = table_rows(architecture, config, theirs)
        check_names(rows, theirs, architecture, config, str(home))
        model = build_bounded(spec, theirs, str(home))
        fill(dict(model.named_parameters()), rows, theirs, str(home))
    said = read_generation(home, config)
    return Imported(
        spec,
        model.eval(),
        task=task,
        context=architecture.context(config),
        labels=labels,
        start=first_token(said),
        end=said.tokens("eos_token_id"),
        config=config,
    )


def read_generation(home: Path, config: Config) -> Config:
    """Return the configuration with the fields that generation_config.json, where there is one, has for decoding."""
    if not (home / GENERATION).exists():
        return config
    said = {name: value for name, value in read_object(home / GENERATION).items() if value is not None}
    return Config({**config.values, **said}, str(home / GENERATION))


def first_token(config: Config) -> int | None:
    """Return the id that decoding begins with."""
    start = config.tokens("decoder_start_token_id") if config.get("is_encoder_decoder") else ()
    return next(iter((*start, *config.tokens("bos_token_id"))), None)


def read_labels(config: Config, spec: Spec) -> tuple[str, ...]:
    """Return the names of a classifier's classes; OptionError where there is not one for each."""
    names, count = config.get("id2label"), getattr(getattr(spec, "output", None), "count", 0)
    if names is None:
        return tuple(f"LABEL_{i}" for i in range(count))
    if not isinstance(names, dict) or sorted(names) != sorted(map(str, range(count))):
        raise config.error("id2label", f"expected a name for each class from 0 to {count - 1}")
    return tuple(str(names[str(i)]) for i in range(count))


def table_rows(architecture: Architecture, config: Config, theirs: Mapping[str, Any]) -> list[Row]:
    """Return every row of the model, with the names as they are in the files: a bare body's lack the prefix."""
    rows, prefix = architecture.rows(config), architecture.prefix
    if any(name.startswith(prefix) for name in theirs):
        return rows
    return [replace(row, theirs=row.theirs.removeprefix(prefix)) for row in rows]


def check_names(rows: list[Row], theirs: "Tensors", architecture: Architecture, config: Config, where: str) -> None:
    """Raise OptionError where a tensor is left over that the model has no place for, or a copy differs."""
    known, copies = {row.theirs for row in rows}, architecture.copies(config)
    left = sorted(name for name in theirs if name not in known and not name.endswith(architecture.ignored))
    for name in left:
        first = copies.get(name)
        if first is None:
            raise OptionError(f"{where}: {len(left)} tensors have no place in this model: {', '.join(left[:3])}")
        if first in theirs and not theirs[first].equal(theirs[name]):
            raise OptionError(f"{where}: {name} must be {first} once more, as {CONFIG} ties them, and it differs")


def build_bounded(spec: Spec, theirs: "Tensors", where: str) -> nn.Module:
    """Build the model; raise OptionError, before memory is taken, where it is larger than what the files hold."""
    numbers = sum(math.prod(theirs.shape(name)) for name in theirs)
    try:
        with Bounded(2 * numbers + SMALL):
            return spec.build()
    except TooManyNumbers:
        raise OptionError(f"{where}: {CONFIG} describes a larger model than the tensors are of") from None


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object; OptionError where there is none."""
    try:
        found = read_json(path, error=OptionError)
    except FileNotFoundError:
        raise OptionError(f"{path.parent}: has no {path.name}; give a folder as save_pretrained writes it") from None
    except OSError as error:
        raise OptionError(f"{path}: cannot be read ({error})") from None
    if not isinstance(found, dict):
        raise OptionError(f"{path}: expected a JSON object; came {type(found).__name__}")
    return found


@final
class Tensors(Mapping[str, Tensor]):
    """The tensors of a folder by name, each read when it is asked for."""

    def __init__(self, home: Path) -> None:
        self.home, self.stack, self.files = home, ExitStack(), dict[str, Any]()
        self.place = {current_name(name): (file, name) for name, file in self.find_files().items()}

    def __enter__(self) -> "Tensors":
        return self

    def __exit__(self, *error: object) -> None:
        self.stack.close()

    def find_files(self) -> dict[str, str]:
        """Return the file of each tensor: of the one file, or as the index of the shards has it."""
        if (self.home / WHOLE).exists():
            return dict.fromkeys(self.open(WHOLE).keys(), WHOLE)
        if not (self.home / INDEX).exists():
            pickled = sorted(path.name for path in (*self.home.glob("*.bin"), *self.home.glob("*.pt")))
            hint = f"; {pickled[0]} is a pickle: save it again with safe_serialization=True" if pickled else ""
            raise OptionError(f"{self.home}: has neither {WHOLE} nor {INDEX}{hint}")
        places = read_object(self.home / INDEX).get("weight_map")
        if not isinstance(places, dict) or not all(isinstance(one, str) for one in places.values()):
            raise OptionError(f"{self.home / INDEX}: weight_map: expected names of tensors with names of files")
        for name, file in places.items():
            if Path(file).name != file or name not in self.open(file).keys():  # noqa: SIM118 - it is no mapping
                raise OptionError(f"{self.home / INDEX}: {name} is not in {file!r}")
        return places

    def open(self, file: str) -> Any:
        """Open a file once; OptionError where it is no whole safetensors file."""
        if file not in self.files:
            path = self.home / file
            if not path.is_file():
                raise OptionError(f"{path}: there is no such file")
            try:
                self.files[file] = self.stack.enter_context(safe_open(path, framework="pt"))
            except (OSError, SafetensorError) as error:
                raise OptionError(f"{path}: cannot be read ({error})") from None
        return self.files[file]

    def shape(self, name: str) -> list[int]:
        """Return a tensor's shape without reading the tensor."""
        file, stored = self.place[name]
        return self.open(file).get_slice(stored).get_shape()

    def __getitem__(self, name: str) -> Tensor:
        file, stored = self.place[name]
        return self.open(file).get_tensor(stored)

    def __iter__(self) -> Iterator[str]:
        return iter(self.place)

    def __len__(self) -> int:
        return len(self.place)


def current_name(name: str) -> str:
    """Return the name of a tensor as it is today: published BERTs call the weight and bias of a norm gamma and beta."""
    for old, new in {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}.items():
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name
