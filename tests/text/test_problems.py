"""Problems: told together with their places, in a bounded list, or skipped and counted."""

import pytest

from clearhead.errors import DataError
from clearhead.text.problems import NOT_UTF8, Place, Problems


def test_a_place_is_a_file_and_a_line():
    assert str(Place("train.de.gz", 17)) == "train.de.gz:17"
    assert str(Place("-", 3)) == "stdin:3"


def test_a_name_that_cannot_be_printed_is_escaped():
    assert str(Place("a\nb\x1b[31m\udcff", 1)) == "a\\nb\\x1b[31m\\udcff:1"


def test_without_problems_nothing_is_raised():
    problems = Problems()
    problems.settle()
    assert problems.counts == {}


def test_one_problem_is_told_with_its_place():
    problems = Problems()
    problems.add(Place("train.de", 17), "the line is blank", "empty line")
    with pytest.raises(DataError) as caught:
        problems.settle()
    assert str(caught.value) == (
        "1 line cannot be used (empty line: 1)\n"
        "  train.de:17: the line is blank\n"
        "mend them, or pass --skip-bad to leave them out"
    )


def test_of_many_the_first_are_told_and_all_are_counted():
    problems = Problems(shown=2)
    for number in range(1, 6):
        problems.add(Place("a", number), f"number {number}", "odd" if number % 2 else "even")
    with pytest.raises(DataError) as caught:
        problems.settle()
    assert str(caught.value).splitlines() == [
        "5 lines cannot be used (odd: 3, even: 2)",
        "  a:1: number 1",
        "  a:2: number 2",
        "  and 3 more",
        "mend them, or pass --skip-bad to leave them out",
    ]
    assert problems.counts == {"odd": 3, "even": 2}


def test_ten_are_told_unless_asked_otherwise():
    problems = Problems()
    for number in range(1, 13):
        problems.add(Place("a", number), "bad", "bad")
    with pytest.raises(DataError, match=r"a:10: bad\n  and 2 more"):
        problems.settle()


def test_what_is_skipped_is_counted_and_nothing_is_raised():
    problems = Problems(skip=True)
    for number in range(20):
        problems.add(Place("a", number), "bad", "bad")
    problems.settle()
    assert problems.counts == {"bad": 20}


def test_counts_are_a_copy():
    problems = Problems()
    problems.counts["made up"] = 3
    assert problems.counts == {}


def test_lines_that_are_not_utf8_may_be_in_another_encoding():
    """To leave out every line with an umlaut would be a way, and rarely the right one."""
    problems = Problems()
    problems.add(Place("a", 1), "bad", NOT_UTF8)
    with pytest.raises(DataError, match=r"a:1: bad\nmend them \(.*iconv -f LATIN1 -t UTF-8.*\), or pass --skip-bad"):
        problems.settle()
