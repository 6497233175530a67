"""The `clearhead` command, one file a verb. Exit codes: 0, 1 (failed), 2 (asked wrongly), 130 (Ctrl-C)."""

import re
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from io import TextIOWrapper
from typing import Annotated

import typer

from clearhead.cli import (
    classify,
    compare,
    craft,
    demo,
    describe,
    evaluate,
    fill,
    generate,
    kernels,
    look,
    runs,
    steps,
    trace,
    train,
    translate,
)
from clearhead.cli.options import Sectioned, grouped
from clearhead.cli.screen import escape_controls
from clearhead.errors import ClearheadError

__all__ = ["main"]

FAILED, ASKED_WRONGLY, INTERRUPTED = 1, 2, 130
OUT_OF_MEMORY = re.compile(r"(can't|cannot) allocate memory|not enough memory|out of memory|bad_alloc", re.IGNORECASE)

app = typer.Typer(
    name="clearhead",
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["--help", "-h"]},
    epilog="\b\nExample:\n  clearhead demo",
)
app.command(epilog=demo.EXAMPLES, short_help="Train a small translator on the spot, and look into it.")(demo.demo)
app.command(epilog=steps.EXAMPLES, short_help="Attention in four steps, with the real numbers.")(steps.steps)
app.command(epilog=describe.EXAMPLES, short_help="What a model is made of, by part.")(describe.describe)
app.command(epilog=kernels.EXAMPLES, short_help="Which kernel serves which part of attention.")(kernels.kernels)
app.command(epilog=train.EXAMPLES, short_help="Train a model on your text.", cls=Sectioned)(grouped(train.train))
app.command(epilog=compare.EXAMPLES, short_help="Several models, one budget, one table.", cls=Sectioned)(
    grouped(compare.compare)
)
app.command(epilog=runs.EXAMPLES, short_help="The run folders there are, and their scores.")(runs.runs)
app.command(epilog=look.EXAMPLES, short_help="Look into a run in the browser.")(look.look)
app.command(epilog=trace.EXAMPLES, short_help="A text's way through a run, with every number.")(trace.trace)
app.add_typer(
    craft.app, name="craft", epilog=craft.EXAMPLES, help=craft.ABOUT, short_help="Programs compiled into attention."
)
app.command(epilog=translate.EXAMPLES, short_help="Translate lines with a run.")(translate.translate)
app.command(epilog=generate.EXAMPLES, short_help="Go on from a prompt or from lines.", cls=Sectioned)(
    grouped(generate.generate)
)
app.command(epilog=fill.EXAMPLES, short_help="Fill the blanks of lines.")(fill.fill)
app.command(epilog=classify.EXAMPLES, short_help="Label lines with a run.")(classify.classify)
app.command(epilog=evaluate.EXAMPLES, short_help="How good a run is on your files.", cls=Sectioned)(
    grouped(evaluate.evaluate)
)


def show_version(asked: bool) -> bool:
    if asked:
        typer.echo(f"clearhead {installed('clearhead')} (torch {installed('torch')}, Python {sys.version.split()[0]})")
        raise typer.Exit
    return asked


def installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


@app.callback()
def clearhead(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version and leave.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="With any verb: show the traceback of an error.")] = False,
) -> None:
    """The Transformer, whole: build it, train it, run it, and see every number inside it."""


def main(args: Sequence[str] | None = None) -> None:
    """Runs a verb, and ends the process with its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # an arrow on a terminal that knows only ASCII is no reason to stop
    sys.exit(run(sys.argv[1:] if args is None else args))


def run(args: Sequence[str]) -> int:
    """The exit code of one command. `--debug` is taken out wherever it stands, so that it serves every verb."""
    command = typer.main.get_command(app)
    try:
        asked = [arg for arg in args if arg != "--debug"]
        code = command.main(args=asked or ["--help"], prog_name="clearhead", standalone_mode=False)
        return code or (0 if asked else ASKED_WRONGLY)
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        if "--debug" in args:
            traceback.print_exc()
        else:
            print(escape_controls(explain_error(error)), file=sys.stderr)
        return getattr(error, "exit_code", FAILED)


def explain_error(error: Exception) -> str:
    """Say in one or two lines what went wrong, and what to do."""
    match error:
        case typer.TyperException():
            context = getattr(error, "ctx", None)
            verb = context.command_path if context else "clearhead"
            return f"clearhead: {error.format_message()}\nTry: {verb} --help"
        case ClearheadError() | OSError():
            return f"clearhead: {error}"
        case _ if is_out_of_memory(error):
            first = str(error).partition("\n")[0]
            return (
                f"clearhead: there is not enough memory{f' ({first})' if first else ''}\n"
                "Take shorter texts, fewer at a time (in training: --tokens-at-once), a smaller model or another "
                "--device."
            )
        case _:
            kind = type(error).__name__
            return f"clearhead: this should not happen: {kind}: {error}\nThe same command with --debug shows where."


def is_out_of_memory(error: Exception) -> bool:
    """Whether Python, torch's allocators or the machine's ran out of memory; torch has no class for its CPU's."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and bool(OUT_OF_MEMORY.search(str(error)))
