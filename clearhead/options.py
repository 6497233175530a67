"""Options: each field that a user may choose is declared once, beside the field.

`option` makes a field of a dataclass that carries its declaration: help, unit, bounds, names. The command line,
`clearhead.training.train`, the table in docs/options.md and the sentences of errors are made from it.

>>> @dataclass(frozen=True, kw_only=True)
... class Pace:
...     steps: int | None = option(None, "Train for N steps.", takes="N", least=1)
>>> read_words({"steps": "0"}, words_of(Pace))
Traceback (most recent call last):
...
clearhead.errors.WordError: steps: takes a whole number, 1 or more; came 0
"""

import functools
import os
import re
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from clearhead.errors import OptionError, WordError, naming_word, nearest, no_such

Given = Mapping[str, Any]
"""The words that a user gave, with their values: nothing else is in it."""
Group = TypeVar("Group")
Declared = ParamSpec("Declared")
Kind = Literal["whole", "number", "switch", "text", "texts", "path"]
OPTION = "option"
OWN = "or your own, module:Class"
"""What the help says of an option that names a part."""
KINDS: Mapping[type, Kind] = {bool: "switch", int: "whole", float: "number", Path: "path"}
OWN_MODULE = re.compile(r"(?:^|[=,])\s*([A-Za-z_][\w.]*):")
"""The module of a part that a text names as module:Class, alone or in a list."""


@dataclass(frozen=True)
class Option:
    """The declaration of a field that a user may choose.

    `word`: what users call it; "" is the field's own name. `takes`: what stands for the value in the help, N or FILE.
    Numbers: `least` or `above`, `most` or `below`. `names`: what it may be, or some of it if it is not `closed`;
    `several` may be given with commas between. `own`: it may name a part of the user's own. `off`: 0 turns it off.
    `both`: a switch that also has a --no-. `short`: a letter. `env`: a variable of the environment that gives it.
    """

    help: str
    _: KW_ONLY
    kind: Kind = "text"
    word: str = ""
    takes: str = ""
    least: int | float | None = None
    above: int | float | None = None
    below: int | float | None = None
    most: int | float | None = None
    names: Iterable[str] = ()
    closed: bool = False
    several: bool = False
    own: bool = False
    off: bool = False
    both: bool = False
    short: str = ""
    env: str = ""

    @property
    def expects(self) -> str:
        """Say which numbers it takes."""
        number = "a whole number" if self.kind == "whole" else "a number"
        return ", ".join([number, self.bounds]) if self.bounds else number

    @property
    def bounds(self) -> str:
        """Say between which bounds a number is; "" if there are none."""
        least, above, below = self.least, self.above, self.below
        low = "" if least is None else f"{least} or more"
        low = low if above is None else f"above {above}"
        high = "" if below is None else f"less than {'2^64' if below == 2**64 else below}"
        high = high if self.most is None else f"{self.most} at most"
        return " and ".join(bound for bound in (low, high) if bound)

    def allows(self, number: int | float) -> bool:
        """Check a number against the bounds; none is infinite."""
        return (
            (self.least is None or number >= self.least)
            and (self.above is None or number > self.above)
            and (self.most is None or number <= self.most)
            and number < (float("inf") if self.below is None else self.below)
        )

    def read(self, value: Any) -> Any:
        """Return a value as the field takes it, from a command line's text or from Python; raise for what cannot be."""
        if self.kind == "switch":
            return self.read_switch(value)
        if self.kind in ("whole", "number"):
            return self.read_number(value)
        if self.kind == "texts":
            texts = [self.as_text(item) for item in ([value] if isinstance(value, str | os.PathLike) else value)]
            if self.own:
                import_own(self.word, texts)
            return texts
        if self.kind == "path":
            return Path(self.as_text(value))
        text = ",".join(map(self.as_text, value)) if self.several and isinstance(value, list | tuple) else value
        return self.read_name(self.as_text(text))

    def read_switch(self, value: Any) -> bool:
        if not isinstance(value, bool):
            raise WordError(self.word, f"takes True or False; came {value!r}")
        return value

    def read_number(self, value: Any) -> int | float:
        wrong = WordError(self.word, f"takes {self.expects}; came {value}")
        try:
            number = int(value) if self.kind == "whole" else float(value)
        except (TypeError, ValueError, OverflowError):
            raise wrong from None
        # True is no number here, and 2.5 is no whole one.
        if isinstance(value, bool) or not self.allows(number) or (not isinstance(value, str) and number != value):
            raise wrong
        return number

    def as_text(self, value: Any) -> str:
        if isinstance(value, bool) or not isinstance(value, str | os.PathLike | int | float):
            raise WordError(self.word, f"takes text; came {value!r:.80}")
        return os.fspath(value) if isinstance(value, os.PathLike) else str(value)

    def read_name(self, text: str) -> str:
        if self.own:
            import_own(self.word, [text])
        if self.closed:
            for name in text.split(",") if self.several else [text]:
                if name.strip() not in self.names:
                    raise WordError(self.word, no_such(name.strip(), self.names))
        return text


def import_own(word: str, texts: Sequence[str]) -> None:
    """Import the modules of the user's own parts that texts name; this folder is searched first, for these alone."""
    modules = [module for text in texts for module in OWN_MODULE.findall(text)]
    if not modules:
        return
    from clearhead.registry import import_parts  # it imports torch, which a shell's completion has no time for

    with naming_word(word, "parts"):
        import_parts(modules, folder=os.getcwd())


def as_field(make: Callable[Declared, Option]) -> Callable[Concatenate[Any, Declared], Any]:
    """Return what makes a field of a dataclass: given its default, and then what makes the declaration."""

    def declare(default: Any, *given: Declared.args, **more: Declared.kwargs) -> Any:
        return field(default=default, metadata={OPTION: make(*given, **more)})

    return declare


option = as_field(Option)
"""A field that carries its declaration: `option(default, help, …)`, with the fields of `Option`."""


def words_of(*groups: type) -> dict[str, Option]:
    """Return the options that classes declare, by the words that users give, in the order of the fields."""
    return {declared.word: declared for group in groups for _, declared in declared_fields(group)}


@functools.cache
def declared_fields(group: type) -> list[tuple[str, Option]]:
    """Return the fields of a class that are options, each with its declaration, its word and its kind filled in."""
    hints = get_type_hints(group)
    return [
        (each.name, complete(each.metadata[OPTION], each.name, hints[each.name]))
        for each in fields(group)  # pyright: ignore[reportArgumentType] - a dataclass
        if OPTION in each.metadata
    ]


def complete(declared: Option, name: str, hint: Any) -> Option:
    """Return a declaration with what its field says: the word, the kind of value, and the names of a Literal."""
    choices = [inner for inner in get_args(hint) if inner is not type(None)] if is_union(hint) else [hint]
    literal = get_args(choices[0]) if get_origin(choices[0]) is Literal else ()
    repeats = get_origin(choices[0]) in (tuple, list) and not declared.several
    kind: Kind = "texts" if repeats else KINDS.get(choices[0], "text")
    return replace(
        declared,
        word=declared.word or name,
        kind=kind,
        names=literal or declared.names,
        closed=declared.closed or bool(literal),
    )


def is_union(hint: Any) -> bool:
    return get_origin(hint) in (Union, types.UnionType)


def check_declared(owner: Any) -> None:
    """Raise if a number in a dataclass is outside the bounds of its declaration. What is turned off is None."""
    for name, declared in declared_fields(type(owner)):
        value = getattr(owner, name)
        field_option = replace(declared, least=None, above=0) if declared.off else declared
        if declared.kind in ("whole", "number") and value is not None and not field_option.allows(value):
            bounds = "finite" if value == float("inf") else field_option.bounds
            raise OptionError(f"{type(owner).__name__}: {name} must be {bounds}; came {value}")


def read_words(words: Given, table: Mapping[str, Option]) -> dict[str, Any]:
    """Return the words that were given, each checked by its declaration; None stands for a word that was not."""
    for word in words:
        if word not in table:
            near = nearest(word, table)
            raise WordError(word, "there is no such option" + (f". Did you mean {near!r}?" if near else ""))
    return {word: table[word].read(value) for word, value in words.items() if value is not None}


def override(default: Group, given: Given) -> Group:
    """Return a part of a recipe with what was given in place of its own."""
    changed = {
        name: (given[declared.word] or None) if declared.off else given[declared.word]
        for name, declared in declared_fields(type(default))
        if declared.word in given
    }
    return replace(default, **changed)  # pyright: ignore[reportArgumentType] - a dataclass


def group_of(group: type[Group], given: Given) -> Group:
    """Return a group of options with what was given of it."""
    return group(**{name: given[each.word] for name, each in declared_fields(group) if each.word in given})


def given_of(given: Given, *groups: type) -> list[str]:
    """Return the words of these groups that were given."""
    table = words_of(*groups)
    return [word for word in given if word in table]


def flag(word: str) -> str:
    """Return how a word is typed: micro_batch_tokens is --micro-batch-tokens, and from_ is --from.

    >>> flag("from_")
    '--from'
    """
    return f"--{word.rstrip('_').replace('_', '-')}"


def flags(words: Iterable[str]) -> str:
    return ", ".join(map(flag, words))
