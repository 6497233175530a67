"""The form of a table is found in its name and its first lines; in doubt it is refused, with the choices."""

import re

import pytest

from clearhead.errors import DataError
from clearhead.text.forms import possible_forms
from clearhead.text.sources import Table
from tests.text.test_sources import PAIR, file, read

__all__ = ["file"]


@pytest.mark.parametrize(
    "content", ["a\tb\nA\tB", "a,b\nA,B", "a;b\nA;B", "a|b\nA|B", '{"a": "A", "b": "B"}', '[{"a": "A",\n"b": "B"}]']
)
@pytest.mark.parametrize("name", ["table.txt", "table", "table.csv", "table.tsv"])
def test_the_form_is_found_in_the_first_lines_whatever_the_name(file, name, content):
    if name in ("table.csv", "table.tsv") and content.startswith(("{", "[")):
        name += ".json"
    assert read(Table(paths=(file(name, content),), **PAIR)) == [("A", "B")]


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (
            "x,y;z\nx,y;z\nx,y;z\n",
            "there may be ',' or ';' between its columns; say which: --form csv or --form semicolon",
        ),
        ("x y\nz\n", "neither its name nor its first lines tell the form of the table; give it: --form tsv, csv"),
    ],
)
def test_a_table_in_doubt_is_refused_with_the_choices(file, content, found):
    path = file("table.txt", content)
    with pytest.raises(DataError, match=rf"table\.txt: {re.escape(found)}"):
        read(Table(paths=(path,), columns=("1", "2"), fields=("source", "target")))
    semicolons = Table(paths=(file("t.csv", "x,y;z\nx;z\n"),), columns=("1", "2"), fields=("source", "target"))
    assert read(semicolons) == [("x,y", "z"), ("x", "z")]


def test_a_folder_of_words_and_numbers_is_no_conll(file):
    """Blank lines between single lines, and texts with blanks in them, are of tables."""
    for name, content in (("a.tsv", "x\ty\n\nz\tw\n\n"), ("b.tsv", "a b\tc\nd e\tf\n\na b\tc\nd e\tf\n")):
        assert possible_forms(file(name, content), ("1", "2")) == ["tsv"]
    assert possible_forms(file("c.tsv", "a\tc\nd\tf\n\na\tc\nd\tf\n"), ("1", "2")) == ["conll"]
