"""Specs as JSON: what was written comes back equal, and what could not be read again is never written."""

import json
import math
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearhead.errors import OptionError, RunError
from clearhead.written import from_json, table_of, to_json


@dataclass(frozen=True)
class Leaf:
    value: object = None


@dataclass(frozen=True, kw_only=True)
class Branch:
    left: object
    right: object = ()
    made: int = field(init=False, default=7)


TABLE = table_of((Leaf, Branch))
PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text().filter(lambda name: name != "is"), inner, max_size=3)
        | inner.map(Leaf)
        | st.tuples(inner, inner).map(lambda pair: Branch(left=pair[0], right=pair[1]))
    ),
    max_leaves=10,
)


@given(value=VALUES)
def test_what_is_written_comes_back_equal(value):
    text = json.dumps(to_json(value, TABLE), allow_nan=False)
    found = from_json(json.loads(text), TABLE)
    assert found == value
    assert json.dumps(to_json(found)) == text


def test_an_object_names_its_class():
    assert to_json(Branch(left=Leaf(3))) == {"is": "Branch", "left": {"is": "Leaf", "value": 3}, "right": []}


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
def test_numbers_must_be_finite(number):
    """JSON has no others: what Python writes for them, no other reader takes."""
    with pytest.raises(OptionError, match=f"{number} cannot be written to a file: numbers must be finite"):
        to_json(Leaf((1.0, number)))


@pytest.mark.parametrize("value", [len, {1, 2}, Leaf, b"bytes", 1j, object], ids=repr)
def test_what_is_no_spec_is_not_written(value):
    with pytest.raises(OptionError, match="cannot be written to a file: a run is made of specs, strings and numbers"):
        to_json(Leaf(value))


@pytest.mark.parametrize("name", [3, "is", None])
def test_names_are_strings_and_none_is_taken_for_a_class(name):
    with pytest.raises(OptionError, match="cannot be written to a file as a name"):
        to_json({name: 1})


def test_a_class_that_is_not_in_the_table_is_not_written():
    with pytest.raises(
        OptionError,
        match=r"Branch\(.*\) cannot be written to a file: Branch is no part of Clearhead that could be read again",
    ):
        to_json(Leaf(Branch(left=1)), table_of((Leaf,)))


def test_nor_is_another_one_of_the_same_name():
    other = dataclass(frozen=True)(type("Leaf", (), {"__annotations__": {}}))
    with pytest.raises(OptionError, match="Leaf is no part of Clearhead that could be read again"):
        to_json(other(), TABLE)


@pytest.mark.parametrize("name", ["Twig", "", 3, None, ["Leaf"], {"a": 1}])
def test_an_unknown_class_is_told(name):
    with pytest.raises(RunError, match=r"there is no .* in this version of Clearhead: was it written by a newer one\?"):
        from_json({"is": name}, TABLE)


@pytest.mark.parametrize(
    "fields", [{"colour": 1}, {"left": 1, "made": 2}, {"right": 1}], ids=["unknown", "not given", "missing"]
)
def test_other_fields_are_told(fields):
    with pytest.raises(RunError, match="Branch was written with other fields than this version has"):
        from_json({"is": "Branch", **fields}, TABLE)


def test_no_two_classes_share_a_name():
    assert table_of((Leaf, Leaf)) == {"Leaf": Leaf}
    with pytest.raises(OptionError, match="two classes are called Leaf"):
        table_of((Leaf, type("Leaf", (), {})))
