"""The tensors of a model folder by name: safetensors, or an archive that torch saved; whole or in shards.

No file elsewhere is read, by a link, `..`, an absolute path or a shard's name.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, final

from safetensors import SafetensorError, safe_open
from torch import Tensor

from clearhead.errors import OptionError
from clearhead.files import is_inside, is_plain_name, read_json
from clearhead.interop.torch_archive import read_archive


def file_in(home: Path, name: str) -> Path:
    """Return the path of a file in a source folder, there or not; OptionError where its name or a link leads out.

    A link may lead to another file of the folder, and in the cache of the Hugging Face hub to a blob of the same
    repository: `models--ORG--NAME/snapshots/COMMIT/config.json` is a link to `../../blobs/HASH`.
    """
    if not is_plain_name(name):
        raise OptionError(f"{home}: {name[:80]!r} is no name of a file in this folder, and no other is read")
    path = home / name
    if is_inside(home, path) or is_own_blob(home, path):
        return path
    raise OptionError(
        f"{path}: is a link that leads out of the folder, to {os.path.realpath(path)}, which is not read. If you trust "
        "it, put the file itself in its place"
    )


def is_own_blob(home: Path, path: Path) -> bool:
    """Return whether a folder is a snapshot in the hub's cache, and a path in it leads to a blob of its repository."""
    snapshot, place = Path(os.path.realpath(home)), Path(os.path.realpath(path))
    repository = snapshot.parent.parent
    is_snapshot = snapshot.parent.name == "snapshots" and repository.name.startswith("models--")
    return is_snapshot and place.parent == repository / "blobs"


WHOLE, PICKLED = "model.safetensors", "pytorch_model.bin"
INDEX = ".index.json"


def read_object(home: Path, name: str) -> dict[str, Any]:
    """Read a JSON object of a source folder; OptionError where there is none."""
    path = file_in(home, name)
    try:
        content = read_json(path, error=OptionError)
    except FileNotFoundError:
        raise OptionError(f"{path.parent}: has no {path.name}; give a folder as save_pretrained writes it") from None
    except OSError as error:
        raise OptionError(f"{path}: cannot be read ({error})") from None
    if not isinstance(content, dict):
        raise OptionError(f"{path}: expected a JSON object; came {type(content).__name__}")
    return content


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
        """Return the file of each tensor: of the one file, or as the index of the shards has it; safetensors first."""
        for base_name in (WHOLE, PICKLED):
            if (self.home / base_name).exists():
                return dict.fromkeys(self.open(base_name).keys(), base_name)
            if (self.home / f"{base_name}{INDEX}").exists():
                return self.read_index(f"{base_name}{INDEX}")
        raise OptionError(f"{self.home}: has neither {WHOLE} nor {WHOLE}{INDEX}, nor {PICKLED}")

    def read_index(self, index: str) -> dict[str, str]:
        path, file_of = self.home / index, read_object(self.home, index).get("weight_map")
        if not isinstance(file_of, dict) or not all(isinstance(file_name, str) for file_name in file_of.values()):
            raise OptionError(f"{path}: weight_map: expected names of tensors with names of files")
        names = {file: set(self.open(file).keys()) for file in dict.fromkeys(file_of.values())}  # each asked once
        for name, file in file_of.items():
            if name not in names[file]:
                raise OptionError(f"{path}: {name[:200]} is not in {file[:200]!r}")
        return file_of

    def open(self, file: str) -> Any:
        """Open a file once; OptionError where it is no whole file of its kind."""
        if file not in self.files:
            path = file_in(self.home, file)
            if not path.is_file():
                raise OptionError(f"{path}: there is no such file")
            if path.suffix == ".safetensors":
                try:
                    self.files[file] = self.stack.enter_context(safe_open(path, framework="pt"))
                except (OSError, SafetensorError) as error:
                    raise OptionError(f"{path}: cannot be read ({error!s:.300})") from None
            else:
                self.files[file] = read_archive(path)
        return self.files[file]

    def shape(self, name: str) -> list[int]:
        """Return a tensor's shape without reading the tensor."""
        file, stored = self.place[name]
        opened = self.open(file)
        return list(opened[stored].shape) if isinstance(opened, dict) else opened.get_slice(stored).get_shape()

    def __getitem__(self, name: str) -> Tensor:
        file, stored = self.place[name]
        opened = self.open(file)
        return opened[stored] if isinstance(opened, dict) else opened.get_tensor(stored)

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
