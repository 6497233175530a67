"""Declared options: read from text and from Python by one declaration, and none declared twice."""

import runpy
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from clearhead.errors import OptionError, WordError
from clearhead.options import check_declared, declared_fields, group_of, option, override, read_words, words_of
from clearhead.training.recipe_options import GROUPS, WORDS


@dataclass(frozen=True, kw_only=True)
class Pace:
    steps: int = option(5, "Steps.", takes="N", least=1)
    rate: float | None = option(None, "Rate.", takes="X", least=0, below=1, off=True)
    kind: Literal["fast", "slow"] = option("fast", "Kind.", takes="NAME", word="gait")
    names: str | None = option(None, "Names.", takes="A,B", several=True)
    files: list[str] | None = option(None, "Files.", takes="FILE")
    loud: bool = option(False, "Loud.")
    hidden: int = 3


TABLE = words_of(Pace)


@pytest.mark.parametrize(
    ("word", "value", "read"),
    [
        ("steps", "7", 7),
        ("steps", 7, 7),
        ("steps", 7.0, 7),
        ("rate", "0.5", 0.5),
        ("rate", 0, 0.0),
        ("gait", "slow", "slow"),
        ("names", ["a", "b"], "a,b"),
        ("names", 3, "3"),
        ("files", "a", ["a"]),
        ("files", [Path("a"), "b"], ["a", "b"]),
        ("loud", True, True),
    ],
)
def test_text_and_python_are_read_alike(word, value, read):
    assert read_words({word: value}, TABLE) == {word: read}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"steps": "many"}, "steps: takes a whole number, 1 or more; came many"),
        ({"steps": 0}, "steps: takes a whole number, 1 or more; came 0"),
        ({"steps": 2.5}, "steps: takes a whole number, 1 or more; came 2.5"),
        ({"steps": True}, "steps: takes a whole number, 1 or more; came True"),
        ({"steps": float("inf")}, "steps: takes a whole number, 1 or more; came inf"),
        ({"rate": float("nan")}, "rate: takes a number, 0 or more and less than 1; came nan"),
        ({"rate": 1}, "rate: takes a number, 0 or more and less than 1; came 1"),
        ({"gait": "slw"}, "gait: there is no 'slw'. Did you mean 'slow'? There are fast, slow"),
        ({"loud": 1}, "loud: takes True or False; came 1"),
        ({"names": b"a"}, "names: takes text; came b'a'"),
        ({"stepz": 1}, "stepz: there is no such option. Did you mean 'steps'?"),
    ],
)
def test_what_cannot_be_is_told_with_its_word(words, said):
    with pytest.raises(WordError) as caught:
        read_words(words, TABLE)
    assert str(caught.value).startswith(said)


def test_what_was_given_takes_the_place_of_the_default():
    given = read_words({"steps": "9", "rate": "0", "gait": None}, TABLE)
    assert given == {"steps": 9, "rate": 0.0}
    assert override(Pace(rate=0.5, hidden=8), given) == Pace(steps=9, rate=None, hidden=8)
    assert group_of(Pace, {"steps": 9, "other": 1}) == Pace(steps=9)


def test_a_field_is_checked_by_its_declaration_too():
    check_declared(Pace())
    with pytest.raises(OptionError, match="Pace: steps must be 1 or more; came 0"):
        check_declared(Pace(steps=0))
    with pytest.raises(OptionError, match=r"Pace: rate must be above 0 and less than 1; came 0\.0"):
        check_declared(Pace(rate=0.0))  # off is None


def test_a_field_that_is_no_option_is_none():
    assert "hidden" not in {name for name, _ in declared_fields(Pace)}


def test_no_option_of_a_recipe_is_declared_twice():
    counts = Counter(word for group in GROUPS.values() for word in group)
    assert [word for word, count in counts.items() if count > 1] == []
    helps = Counter(declared.help for declared in WORDS.values())
    assert [text for text, count in helps.items() if count > 1] == []


def test_the_table_in_the_docs_is_the_declarations():
    page = runpy.run_path(str(Path(__file__).parents[1] / "docs/options.py"))
    assert page["PAGE"].read_text(encoding="utf-8") == page["make_page"](), "run python docs/options.py"
