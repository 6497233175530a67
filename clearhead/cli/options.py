"""From declared options to those of a command: a verb takes groups of options, and typer gets one for each word.

A verb's parameter is a dataclass whose fields are declared by `option`, or `Annotated[Given, Words(…)]`, which is a
mapping of the words that were given. typer only splits the command line: values are read by their declarations.
"""

import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeGuard, TypeVar, get_args

import typer
from typer.core import TyperCommand

from clearhead.cli.completion import complete_names
from clearhead.errors import WordError, naming_word, no_such
from clearhead.files import check_writable
from clearhead.options import OWN, Option, complete, declared_fields, flag, group_of, import_own, read_words

Chosen = TypeVar("Chosen")
DEVICES = ("auto", "cpu", "cuda")
"""Devices that a shell completes; others, such as cuda:1, can be typed."""


class Words(NamedTuple):
    """Options of a verb by the titles of the help: the verb gets the words that were given."""

    groups: Mapping[str, Mapping[str, Option]]


def flatten_groups(verb: Callable[..., None]) -> Callable[..., None]:
    """Return the verb as typer takes it: every parameter that is a group is replaced by the options in it."""
    parameters = inspect.signature(verb).parameters.values()

    @functools.wraps(verb)
    def flat(**options: Any) -> None:
        verb(**{parameter.name: gather(parameter, options) for parameter in parameters})

    flat_parameters = [part for parameter in parameters for part in options_in(parameter)]
    flat.__dict__["__signature__"] = inspect.Signature(flat_parameters)
    return flat


def is_group(annotation: object) -> TypeGuard[type]:
    return isinstance(annotation, type) and is_dataclass(annotation)


def words_in(annotation: object) -> Words | None:
    return next((part for part in get_args(annotation) if isinstance(part, Words)), None)


def option_of(parameter: Parameter) -> Option | None:
    """Return the option that a parameter is by itself."""
    kind, *declared = get_args(parameter.annotation) or (None,)
    return next((complete(part, parameter.name, kind) for part in declared if isinstance(part, Option)), None)


def options_in(parameter: Parameter) -> Iterator[Parameter]:
    """Yield what typer is to read for a parameter of a verb: itself, or each option of a group."""
    words = words_in(parameter.annotation)
    if words is not None:
        for title, group in words.groups.items():
            yield from (typer_parameter(declared, title) for declared in group.values())
    elif is_group(parameter.annotation):
        group = parameter.annotation
        defaults = {each.name: each.default for each in fields(group)}
        for name, declared in declared_fields(group):
            yield typer_parameter(declared, getattr(group, "title", "Options"), defaults[name])
    elif (alone := option_of(parameter)) is not None:
        yield typer_parameter(alone, "Options", parameter.default)
    else:
        yield parameter


def typer_parameter(declared: Option, title: str, default: Any = None) -> Parameter:
    """Return an option as typer takes it: text that is read later, and None for what is not given."""
    spelled = flag(declared.word)
    shown = "" if default in (None, False, MISSING, Parameter.empty, ()) else f"  [default: {default}]"
    info = typer.Option(
        f"{spelled}/--no-{spelled[2:]}" if declared.both else spelled,
        *([f"-{declared.short}"] if declared.short else []),
        envvar=declared.env or None,
        show_envvar=False,
        metavar=declared.takes or None,
        help=declared.help + shown,
        rich_help_panel=title,
        show_default=False,
        autocompletion=complete_names([*declared.names], several=declared.several),
    )
    kind: Any = {"switch": bool | None, "texts": list[str] | None}.get(declared.kind, str | None)
    return Parameter(declared.word, Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, info])


def gather(parameter: Parameter, options: Mapping[str, Any]) -> Any:
    """Return what a verb gets for a parameter, from what typer has read."""
    words, annotation, alone = words_in(parameter.annotation), parameter.annotation, option_of(parameter)
    if alone is not None:
        value = options[alone.word]
        if value not in (None, [], ()):
            return alone.read(value)
        if parameter.default is Parameter.empty:
            raise WordError(alone.word, alone.help, is_missing=True)
        return parameter.default
    if words is not None:
        table = {word: declared for group in words.groups.values() for word, declared in group.items()}
    elif is_group(annotation):
        table = {declared.word: declared for _, declared in declared_fields(annotation)}
    else:
        return options[parameter.name]
    # typer gives an empty list for an option that can be repeated and is not given.
    given = read_words({word: options[word] for word in table if options[word] not in (None, [], ())}, table)
    return given if words is not None else group_of(annotation, given)


class Sectioned(TyperCommand):
    """A command whose help lists options under the titles of their groups, and whose usage line names its arguments."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [*(argument_usage(each) for each in self.get_params(ctx) if is_argument(each)), "[options]"]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None:
                continue
            if is_argument(parameter):
                record = (argument_name(parameter), record[1].removesuffix("  [required]"))
                sections.setdefault("Arguments", []).append(record)
            else:
                sections.setdefault(getattr(parameter, "rich_help_panel", None) or "Options", []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


def is_argument(parameter: Any) -> bool:
    return parameter.param_type_name == "argument"


def argument_name(parameter: Any) -> str:
    return re.sub(r"[^A-Z]", "", parameter.metavar or parameter.name.upper())


def argument_usage(parameter: Any) -> str:
    """Return an argument as a usage line has it: RUN, [FILE], RUN... for one or more, [TEXT...] for any number."""
    usage = argument_name(parameter) + "..." * (parameter.nargs == -1)
    return usage if parameter.required else f"[{usage}]"


def new_folder(word: str, path: str) -> Path:
    """Return the path of a folder to write. An empty one, such as a shell's variable that is not set, is refused: it
    would stand for the folder that the command is given in. So is one that cannot be written to.
    """
    if not path.strip():
        raise WordError(word, "it is empty: name a folder, or give . for this one")
    check_writable(Path(path))
    return Path(path)


def import_modules(modules: list[str] | None) -> list[str] | None:
    """Import the user's modules when the command line is read, so that what they register can be named in it."""
    import_own("parts", [f"{module.partition(':')[0]}:" for module in modules or ()])
    return modules


Parts = Annotated[
    list[str] | None,
    typer.Option(
        "--parts",
        metavar="MODULE",
        callback=import_modules,
        help="Import your Python module, which registers your parts.",
    ),
]
"""Named modules are imported when the command line is read: a verb has nothing more to do."""

Port = Annotated[int, Option("Port to listen on; 0 picks a free one.", takes="N", least=0, most=65535)]
LOCAL = "127.0.0.1"
HOST = "Address to listen on; the default is reachable from this machine only."
Host = Annotated[str, Option(HOST, takes="NAME")]
Token = Annotated[
    str | None,
    Option(
        "Token of the address, instead of a random one: with --port, prepared links survive a restart. "
        "Other users of this machine can read a command line; CLEARHEAD_TOKEN in the environment they cannot.",
        env="CLEARHEAD_TOKEN",
        takes="TOKEN",
    ),
]
NoOpen = Annotated[bool, Option("Print the address without opening a browser.")]


QUIET = "Print results and errors only, no progress."
Quiet = Annotated[bool, Option(QUIET, short="q")]


def one_of(word: str, name: str, table: Mapping[str, Chosen]) -> Chosen:
    """Return what a name stands for; an error of the option if there is no such name."""
    if name not in table:
        raise WordError(word, no_such(name, table))
    return table[name]


def part_option(text: str, table: Mapping[str, Any]) -> Option:
    """Return an option that names a part: one of the table, where a hyphen may stand for a space, or the user's own."""
    return Option(f"{text}; {OWN}.", takes="NAME", names=[name.replace(" ", "-") for name in table], own=True)


def find_part(kind: str, text: str, table: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the part that the option of a kind names, and its name: one of the table, or one of the user's own."""
    if ":" not in text:
        name = text if text in table else text.replace("-", " ")
        if name not in table:
            raise WordError(kind, no_such(text, [word.replace(" ", "-") for word in table]))
        return name, table[name]
    from clearhead.registry import parse

    with naming_word(kind):
        return text, parse(text, kind).make()
