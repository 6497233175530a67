"""The table of the notes' statements: its code is true, its commands run, its views exist, and nothing is left out."""

import ast
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
import typer

from clearhead.cli import app, run
from tests.docs.pages import run_page

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "tests/docs/statements.md"
SLIPS = ROOT / "docs/the-notes.md"
NOTES = next((home / "shared/notes" for home in (ROOT, *ROOT.parents) if (home / "shared/notes").is_dir()), None)
PARSED_ONLY = ("demo", "look")
"""Commands that train for a minute or serve until Ctrl-C: they are parsed here, and run by tests of their own."""


class Statement(NamedTuple):
    number: str
    says: str
    holds: str
    code: str
    command: str
    view: str


def statements_of(text: str) -> list[Statement]:
    """Return the rows of the page's tables; code and commands without their backquotes."""
    rows = re.findall(r"^\| (N\d+\.\d+) \|(.*)\|$", text, re.MULTILINE)
    cells = [[number, *(cell.strip() for cell in rest.split(" | "))] for number, rest in rows]
    return [Statement(*(row if len(row) == 6 else [*row, *[""] * 6][:6])) for row in cells]


STATEMENTS = statements_of(PAGE.read_text(encoding="utf-8"))


def quoted(says: str) -> list[str]:
    return [quote.strip("`") for quote in re.findall(r"“([^”]+)”", says)]


def span(cell: str) -> str:
    """Return what stands between the backquotes of a cell that is code and nothing else."""
    found = re.fullmatch(r"`([^`]+)`", cell)
    assert found is not None, f"a cell of code between backquotes was expected; came {cell!r}"
    return found[1]


def is_true(value: object) -> bool:
    """Return whether a line's value is True itself: Python's, numpy's or torch's."""
    truth = value.dtype in (bool, torch.bool) if isinstance(value, np.bool_ | torch.Tensor) else value is True
    return truth and bool(value)


def test_the_rows_are_numbered_and_as_many_as_the_page_says():
    said = re.search(r"There are (\d+) statements: (\d+) .*? (\d+) .*? (\d+) .*? (\d+) ", prose())
    assert said is not None
    total, *per_note = map(int, said.groups())
    assert [row.number for row in STATEMENTS] == [
        f"N{note}.{i}" for note, count in enumerate(per_note, 1) for i in range(1, count + 1)
    ]
    assert total == len(STATEMENTS) >= 127
    slipped = [row for row in STATEMENTS if row.holds.startswith("slip ")]
    assert f" {len(slipped)} of them slip" in prose()


def prose() -> str:
    return " ".join(PAGE.read_text(encoding="utf-8").split())


def test_no_cell_is_empty():
    assert [row.number for row in STATEMENTS if not all(cell.strip("` ") for cell in row)] == []


def test_no_statement_is_proved_by_code_being_there():
    """A gradient, a parameter, a class or a name that exists says nothing of what it does."""
    exists = r"\.grad\b|requires_grad|isinstance|hasattr|named_parameters|__all__|TASKS|named_modules"
    assert [row.number for row in STATEMENTS if re.search(exists, row.code)] == []


def test_statements_are_computed_by_other_code_too():
    """By the page's numpy, or by an effect that is measured; the others have the number itself in the line."""
    numpy = {
        "np",
        "math",
        "a",
        "m",
        "p",
        "e",
        "X",
        "W_Q",
        "W_K",
        "W_V",
        "W_O",
        "down",
        "rows",
        "looks",
        "back",
        "signs",
    }
    numpy |= {
        "array",
        "softmax",
        "attention",
        "cos",
        "waves",
        "layer_norm",
        "part",
        "note_block",
        "stack",
        "cross",
        "transformer",
    }
    measured = {"undone", "moved", "table_moved", "right", "heard", "follows", "numpy_gains"}
    alone = [row.number for row in STATEMENTS if not (numpy | measured) & names_in(span(row.code))]
    assert alone == ["N1.7", "N1.8", "N1.11", "N2.52", "N2.53", "N3.23", "N4.6", "N4.9", "N4.25", "N4.26"]


def names_in(code: str) -> set[str]:
    return {node.id for node in ast.walk(ast.parse(code, mode="eval")) if isinstance(node, ast.Name)}


@pytest.mark.slow
def test_every_line_of_code_is_true_of_clearhead():
    names = run_page(PAGE)
    wrong = {}
    for row in STATEMENTS:
        code = span(row.code)
        assert names_in(code) & set(names), f"{row.number}: {code} has nothing of Clearhead's in it"
        try:
            value = eval(code, dict(names))
        except Exception as error:
            value = error
        if not is_true(value):
            wrong[row.number] = f"{code} is {value!r}"
    assert wrong == {}


@pytest.mark.parametrize("value", [False, None, 14, "yes", torch.tensor(False), torch.tensor(1.0)])
def test_only_true_is_true(value):
    assert not is_true(value)
    assert is_true(torch.tensor(True))


def commands() -> list[list[str]]:
    """Return every different command of the page, as the words that follow `clearhead`."""
    found = [shlex.split(line) for line in dict.fromkeys(span(row.command) for row in STATEMENTS)]
    assert all(words[0] == "clearhead" for words in found)
    return [words[1:] for words in found]


def parse(words: list[str]) -> None:
    """Read the words as the command line would, down to the last verb; raise where an option does not exist."""
    command = typer.main.get_command(app)
    context = command.make_context("clearhead", list(words))
    while hasattr(command, "resolve_command"):
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        context = command.make_context(name, rest, parent=context)


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_every_command_is_taken_by_the_command_line(words):
    parse(words)


@pytest.mark.parametrize("wrong", [["steps", "--colour", "red"], ["stepz"], ["craft", "shew", "sort"]])
def test_a_command_that_does_not_exist_is_noticed(wrong):
    with pytest.raises(typer.TyperException):
        parse(wrong)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Make a folder with a run of the demo's shape that was trained one step, and the files that the commands name."""
    from clearhead import training
    from clearhead.cli.demo import demo_recipe, write_corpus
    from clearhead.cli.demo_page import draw
    from clearhead.training.recipe import Budget, Checkpointing, Machine

    folder = tmp_path_factory.mktemp("statements")
    recipe = replace(
        demo_recipe(write_corpus(draw(1, train=500, held_out=5), folder / "files"), 1),
        budget=Budget(steps=1),
        checkpointing=Checkpointing(log=1, evaluate=1, checkpoints=1, select="last", score_records=1),
        machine=Machine(device="cpu", threads=1),
    )
    training.train(folder / "runs/demo", recipe, log=lambda _: None)
    for name, times in (("train", 50), ("test", 1)):
        (folder / f"{name}.de").write_text("eins\nzwei\n" * times, encoding="utf-8")
        (folder / f"{name}.en").write_text("one\ntwo\n" * times, encoding="utf-8")
    (folder / "glove.txt").write_text("".join(f"{word}{' 0.5' * 64}\n" for word in ("eins", "one")), encoding="utf-8")
    return folder


@pytest.mark.slow
def test_every_command_runs(home, monkeypatch, capsys):
    """Run all that end by themselves; `train` and `compare` as far as the recipes, with every option looked at."""
    from clearhead.cli import compare
    from clearhead.experiments import probes
    from clearhead.serve import live

    template = home / "live.html"
    template.write_text(f"<html>{live.PLACE}</script>{live.WEIGHTS}</script></html>", encoding="utf-8")
    monkeypatch.setattr(live, "TEMPLATE", template)
    monkeypatch.setattr(compare, "comparison_of", Compared)
    monkeypatch.setattr(probes, "MOST_EXAMPLES", 50)
    monkeypatch.setattr("clearhead.training.machine.MOST_STEPS", 1)
    monkeypatch.chdir(home)
    failed = {}
    for words in commands():
        if words[0] in PARSED_ONLY:
            continue
        try:
            code = run([*words, "--dry-run"] if words[0] == "train" else words)
        except Compared as compared:
            code = 0 if compared.possible > 1 else f"{compared.possible} models to compare"
        out, err = capsys.readouterr()
        if code != 0 or (words[0] != "compare" and not out):
            failed[" ".join(words)] = (code, err)
    assert failed == {}


class Compared(BaseException):
    """Stands in for the runs of a comparison: how many models there are to compare, without training them."""

    def __init__(self, home, arms, *args, **kwargs):
        self.possible = sum(arm.recipe is not None for arm in arms)
        raise self


def views() -> set[str]:
    """Return the titles of the explorer's views, from the routing table of the page."""
    routes = re.search(r"GROUPS = \{(.*?)\} as const;", source("lib/views.ts"), re.DOTALL)
    titles = re.search(r"^  views: \{(.*?)^  \},", source("text/en.ts"), re.DOTALL | re.MULTILINE)
    assert routes is not None
    assert titles is not None
    named = dict(re.findall(r'(\w+): \{\s*title: "([^"]+)"', titles[1]))
    return {named[route] for route in re.findall(r'"(\w+)"', routes[1])}


def source(file: str) -> str:
    return (ROOT / "web/src" / file).read_text(encoding="utf-8")


def test_every_view_is_one_of_the_explorers():
    assert len(views()) >= 10
    assert [row.number for row in STATEMENTS if row.view not in views()] == []


def test_every_view_shows_some_statement():
    assert views() - {row.view for row in STATEMENTS} == set()


def test_every_slip_is_the_slip_of_some_statement():
    listed = re.findall(r"^\| (\d+) \|", SLIPS.read_text(encoding="utf-8"), re.MULTILINE)
    linked = {found[1] for row in STATEMENTS if (found := re.match(r"slip (\d+)$", row.holds))}
    assert linked == set(listed)


def plain(text: str) -> str:
    """Return the words of a line of the notes: no emphasis, no marks of quotation blocks, one space, lower case."""
    return " ".join(re.sub(r"[`*]|^\s*>+", " ", text, flags=re.MULTILINE).split()).lower()


def is_label(line: str) -> bool:
    """Return True for what states nothing: a heading, a picture's link, a callout, a name in front of what follows."""
    words = plain(line)
    return words.startswith(("#", "[!", "!")) or words.endswith(":") or len(words.split()) < 10


@pytest.mark.skipif(NOTES is None, reason="the study notes are not beside this checkout")
@pytest.mark.parametrize("note", [1, 2, 3, 4])
def test_the_quotations_are_the_notes_and_leave_no_sentence_out(note):
    text = sorted(NOTES.glob("*.txt"))[note - 1].read_text(encoding="utf-8")
    rows = [row for row in STATEMENTS if row.number.startswith(f"N{note}.")]
    quotations = {row.number: [plain(quote) for quote in quoted(row.says)] for row in rows}
    assert [number for number, quotes in quotations.items() if not quotes] == []
    assert [
        (number, quote) for number, quotes in quotations.items() for quote in quotes if quote not in plain(text)
    ] == []
    known = [quote for quotes in quotations.values() for quote in quotes]
    sentences = [part for line in text.splitlines() if not is_label(line) for part in re.split(r"(?<=[.!?])\s+", line)]
    left_out = [part for part in sentences if not is_label(part) and not covered(plain(part), known)]
    assert left_out == []


def covered(sentence: str, quotations: list[str]) -> bool:
    return any(quote in sentence or sentence in quote for quote in quotations)


def test_commands_of_one_verb_differ_where_the_statements_do():
    """A table of one command would say nothing: the page names most verbs that show something."""
    verbs = {words[0] for words in commands()}
    assert verbs >= {"steps", "trace", "describe", "train", "compare", "craft", "kernels", "evaluate"}
