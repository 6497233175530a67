"""Read a model folder of Hugging Face's: config.json and safetensors, whole or in shards. Nothing is unpickled."""

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, final

from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from clearhead.errors import OptionError
from clearhead.files import read_json
from clearhead.interop.architectures import Architecture, find_architecture
from clearhead.interop.config import Config
from clearhead.interop.tables import Row, expand, fill
from clearhead.model.sizes import Spec
from clearhead.training.weight_files import SMALL, Bounded, TooManyNumbers

__all__ = ["Imported", "read_hugging_face"]

CONFIG, WHOLE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
OUTPUT = "lm_head.weight"


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
    """Read the model in a folder that `save_pretrained` wrote: GPT-2, Llama or Mistral, in float32.

    OptionError where the architecture or a field of its configuration is not supported, where a tensor is missing, is
    left over or has another shape, and where a file cannot be read. Nothing is guessed.
    """
    home = Path(folder)
    config = Config(read_object(home / CONFIG), str(home / CONFIG))
    architecture = find_architecture(config)
    spec = architecture.spec(config)
    with Tensors(home) as theirs:
        prefix = architecture.prefix if any(name.startswith(architecture.prefix) for name in theirs) else ""
        rows = list(table_rows(architecture, config, prefix, len(spec.blocks)))
        check_names(rows, theirs, architecture, config, str(home))
        model = build_bounded(spec, theirs, str(home))
        fill(dict(model.named_parameters()), rows, theirs, str(home))
    start, *_ = (*config.tokens("bos_token_id"), None)
    return Imported(
        spec,
        model.eval(),
        task="generate",
        context=config.count(architecture.context),
        labels=(),
        start=start,
        end=config.tokens("eos_token_id"),
        config=config,
    )


def table_rows(architecture: Architecture, config: Config, prefix: str, n_blocks: int) -> Iterator[Row]:
    """Yield every row of the model, with the names as they are in the files."""
    for row in expand(architecture.rows(config), n_blocks):
        yield Row(prefix + row.theirs, row.ours, row.transposed)
    if not architecture.tied(config):
        yield Row(OUTPUT, ("output.table",))


def check_names(rows: list[Row], theirs: "Tensors", architecture: Architecture, config: Config, where: str) -> None:
    """Raise OptionError where a tensor is left over that the model has no place for."""
    known = {row.theirs for row in rows}
    if architecture.tied(config):
        known.add(OUTPUT)  # some writers keep the tied table twice
    left = sorted(name for name in theirs if name not in known and not name.endswith(architecture.ignored))
    if left:
        raise OptionError(f"{where}: {len(left)} tensors have no place in this model: {', '.join(left[:3])}")


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
        self.place = self.find_files()

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
        return self.open(self.place[name]).get_slice(name).get_shape()

    def __getitem__(self, name: str) -> Tensor:
        return self.open(self.place[name]).get_tensor(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.place)

    def __len__(self) -> int:
        return len(self.place)
