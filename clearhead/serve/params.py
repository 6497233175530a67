"""The parameters of a request: each value is checked here, and an error names the one that is to blame.

>>> asked = Params({"site": "encoder.0.attention", "head": "2", "level": "1"}, "the address")
>>> asked.integer("head", below=4), asked.integer("row", default=0)
(2, 0)
"""

import contextlib
import dataclasses
import functools
import json
import math
import types
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from clearhead.errors import ClearheadError
from clearhead.files import refuse_constant
from clearhead.serve.errors import ApiError

LARGEST = 2**53


class Params:
    """Named values of a request: the parameters of an address, all of them text, or the object of a body.

    A null counts as not given, as in OpenAI's API. `typed`: a number must be one, and not text with digits.
    """

    def __init__(self, values: Mapping[str, Any], where: str = "the request", *, typed: bool = False) -> None:
        self.values = {name: value for name, value in values.items() if value is not None}
        self.where, self.typed = where, typed

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def text(self, name: str, *, longest: int = 1_000_000) -> str:
        value = self.require(name)
        if not isinstance(value, str):
            raise self.value_error(name, "expected text", value)
        if len(value) > longest:
            message = f"{self.where}: {name} has {len(value):,} characters; {longest:,} at most will do"
            raise ApiError(413, message, param=name, code="text_too_long")
        if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
            raise self.error(name, f"{name} holds half of a surrogate pair, which is no character")
        return value

    def integer(
        self, name: str, *, least: int = 0, below: int = LARGEST, most: int | None = None, default: int | None = None
    ) -> int:
        """Return a whole number in [least, below), or up to `most`."""
        below = below if most is None else most + 1
        if default is not None and name not in self.values:
            return default
        number = value = self.require(name)
        digits = isinstance(number, str) and not self.typed and len(number) < 17 and number.isascii()
        if digits and number.removeprefix("-").isdigit():
            number = int(number)
        if not isinstance(number, int) or isinstance(number, bool):
            raise self.value_error(name, "expected a whole number", value)
        if not least <= number < below:
            bounds = f"{least} to {below - 1:,}" if below != LARGEST else f"{least} or more"
            raise self.error(name, f"{name} is {shorten(number)}, and must be {bounds}")
        return number

    def maybe_whole(self, name: str, *, least: int = 0, below: int = LARGEST) -> int | None:
        return None if name not in self.values else self.integer(name, least=least, below=below)

    def wholes(self, name: str, *, most: int) -> list[int]:
        """Return whole numbers with commas between them, none twice."""
        parts = self.text(name).split(",")
        numbers = [Params({name: part}, self.where).integer(name) for part in parts]
        if len(numbers) > most or len(set(numbers)) < len(numbers):
            expected = f"expected up to {most} different whole numbers with commas between them"
            raise self.value_error(name, expected, parts)
        return numbers

    def one_of(self, name: str, among: tuple[str, ...], *, default: str | None = None) -> str:
        value = default if default is not None and name not in self.values else self.text(name)
        if value not in among:
            raise self.error(name, f"{name} is {value[:60]!r}, and must be one of {', '.join(among)}")
        return value

    def number(
        self, name: str, *, default: float | None = None, least: int | float = -1e308, most: int | float = 1e308
    ) -> float:
        """Return a finite number."""
        if default is not None and name not in self.values:
            return default
        value = self.require(name)
        try:
            finite = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        except OverflowError:  # a whole number of more digits than a float has room for
            finite = False
        if not finite:
            raise self.value_error(name, "expected a finite number", value)
        if not least <= value <= most:
            raise self.error(name, f"{name} is {value:g}, and must be {least:g} to {most:g}")
        return float(value)

    def flag(self, name: str) -> bool:
        value = self.values.get(name, False)
        if not isinstance(value, bool):
            raise self.value_error(name, "expected true or false", value)
        return value

    def objects(self, name: str, *, most: int) -> list["Params"]:
        """Return a list of objects, an empty one where there is none."""
        items = self.values.get(name) or []
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            raise self.value_error(name, "expected a list of objects", items)
        if len(items) > most:
            raise self.error(name, f"{name} are {len(items)}, and {most} at most will do")
        return [Params(item, f"{name}[{index}]", typed=self.typed) for index, item in enumerate(items)]

    def texts(self, name: str, *, most: int, longest: int) -> list[str]:
        """Return one text or a list of them as a list."""
        value = self.require(name)
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list) or not items:
            raise self.value_error(name, "expected a text, or a list of texts that is not empty", value)
        self.check_count(name, len(items), most)
        return [self.item(name, index, text, longest) for index, text in enumerate(items)]

    def item(self, name: str, index: int, value: object, longest: int) -> str:
        """Return a text of a list."""
        if isinstance(value, str) and value.isascii() and len(value) <= longest:
            return value  # nothing else could be wrong with it
        return Params({name: value}, f"{name}[{index}]").text(name, longest=longest)

    def check_count(self, name: str, count: int, most: int) -> None:
        if count > most:
            message = f"{self.where}: {name}: there are {count:,} texts; {most:,} at most will do in one request"
            raise ApiError(413, message, param=name)

    def only(self, *names: str) -> None:
        """Refuse names that mean nothing here; a client would believe that they were followed."""
        for name in self.values:
            if name not in names:
                message = f"{self.where}: {name[:60]!r} is not an option here; there are {', '.join(sorted(names))}"
                raise ApiError(400, message, param=name[:60], code="unsupported_parameter")

    def refuse(self, names: Mapping[str, Any], reason: str) -> None:
        """Refuse options of OpenAI's that are not there, unless they have the value that changes nothing."""
        for name, neutral in names.items():
            if name in self.values and self.values[name] != neutral:
                raise ApiError(400, f"{name}: {reason}; leave it out", param=name, code="unsupported_parameter")

    def require(self, name: str) -> Any:
        if name not in self.values:
            raise self.error(name, f"{name} is missing")
        return self.values[name]

    @contextlib.contextmanager
    def naming(self, name: str) -> Iterator[None]:
        """Re-raise an error of the package as one of this option."""
        try:
            yield
        except ApiError:
            raise
        except ClearheadError as error:
            raise self.error(name, str(error)) from None

    def value_error(self, name: str, expected: str, value: object) -> ApiError:
        return self.error(name, f"{name}: {expected}; came {'nothing' if value is None else shorten(value)}")

    def error(self, name: str, message: str) -> ApiError:
        return ApiError(400, f"{self.where}: {message}", param=name, code="invalid_value")


def shorten(value: object) -> str:
    """Return the beginning of a value as text, for a message."""
    try:
        return repr(value[:60]) if isinstance(value, str) else str(value)[:60]
    except RecursionError:  # lists in lists, as deep as JSON may have them
        return type(value).__name__


def read_json(body: bytes) -> Params:
    """Return the object of a body."""
    try:
        content = json.loads(body, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the request is not JSON: {str(error)[:100]}", code="invalid_value") from None
    if not isinstance(content, dict):
        message = f"the request: expected a JSON object; came {type(content).__name__}"
        raise ApiError(400, message, code="invalid_value")
    return Params(content, typed=True)


def bounded(default: Any = dataclasses.MISSING, **limits: Any) -> Any:
    """Return a field whose value is checked when a request is read, by these options of the method of `Params`.

    A limit may be the name of one of the server's (`clearhead.serve.limits`).
    """
    return dataclasses.field(default=default, metadata={"limits": limits})


def unread(default: Any = None) -> Any:
    """Return a field whose value is taken as it came: what it may be is checked where it is used."""
    return dataclasses.field(default=default, metadata={"unread": True})


Fields = TypeVar("Fields")


@functools.cache  # to find the hints takes longer than to read them
def fields_of(kind: Any) -> list[tuple[dataclasses.Field[Any], Any]]:
    hints = get_type_hints(kind)
    return [(field, hints[field.name]) for field in dataclasses.fields(kind)]


def read_fields(kind: type[Fields], params: Params, limits: object = None) -> Fields:
    """Return a dataclass with the values of a request, each checked by the type of its field and its bounds."""
    values = dict[str, Any]()
    for field, hint in fields_of(kind):
        name, metadata = field.name, field.metadata
        if name not in params and not field.default is field.default_factory is dataclasses.MISSING:
            continue
        if "read" in metadata:
            values[name] = metadata["read"](params)
        elif "unread" in metadata:
            values[name] = params.require(name)
        else:
            bounds = metadata.get("limits", {}).items()
            known = {key: getattr(limits, value) if isinstance(value, str) else value for key, value in bounds}
            values[name] = read_value(params, name, hint, known)
    return kind(**values)


def read_value(params: Params, name: str, hint: Any, limits: dict[str, Any]) -> Any:
    """Return the value of a field, checked by its type."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        if list[str] in inner:
            return params.texts(name, **limits)
        *others, kind = sorted((one for one in inner if one is not types.NoneType), key=lambda one: one is int)
        words = [word for other in others for word in get_args(other)]
        return params.values[name] if params.values.get(name) in words else read_value(params, name, kind, limits)
    if origin is Literal:
        return params.one_of(name, inner)
    if origin is list:
        return params.wholes(name, **limits) if inner == (int,) else params.texts(name, **limits)
    read = {bool: params.flag, int: params.integer, float: params.number, str: params.text}[hint]
    return read(name, **limits)
