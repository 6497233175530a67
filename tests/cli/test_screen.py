"""What reaches a terminal, and how errors are told."""

import io

import pytest
import torch
from rich.table import Table
from rich.text import Text

from clearhead.cli import explain_error
from clearhead.cli.screen import SafeConsole, escape_controls, show, write_output
from clearhead.errors import OptionError

EVIL = "a\x1b]0;title\x07\x1b[2Jb\x9b31mc\x7f"


def test_controls_are_written_as_what_they_are():
    assert escape_controls(EVIL) == r"a\x1b]0;title\x07\x1b[2Jb\x9b31mc\x7f"
    assert escape_controls("tab\tline\nä→") == "tab\tline\nä→"


def test_a_page_shows_escapes_and_sends_none(capsys):
    show(Text(EVIL))
    out = capsys.readouterr().out
    assert r"\x1b[2J" in out
    assert not any(sign in out for sign in "\x1b\x07\x9b\x7f")


def test_brackets_in_a_text_are_no_tags(capsys):
    table = Table("name")
    table.add_row("[/red]Ann [bold]")
    show(table, "[/x]")
    assert "[/red]Ann [bold]" in (out := capsys.readouterr().out)
    assert "[/x]" in out


def test_on_a_terminal_only_our_own_styles_are_sent():
    file = io.StringIO()
    console = SafeConsole(file=file, force_terminal=True, color_system="standard", width=80)
    console.print(Text(EVIL, style="bold"))
    assert file.getvalue().count("\x1b") == 2
    assert r"\x1b[2J" in file.getvalue()


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB."),
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you …"),
        RuntimeError("std::bad_alloc"),
    ],
)
def test_memory_that_is_not_there_is_told_as_that(error):
    said = explain_error(error)
    assert "there is not enough memory" in said
    assert "--micro-batch-tokens" in said
    assert "should not happen" not in said


def test_a_real_allocation_that_fails_is_recognised():
    with pytest.raises(RuntimeError) as found:
        torch.empty(1 << 60, dtype=torch.int8)
    assert "there is not enough memory" in explain_error(found.value)


def test_other_errors_are_still_ours():
    assert "this should not happen: ValueError: x" in explain_error(ValueError("x"))


@pytest.mark.parametrize("write", [show, write_output])
def test_a_closed_stdout_is_told(write, monkeypatch):
    monkeypatch.setattr("sys.stdout", None)
    with pytest.raises(OptionError, match="stdout is closed"):
        write("found")
