"""`clearhead completion`: a script that lets a shell complete commands, options, their values and run folders.

The script is short: it gives the words of the command line to `clearhead` itself, with COMPLETE in the environment, and
gets candidates back. They come from completions.json, since importing the commands imports torch, which takes seconds.
`python -m release.completion_table`, in a clone, writes that file anew, and a test compares it with the commands.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from clearhead.errors import WordError, no_such

EXAMPLES = """\b
Examples:
  eval "$(clearhead completion bash)"
  clearhead completion bash >> ~/.bashrc
  clearhead completion zsh > ~/.zfunc/_clearhead   # a folder of $fpath"""

COMPLETE = "_CLEARHEAD_COMPLETE"
"""The variable that asks for candidates instead of a command."""
TABLE = Path(__file__).with_name("completions.json")
RUNS = "<run>"
"""Among the names that an option takes, this stands for run folders."""
DEPTH = 3
"""How many folders below what is typed a run may be."""
MOST_FOLDERS = 2000
"""How many folders are searched for runs: a TAB must answer at once, in a home folder too."""

# Bash has split words at "=" too, and inserts what it gets as it is: so a value is quoted.
BASH = f"""_clearhead() {{
    local line
    COMPREPLY=()
    while IFS= read -r line; do
        printf -v line %q "${{line%%$'\\t'*}}"
        COMPREPLY+=("$line")
    done < <({COMPLETE}=1 "$1" "${{COMP_WORDS[@]:1:COMP_CWORD}}" 2>/dev/null)
}}
complete -o default -F _clearhead clearhead
"""
# It can be sourced, and it can be a file of $fpath, which is run at the first TAB.
ZSH = f"""#compdef clearhead
_clearhead() {{
    local line
    local -a candidates
    for line in "${{(@f)$({COMPLETE}=1 $words[1] "${{(@Q)words[2,CURRENT]}}" 2>/dev/null)}}"; do
        [[ -n $line ]] && candidates+=("${{${{line%%$'\\t'*}}//:/\\\\:}}:${{line#*$'\\t'}}")
    done
    if (( $#candidates )); then _describe clearhead candidates; else _files; fi
}}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then _clearhead "$@"; else compdef _clearhead clearhead; fi
"""
SCRIPTS = {"bash": BASH, "zsh": ZSH}


def completion(
    shell: Annotated[
        str, typer.Argument(help="The shell: bash or zsh.", metavar="SHELL", autocompletion=lambda: [*SCRIPTS])
    ],
) -> None:
    """Print a script that completes commands, options, their values and run folders with TAB.

    Put `eval "$(clearhead completion bash)"` (or zsh) into ~/.bashrc (or ~/.zshrc, after compinit).
    """
    if shell not in SCRIPTS:
        raise WordError("SHELL", no_such(shell, SCRIPTS))
    typer.echo(SCRIPTS[shell], nl=False)


def complete_names(table: Sequence[str] | Mapping[str, object], *, several: bool = False) -> Callable[[str], list[str]]:
    """Return typer's `autocompletion` of an option that takes one of these names; `several`: with commas between.

    >>> complete_names(["hf", "onnx"], several=True)("hf,")
    ['hf,hf', 'hf,onnx']
    """

    def autocompletion(incomplete: str) -> list[str]:
        before = incomplete[: incomplete.rfind(",") + 1] if several else ""
        return [before + name for name in table]

    return autocompletion


class Completion(NamedTuple):
    """What may stand where the cursor is."""

    value: str
    help: str = ""


def complete(words: Sequence[str], table: Mapping[str, Any] | None = None) -> list[Completion]:
    """Return what the last of the words, the one being typed, may become; nothing where it may be any file or text.

    >>> [candidate.value for candidate in complete(["train", "runs/x", "--task", "tr"])]
    ['translate']
    """
    command = json.loads(TABLE.read_text()) if table is None else table
    # Bash gives --task=tr as three words, the others as one.
    current = "" if words[-1] == "=" else words[-1]
    option, position, has_options = None, 0, True
    for word in (word for word in words[:-1] if word != "="):
        if option is not None:
            option = None
        elif word == "--":
            has_options = False
        elif has_options and word.startswith("-") and word != "-":
            found = command["options"].get(word)
            option = found if found is not None and found["values"] is not None else None
        elif word in command["commands"]:
            command, position = command["commands"][word], 0
        else:
            position += 1
    if option is not None:
        return values_of(option, current)
    if has_options and current.startswith("-"):
        name, equals, value = current.partition("=")
        if equals:
            option = command["options"].get(name, {"values": []})
            return [Completion(f"{name}={found.value}", found.help) for found in values_of(option, value)]
        return options_of(command, current)
    if command["commands"]:
        return [
            Completion(name, inner["help"]) for name, inner in command["commands"].items() if name.startswith(current)
        ]
    arguments = command["arguments"]
    if position < len(arguments):
        return values_of(arguments[position], current)
    if arguments and arguments[-1]["repeats"]:
        return values_of(arguments[-1], current)
    return options_of(command, current)


def options_of(command: Mapping[str, Any], current: str) -> list[Completion]:
    return [Completion(name, option["help"]) for name, option in command["options"].items() if name.startswith(current)]


def values_of(parameter: Mapping[str, Any], current: str) -> list[Completion]:
    """Return the values of an option or an argument that begin with what is typed."""
    before = current[: current.rfind(",") + 1] if parameter.get("several") else ""
    candidates: list[str] = []
    for value in parameter["values"] or ():
        candidates += run_folders(current) if value == RUNS else [before + value]
    return [Completion(candidate) for candidate in candidates if candidate.startswith(current)]


def run_folders(current: str) -> list[str]:
    """Return the run folders that a path may become: those in the folder that is typed so far, and below it."""
    typed = current[: current.rfind("/") + 1]
    start = os.path.expanduser(typed)
    runs: list[str] = []
    level, looked_at = [""], 0
    for depth in range(DEPTH):
        below: list[str] = []
        for inside in level:
            for name in sorted(subfolders(start + inside)):
                path = inside + name
                looked_at += 1
                if looked_at > MOST_FOLDERS:
                    return runs
                if not depth and not (typed + name).startswith(current):
                    continue
                if os.path.exists(os.path.join(start + path, "run.json")):
                    runs.append(typed + path)
                else:
                    below.append(f"{path}/")
        level = below
    return runs


def subfolders(path: str) -> Iterator[str]:
    """Yield the names of the folders in a folder; of one that cannot be read, none."""
    try:
        with os.scandir(path or ".") as entries:
            yield from (
                entry.name
                for entry in entries
                if not entry.name.startswith(".") and entry.name.isprintable() and entry.is_dir()
            )
    except OSError:
        return
