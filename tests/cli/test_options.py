"""Groups of declared options: taken apart for typer, put together for the verb, read by their declarations."""

import ast
import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import pytest
import typer

import clearhead.cli
from clearhead.cli import run
from clearhead.cli.options import Sectioned, Words, flatten_groups, one_of
from clearhead.errors import WordError
from clearhead.options import Given, Option, option, words_of


@dataclass(frozen=True, kw_only=True)
class Colours:
    title: ClassVar[str] = "Colours"

    ink: str = option("black", "What is written with.", takes="NAME")
    dark_mode: bool = option(False, "Light on dark.")


@dataclass(frozen=True, kw_only=True)
class Paper:
    size: int | None = option(None, "How large.", takes="N", least=1)
    layers: list[str] | None = option(None, "What is on it.", takes="FILE")


def paint(
    picture: Annotated[str, typer.Argument()],
    colours: Colours,
    paper: Annotated[Given, Words({"Paper": words_of(Paper)})],
    *,
    out: Annotated[Path | None, Option(help="Where to write it.", short="o", takes="FILE")] = None,
) -> None:
    """Paint."""
    CALLS.append((picture, colours, paper, out))


CALLS = []


@pytest.fixture
def asked():
    """What the verb is called with, for the words of a command line."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(cls=Sectioned)(flatten_groups(paint))
    command = typer.main.get_command(app)

    def run(*args):
        command.main(args=list(args), standalone_mode=False)
        return CALLS.pop()

    return run


def test_a_verb_gets_its_groups_and_the_words_that_were_given(asked):
    assert asked("sea.png") == ("sea.png", Colours(), {}, None)
    assert asked("sea.png", "--dark-mode", "--ink", "blue", "--size", "3", "-o", "a.svg") == (
        *("sea.png", Colours(ink="blue", dark_mode=True)),
        *({"size": 3}, Path("a.svg")),
    )
    assert asked("sea.png", "--layers", "a", "--layers", "b")[2] == {"layers": ["a", "b"]}


def test_a_value_is_read_by_its_declaration(asked):
    with pytest.raises(WordError, match="size: takes a whole number, 1 or more; came much"):
        asked("sea.png", "--size", "much")


def test_the_signature_has_every_option():
    names = ["picture", "ink", "dark_mode", "size", "layers", "out"]
    assert list(inspect.signature(flatten_groups(paint)).parameters) == names


def test_the_help_lists_options_under_the_title_of_their_group(asked, capsys):
    with pytest.raises(IndexError):
        asked("--help")
    page = capsys.readouterr().out
    places = ["Options:", "-o, --out FILE", "Colours:", "--ink NAME", "[default: black]", "Paper:", "--size N"]
    assert sorted(places, key=page.index) == ["Colours:", *places[3:], *places[:2]]


def test_an_unknown_name_is_told_with_those_there_are():
    assert one_of("ink", "red", {"red": 1, "blue": 2}) == 1
    with pytest.raises(WordError, match=r"ink: there is no 'blu'\. Did you mean 'blue'\? There are red, blue"):
        one_of("ink", "blu", {"red": 1, "blue": 2})


def test_an_empty_path_is_not_this_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s").write_text("a b\n" * 20)
    for args in (["train", "", "--task", "generate", "--text", "s"], ["compare", " "], ["import", "s", ""]):
        assert run(args) == 2
        assert "it is empty: name a folder, or give . for this one" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_an_error_of_the_library_about_a_word_that_was_typed_is_one_of_the_command(command):
    code, _, err = command("evaluate", "none", "--device", "gpu")
    assert code == 2
    assert err.startswith("clearhead: --device: there is no 'gpu'")
    assert err.endswith("Try: clearhead evaluate --help\n")


def test_no_option_is_made_beside_the_declarations():
    """Only what typer itself has to act on while it reads is an option of typer's: modules to import, --version."""
    made = {}
    for path in sorted(Path(clearhead.cli.__file__).parent.glob("*.py")):
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        made[path.name] = sum(ast.unparse(node.func) == "typer.Option" for node in calls)
    assert {name: count for name, count in made.items() if count} == {"__init__.py": 2, "options.py": 2}


def commands(command, path=()):
    """Yield every command with its words."""
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))
    if not hasattr(command, "commands"):
        yield " ".join(path), command


def test_a_word_has_one_meaning_in_all_commands():
    """What stands for its value in the help is the same everywhere: --source is files, and never a number."""
    meanings = {}
    for verb, command in commands(typer.main.get_command(clearhead.cli.app)):
        for parameter in command.get_params(typer.Context(command)):
            if parameter.param_type_name == "option" and "--output" not in parameter.opts:
                taken = (parameter.metavar, bool(parameter.secondary_opts))
                meanings.setdefault(parameter.opts[0], {}).setdefault(taken, []).append(verb)
    assert {word: found for word, found in meanings.items() if len(found) > 1} == {}


def test_what_is_written_is_named_by_o_everywhere():
    for verb, command in commands(typer.main.get_command(clearhead.cli.app)):
        for parameter in command.get_params(typer.Context(command)):
            if "--output" in parameter.opts:
                assert "-o" in parameter.opts, verb


def test_quiet_prints_results_alone(command, tmp_path):
    (tmp_path / "a.txt").write_text("one two three\n" * 60)
    words = ["--task", "generate", "--text", tmp_path / "a.txt", "--tokenizer", "char", "--size", "20k", "--steps", 2]
    code, out, err = command("train", tmp_path / "run", *words, "--threads", 1, "-q", "--json")
    assert (code, err) == (0, "")
    assert '"task": "generate"' in out
