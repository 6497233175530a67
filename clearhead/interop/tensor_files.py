"""The tensors of a model folder by name: safetensors, or what torch saved, as weights alone; whole or in shards."""

import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, final

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from clearhead.errors import OptionError
from clearhead.files import read_json
from clearhead.interop.source_files import file_in

WHOLE, PICKLED = "model.safetensors", "pytorch_model.bin"
INDEX = ".index.json"
CONVERT = (
    "nothing is unpickled here. Load it in a program that you trust and save it as safetensors: "
    "safetensors.torch.save_file(state_dict, 'model.safetensors'), or save_pretrained of transformers"
)


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
                    raise OptionError(f"{path}: cannot be read ({error})") from None
            else:
                self.files[file] = load_pickled(path)
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


def load_pickled(path: Path) -> dict[str, Tensor]:
    """Load the tensors that `torch.save` wrote, by torch's reader of weights alone, which runs no code of the file.

    OptionError where the file holds anything else, where it was written before torch 1.6, and where it is compressed
    or its tensors claim more numbers than there are: no more memory is taken than the file is long.
    """
    check_archive(path)
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # a damaged or hostile file makes its reader raise anything
        reason = (str(error).splitlines() or [""])[0]
        raise OptionError(
            f"{path}: is no file of weights alone ({type(error).__name__}: {reason[:150]}); {CONVERT}"
        ) from None
    named = isinstance(loaded, dict) and all(isinstance(name, str) for name in loaded)
    if not named or not all(type(value) in (Tensor, torch.nn.Parameter) for value in loaded.values()):
        raise OptionError(f"{path}: expected names with tensors, a state dict; {CONVERT}")
    for name, tensor in loaded.items():
        stored_bytes = tensor.untyped_storage().nbytes() if tensor.layout is torch.strided else 0
        if tensor.numel() * tensor.element_size() > stored_bytes:
            raise OptionError(f"{path}: {name} claims {tuple(tensor.shape)}, more numbers than the file holds for it")
    return {name: tensor.detach() for name, tensor in loaded.items()}


def check_archive(path: Path) -> None:
    """Raise OptionError where a file is no archive as torch writes them: uncompressed, and as large as it claims."""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise OptionError(f"{path}: is no archive as torch has written since 1.6 ({error}); {CONVERT}") from None
    packed = any(entry.compress_type != zipfile.ZIP_STORED for entry in entries)
    if packed or sum(entry.file_size for entry in entries) > path.stat().st_size:
        raise OptionError(f"{path}: is compressed or claims to be larger than it is; {CONVERT}")


def current_name(name: str) -> str:
    """Return the name of a tensor as it is today: published BERTs call the weight and bias of a norm gamma and beta."""
    for old, new in {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}.items():
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name
