"""`clearhead help`, and the groups of the commands."""

import pytest

from clearhead.cli import GROUPS, VERBS


def test_every_verb_is_in_one_group_and_is_described_by_a_verb():
    assert sum(len(group) for group in GROUPS.values()) == len(VERBS)
    for about in VERBS.values():
        first = about.split()[0]
        assert first.istitle()
        assert not first.endswith(("s", "ing", "ed"))
        assert len(about) <= 64


@pytest.mark.parametrize("words", [["train"], ["craft"], ["craft", "run"], ["steps"]])
def test_help_is_the_help_of_the_command(command, words):
    assert command("help", *words) == command(*words, "--help")


def test_help_alone_lists_the_commands_in_groups(command):
    code, out, err = command("help")
    assert (code, err) == (0, "")
    assert out == command("--help")[1]
    headings = [line for line in out.splitlines() if line.endswith(":") and line[:1].isalpha()]
    assert headings == ["Options:", *(f"{title}:" for title in GROUPS)]


@pytest.mark.parametrize("words", [["trian"], ["help", "trian"], ["help", "craft", "shwo"]])
def test_a_name_that_is_nearly_right_is_suggested(command, words):
    code, out, err = command(*words)
    assert (code, out) == (2, "")
    assert f"No such command {words[-1]!r}. Did you mean {'train' if words[-1] == 'trian' else 'show'!r}" in err
