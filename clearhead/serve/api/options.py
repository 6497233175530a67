"""The options of a request: each value is checked, and an error names the option that is to blame.

>>> options = Options(Params({"n": 2, "temperature": 0.5, "stream": True}))
>>> options.integer("n", 1, least=1, most=8), options.number("temperature", 1.0, least=0, most=2)
(2, 0.5)
>>> options.flag("stream")
True
"""

import contextlib
from collections.abc import Iterator
from typing import Any, final

from clearhead.errors import ClearheadError
from clearhead.serve.api.errors import ApiError
from clearhead.serve.params import Params


@final
class Options:
    """The body of a request. A null counts as not given, as OpenAI has it."""

    def __init__(self, params: Params) -> None:
        self.values = {name: value for name, value in params.values.items() if value is not None}
        self.params = Params(self.values, "the request")

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def only(self, *names: str) -> None:
        """Refuse options that mean nothing here; a client would believe that they were followed."""
        for name in self.values:
            if name not in names:
                message = f"{name[:60]!r} is not an option here; there are {', '.join(sorted(names))}"
                raise ApiError(400, message, param=name[:60], code="unsupported_parameter")

    def refuse(self, names: dict[str, Any], reason: str) -> None:
        """Refuse options of OpenAI's that are not there, unless they have the value that changes nothing."""
        for name, neutral in names.items():
            if name in self.values and self.values[name] != neutral:
                raise ApiError(400, f"{name}: {reason}; leave it out", param=name, code="unsupported_parameter")

    def integer(self, name: str, default: int, *, least: int, most: int) -> int:
        value = self.values.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(name, "expected a whole number", value)
        if not least <= value <= most:
            raise self.error(name, f"must be {least} to {most:,}", value)
        return value

    def number(self, name: str, default: float, *, least: int | float, most: int | float) -> float:
        if name not in self.values:
            return default
        with self.naming(name):
            value = self.params.number(name)
        if not least <= value <= most:
            raise self.error(name, f"must be {least:g} to {most:g}", value)
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.values.get(name, default)
        if not isinstance(value, bool):
            raise self.error(name, "expected true or false", value)
        return value

    def one_of(self, name: str, default: str, among: tuple[str, ...]) -> str:
        value = self.values.get(name, default)
        if value not in among:
            raise self.error(name, f"must be one of {', '.join(among)}", value)
        return value

    def text(self, name: str, *, longest: int) -> str:
        with self.naming(name):
            value = self.params.text(name, longest=2**53)
        return check_length(name, value, longest)

    def texts(self, name: str, *, most: int, longest: int) -> list[str]:
        """Return one text or a list of them as a list."""
        value = self.values.get(name)
        listed = [value] if isinstance(value, str) else value
        if not isinstance(listed, list) or not listed:
            raise self.error(name, "expected a text, or a list of texts that is not empty", value)
        check_count(name, len(listed), most)
        return [self.item(name, index, text, longest) for index, text in enumerate(listed)]

    def item(self, name: str, index: int, value: object, longest: int) -> str:
        """Return a text of a list."""
        if isinstance(value, str) and value.isascii() and len(value) <= longest:
            return value  # nothing else could be wrong with it
        with self.naming(name):
            text = Params({"it": value}, f"{name}[{index}]").text("it", longest=2**53)
        return check_length(name, text, longest)

    @contextlib.contextmanager
    def naming(self, name: str) -> Iterator[None]:
        """Re-raise an error of the package as one of this option."""
        try:
            yield
        except ClearheadError as error:
            raise ApiError(400, str(error), param=name, code="invalid_value") from None

    def error(self, name: str, expected: str, value: object) -> ApiError:
        actual = "nothing" if value is None else str(value)[:60]
        return ApiError(400, f"{name}: {expected}; came {actual}", param=name, code="invalid_value")


def check_length(name: str, text: str, longest: int) -> str:
    if len(text) > longest:
        message = f"{name}: the text has {len(text):,} characters; {longest:,} at most will do"
        raise ApiError(413, message, param=name, code="text_too_long")
    return text


def check_count(name: str, count: int, most: int) -> None:
    if count > most:
        raise ApiError(413, f"{name}: there are {count:,} texts; {most:,} at most will do in one request", param=name)
