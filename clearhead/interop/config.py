"""Read a model's configuration, every field checked: what is missing, of another kind or not supported is named."""

import math
from collections.abc import Mapping
from typing import Any, final

from clearhead.errors import OptionError
from clearhead.serialization import shorten

LARGEST = 2**31
MOST_LAYERS = 10_000


@final
class Config:
    """The fields of a config.json; errors begin with `where`, the file.

    >>> config = Config({"n_layer": 2, "layer_norm_epsilon": 1e-5}, "config.json")
    >>> config.count("n_layer"), config.number("layer_norm_epsilon"), config.flag("scale", default=True)
    (2, 1e-05, True)
    """

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values, self.where = values, where

    def get(self, name: str) -> Any:
        """Return a field as it is; None where it is missing or null."""
        return self.values.get(name)

    def count(self, name: str, default: int | None = None) -> int:
        """Return a whole number of 1 or more."""
        value = self.values.get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < LARGEST:
            raise self.error(name, f"expected a whole number from 1 to {LARGEST - 1:,}; came {shorten(value)}")
        return value

    def layers(self, name: str, default: int | None = None) -> int:
        """Return a number of blocks: more than any model has would fill the memory before a tensor is looked at."""
        count = self.count(name, default)
        if count > MOST_LAYERS:
            raise self.error(name, f"expected at most {MOST_LAYERS:,}; came {count:,}")
        return count

    def number(self, name: str, default: float | None = None) -> float:
        """Return a finite number above 0."""
        value = self.values.get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
            raise self.error(name, f"expected a number above 0; came {shorten(value)}")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """Return true or false."""
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(name, f"expected true or false; came {shorten(value)}")
        return value

    def tokens(self, name: str) -> tuple[int, ...]:
        """Return the token ids of a field: of one id, of a list, or none where it is missing."""
        value = self.values.get(name)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if not all(
            isinstance(token_id, int) and not isinstance(token_id, bool) and 0 <= token_id < LARGEST for token_id in ids
        ):
            raise self.error(name, f"expected a token id or a list of ids; came {shorten(value)}")
        return tuple(ids)

    def task(self, classes: Mapping[str, str]) -> str:
        """Return what the model is for by its class: `generate`, `fill`, `classify`, `translate` or `embed`."""
        named = self.values.get("architectures")
        if named is None:
            return next(iter(classes.values()))
        if not isinstance(named, list) or len(named) != 1 or named[0] not in list(classes):
            raise self.error("architectures", f"{shorten(named)} cannot be read; there are {', '.join(classes)}")
        return classes[named[0]]

    def count_labels(self) -> int:
        """Return the number of classes of a classifier: by default two."""
        names = self.values.get("id2label")
        return len(names) if isinstance(names, dict) and names else self.count("num_labels", 2)

    def choose(self, name: str, table: Mapping[str, Any], default: str | None = None) -> Any:
        """Return what a table has for the name in a field."""
        value = self.values.get(name)
        if value is None:
            value = default
        if not isinstance(value, str) or value not in table:
            raise self.error(name, f"{shorten(value)} is not supported; there are {', '.join(table)}")
        return table[value]

    def require(self, name: str, *allowed: Any) -> None:
        """Raise OptionError where a field that changes the model is there with a value that is not supported."""
        value = self.values.get(name)
        if value is not None and value not in allowed:
            raise self.error(
                name, f"{shorten(value)} is not supported yet; expected {' or '.join(map(repr, allowed)) or 'none'}"
            )

    def error(self, name: str, problem: str) -> OptionError:
        return OptionError(f"{self.where}: {name[:80]}: {problem[:500]}")
