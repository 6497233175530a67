"""The parameters of a request: each value is checked here, and a wrong one is an error the page can show.

>>> asked = Params({"site": "encoder.0.attention", "head": "2", "level": "1"})
>>> asked.integer("head", below=4), asked.integer("row", default=0)
(2, 0)
"""

import json
import math
from collections.abc import Mapping
from typing import Any, final

from clearhead.errors import OptionError
from clearhead.files import refuse_constant

MISSING = object()
LARGEST = 2**53


@final
class Params:
    """Named values of a request: the parameters of an address, all of them text, or the object of a body."""

    def __init__(self, values: Mapping[str, Any], where: str = "the request") -> None:
        self.values, self.where = values, where

    def text(self, name: str, *, longest: int = 1_000_000) -> str:
        value = self.require(name)
        if not isinstance(value, str):
            raise self.value_error(name, "expected text", value)
        if len(value) > longest:
            raise OptionError(f"{self.where}: {name} has {len(value):,} characters; {longest:,} at most will do")
        if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
            raise OptionError(f"{self.where}: {name} holds half of a surrogate pair, which is no character")
        return value

    def integer(self, name: str, *, least: int = 0, below: int = LARGEST, default: int | None = None) -> int:
        """Return a whole number in [least, below)."""
        value = self.values.get(name)
        if value is None and default is not None:
            return default
        number = self.require(name)
        if isinstance(number, str) and len(number) < 17 and number.isascii() and number.removeprefix("-").isdigit():
            number = int(number)
        if not isinstance(number, int) or isinstance(number, bool):
            raise self.value_error(name, "expected a whole number", value)
        if not least <= number < below:
            bounds = f"{least} to {below - 1}" if below < LARGEST else f"{least} or more"
            raise OptionError(f"{self.where}: {name} is {number}, and must be {bounds}")
        return number

    def maybe_whole(self, name: str, *, least: int = 0, below: int = LARGEST) -> int | None:
        return None if self.values.get(name) is None else self.integer(name, least=least, below=below)

    def wholes(self, name: str, *, most: int) -> list[int]:
        """Return whole numbers with commas between them, none twice."""
        parts = self.text(name).split(",")
        numbers = [Params({name: part}, self.where).integer(name) for part in parts]
        if len(numbers) > most or len(set(numbers)) < len(numbers):
            expected = f"expected up to {most} different whole numbers with commas between them"
            raise self.value_error(name, expected, parts)
        return numbers

    def one_of(self, name: str, among: tuple[str, ...]) -> str:
        value = self.text(name)
        if value not in among:
            raise OptionError(f"{self.where}: {name} is {value[:60]!r}, and must be one of {', '.join(among)}")
        return value

    def number(self, name: str) -> float:
        """Return a finite number."""
        value = self.require(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self.value_error(name, "expected a finite number", value)
        return float(value)

    def objects(self, name: str, *, most: int) -> list["Params"]:
        """Return a list of objects, an empty one where there is none."""
        items = self.values.get(name) or []
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            raise self.value_error(name, "expected a list of objects", items)
        if len(items) > most:
            raise OptionError(f"{self.where}: {name} are {len(items)}, and {most} at most will do")
        return [Params(item, f"{name}[{index}]") for index, item in enumerate(items)]

    def texts(self, name: str, *, most: int, longest: int) -> list[str]:
        items = self.require(name)
        if not isinstance(items, list) or not 1 <= len(items) <= most:
            raise self.value_error(name, f"expected a list of 1 to {most} texts", items)
        return [
            Params({name: item}, f"{name}[{index}]").text(name, longest=longest) for index, item in enumerate(items)
        ]

    def only(self, *names: str) -> None:
        """Raise OptionError for a name that means nothing here."""
        for name in self.values:
            if name not in names:
                raise OptionError(f"{self.where}: there is no {name[:60]!r}; there are {', '.join(names)}")

    def require(self, name: str) -> Any:
        value = self.values.get(name, MISSING)
        if value is MISSING or value is None:
            raise OptionError(f"{self.where}: {name} is missing")
        return value

    def value_error(self, name: str, expected: str, value: object) -> OptionError:
        return OptionError(f"{self.where}: {name}: {expected}; came {str(value)[:60]!r}")


def read_json(body: bytes) -> Params:
    """Return the object of a body."""
    try:
        content = json.loads(body, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        raise OptionError(f"the request is not JSON: {str(error)[:100]}") from None
    if not isinstance(content, dict):
        raise OptionError(f"the request: expected a JSON object; came {type(content).__name__}")
    return Params(content)
