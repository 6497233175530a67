"""Turn specs into JSON and back, every field checked against its annotation, and save tensors with JSON beside them.

In JSON a frozen dataclass is an object that names its class. No pickle anywhere.
"""

import dataclasses
import functools
import json
import math
import os
import stat
import types
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from clearhead.calls import public
from clearhead.errors import ClearheadError, OptionError, RunError
from clearhead.files import parse_json, replacing

CLASS = "is"
MOST_OBJECTS = 50_000
"""More than these, some 6,000 blocks, are no model: building them would only take time."""
LARGEST = 2**64
"""Integers in files are smaller than this: torch's seeds reach up to it, and nothing else so far."""


def table_of(classes: Iterable[type]) -> dict[str, type]:
    """Return the classes by name; no two may share one."""
    table: dict[str, type] = {}
    for cls in classes:
        if table.setdefault(cls.__name__, cls) is not cls:
            raise OptionError(f"two classes are called {cls.__name__}: {table[cls.__name__]} and {cls}")
    return table


@public
def to_json(value: object, known: Mapping[str, type] | None = None, *, where: str = "") -> Any:
    """Return JSON for a dataclass of dataclasses, tuples, mappings, strings and finite numbers.

    Args:
        value: The value.
        known: Classes by name. Each class must be in it, so that what is written can be read.
        where: Class and field that hold the value, for messages.

    Returns:
        What `json.dumps` takes.

    Raises:
        OptionError: If something has no form in JSON.

    >>> import clearhead as ch
    >>> ch.training.to_json(ch.training.Budget(steps=100))["steps"]
    100
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        inner = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
        class_name, holder = known_name(value, known), type(value).__name__
        written = {name: to_json(field, known, where=f"{holder}.{name}: ") for name, field in inner.items()}
        return {CLASS: class_name, **written}
    if isinstance(value, Mapping):
        odd = [name for name in value if not isinstance(name, str) or name == CLASS]
        if odd:
            raise OptionError(
                f"{odd[0]!r} cannot be written to a file as a name: only strings other than {CLASS!r} can"
            )
        return {name: to_json(inner, known, where=where) for name, inner in value.items()}
    if isinstance(value, tuple | list):
        return [to_json(inner, known, where=where) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise OptionError(f"{where}{value} cannot be written to a file: numbers must be finite")
    if value is None or isinstance(value, str | int | float):
        return value
    raise OptionError(f"{where}{value!r} cannot be written to a file: a run is made of specs, strings and numbers")


def name_in_files(of: type) -> str:
    """Return what files call a class: one of Clearhead's own by its name, a user's own by where it is imported from.

    >>> name_in_files(RunError), name_in_files(Mapping)
    ('RunError', 'collections.abc:Mapping')
    """
    return of.__name__ if of.__module__.partition(".")[0] == "clearhead" else f"{of.__module__}:{of.__qualname__}"


def known_name(value: object, known: Mapping[str, type] | None) -> str:
    """Return the name under which a table holds the class of a value; raise if it holds it under none."""
    of = type(value)
    if known is None or known.get(of.__name__) is of:
        return of.__name__
    name = name_in_files(of)
    if known.get(name) is of:
        return name
    if ":" in name:
        reason = f"{of.__name__} is not registered; put @clearhead.register above its class"
    else:
        reason = f"{of.__name__} is no part of Clearhead that could be read again"
    raise OptionError(f"{value!r} cannot be written to a file: {reason}")


def from_json(value: Any, table: Mapping[str, type], *, where: str = "JSON") -> Any:
    """Return what `to_json` wrote, with the classes of the table; lists become tuples.

    Every field of a class must be there and fit its annotation. Errors begin with `where`, the file, and the field's
    path.
    """
    if count_objects(value) > MOST_OBJECTS:
        raise RunError(f"{where}: has more than {MOST_OBJECTS:,} parts, which no model has")
    return make_part(value, table, where)


def make_part(value: Any, table: Mapping[str, type], where: str) -> Any:
    """Return a value from JSON as `from_json` does; `where` is the path to it."""
    if isinstance(value, list):
        return tuple(make_part(inner, table, f"{where}[{i}]") for i, inner in enumerate(value))
    if not isinstance(value, dict):
        return value
    inside = {name: inner for name, inner in value.items() if name != CLASS}
    fields = {name: make_part(inner, table, join(where, name)) for name, inner in inside.items()}
    if CLASS not in value:
        return fields
    name = value[CLASS]
    if not isinstance(name, str) or name not in table:
        check_registered([name] if isinstance(name, str) else [], table, where)
        raise RunError(
            f"{where}: there is no {str(name)[:60]!r} in this version of Clearhead: was it written by a newer one?"
        )
    checked = check_fields(fields, hints_of(table[name]), where, what=name)
    try:
        return table[name](**checked)
    except (ClearheadError, ValueError) as problem:
        raise RunError(f"{where}: {problem}") from None


def check_registered(
    names: Iterable[str], table: Mapping[str, type], where: str, *, error: type[ClearheadError] = RunError
) -> None:
    """Raise if one of these classes is a user's own that is not registered: no file makes its module be imported."""
    for name in names:
        module, colon, _ = name.partition(":")
        if colon and name not in table:
            raise error(
                f"{where}: uses {name[:80]}, a part of your own that is not registered. Name its module: --parts "
                f"{module[:60]} on the command line, parts={module[:60]!r} in load; it has @clearhead.register above "
                "the class"
            )


def names_in(value: Any) -> Iterator[str]:
    """Yield the names of the classes in what `to_json` wrote."""
    if isinstance(value, dict):
        yield from (name for name in [value.get(CLASS)] if isinstance(name, str))
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from names_in(inner)


def count_objects(value: Any) -> int:
    """Count the JSON objects in a value, in itself too; without recursion, and quickly."""
    count, pending = 0, [value]
    while pending:
        item = pending.pop()
        count += isinstance(item, dict)
        pending.extend(item.values() if isinstance(item, dict) else item if isinstance(item, list) else ())
    return count


def join(where: str, name: str) -> str:
    """Add a field's name to a path. The first follows the file's name.

    >>> join(join("recipe.json", "optimizer"), "lr")
    'recipe.json: optimizer.lr'
    """
    return f"{where}{'.' if ': ' in where else ': '}{name[:60]}"


@functools.cache
def hints_of(of: type) -> dict[str, Any]:
    """Return the annotations of the fields that a dataclass is made from."""
    hints = get_type_hints(of)
    return {field.name: hints[field.name] for field in dataclasses.fields(of) if field.init}


def check_fields(
    found: Any,
    hints: Mapping[str, Any],
    where: str,
    *,
    what: str = "it",
    error: type[ClearheadError] = RunError,
) -> dict[str, Any]:
    """Return the fields of a JSON object, each checked; every field must be there, and no other.

    >>> check_fields({"step": 20, "lr": 1}, {"step": int, "lr": float}, "state.json")
    {'step': 20, 'lr': 1.0}
    """
    check_type(found, dict, where, error=error)
    for name in found:
        if name not in hints:
            raise error(
                f"{where}: there is no field {name[:60]!r} in this version of Clearhead; {what} has "
                f"{', '.join(hints) or 'none'}"
            )
    for name in hints:
        if name not in found:
            raise error(f"{where}: the field {name!r} is missing; {what} has {', '.join(hints)}")
    return {name: check_type(found[name], hint, join(where, name), error=error) for name, hint in hints.items()}


def check_type(value: Any, hint: Any, where: str, *, error: type[ClearheadError] = RunError) -> Any:
    """Return a value from a file as its annotation has it; raise if it does not fit, with `where`: file and field.

    A whole number fits `float`, and becomes one; True and False fit no number. Integers are below 2**64 in size.

    >>> check_type("fast", float, "recipe.json: optimizer.lr")
    Traceback (most recent call last):
    clearhead.errors.RunError: recipe.json: optimizer.lr: expected a number; came 'fast'
    """
    kinds = [item for item in alternatives(hint) if fits(value, item)]
    if not kinds:
        raise error(f"{where}: expected {' or '.join(map(spell, alternatives(hint)))}; came {shorten(value)}")
    inner = get_args(kinds[0])
    if isinstance(value, tuple | list) and inner:
        fixed = get_origin(kinds[0]) is tuple and ... not in inner
        return type(value)(
            check_type(item, inner[i] if fixed else inner[0], f"{where}[{i}]", error=error)
            for i, item in enumerate(value)
        )
    if isinstance(value, Mapping) and inner:
        return {
            check_type(name, inner[0], f"{where}: a name in it", error=error): check_type(
                item, inner[1], join(where, str(name)), error=error
            )
            for name, item in value.items()
        }
    return float(value) if kinds[0] is float and isinstance(value, int) else value


def alternatives(hint: Any) -> tuple[Any, ...]:
    """Return the parts of a union; anything else is its own only part."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def fits(value: Any, hint: Any) -> bool:
    """Return whether a value is of a kind, without looking into lists and mappings."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any or hint is object:
        return True
    if origin is Literal:
        return any(value == option and type(value) is type(option) for option in inner)
    if hint is int or hint is float:
        is_int = isinstance(value, int) and not isinstance(value, bool) and abs(value) < LARGEST
        return is_int or (hint is float and isinstance(value, float) and math.isfinite(value))
    if origin is tuple and ... not in inner:
        return isinstance(value, tuple) and len(value) == len(inner)
    return value is None if hint is None else isinstance(value, origin or hint)


PLAIN_NAMES = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    type(None): "null",
    None: "null",
    dict: "an object",
    Mapping: "an object",
    list: "a list",
    tuple: "a list",
}


def spell(hint: Any) -> str:
    """Return the name of a kind for someone who looks at the JSON."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        return " or ".join(map(repr, inner))
    if origin is tuple and ... not in inner:
        return f"a list of {len(inner)}"
    return PLAIN_NAMES.get(origin or hint) or f"a {hint.__name__}"


def shorten(value: Any) -> str:
    """Return a value's repr, cut so that a message stays a message."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= LARGEST:
        return f"a number of {value.bit_length()} bits"
    text = repr(value) if isinstance(value, str | int | float | None) else f"{type(value).__name__} {value!r}"
    return text if len(text) <= 80 else f"{text[:77]}..."


def save_tensors(path: str | Path, tensors: Mapping[str, Tensor], metadata: object, *, header: str) -> None:
    """Write one file atomically: safetensors, with JSON in its header. OSError if it cannot be."""
    apart = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
    try:
        with replacing(Path(path)) as partial:
            save_file(apart, partial, metadata={header: json.dumps(metadata, ensure_ascii=False)})
    except SafetensorError as error:
        raise OSError(str(error)) from None


def load_tensors(path: str | Path, *, header: str) -> tuple[Any, dict[str, Tensor]]:
    """Read what `save_tensors` wrote, the JSON first: None if it is another's file. OSError if it cannot be."""
    check_regular(path)
    try:
        with safe_open(path, framework="pt") as file:
            metadata = parse_json((file.metadata() or {}).get(header, "null"))
            # Copied: a tensor of the file begins anywhere, and with AVX-512 the last bit of a product depends on that.
            return metadata, {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 - no mapping
    except (SafetensorError, ValueError) as error:
        raise OSError(str(error)) from None


def check_regular(path: str | Path) -> None:
    """Raise OSError for what is no regular file: a device or a pipe could be read for ever."""
    try:
        regular = stat.S_ISREG(os.stat(path).st_mode)
    except FileNotFoundError:
        raise OSError("there is no such file") from None
    if not regular:
        raise OSError("it is no regular file")
