"""Descriptions of a corpus that cannot be: with the annotations unchecked, as they are for a user, each is told."""

import pytest

from clearhead.errors import OptionError
from clearhead.text.sources import Aligned, Documents, Table
from clearhead.text.tokenizer import KINDS, Tokenizer

PAIR = {"columns": ("a", "b"), "fields": ("source", "target")}


@pytest.mark.parametrize("form", ["xml", "", None, 3])
def test_a_table_of_another_form(form):
    with pytest.raises(OptionError, match=f"form must be one of auto, tsv, csv, .*, conll; came {form!r}"):
        Table(paths=("t.xml",), **PAIR, form=form)


@pytest.mark.parametrize("unit", ["page", "", None, ["line"]])
def test_documents_of_another_unit(unit):
    with pytest.raises(OptionError, match="unit must be one of line, file; came "):
        Documents(paths=("book.txt",), unit=unit)


@pytest.mark.parametrize("paths", ["x", (), None, (3,), ("a", b"b"), {"a"}], ids=repr)
def test_paths_that_are_no_names_of_files(paths):
    told = "expected one or more names of files"
    with pytest.raises(OptionError, match=f"paths: {told}"):
        Documents(paths=paths)
    with pytest.raises(OptionError, match=f"paths: {told}"):
        Table(paths=paths, **PAIR)
    with pytest.raises(OptionError, match=f"target: {told}"):
        Aligned(source=("a",), target=paths)


@pytest.mark.parametrize("columns", [(), ("a",), ("a", "b", "c")])
def test_columns_that_do_not_fit_the_fields(columns):
    with pytest.raises(OptionError, match="a table needs a column for each field"):
        Table(paths=("t.tsv",), columns=columns, fields=("source", "target"))


@pytest.mark.parametrize("size", [-1, 0, 1, 4, 100, 255, 261])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("word", "char")])
def test_a_vocabulary_without_room_for_the_bytes(kind, size):
    """Those of a text of three letters: the special tokens, 256 bytes, and what the kind needs beside them."""
    if size == 261 and KINDS[kind].least is KINDS["byte"].least:
        assert Tokenizer.train(["abc"], kind, size).vocabulary == 261
        return
    with pytest.raises(OptionError, match=f"need a vocabulary of at least 26[0-9] tokens; came {size}"):
        Tokenizer.train(["abc"], kind, size)


@pytest.mark.parametrize("kind", ["word", "char"])
def test_a_vocabulary_without_room_for_a_token(kind):
    with pytest.raises(OptionError, match=r"need a vocabulary of at least [68] tokens; came 5"):
        Tokenizer.train(["abc"], kind, 5)
