"""`clearhead help`: the help of a command, as its own --help prints it."""

from typing import Annotated

import typer

EXAMPLES = """\b
Examples:
  clearhead help
  clearhead help train
  clearhead help craft run"""


def list_verbs(incomplete: str) -> list[str]:
    """Return the names of all commands, for a shell."""
    from clearhead.cli import VERBS

    return list(VERBS)


def show_help(
    command: Annotated[
        list[str] | None,
        typer.Argument(
            help="The command, such as train; without it, all of them.", metavar="COMMAND", autocompletion=list_verbs
        ),
    ] = None,
) -> None:
    """Show the help of a command: the same text as `clearhead COMMAND --help`."""
    from clearhead.cli import app

    root = typer.main.get_command(app)
    root.main([*(command or []), "--help"], prog_name="clearhead", standalone_mode=False)
