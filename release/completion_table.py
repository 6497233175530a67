"""Write completions.json, from which `clearhead completion` completes: python -m release.completion_table."""

import json
import re
from typing import Any

import typer
from typer.core import TyperArgument, TyperGroup, TyperOption

from clearhead.cli import app
from clearhead.cli.completion import TABLE


def make_table() -> dict[str, Any]:
    """Return all commands with their options and arguments, and the names that each of these takes."""
    return describe_command(typer.main.get_command(app), "")


def as_json(table: dict[str, Any]) -> str:
    """Return the table with one line for each option, so that a change is easy to read."""
    return "\n".join(format_command(table, "")) + "\n"


def format_command(command: dict[str, Any], indent: str) -> list[str]:
    lines = [f'{indent}{{"help": {json.dumps(command["help"], ensure_ascii=False)},']
    lines.append(f'{indent} "arguments": [{", ".join(json.dumps(one) for one in command["arguments"])}],')
    for section in ("options", "commands"):
        entries: list[str] = []
        for name, inner in command[section].items():
            text = (
                json.dumps(inner, ensure_ascii=False)
                if section == "options"
                else "\n".join(format_command(inner, f"{indent}  ")).lstrip()
            )
            entries.append(f"{indent}  {json.dumps(name)}: {text}")
        body = ",\n".join(entries)
        lines.append(f'{indent} "{section}": {{' + (f"\n{body}\n{indent} }}" if body else "}"))
        lines[-1] += "," if section == "options" else "}"
    return lines


def describe_command(command: Any, short_help: str) -> dict[str, Any]:
    context: Any = typer.Context(command)
    parameters = [parameter for parameter in command.get_params(context) if not getattr(parameter, "hidden", False)]
    options = [parameter for parameter in parameters if isinstance(parameter, TyperOption)]
    inner = {name: command.commands[name] for name in command.commands} if isinstance(command, TyperGroup) else {}
    return {
        "help": short_help,
        "arguments": [
            {"values": find_values(context, parameter), "repeats": parameter.nargs == -1}
            for parameter in parameters
            if isinstance(parameter, TyperArgument)
        ],
        "options": {
            name: describe_option(context, option)
            for option in options
            for name in [*option.opts, *option.secondary_opts]
        },
        "commands": {name: describe_command(verb, verb.get_short_help_str(200)) for name, verb in inner.items()},
    }


def describe_option(context: Any, option: TyperOption) -> dict[str, Any]:
    """Return what an option takes: `values` is null for a flag, and empty for any text; `several` have commas."""
    if option.is_flag:
        return {"values": None, "help": first_sentence(option.help)}
    several = {"several": True} if option.shell_complete(context, ",") else {}
    return {"values": find_values(context, option), **several, "help": first_sentence(option.help)}


def first_sentence(text: str | None) -> str:
    """Return as much of a help text as fits beside a name.

    >>> first_sentence("Batch size.  [default: 1]"), first_sentence("Trace it. Slowly.")
    ('Batch size', 'Trace it')
    """
    return re.split(r"\.(?:\s|$)|  \[", text or "")[0]


def find_values(context: Any, parameter: TyperOption | TyperArgument) -> list[str]:
    return [item.value for item in parameter.shell_complete(context, "")]


if __name__ == "__main__":
    TABLE.write_text(as_json(make_table()), encoding="utf-8")
