"""Figures of the source: what counts as code, what as a move, and where classes are asked for."""

import subprocess

import pytest

from benchmarks.source import Room, by_room, doubled_classes, find_moves, read_modules

BEFORE = '''"""A module."""

import os
from clearhead.model.transformers import (
    Decoder,
    Encoder,
)

SIZE = 3
"""How large it is."""


class Reader:
    # Why it is so.
    def read_everything_there_is(self, model):
        """Read."""
        return isinstance(model, Decoder | Encoder)  # a comment behind code
'''


@pytest.fixture
def checkout(tmp_path):
    room = tmp_path / "clearhead" / "text"
    room.mkdir(parents=True)
    (room / "lines.py").write_text(BEFORE)
    (tmp_path / "clearhead" / "top.py").write_text("class Reader:\n    pass\n")
    for command in (["init", "-q"], ["add", "-A"], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a"]):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True)
    return tmp_path


def test_code_is_what_is_no_docstring_no_comment_and_not_blank(checkout):
    modules = read_modules(checkout)
    rooms = by_room(modules)
    assert list(rooms) == ["(top)", "text", "all"]
    text = rooms["text"]
    assert (text.files, text.lines, text.code, text.imports, text.comments) == (1, 17, 9, 5, 1)
    assert text.seams == {"models": 1}
    assert Room.of(list(modules.values())) == rooms["all"]
    assert doubled_classes(modules) == {"Reader": ["clearhead.text.lines", "clearhead.top"]}


def test_lines_that_another_file_lost_have_moved(checkout):
    before = read_modules(checkout, "HEAD")
    assert {name: module.text for name, module in before.items()} == {
        name: module.text for name, module in read_modules(checkout).items()
    }
    lines, top = checkout / "clearhead" / "text" / "lines.py", checkout / "clearhead" / "top.py"
    kept, method = BEFORE.split("    # Why")
    lines.write_text(kept + "    pass\n")
    top.write_text(top.read_text() + "\n    # Why" + method.replace("        return", "        yield"))
    assert find_moves(read_modules(checkout), before) == {("clearhead.text.lines", "clearhead.top"): 1}
