"""Options that name a part: one of ours by its name, or one of the user's own as module:Class(field=value)."""

from collections.abc import Iterable, Mapping
from typing import Any

import typer

from clearhead.cli.completion import complete_names
from clearhead.cli.options import find_by_name, import_named, wrong
from clearhead.errors import OptionError
from clearhead.registry import parse

OWN = "or your own, module:Class"
"""What an option says that names a part."""


def part_option(option: str, text: str, table: Iterable[str], *, several: bool = False) -> Any:
    """Return an option that names a part: naming one of the user's own imports its module.

    A shell completes the names in the table; `several` may be given, with commas between, by a verb that compares them.
    """
    complete = complete_names([name.replace(" ", "-") for name in table], several=several)
    return typer.Option(metavar="NAME", callback=import_named(option), autocompletion=complete, help=f"{text}; {OWN}.")


def find_part(kind: str, text: str, table: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the part that the option of a kind names, and its name: one of the table, or one of the user's own."""
    if ":" not in text:
        return find_by_name(f"--{kind}", text, table)
    try:
        return text, parse(text, kind).make()
    except OptionError as error:
        raise wrong(f"--{kind}", str(error)) from error
