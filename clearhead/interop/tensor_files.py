"""The tensors of a model folder by name: safetensors, or an archive that torch saved; whole or in shards.

No file elsewhere is read, by a link, `..`, an absolute path or a shard's name.

A `pytorch_model.bin` is read without unpickling it. Such a file is a zip archive: a pickle that names tensors, and
their numbers as raw bytes. A pickle is a program for a machine with a stack. Here its instructions are read one by one;
the few that a state dict consists of are followed, and the file is refused at any other. No function that it names is
called, so it can run no code and take no memory.
"""

import math
import os
import pickletools
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from clearhead.errors import OptionError, unreadable
from clearhead.files import is_inside, is_plain_name, read_json

CONVERT = (
    "nothing is unpickled here. Load it in a program that you trust and save it as safetensors: "
    "safetensors.torch.save_file(state_dict, 'model.safetensors'), or save_pretrained of transformers"
)
STORED_DTYPES = {
    f"torch {name}Storage": dtype
    for name, dtype in {
        **{"Double": torch.float64, "Float": torch.float32, "Half": torch.float16, "BFloat16": torch.bfloat16},
        **{"Long": torch.int64, "Int": torch.int32, "Short": torch.int16, "Char": torch.int8, "Byte": torch.uint8},
        "Bool": torch.bool,
    }.items()
}
VALUES = ("BINUNICODE", "SHORT_BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT")
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
SHARED = 3
"""How many times as long as the file its tensors may be together: tied tables share their numbers."""
MARK = object()


class Unexpected(Exception):
    """An instruction that a state dict does not consist of."""


class Called(NamedTuple):
    """A function that a pickle names, by module and name."""

    name: str


class Stored(NamedTuple):
    """A tensor as the pickle describes it: the entry of its numbers, their type, and where it lies among them."""

    key: str
    dtype: torch.dtype
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


def read_archive(path: Path) -> dict[str, Tensor]:
    """Read the tensors that `torch.save` wrote, as views of the file, by name.

    OptionError if the file holds anything else, if it was written before torch 1.6, and if it is compressed
    or its tensors claim more numbers than there are: no more memory is taken than the file is long.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            entries = {entry.filename: entry for entry in archive.infolist()}
            packed = any(entry.compress_type != zipfile.ZIP_STORED for entry in entries.values())
            if packed or sum(entry.file_size for entry in entries.values()) > path.stat().st_size:
                raise OptionError(f"{path}: is compressed or claims to be larger than it is; {CONVERT}")
            root = next((name.removesuffix("data.pkl") for name in entries if name.endswith("/data.pkl")), None)
            pickled = b"" if root is None else archive.read(f"{root}data.pkl")
            order = archive.read(f"{root}byteorder") if f"{root}byteorder" in entries else b"little"
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise OptionError(f"{path}: is no archive as torch has written since 1.6 ({error}); {CONVERT}") from None
    try:
        stored = follow_pickle(pickled)
        if order != b"little":
            raise Unexpected("its numbers are big-endian")
    except (Unexpected, ValueError, IndexError, KeyError, TypeError, AttributeError) as error:
        # Instructions in a senseless order meet values that are not what they expect.
        raise OptionError(f"{path}: is no file of weights alone ({str(error)[:150]}); {CONVERT}") from None
    if not isinstance(stored, dict) or not all(isinstance(tensor, Stored) for tensor in stored.values()):
        raise OptionError(f"{path}: expected names with tensors, a state dict; {CONVERT}")
    if (
        sum(math.prod(tensor.shape) * tensor.dtype.itemsize for tensor in stored.values())
        > SHARED * path.stat().st_size
    ):
        name = max(stored, key=lambda name: math.prod(stored[name].shape))
        raise OptionError(f"{path}: {name[:80]} claims {stored[name].shape}, more numbers than the file holds for it")
    content = np.memmap(path, np.uint8, "c")  # pages are copied if they are ever written to
    return {
        name: view(content, entries.get(f"{root}data/{tensor.key}"), tensor, f"{path}: {name[:80]}")
        for name, tensor in stored.items()
    }


def view(content: np.ndarray, entry: zipfile.ZipInfo | None, stored: Stored, where: str) -> Tensor:
    """Return a tensor of a file's bytes; OptionError if it does not lie within its entry."""
    size = stored.dtype.itemsize
    extent = stored.offset + sum((n - 1) * step for n, step in zip(stored.shape, stored.stride, strict=True)) + 1
    numbers = (*stored.shape, *stored.stride, stored.offset)
    whole = all(type(n) is int and n >= 0 for n in numbers)
    if entry is None or not whole or (0 not in stored.shape and extent * size > entry.file_size):
        raise OptionError(f"{where}: claims {stored.shape}, more numbers than the file holds for it")
    at = entry.header_offset
    head = content[at : at + 30].tobytes()
    start = at + 30 + int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little")
    data = content[start : start + entry.file_size]
    if not head.startswith(b"PK\x03\x04") or len(data) != entry.file_size:
        raise OptionError(f"{where}: the archive is damaged: its numbers are not where it says")
    data = data[: len(data) // size * size]
    flat = torch.from_numpy(data if start % size == 0 else data.copy())
    return flat.view(stored.dtype).as_strided(stored.shape, stored.stride, stored.offset)


def follow_pickle(data: bytes) -> Any:
    """Return what a pickle builds: dictionaries, tuples, lists and `Stored` tensors; Unexpected at anything else."""
    stack: list[Any] = []
    memo: dict[Any, Any] = {}

    def pop_to_mark() -> list[Any]:
        values: list[Any] = []
        while (value := stack.pop()) is not MARK:
            values.append(value)
        return values[::-1]

    for instruction, argument, _ in pickletools.genops(data):
        match instruction.name:
            case "PROTO" | "FRAME":
                pass
            case "MARK":
                stack.append(MARK)
            case name if name in VALUES:
                stack.append(argument)
            case name if name in CONSTANTS:
                stack.append(CONSTANTS[name])
            case "EMPTY_DICT":
                stack.append({})
            case "EMPTY_LIST":
                stack.append([])
            case "EMPTY_TUPLE":
                stack.append(())
            case "TUPLE":
                stack.append(tuple(pop_to_mark()))
            case name if name in TUPLES:
                stack[-TUPLES[name] :] = [tuple(stack[-TUPLES[name] :])]
            case "BINPUT" | "LONG_BINPUT":
                memo[argument] = stack[-1]
            case "MEMOIZE":
                memo[len(memo)] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[argument])
            case "GLOBAL":
                stack.append(Called(str(argument)))
            case "STACK_GLOBAL":
                name, module = stack.pop(), stack.pop()
                stack.append(Called(f"{module} {name}"))
            case "BINPERSID":
                _, kind, key, _, _ = stack.pop()
                stack.append((str(key), STORED_DTYPES[kind.name]))
            case "REDUCE":
                arguments, called = stack.pop(), stack.pop()
                if called.name not in REBUILT:
                    raise Unexpected(f"it calls {called.name}")
                stack.append(REBUILT[called.name](*arguments))
            case "APPENDS":
                pop_to_mark()  # what a list holds is not looked at
            case "APPEND" | "BUILD":
                stack.pop()  # nor are attributes, such as the versions of modules
            case "SETITEM":
                value, key = stack.pop(), stack.pop()
                set_items(stack[-1], [key, value])
            case "SETITEMS":
                values = pop_to_mark()
                set_items(stack[-1], values)
            case "STOP":
                return stack.pop()
            case name:
                raise Unexpected(f"the instruction {name}")
    raise Unexpected("it ends too early")


def set_items(target: Any, values: list[Any]) -> None:
    if not isinstance(target, dict) or not all(isinstance(name, str) for name in values[::2]):
        raise Unexpected("names that are no texts")
    target.update(zip(values[::2], values[1::2], strict=True))


def empty_dict() -> dict[str, Any]:
    """Return an OrderedDict without anything: what is put into one at once may be keys that take forever to compare."""
    return {}


def stored_tensor(
    storage: tuple[str, torch.dtype], offset: int, shape: tuple[int, ...], stride: tuple[int, ...], *rest: Any
) -> Stored:
    key, dtype = storage
    if not all(type(n) is int for n in (offset, *shape, *stride)) or len(shape) != len(stride):
        raise Unexpected("a shape that is no numbers")
    return Stored(key, dtype, offset, tuple(shape), tuple(stride))


REBUILT: Mapping[str, Callable[..., Any]] = {
    "collections OrderedDict": empty_dict,
    "torch._utils _rebuild_tensor_v2": stored_tensor,
    "torch._utils _rebuild_parameter": lambda tensor, *rest: tensor,
}
"""What is made of the functions that a state dict names."""


def file_in(home: Path, name: str) -> Path:
    """Return the path of a file in a source folder, there or not; OptionError if its name or a link leads out.

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
    """Read a JSON object of a source folder; OptionError if there is none."""
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
        """Open a file once; OptionError if it is no whole file of its kind."""
        if file not in self.files:
            path = file_in(self.home, file)
            if not path.is_file():
                raise OptionError(f"{path}: there is no such file")
            if path.suffix == ".safetensors":
                with unreadable(path, SafetensorError, error=OptionError):
                    self.files[file] = self.stack.enter_context(safe_open(path, framework="pt"))
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
