"""The user's text as options of a verb: aligned files, tables or documents, and which of them a task takes."""

import functools
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, ClassVar, cast, final, get_args

import typer

from clearhead.cli.completion import complete_names
from clearhead.cli.options import flag, given_flags, missing, one_of, wrong
from clearhead.text.encoding import Corpus
from clearhead.text.forms import DELIMITERS, Form, possible_forms, read_head
from clearhead.text.lines import spool
from clearhead.text.sources import Aligned, Documents, Messages, Source, Table, Unit
from clearhead.training.tasks import Task
from clearhead.training.tasks.base import AT_ONCE

Files = list[str] | None
STDIN = "-"

TOGETHER = {
    "source": ("source", "target", "dev_source", "dev_target", "weights"),
    "table": ("table", "columns", "form", "dev", "weights"),
    "text": ("text", "documents", "dev", "weights"),
}
"""The options that go with each of these; `skip_bad` goes with all."""
SPOOLED = [form for form in get_args(Form) if form not in ("auto", "parquet")]
"""The forms that can come through a pipe."""
MESSAGES = "messages"
"""What --columns says of a file of conversations."""
SHOWN = {"source": "--source with --target", "table": "--table", "text": "--text"}

SourceFiles = Annotated[Files, typer.Option(metavar="FILE", help="translate: the source text, one sentence per line.")]
TargetFiles = Annotated[Files, typer.Option(metavar="FILE", help="translate: the translations, line by line.")]
TableFiles = Annotated[
    Files,
    typer.Option(
        metavar="FILE",
        help="Any task: a table with named columns (TSV, CSV, JSON, Parquet), a fastText or CoNLL file, or a folder.",
    ),
]
Columns = Annotated[
    str | None,
    typer.Option(
        metavar="A,B",
        help="The table's columns, by name or number (1,2).  [default: source,target or text,label or text]",
    ),
]
FormName = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        autocompletion=complete_names(get_args(Form)),
        help=f"The table's format: {', '.join(get_args(Form)[1:])}.  [default: by its name and first lines]",
    ),
]
TextFiles = Annotated[Files, typer.Option(metavar="FILE", help="generate, fill: text files, or folders of them.")]
DocumentUnit = Annotated[
    str | None,
    typer.Option(
        metavar="UNIT",
        autocompletion=complete_names(get_args(Unit)),
        help="What one document is: line or file.  [default: file to generate, line to fill]",
    ),
]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Skip lines that cannot be used.")]
TITLE = "Text (- is stdin; gzip is unpacked; an option for files can be repeated)"


@final
@dataclass(frozen=True, kw_only=True)
class TextOptions:
    """The options for the user's text. Options for files may be repeated."""

    title: ClassVar[str] = TITLE

    source: SourceFiles = None
    target: TargetFiles = None
    dev_source: Annotated[Files, typer.Option(metavar="FILE", help="The validation set: source text.")] = None
    dev_target: Annotated[Files, typer.Option(metavar="FILE", help="The validation set: translations.")] = None
    table: TableFiles = None
    columns: Columns = None
    form: FormName = None
    text: TextFiles = None
    documents: DocumentUnit = None
    dev: Annotated[
        Files,
        typer.Option(
            metavar="FILE", help="The validation set, in the same format.  [default: 1 record in 20 of the text]"
        ),
    ] = None
    weights: Annotated[
        str | None,
        typer.Option(
            metavar="N,N",
            help="How often an epoch reads each file, in the order they are given: 3,1. Needs a validation set.",
        ),
    ] = None
    skip_bad: SkipBad = False


def check_text(task: type[Task], options: TextOptions) -> None:
    """Raise where the options cannot be for this task, or do not go together. Nothing is read."""
    way = way_of(task, options)
    for name in given_flags(replace(options, skip_bad=False)):
        if name not in map(flag, TOGETHER[way]):
            ways_of_option = [SHOWN[second] for second in task.ways if name in map(flag, TOGETHER[second])]
            raise wrong(
                name,
                f"goes with {' or '.join(ways_of_option)}"
                if ways_of_option
                else f"is not for {task.name} from {SHOWN[way]}",
            )
    for first, second in (("source", "target"), ("dev_source", "dev_target")):
        if bool(getattr(options, first)) != bool(getattr(options, second)):
            absent, given = (second, first) if getattr(options, first) else (first, second)
            raise missing(flag(absent), f"{flag(given)} needs its other side")
    check_table(task, options)
    check_stdin(options)
    check_weights(way, options)


def check_weights(way: str, options: TextOptions) -> None:
    """Raise where weights are no whole numbers, one for each file, or where a repeated record could be held out."""
    if options.weights is None:
        return
    weights, files = options.weights.split(","), getattr(options, way) or []
    if not all(weight.strip().isdecimal() and int(weight) > 0 for weight in weights):
        raise wrong("--weights", f"takes whole numbers from 1 on, such as 3,1; came {options.weights!r}")
    if way == "source" and len(options.target or ()) != len(files):
        raise wrong("--weights", "takes as many files with --target as with --source, one beside the other")
    if len(weights) != len(files):
        raise wrong(
            "--weights", f"there are {len(weights)} weights, and {len(files)} files with {flag(way)}: give as many"
        )
    if not (options.dev or options.dev_source):
        dev_options = "--dev-source and --dev-target" if way == "source" else "--dev"
        raise wrong("--weights", f"a record that is read twice cannot be held out of training: give {dev_options}")


def way_of(task: type[Task], options: TextOptions) -> str:
    """Return how the text is given: `source`, `table` or `text`."""
    files_by_way = {"source": options.source or options.target, "table": options.table, "text": options.text}
    ways = [way for way, files in files_by_way.items() if files]
    takes = " or ".join(SHOWN[way] for way in task.ways)
    for way in ways:
        if way not in task.ways:
            raise wrong(flag(way), f"{task.name} takes {takes}")
    if len(ways) != 1:
        if not ways:
            raise missing(flag(task.ways[0]), f"{task.name} takes {takes}")
        given = " and ".join(SHOWN[way] for way in ways)
        raise wrong(flag(task.ways[0]), f"{task.name} takes {takes}, not {given} together")
    return ways[0]


def check_table(task: type[Task], options: TextOptions) -> None:
    chats = task.chats and options.columns == MESSAGES
    if options.columns is not None and not chats and len(columns_of(task, options)) != len(task.fields()):
        raise wrong(
            "--columns",
            f"{task.name} takes {len(task.fields())}, for {', '.join(task.fields())}; came {options.columns!r}",
        )
    one_of("--form", options.form or "auto", dict.fromkeys(get_args(Form)))
    one_of("--documents", options.documents or "line", dict.fromkeys(get_args(Unit)))


def check_stdin(options: TextOptions) -> None:
    lists = [value for field in fields(options) if isinstance(value := getattr(options, field.name), list)]
    if sum(files.count(STDIN) for files in lists) > 1:
        raise wrong(STDIN, "stdin can be read only once")
    if STDIN in [*(options.table or ()), *(options.dev or ())] and options.table and options.form is None:
        raise wrong("--form", f"a table from stdin has no name to tell its form by: give {', '.join(SPOOLED)}")


def with_spooled(options: TextOptions, folder: Path) -> TextOptions:
    """Return the options with stdin and pipes copied into the folder, to be read as often as it takes."""

    def spool_all(files: Files) -> Files:
        return [spool(path, folder) for path in files] if files else files

    names = ("source", "target", "dev_source", "dev_target", "table", "text", "dev")
    return replace(options, **{name: spool_all(getattr(options, name)) for name in names})


def as_corpus(task: type[Task], options: TextOptions) -> Corpus:
    """Return the corpus that is meant, once `check_text` has passed."""
    way = way_of(task, options)
    make = MAKERS[way]
    if way == "source":
        train, dev = (options.source, options.target), (options.dev_source, options.dev_target)
    else:
        train, dev = (options.table or options.text,), (options.dev,)
    if options.weights is not None:
        train = tuple(repeat_files(files or [], options.weights) for files in train)
    return Corpus(
        train=make(task, options, train), dev=make(task, options, dev) if dev[0] else None, skip_bad=options.skip_bad
    )


def repeat_files(files: list[str], weights: str) -> list[str]:
    """Return each file as often as its weight says.

    >>> repeat_files(["a", "b"], "3,1")
    ['a', 'a', 'a', 'b']
    """
    return [path for path, weight in zip(files, weights.split(","), strict=True) for _ in range(int(weight))]


def aligned(task: type[Task], options: TextOptions, files: Sequence[Files]) -> Source:
    source, target = files
    return Aligned(source=tuple(source or ()), target=tuple(target or ()))


def table(task: type[Task], options: TextOptions, files: Sequence[Files]) -> Source:
    paths = tuple(files[0] or ())
    if task.chats and options.columns == MESSAGES:
        return Messages(paths=paths)
    columns = columns_of(task, options)
    form = cast(Form, options.form) or ask_form(paths, columns)
    if options.columns is None and task.layout(AT_ONCE).label_of == "many" and is_fasttext(form, paths, columns):
        columns = tuple("labels" if name == "label" else name for name in columns)
    return Table(paths=paths, columns=columns, fields=task.fields(), form=form)


def is_fasttext(form: Form, paths: tuple[str, ...], columns: tuple[str, ...]) -> bool:
    return form == "fasttext" or (form == "auto" and ["fasttext"] in [possible_forms(path, columns) for path in paths])


@functools.cache
def ask_form(paths: tuple[str, ...], columns: tuple[str, ...]) -> Form:
    """Return the form of tables whose delimiter is in doubt, as the user says who is asked for it on a terminal.

    It is `auto` where there is no doubt, and where nobody can be asked: then the choices are in the error.
    """
    for path in paths:
        found = possible_forms(path, columns) if os.path.isfile(path) else []
        if len(found) > 1 and sys.stdin.isatty() and sys.stderr.isatty():
            first = next(line for line in read_head(path) if line.strip())
            typer.echo(f"{path} begins with: {first[:200]}", err=True)
            apart = ", ".join(f"{form} ({DELIMITERS[form]!r})" for form in found)
            check = functools.partial(one_of, "--form", table={form: form for form in found})
            return typer.prompt(f"What is between its columns? {apart}", value_proc=check, err=True)
    return "auto"


def documents(task: type[Task], options: TextOptions, files: Sequence[Files]) -> Source:
    return Documents(paths=tuple(files[0] or ()), unit=cast(Unit, options.documents or task.unit))


def columns_of(task: type[Task], options: TextOptions) -> tuple[str, ...]:
    return task.fields() if options.columns is None else tuple(name.strip() for name in options.columns.split(","))


MAKERS: dict[str, Callable[[type[Task], TextOptions, Sequence[Files]], Source]] = {
    "source": aligned,
    "table": table,
    "text": documents,
}
