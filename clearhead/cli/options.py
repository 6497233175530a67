"""Options in groups: a verb with many options takes a few dataclasses, whose fields are the options.

A field is `Annotated` with its typer.Option, and its default means that it was not given. A dataclass may hold others.
"""

import copy
import functools
import inspect
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, TypeGuard, TypeVar, get_args

import typer
from typer.core import TyperCommand

from clearhead.files import check_writable

Chosen = TypeVar("Chosen")
DEVICES = ("auto", "cpu", "cuda")
"""Devices that a shell completes; others, such as cuda:1, can be typed."""


def flatten_groups(verb: Callable[..., None]) -> Callable[..., None]:
    """Return the verb as typer takes it: every parameter that is a dataclass is replaced by the options in it."""
    parameters = inspect.signature(verb).parameters.values()
    groups = {parameter.name: parameter.annotation for parameter in parameters if is_group(parameter.annotation)}

    @functools.wraps(verb)
    def flat(**options: Any) -> None:
        alone = {parameter.name: options[parameter.name] for parameter in parameters if parameter.name not in groups}
        verb(**alone, **{name: build_group(group, options) for name, group in groups.items()})

    flat_parameters = [
        part
        for parameter in parameters
        for part in (options_in(groups[parameter.name]) if parameter.name in groups else [parameter])
    ]
    flat.__dict__["__signature__"] = inspect.Signature(flat_parameters)
    return flat


def is_group(annotation: object) -> TypeGuard[type]:
    return isinstance(annotation, type) and is_dataclass(annotation)


def options_in(group: type) -> Iterator[Parameter]:
    """Yield a parameter for each option in a group and the groups in it; the group's `title` heads them in the help."""
    for field in fields(group):
        if is_group(field.type):
            yield from options_in(field.type)
        else:
            kind, option = get_args(field.type)
            headed = copy.copy(option)
            headed.rich_help_panel = getattr(group, "title", None)
            yield Parameter(
                field.name, Parameter.KEYWORD_ONLY, default=field.default, annotation=Annotated[kind, headed]
            )


def build_group(group: type, options: Mapping[str, Any]) -> Any:
    inner = {
        field.name: build_group(field.type, options) if is_group(field.type) else options[field.name]
        for field in fields(group)
    }
    return group(**inner)


def given_flags(group: object) -> list[str]:
    """Return the flags that differ from their defaults, in a group and those in it."""
    assert is_dataclass(group)
    flags: list[str] = []
    for field in fields(group):
        value = getattr(group, field.name)
        if is_dataclass(value):
            flags += given_flags(value)
        elif field.default is not MISSING and value != field.default:
            flags.append(flag(field.name))
    return flags


def flag(name: str) -> str:
    """Return how a field is typed: micro_batch_tokens is --micro-batch-tokens, and from_ is --from."""
    return f"--{name.rstrip('_').replace('_', '-')}"


class Sectioned(TyperCommand):
    """A command whose help lists options under the titles of their groups."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                default_title = "Arguments" if parameter.param_type_name == "argument" else "Options"
                sections.setdefault(getattr(parameter, "rich_help_panel", None) or default_title, []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


def wrong(option: str, message: str) -> typer.BadParameter:
    """Return the error of an option that cannot be."""
    return typer.BadParameter(message, param_hint=option)


class MissingOption(typer.BadParameter):
    """The error of an option that is needed and not given."""

    def format_message(self) -> str:
        return f"Missing option {self.param_hint}: {self.message}"


def missing(option: str, message: str) -> typer.BadParameter:
    """Return the error of an option that has to be given; the message says what to give."""
    return MissingOption(message, param_hint=option)


def new_folder(option: str, path: str) -> Path:
    """Return the path of a folder to write. An empty one, such as a shell's variable that is not set, is refused: it
    would stand for the folder that the command is given in. So is one that cannot be written to.
    """
    if not path.strip():
        raise wrong(option, "it is empty: name a folder, or give . for this one")
    check_writable(Path(path))
    return Path(path)


NAMED = re.compile(r"(?:^|[=,])\s*([A-Za-z_][\w.]*):")
"""The module of a part that an option names as module:Class, alone or in a list."""


def import_named(option: str) -> Callable[[Any], Any]:
    """For an option that names parts: import the modules of those of the user's own when the command line is read.

    The folder that the command is given in is searched first, but only for these modules.
    """

    def checked(value: Any) -> Any:
        from clearhead.errors import ClearheadError
        from clearhead.registry import import_parts

        texts = [value] if isinstance(value, str) else value or []
        modules = texts if option == "--parts" else [module for text in texts for module in NAMED.findall(text)]
        try:
            import_parts(list(modules), folder=os.getcwd())
        except ClearheadError as error:
            raise wrong(option, str(error).removeprefix("parts: ")) from error
        return value

    return checked


Parts = Annotated[
    list[str] | None,
    typer.Option(
        "--parts",
        metavar="MODULE",
        callback=import_named("--parts"),
        help="Import your Python module, which registers parts of your own.",
    ),
]
"""Named modules are imported when the command line is read: a verb has nothing more to do."""

Port = Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 picks a free one.", metavar="N")]
Host = Annotated[
    str, typer.Option(help="Address to listen on; the default is reachable from this machine only.", metavar="NAME")
]
Token = Annotated[
    str | None,
    typer.Option(
        help="Token of the address, instead of a random one: with --port, prepared links survive a restart. "
        "Other users of this machine can read a command line; CLEARHEAD_TOKEN in the environment they cannot.",
        envvar="CLEARHEAD_TOKEN",
        show_envvar=False,
        metavar="TOKEN",
    ),
]
NoOpen = Annotated[bool, typer.Option("--no-open", help="Print the address without opening a browser.")]


def one_of(option: str, name: str, table: Mapping[str, Chosen]) -> Chosen:
    """Return what a name stands for; an error of the option where there is no such name."""
    if name not in table:
        raise wrong(option, f"there is no {name!r}. There are: {', '.join(table)}")
    return table[name]


def find_by_name(option: str, name: str, table: Mapping[str, Chosen]) -> tuple[str, Chosen]:
    """Return a name as the table has it, and what it stands for. A hyphen may stand for a space."""
    key = name if name in table else name.replace("-", " ")
    if key not in table:
        names = ", ".join(word.replace(" ", "-") for word in table)
        raise wrong(option, f"there is no {name!r}. There are: {names}")
    return key, table[key]


def above_zero(value: float | None) -> float | None:
    """Check an option: a number above 0, and finite."""
    if value is not None and not 0 < value < float("inf"):
        raise typer.BadParameter(f"it must be {'finite' if value > 0 else 'above 0'}; came {value:g}")
    return value


def zero_or_more(value: float | None) -> float | None:
    """Check an option: a number from 0 on, and finite."""
    if value is not None and not 0 <= value < float("inf"):
        raise typer.BadParameter(f"it must be {'finite' if value > 0 else '0 or more'}; came {value:g}")
    return value


def share(value: float | None) -> float | None:
    """Check an option: a share from 0 to 1, 1 left out."""
    if value is not None and not 0 <= value < 1:
        raise typer.BadParameter(f"it must be 0 or more, and less than 1; came {value:g}")
    return value
