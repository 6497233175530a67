"""The `clearhead` command, one file a verb. Exit codes: 0, 1 (failed), 2 (asked wrongly), 130 (Ctrl-C),
141 (the reader of the output has gone away).
"""

import gc
import importlib
import os
import re
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from io import TextIOWrapper
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from clearhead.cli.completion import COMPLETE, complete
from clearhead.cli.options import Sectioned, argument_name, flatten_groups
from clearhead.cli.screen import CLOSED_PIPE, discard_output, escape_controls
from clearhead.errors import ClearheadError, OptionError, WordError, nearest
from clearhead.options import flag
from clearhead.system import is_out_of_memory

__all__ = ["main"]

CONTEXT = {"help_option_names": ["--help", "-h"]}
FAILED, ASKED_WRONGLY, INTERRUPTED = 1, 2, 130

GROUPS = {
    "Start": {
        "demo": "Train a small translator in a minute, and show where it looks.",
        "steps": "Show attention in four steps, with every number.",
        "learn": "Solve exercises that are graded exactly.",
        "import": "Import a Hugging Face or GGUF model as a run.",
    },
    "Train": {
        "train": "Train a model on your text.",
        "compare": "Train several models at one budget, and compare them.",
        "evaluate": "Score a trained model on your files.",
        "runs": "List run folders and their scores.",
    },
    "Use": {
        "translate": "Translate lines of text.",
        "generate": "Continue a prompt.",
        "fill": "Fill the blanks in lines of text.",
        "classify": "Label lines of text.",
        "embed": "Turn lines of text into vectors.",
        "answer": "Answer lines of text with a run of any task.",
    },
    "Look": {
        "look": "Open a trained model in the browser.",
        "trace": "Show what a model does with a text, head by head.",
        "craft": "Compile RASP programs into Transformers.",
        "circuits": "Find which edges of a model make an answer.",
    },
    "Share": {
        "export": "Write a run for other programs, checked by them.",
        "page": "Write a run as one HTML page that runs in the browser.",
        "serve": "Serve runs over HTTP, as OpenAI's API does.",
    },
    "Reference": {
        "describe": "Count parameters, FLOPs and memory of a model, by part.",
        "kernels": "List which kernel can compute which kind of attention.",
        "help": "Show the help of a command.",
        "completion": "Print a script that completes commands in your shell.",
    },
}
"""Every verb and what it does, in the groups and the order of the help. `clearhead.cli.NAME` has the verb itself."""
VERBS = {name: about for group in GROUPS.values() for name, about in group.items()}
ELSEWHERE = {"import": ("import_model", "import_run"), "help": ("help", "show_help")}
"""Module and function of a verb whose name Python has taken."""
CRAFT = ("list", "show", "run", "look")
"""The verbs of `clearhead craft`."""
TRAINING = {"train", "demo"}
"""Verbs that spend their time in steps of training."""


class Verbs(Mapping[str, Any]):
    """Commands by name, each imported when it is asked for: most import torch, which takes a second or two."""

    def __getitem__(self, name: str) -> Any:
        if name not in VERBS:
            raise KeyError(name)
        return load_verb(name)

    def __iter__(self) -> Iterator[str]:
        return iter(VERBS)

    def __len__(self) -> int:
        return len(VERBS)


class LazyGroup(TyperGroup):
    """The command, whose help names every verb and imports none."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = Verbs()  # type: ignore[assignment]  # it is only read

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return ["COMMAND", "[options]"]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        width = max(map(len, VERBS))
        for title, verbs in GROUPS.items():
            with formatter.section(title):
                # One width for all: the columns of the groups stand under each other.
                formatter.write_dl([(name.ljust(width), about) for name, about in verbs.items()])


def load_verb(name: str) -> Any:
    """Import a verb's module, and return it as a command."""
    home, function = ELSEWHERE.get(name, (name, name))
    module = importlib.import_module(f"clearhead.cli.{home}")
    if not gc.isenabled():  # as `main` has left it: what is imported is never garbage, and need never be looked at
        gc.freeze()
        gc.enable()
    verb_app = typer.Typer(add_completion=False, rich_markup_mode=None, context_settings=CONTEXT)
    if name in ("craft", "circuits", "learn"):
        verb_app.add_typer(module.app, name=name, epilog=module.EXAMPLES, help=module.ABOUT, short_help=VERBS[name])
        group = typer.main.get_group(verb_app)
        return group.commands[name]
    verb = getattr(module, function)
    verb_app.command(epilog=module.EXAMPLES, short_help=VERBS[name], cls=Sectioned)(flatten_groups(verb))
    command = typer.main.get_command(verb_app)
    command.name = name
    return command


app = typer.Typer(
    name="clearhead",
    cls=LazyGroup,
    add_completion=False,
    rich_markup_mode=None,
    context_settings=CONTEXT,
    epilog="\b\nExamples:\n  clearhead demo\n  clearhead help train",
)


def show_version(asked: bool) -> bool:
    if asked:
        typer.echo(f"clearhead {installed('clearhead')} (torch {installed('torch')}, Python {sys.version.split()[0]})")
        raise typer.Exit
    return asked


def installed(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


@app.callback()
def clearhead(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error (with any command).")] = False,
) -> None:
    """Build, train and run Transformers, and see every number inside them.

    A run is a folder with a trained model and all that belongs to it: `clearhead train` and `clearhead demo` write one,
    and the other commands take its path.
    """


def main(args: Sequence[str] | None = None) -> None:
    """Runs a verb, and ends the process with its exit code."""
    words = sys.argv[1:] if args is None else args
    if COMPLETE in os.environ:
        for candidate in complete(words or [""]):
            print("\t".join(candidate))
        return
    set_waiting(words)
    gc.disable()  # while torch and the verb are imported (`load_verb`), where it takes 0.15 s and finds nothing
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # an arrow on a terminal that knows only ASCII is no reason to stop
    code = run(words)
    gc.freeze()  # else Python looks at every object of torch before it ends: 0.15 s of processor instead of 0.7
    sys.exit(code)


def set_waiting(args: Sequence[str]) -> None:
    """Set how OpenMP's threads wait, which it reads when torch is imported. What the user has set stays.

    They give their core away, since others may need it. In training they look for work a while before: a step has
    hundreds of waits, most of them shorter than it takes to be woken up, and without it takes 1.3 to 1.7 times
    as long. (On a busy machine, where looking on is what costs, `train` may take fewer threads.)
    """
    if "OMP_WAIT_POLICY" not in os.environ and TRAINING.intersection(args[:1]):
        os.environ.setdefault("GOMP_SPINCOUNT", "20000")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("KMP_BLOCKTIME", "0")


def run(args: Sequence[str]) -> int:
    """Run one command and return its exit code. `--debug` may stand anywhere, so that it serves every verb."""
    command = typer.main.get_command(app)
    try:
        words = [arg for arg in args if arg != "--debug"]
        code = command.main(args=words or ["--help"], prog_name="clearhead", standalone_mode=False)
        return code or (0 if words else ASKED_WRONGLY)
    except KeyboardInterrupt:
        return INTERRUPTED
    except SystemExit as stop:
        # Help and --version are written by typer, which ends with 1 where the reader has gone away (`| head -1`).
        if not isinstance(stop.__context__, BrokenPipeError):
            raise
        discard_output()
        return CLOSED_PIPE
    except Exception as failure:
        error = name_word(failure, args)
        if "--debug" in args:
            traceback.print_exc()
        elif not isinstance(error, typer.TyperException) or os.environ.get("RANK", "0") == "0":
            # Of the processes that torchrun starts with the same wrong options, one says so.
            print(escape_controls(explain_error(error, args)), file=sys.stderr)
        return ASKED_WRONGLY if isinstance(error, WordError) else getattr(error, "exit_code", FAILED)


def explain_error(error: Exception, args: Sequence[str] = ()) -> str:
    """Say in one or two lines what went wrong with a command, and what to do."""
    match error:
        case typer.TyperException():
            return f"clearhead: {explain_usage(error)}\n{find_help(args)}"
        case WordError():
            words = re.sub(r"\b(?!and\b|with\b)[a-z][a-z_-]+", lambda found: flag(found[0]), error.words)
            return f"clearhead: {'Missing option ' * error.is_missing}{words}: {error.problem}\n{find_help(args)}"
        case ClearheadError() | OSError():
            return f"clearhead: {error}"
        case _ if is_out_of_memory(error):
            first = str(error).partition("\n")[0]
            return (
                f"clearhead: there is not enough memory{f' ({first})' if first else ''}\n"
                "Take shorter texts, fewer at a time (in training: --micro-batch-tokens), a smaller model or another "
                "--device."
            )
        case _ if own := own_parts(args):
            return explain_own_error(error, own)
        case _:
            kind = type(error).__name__
            return f"clearhead: this should not happen: {kind}: {error}\nThe same command with --debug shows where."


def explain_usage(error: Any) -> str:
    """Say in plain words what typer found wrong with the words of a command."""
    match type(error).__name__:
        case "NoSuchOption":
            near = nearest(error.option_name, error.possibilities or ())
            return error.message + (f". Did you mean {near}?" if near else "")
        case "BadOptionUsage":
            return f"{error.option_name}: {'takes no value' if 'not take' in error.message else 'needs a value'}"
        case "MissingParameter":
            return f"Missing {argument_name(error.param)}: {error.param.help}"
        case "UsageError" if "unexpected extra" in error.message:
            return f"there are more words than it takes: {error.message.rpartition('(')[2].rstrip(')')}"
        case _:
            return error.format_message()


def name_word(error: Exception, args: Sequence[str]) -> Exception:
    """Return the library's error about a word that was typed as one of the command's: `device: …` is of --device."""
    word, colon, problem = str(error).partition(": ")
    typed = any(arg.partition("=")[0] == flag(word) for arg in args)
    return WordError(word, problem) if type(error) is OptionError and colon and typed else error


def find_help(args: Sequence[str]) -> str:
    """Say how to see the help of the verb that was asked."""
    words = [word for word in args[:3] if word != "help"]
    depth = (words[:1] != [] and words[0] in VERBS) + (
        (words[:1] == ["craft"] and words[1:2] != [] and words[1] in CRAFT) or words[:2] == ["circuits", "bench"]
    )
    return f"Try: {' '.join(['clearhead', *words[:depth]])} --help"


def own_parts(args: Sequence[str]) -> dict[str, type]:
    """Return the parts of the user's own, by name, that are from modules which the command names."""
    registry = sys.modules.get("clearhead.registry")
    if registry is None:
        return {}
    words = {word for arg in args for word in re.split(r"[=,:]", arg)}  # as in --attention=softmax,mine:TopK
    return {name: part for name, part in registry.CLASSES.items() if ":" in name and part.__module__ in words}


def explain_own_error(error: Exception, own: Mapping[str, type]) -> str:
    """Say in which line of the user's modules an error came up, or which parts of his own were in use."""
    said = f"clearhead: {type(error).__name__}: {error}"
    files = {getattr(sys.modules.get(part.__module__), "__file__", None) for part in own.values()}
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename in files:
            return (
                f"{said}\nIt is in a module of your own: {frame.filename}, line {frame.lineno}, in {frame.name}. The "
                "same command with --debug shows the way there."
            )
    return (
        f"{said}\nA part of your own is in use ({', '.join(own)}): clearhead.check_part tests it, and the same command "
        "with --debug shows where this came up."
    )
