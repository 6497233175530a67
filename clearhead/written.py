"""Specs as JSON and back: a frozen dataclass becomes an object that names its class. No pickle anywhere."""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

from clearhead.errors import OptionError, RunError

__all__ = ["from_json", "table_of", "to_json"]

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
