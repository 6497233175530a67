"""Options for the user's text: aligned files, tables or documents, and which of them a task takes."""

import functools
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import cast, get_args

from clearhead.errors import WordError, naming_word, no_such
from clearhead.options import OWN, Given, flag, group_of, option
from clearhead.registry import parse
from clearhead.text.encoding import Corpus
from clearhead.text.filtering import FILTERS, Deduplicate, TextFilter
from clearhead.text.forms import DELIMITERS, Form, possible_forms, read_head
from clearhead.text.lines import spool
from clearhead.text.sources import Aligned, Documents, Messages, Source, Table, Unit
from clearhead.text.token_files import TOKEN_FILE, TokenFiles
from clearhead.training import classified  # noqa: F401 - it registers a filter
from clearhead.training.recipe import Recipe
from clearhead.training.tasks import Task, task_named
from clearhead.training.tasks.texts import AT_ONCE

Files = list[str] | None
STDIN = "-"

TOGETHER = {
    "source": ("source", "target", "dev_source", "dev_target", "repeats"),
    "table": ("table", "columns", "form", "dev", "repeats"),
    "text": ("text", "documents", "dev", "repeats"),
}
"""The options that go with each of these; those of WITH_ALL go with all."""
WITH_ALL = ("skip_bad", "filter", "deduplicate")
SPOOLED = [form for form in get_args(Form) if form not in ("auto", "parquet")]
"""The forms that can come through a pipe."""
MESSAGES = "messages"
"""What --columns says of a file of conversations."""
SHOWN = {"source": "--source with --target", "table": "--table", "text": "--text"}

TRAINING_ONLY = ("dev_source", "dev_target", "dev", "repeats", "filter", "deduplicate")
"""Options that are not for evaluation."""
TITLE = "Text (- is stdin; packed files are unpacked; options for files can repeat)"


@dataclass(frozen=True, kw_only=True)
class TextOptions:
    """The user's text. Options for files may be repeated."""

    source: Files = option(None, "translate: the source text, one sentence per line.", takes="FILE")
    target: Files = option(None, "translate: the translations, line by line.", takes="FILE")
    dev_source: Files = option(None, "The validation set: source text.", takes="FILE")
    dev_target: Files = option(None, "The validation set: translations.", takes="FILE")
    table: Files = option(
        None,
        "Any task: a table with named columns (TSV, CSV, JSON, Parquet, MDS), a fastText or CoNLL file, or a folder.",
        takes="FILE",
    )
    columns: str | None = option(
        None,
        "The table's columns, by name or number (1,2).  [default: source,target or text,label or text]",
        takes="A,B",
        several=True,
    )
    form: Form | None = option(
        None,
        f"The table's format: {', '.join(get_args(Form)[1:])}.  [default: by its name and first lines]",
        takes="NAME",
    )
    text: Files = option(
        None, "generate, fill: text files, or folders of them; generate: files of tokens (.bin).", takes="FILE"
    )
    documents: Unit | None = option(
        None, "What one document is: line or file.  [default: file to generate, line to fill]", takes="UNIT"
    )
    dev: Files = option(
        None, "The validation set, in the same format.  [default: 1 record in 20 of the text]", takes="FILE"
    )
    repeats: str | None = option(
        None,
        "How often an epoch reads each file, in the order they are given: 3,1. Needs a validation set.",
        takes="N,N",
        several=True,
    )
    skip_bad: bool = option(False, "Skip lines that cannot be used.")
    filter: Files = option(
        None,
        f"Leave out training records by a rule: {', '.join(FILTERS)}; {OWN}. Repeatable.",
        takes="NAME",
        names=FILTERS,
        own=True,
    )
    deduplicate: Deduplicate | None = option(
        None, "Leave out training records whose text came before: exact, or near copies too.", takes="NAME"
    )


def check_text(task: type[Task], options: TextOptions) -> None:
    """Raise if the options cannot be for this task, or do not go together. Nothing is read."""
    way = way_of(task, options)
    given = [each.name for each in fields(options) if getattr(options, each.name) and each.name not in WITH_ALL]
    for name in given:
        if name not in TOGETHER[way]:
            ways_of_option = [SHOWN[second] for second in task.ways if name in TOGETHER[second]]
            raise WordError(
                name,
                f"goes with {' or '.join(ways_of_option)}"
                if ways_of_option
                else f"is not for {task.name} from {SHOWN[way]}",
            )
    for first, second in (("source", "target"), ("dev_source", "dev_target")):
        if bool(getattr(options, first)) != bool(getattr(options, second)):
            absent, present = (second, first) if getattr(options, first) else (first, second)
            raise WordError(absent, f"{flag(present)} needs its other side", is_missing=True)
    check_table(task, options)
    check_stdin(options)
    check_repeats(way, options)


def check_repeats(way: str, options: TextOptions) -> None:
    """Raise if they are no whole numbers, one for each file, or if a repeated record could be held out."""
    if options.repeats is None:
        return
    counts, files = options.repeats.split(","), getattr(options, way) or []
    if not all(count.strip().isdecimal() and len(count) < 7 and int(count) > 0 for count in counts):
        raise WordError("repeats", f"takes whole numbers from 1 to 999,999, such as 3,1; came {options.repeats[:80]!r}")
    if way == "source" and len(options.target or ()) != len(files):
        raise WordError("repeats", "takes as many files with --target as with --source, one beside the other")
    if len(counts) != len(files):
        raise WordError(
            "repeats", f"there are {len(counts)} numbers, and {len(files)} files with {flag(way)}: give as many"
        )
    if not (options.dev or options.dev_source):
        dev_options = "--dev-source and --dev-target" if way == "source" else "--dev"
        raise WordError("repeats", f"a record that is read twice cannot be held out of training: give {dev_options}")


def way_of(task: type[Task], options: TextOptions) -> str:
    """Return how the text is given: `source`, `table` or `text`."""
    files_by_way = {"source": options.source or options.target, "table": options.table, "text": options.text}
    ways = [way for way, files in files_by_way.items() if files]
    takes = " or ".join(SHOWN[way] for way in task.ways)
    for way in ways:
        if way not in task.ways:
            raise WordError(way, f"{task.name} takes {takes}")
    if len(ways) != 1:
        if not ways:
            raise WordError(task.ways[0], f"{task.name} takes {takes}", is_missing=True)
        together = " and ".join(SHOWN[way] for way in ways)
        raise WordError(task.ways[0], f"{task.name} takes {takes}, not {together} together")
    return ways[0]


def check_table(task: type[Task], options: TextOptions) -> None:
    chats = task.chats and options.columns == MESSAGES
    if options.columns is not None and not chats and len(columns_of(task, options)) != len(task.fields()):
        raise WordError(
            "columns",
            f"{task.name} takes {len(task.fields())}, for {', '.join(task.fields())}; came {options.columns!r}",
        )


def check_stdin(options: TextOptions) -> None:
    lists = [value for field in fields(options) if isinstance(value := getattr(options, field.name), list)]
    if sum(files.count(STDIN) for files in lists) > 1:
        raise WordError(STDIN, "stdin can be read only once")
    if STDIN in [*(options.table or ()), *(options.dev or ())] and options.table and options.form is None:
        raise WordError("form", f"a table from stdin has no name to tell its form by: give {', '.join(SPOOLED)}")


def with_spooled(given: Given, folder: Path) -> Given:
    """Return the options with stdin and pipes copied into the folder, to be read as often as it takes."""
    names = [name for name in ("source", "target", "dev_source", "dev_target", "table", "text", "dev") if name in given]
    return {**given, **{name: [spool(path, folder) for path in given[name]] for name in names}}


def spooled_corpus(recipe: Recipe, given: Given, folder: Path) -> Corpus:
    """Return the corpus of a recipe with what comes through stdin or a pipe copied into the folder.

    A copy can be looked into, so the form of a table is asked for again, unless it was given.
    """
    text = with_spooled(given, folder)
    if text == given:
        return recipe.corpus
    return as_corpus(task_named(recipe.task), group_of(TextOptions, text))


def as_corpus(task: type[Task], options: TextOptions) -> Corpus:
    """Return the corpus that is meant, once `check_text` has passed."""
    way = way_of(task, options)
    make = MAKERS[way]
    if way == "source":
        train, dev = (options.source, options.target), (options.dev_source, options.dev_target)
    else:
        train, dev = (options.table or options.text,), (options.dev,)
    if options.repeats is not None:
        train = tuple(repeat_files(files or [], options.repeats) for files in train)
    return Corpus(
        train=make(task, options, train),
        dev=make(task, options, dev) if dev[0] else None,
        skip_bad=options.skip_bad,
        filters=tuple(map(read_filter, options.filter or ())),
        deduplicate=options.deduplicate,
    )


def read_filter(text: str) -> TextFilter:
    with naming_word("filter"):
        return parse(text, "filter").make()


def repeat_files(files: list[str], repeats: str) -> list[str]:
    """Return each file as often as its number says.

    >>> repeat_files(["a", "b"], "3,1")
    ['a', 'a', 'a', 'b']
    """
    return [path for path, count in zip(files, repeats.split(","), strict=True) for _ in range(int(count))]


def aligned(task: type[Task], options: TextOptions, files: Sequence[Files]) -> Source:
    source, target = files
    return Aligned(source=tuple(source or ()), target=tuple(target or ()))


def table(task: type[Task], options: TextOptions, files: Sequence[Files]) -> Source:
    paths = tuple(files[0] or ())
    if task.chats and options.columns == MESSAGES:
        return Messages(paths=paths)
    columns = columns_of(task, options)
    form = options.form or ask_form(paths, columns)
    if options.columns is None and task.layout(AT_ONCE).label_of == "many" and is_fasttext(form, paths, columns):
        columns = tuple("labels" if name == "label" else name for name in columns)
    return Table(paths=paths, columns=columns, fields=task.fields(), form=form)


def is_fasttext(form: Form, paths: tuple[str, ...], columns: tuple[str, ...]) -> bool:
    return form == "fasttext" or (form == "auto" and ["fasttext"] in [possible_forms(path, columns) for path in paths])


@functools.cache
def ask_form(paths: tuple[str, ...], columns: tuple[str, ...]) -> Form:
    """Return the form of tables whose delimiter is in doubt, as the user says who is asked for it on a terminal.

    It is `auto` if there is no doubt, and if nobody can be asked: then the choices are in the error.
    """
    for path in paths:
        found = possible_forms(path, columns) if os.path.isfile(path) else []
        if len(found) > 1 and sys.stdin.isatty() and sys.stderr.isatty():
            first = next(line for line in read_head(path) if line.strip())
            apart = ", ".join(f"{form} ({DELIMITERS[form]!r})" for form in found)
            print(f"{path} begins with: {first[:200]}\nWhat is between its columns? {apart}: ", end="", file=sys.stderr)
            while (answer := sys.stdin.readline().strip()) not in found:
                if not answer:
                    return "auto"
                print(no_such(answer, found), end=": ", file=sys.stderr)
            return cast(Form, answer)
    return "auto"


def documents(task: type[Task], options: TextOptions, files: Sequence[Files]) -> Source:
    paths = tuple(files[0] or ())
    if paths and all(TOKEN_FILE.search(path) for path in paths):
        return TokenFiles(paths=paths)
    return Documents(paths=paths, unit=options.documents or task.unit)


def columns_of(task: type[Task], options: TextOptions) -> tuple[str, ...]:
    return task.fields() if options.columns is None else tuple(name.strip() for name in options.columns.split(","))


MAKERS: dict[str, Callable[[type[Task], TextOptions, Sequence[Files]], Source]] = {
    "source": aligned,
    "table": table,
    "text": documents,
}
