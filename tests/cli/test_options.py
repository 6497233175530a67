"""Options in groups: taken apart for typer, put together for the verb, and told when they cannot be."""

import inspect
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import pytest
import typer

from clearhead.cli import run
from clearhead.cli.options import Sectioned, above_zero, flatten_groups, given_flags, one_of, share, zero_or_more


@dataclass(frozen=True, kw_only=True)
class Colours:
    title: ClassVar[str] = "Colours"

    ink: Annotated[str | None, typer.Option(metavar="NAME", help="What is written with.")] = None
    dark_mode: Annotated[bool, typer.Option("--dark-mode", help="Light on dark.")] = False


@dataclass(frozen=True, kw_only=True)
class Look:
    size: Annotated[int, typer.Option(metavar="N", help="How large.")] = 10
    colours: Colours = field(default_factory=Colours)


@pytest.fixture
def asked():
    """What the verb is called with; and the verb as a command."""
    calls = []

    def paint(picture: Annotated[str, typer.Argument()], look: Look) -> None:
        """Paint."""
        calls.append((picture, look))

    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(cls=Sectioned)(flatten_groups(paint))
    command = typer.main.get_command(app)

    def run(*args):
        command.main(args=list(args), standalone_mode=False)
        return calls[-1]

    return run


def test_a_group_is_taken_apart_and_put_together_with_those_in_it(asked):
    assert asked("sea.png") == ("sea.png", Look())
    look = Look(size=3, colours=Colours(ink="blue", dark_mode=True))
    assert asked("sea.png", "--dark-mode", "--ink", "blue", "--size", "3") == ("sea.png", look)


def test_the_signature_has_every_option():
    def paint(picture: str, look: Look) -> None: ...

    assert list(inspect.signature(flatten_groups(paint)).parameters) == ["picture", "size", "ink", "dark_mode"]


def test_the_help_lists_options_under_the_title_of_their_group(asked, capsys):
    with pytest.raises(IndexError):
        asked("--help")
    page = capsys.readouterr().out
    assert page.index("Options:") < page.index("--size N") < page.index("Colours:") < page.index("--ink NAME")


def test_what_was_given_is_what_differs_from_its_default():
    assert given_flags(Look()) == []
    assert given_flags(Look(size=3, colours=Colours(dark_mode=True))) == ["--size", "--dark-mode"]


def test_an_unknown_name_is_told_with_those_there_are():
    assert one_of("--ink", "red", {"red": 1, "blue": 2}) == 1
    with pytest.raises(typer.BadParameter, match=r"there is no 'gold'\. There are: red, blue") as caught:
        one_of("--ink", "gold", {"red": 1, "blue": 2})
    assert caught.value.param_hint == "--ink"


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_above_zero_refuses_the_rest(value):
    assert above_zero(0.5) == 0.5
    assert above_zero(None) is None
    with pytest.raises(typer.BadParameter, match=r"it must be (above 0|finite); came"):
        above_zero(value)


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_zero_or_more_is_finite(value):
    assert (zero_or_more(0.0), zero_or_more(None)) == (0.0, None)
    with pytest.raises(typer.BadParameter, match=r"it must be (0 or more|finite); came"):
        zero_or_more(value)


@pytest.mark.parametrize("value", [-0.1, 1.0, float("nan")])
def test_a_share_is_less_than_one(value):
    assert share(0.0) == 0.0
    assert share(None) is None
    with pytest.raises(typer.BadParameter, match="it must be 0 or more, and less than 1; came"):
        share(value)


def test_an_empty_path_is_not_this_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s").write_text("a b\n" * 20)
    for args in (["train", "", "--task", "generate", "--text", "s"], ["compare", " "], ["import", "s", ""]):
        assert run(args) == 2
        assert "it is empty: name a folder, or give . for this one" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["s"]
