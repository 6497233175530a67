"""What is written to files: specs as JSON and back, and tensors with JSON beside them. No pickle anywhere.

In JSON a frozen dataclass is an object that names its class.
"""

import dataclasses
import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from clearhead.errors import OptionError, RunError

__all__ = ["from_json", "load_tensors", "save_tensors", "table_of", "to_json"]

CLASS = "is"


def table_of(classes: Iterable[type]) -> dict[str, type]:
    """The classes by name; no two may share one."""
    table: dict[str, type] = {}
    for one in classes:
        if table.setdefault(one.__name__, one) is not one:
            raise OptionError(f"two classes are called {one.__name__}: {table[one.__name__]} and {one}")
    return table


def to_json(value: object, known: Mapping[str, type] | None = None) -> Any:
    """What `json.dumps` can write, of a dataclass made of dataclasses, tuples, mappings, strings and finite numbers.

    With `known`, a table, every class must be in it: what is written can be read by the same table.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        if known is not None and known.get(type(value).__name__) is not type(value):
            raise OptionError(
                f"{value!r} cannot be written to a file: {type(value).__name__} is no part of Clearhead that could be "
                "read again"
            )
        inner = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
        return {CLASS: type(value).__name__, **to_json(inner, known)}
    if isinstance(value, Mapping):
        return {key_of(name): to_json(inner, known) for name, inner in value.items()}
    if isinstance(value, tuple | list):
        return [to_json(inner, known) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise OptionError(f"{value} cannot be written to a file: numbers must be finite")
    if value is None or isinstance(value, str | int | float):
        return value
    raise OptionError(f"{value!r} cannot be written to a file: a run is made of specs, strings and numbers")


def key_of(name: object) -> str:
    if not isinstance(name, str) or name == CLASS:
        raise OptionError(f"{name!r} cannot be written to a file as a name: it must be a string other than {CLASS!r}")
    return name


def from_json(value: Any, table: Mapping[str, type]) -> Any:
    """What `to_json` wrote, with the classes of the table; lists become tuples."""
    if isinstance(value, list):
        return tuple(from_json(inner, table) for inner in value)
    if not isinstance(value, dict):
        return value
    fields = {name: from_json(inner, table) for name, inner in value.items() if name != CLASS}
    if CLASS not in value:
        return fields
    name = value[CLASS]
    if not isinstance(name, str) or name not in table:
        raise RunError(f"there is no {name!r} in this version of Clearhead: was it written by a newer one?")
    try:
        return table[name](**fields)
    except (TypeError, AttributeError) as error:
        raise RunError(f"{name} was written with other fields than this version has ({error})") from None


def save_tensors(path: str | Path, tensors: Mapping[str, Tensor], told: object, *, header: str) -> None:
    """One file: safetensors, with JSON in its header. It is written beside and renamed; OSError where it cannot be."""
    path = Path(path)
    beside = path.with_name(f".{path.name}.{os.getpid()}.partial")
    apart = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
    try:
        save_file(apart, beside, metadata={header: json.dumps(told, ensure_ascii=False)})
        os.replace(beside, path)
    except SafetensorError as error:
        raise OSError(str(error)) from None
    finally:
        beside.unlink(missing_ok=True)


def load_tensors(path: str | Path, *, header: str) -> tuple[Any, dict[str, Tensor]]:
    """What `save_tensors` wrote, the JSON first: None where it is another's file. OSError where it cannot be read."""
    try:
        with safe_open(path, framework="pt") as file:
            told = json.loads((file.metadata() or {}).get(header, "null"))
            return told, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
    except FileNotFoundError:
        raise OSError("there is no such file") from None
    except (SafetensorError, ValueError) as error:
        raise OSError(str(error)) from None
