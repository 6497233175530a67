"""Options that name a part: one of ours by its name, or one of the user's own as module:Class(field=value)."""

from collections.abc import Iterable
from typing import Any

import typer

from clearhead.attention.weighting import TABLE as WEIGHTINGS
from clearhead.attention.weighting import Weighting
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


def find_weighting(text: str) -> tuple[str, Weighting]:
    """Return the weighting that --weighting names, and its name: one of the table, or one of the user's own."""
    if ":" not in text:
        return find_by_name("--weighting", text, WEIGHTINGS)
    try:
        return text, parse(text, "weighting").make()
    except OptionError as error:
        raise wrong("--weighting", str(error)) from error
