"""`clearhead craft`: RASP programs compiled into attention: list them, see how one works, run it, look into it."""

import contextlib
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from clearhead.attention.weighting import TABLE as WEIGHTINGS
from clearhead.cli.completion import complete_names
from clearhead.cli.craft_program import Ask, ProgramChanges, errors_with_line, find_program, in_words, tokens_of
from clearhead.cli.options import Host, NoOpen, Parts, Port, Sectioned, find_part, flatten_groups, part_option
from clearhead.cli.screen import show, show_json
from clearhead.errors import ProgramError, WordError
from clearhead.options import Option
from clearhead.rasp import PROGRAMS

ABOUT = """Compile RASP programs into Transformers, and run them.

RASP is a small language for what attention can do. Its compiler, like Tracr, writes every weight of an ordinary model.
List the programs, see how one works, run it, or look into it."""
EXAMPLES = """\b
Examples:
  clearhead craft list
  clearhead craft show histogram
  clearhead craft run reverse abbc
  clearhead craft look sort"""
LIST_EXAMPLES = """\b
Examples:
  clearhead craft list
  clearhead craft list --json"""
SHOW_EXAMPLES = """\b
Examples:
  clearhead craft show reverse
  clearhead craft show reverse --length 20
  clearhead craft show mine.py:doubled --alphabet abc --length 8"""
RUN_EXAMPLES = """\b
Examples:
  clearhead craft run reverse abbc
  clearhead craft run dyck-1 '(()())'
  clearhead craft run copy '<go> a b' --source-text 'a b .'
  clearhead craft run histogram abca --weighting softmax --sharpness 8
  clearhead craft run mine.py:doubled abc --alphabet abc --length 8"""
LOOK_EXAMPLES = """\b
Examples:
  clearhead craft look sort
  clearhead craft look histogram -o runs/histogram --no-open"""

AVERAGING = "argmax-average"
ASKED_WRONGLY = 2


class NestedVerbs(TyperGroup):
    """A group of verbs that shows its help, with the exit code of a wrong command, where none is named."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return ["COMMAND", "[options]"]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args:
            typer.echo(ctx.get_help())
            raise typer.Exit(ASKED_WRONGLY)
        return super().parse_args(ctx, args)


app = typer.Typer(cls=NestedVerbs, add_completion=False, rich_markup_mode=None)

ProgramName = Annotated[
    str,
    typer.Argument(
        help="A name from `craft list`, or file.py:NAME, which runs that file.",
        metavar="PROGRAM",
        autocompletion=complete_names(PROGRAMS),
    ),
]
Alphabet = Annotated[str | None, Option("The tokens: characters, or words separated by spaces.", takes="TEXT")]
SourceAlphabet = Annotated[str | None, Option("The tokens of the source, of an encoder-decoder.", takes="TEXT")]
Length = Annotated[int | None, Option("Longest text, in tokens.", takes="N", least=1)]
Causal = Annotated[bool, Option("Compile a decoder, which does not look ahead.", word="causal")]
WeightingName = Annotated[
    str,
    part_option("What turns scores into weights: argmax-average is exact; softmax, sparsemax … are not", WEIGHTINGS),
]
Sharpness = Annotated[float, Option("Multiply scores by X: larger is closer to exact.", takes="X", above=0)]
AsJson = Annotated[bool, Option("Print one JSON object.", word="json")]


@app.command("list", cls=Sectioned, epilog=LIST_EXAMPLES, short_help="List the programs, and what each costs.")
@flatten_groups
def list_programs(as_json: AsJson = False) -> None:
    """List the programs: what each computes, and how many layers, heads and dimensions it takes."""
    from clearhead.cli.craft_run import as_list, list_page

    if as_json:
        show_json({"programs": as_list()})
    else:
        show(*list_page())


@app.command("show", cls=Sectioned, epilog=SHOW_EXAMPLES, short_help="Show what a program is compiled into.")
@flatten_groups
def show_program(
    program: ProgramName,
    *,
    alphabet: Alphabet = None,
    source_alphabet: SourceAlphabet = None,
    length: Length = None,
    causal: Causal = False,
    as_json: AsJson = False,
) -> None:
    """Show what a program is compiled into: its size, the directions of the residual stream, and every head.

    A program of your own is a sequence, or a rasp.Program, in a Python file. The file is run, so run only what you
    trust. A sequence also needs --alphabet and --length.
    """
    from clearhead.cli.craft_run import plan_object, show_page

    changes = ProgramChanges(vocabulary=alphabet, source_vocabulary=source_alphabet, length=length, causal=causal)
    ask = find_program(program, changes)
    with errors_with_line(ask.file):
        plan = ask.plan()
        if as_json:
            show_json(plan_object(ask, plan))
        else:
            show(*show_page(ask, plan))


@app.command("run", cls=Sectioned, epilog=RUN_EXAMPLES, short_help="Run a compiled program on a text.")
@flatten_groups
def run_program(
    program: ProgramName,
    text: Annotated[
        list[str] | None,
        typer.Argument(help="Characters or words; without it, the program's example.", metavar="[TEXT]..."),
    ] = None,
    *,
    source_text: Annotated[str | None, Option("The text that an encoder-decoder reads.", takes="TEXT")] = None,
    weighting: WeightingName = AVERAGING,
    sharpness: Sharpness = 1.0,
    alphabet: Alphabet = None,
    source_alphabet: SourceAlphabet = None,
    length: Length = None,
    causal: Causal = False,
    parts: Parts = None,
    as_json: AsJson = False,
) -> None:
    """Compile a program, run the model on a text, and compare it with the interpreter.

    With argmax-average the two must be equal; a difference is an error. With another weighting the size of the
    difference is printed. A file of your own is run: see `clearhead craft show --help`.
    """
    from clearhead.cli.craft_run import as_object, compare, run_page

    changes = ProgramChanges(vocabulary=alphabet, source_vocabulary=source_alphabet, length=length, causal=causal)
    _, part = find_part("weighting", weighting, WEIGHTINGS)
    ask = replace(find_program(program, changes), weighting=part, sharpness=sharpness)
    compared = compare(ask, *texts_of(ask, " ".join(text or []), source_text))
    if as_json:
        show_json(as_object(compared))
    else:
        show(*run_page(compared))
    if compared.differ and ask.exact:
        places = ", ".join(map(str, compared.differ[:5]))
        raise ProgramError(
            f"{ask.program.name}: model and interpreter differ at place {places} of {in_words(compared.text)!r}, and "
            "must be equal: that is a fault of the compiler"
        )


@app.command("look", cls=Sectioned, epilog=LOOK_EXAMPLES, short_help="Open a compiled program in the browser.")
@flatten_groups
def look_at_program(
    program: ProgramName,
    *,
    output: Annotated[
        Path | None,
        Option("Keep the run in this folder; without it, it is deleted at the end.", short="o", takes="RUN"),
    ] = None,
    weighting: WeightingName = AVERAGING,
    sharpness: Sharpness = 1.0,
    alphabet: Alphabet = None,
    length: Length = None,
    causal: Causal = False,
    port: Port = 0,
    host: Host = "127.0.0.1",
    no_open: NoOpen = False,
    parts: Parts = None,
) -> None:
    """Write a compiled program as a run folder, and open it in the browser. Ctrl-C stops it.

    The run works with the other commands: `clearhead trace RUN 'a b c'`. Its tokens are words separated by spaces. A
    file of your own is run: see `clearhead craft show --help`.
    """
    from clearhead.cli.look import look
    from clearhead.experiments.rasp_run import compile_to_run
    from clearhead.serve.explorer_routes import check_page
    from clearhead.serve.server import check_port

    _, part = find_part("weighting", weighting, WEIGHTINGS)
    changes = ProgramChanges(vocabulary=alphabet, length=length, causal=causal)
    check_page()
    check_port(host, port)
    ask = replace(find_program(program, changes), weighting=part, sharpness=sharpness)
    with place_for(ask, output) as path:
        with errors_with_line(ask.file):
            compile_to_run(ask.program, path, weighting=ask.weighting, sharpness=ask.sharpness)
        print(f"The run is {path}; its text is words: {in_words(ask.program.usable_example())}", file=sys.stderr)
        look(str(path), port=port, host=host, no_open=no_open, device="cpu")


@contextlib.contextmanager
def place_for(ask: Ask, folder: Path | None) -> Iterator[Path]:
    if folder is not None:
        yield folder
    else:
        with tempfile.TemporaryDirectory(prefix="clearhead-") as temporary:
            yield Path(temporary) / ask.program.name


def texts_of(ask: Ask, text: str, source: str | None) -> tuple[list[Any], list[Any] | None]:
    """Return the text and the source as tokens; the program's example if there is none."""
    program = ask.program
    if program.source_vocabulary is None and source is not None:
        raise WordError("source_text", f"{program.name} reads no source")
    tokens = tokens_of(text, program.vocabulary, "TEXT") if text.strip() else program.usable_example()
    if program.source_vocabulary is None:
        return tokens, None
    if source is not None:
        return tokens, tokens_of(source, program.source_vocabulary, "source_text")
    return tokens, list(program.source_example or program.source_vocabulary)
