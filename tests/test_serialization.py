"""Specs as JSON: what was written comes back equal, and what could not be read again is never written."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from clearhead.errors import OptionError, RunError, TraceError
from clearhead.serialization import check_type, from_json, load_tensors, save_tensors, table_of, to_json
from clearhead.training.schedules import Ema


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
@pytest.mark.slow
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


def test_what_is_not_written_is_named_by_its_class_and_field():
    with pytest.raises(OptionError, match=r"^Leaf\.value: <object .* cannot be written to a file"):
        to_json({"x": (Leaf(object()),)})


@pytest.mark.parametrize("name", [3, "is", None])
def test_names_are_strings_and_none_is_taken_for_a_class(name):
    with pytest.raises(OptionError, match="cannot be written to a file as a name"):
        to_json({name: 1})


def test_a_class_that_is_not_in_the_table_is_not_written():
    with pytest.raises(
        OptionError,
        match=r"Branch\(.*\) cannot be written to a file: Branch is not registered; put @clearhead",
    ):
        to_json(Leaf(Branch(left=1)), table_of((Leaf,)))


def test_nor_is_another_one_of_the_same_name():
    other = dataclass(frozen=True)(type("Leaf", (), {"__annotations__": {}}))
    with pytest.raises(OptionError, match="Leaf is not registered"):
        to_json(other(), TABLE)


@pytest.mark.parametrize("name", ["Twig", "", 3, None, ["Leaf"], {"a": 1}])
def test_an_unknown_class_is_told(name):
    with pytest.raises(RunError, match=r"there is no .* in this version of Clearhead: was it written by a newer one\?"):
        from_json({"is": name}, TABLE)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"colour": 1}, "there is no field 'colour' in this version of Clearhead; Branch has left, right"),
        ({"left": 1, "right": 2, "made": 2}, "there is no field 'made'"),
        ({"right": 1}, "the field 'left' is missing; Branch has left, right"),
        ({"left": 1}, "the field 'right' is missing"),
    ],
)
def test_other_fields_are_told(fields, message):
    with pytest.raises(RunError, match=f"^file: inner: {message}"):
        from_json({"inner": {"is": "Branch", **fields}}, TABLE, where="file")


class Colour:
    """Stands for an abstract base."""


class Red(Colour):
    pass


RED = Red()


@pytest.mark.parametrize(
    ("value", "hint", "expected"),
    [
        (1, int, None),
        (True, int, "a whole number"),
        (1.0, int, "a whole number"),
        (2**64, int, "a whole number"),
        (1, float, None),
        (10**400, float, "a number"),
        (False, float, "a number"),
        (1, bool, "true or false"),
        (None, None, None),
        (None, str, "text"),
        (None, str | None, None),
        (3, str | None, "text or null"),
        ("a", Literal["a", "b"], None),
        (1, Literal[True], "True"),
        ("c", Literal["a", "b"], "'a' or 'b'"),
        ((1, "a"), tuple[int, str], None),
        ((1,), tuple[int, str], "a list of 2"),
        ((), tuple[int, ...], None),
        ([1], list[int], None),
        ({"a": 1}, Mapping[str, int], None),
        ([1], Mapping[str, int], "an object"),
        (RED, Colour, None),
        (RED, Colour | int, None),
        ({"is": "Red"}, Colour, "a Colour"),
        ({"any": [None]}, object, None),
    ],
)
def test_a_value_fits_its_annotation_or_is_told(value, hint, expected):
    if expected is None:
        assert check_type(value, hint, "file: field") == value
    else:
        with pytest.raises(RunError, match=f"^file: field: expected {expected}; came "):
            check_type(value, hint, "file: field")


@pytest.mark.parametrize(
    ("value", "hint", "path"),
    [
        ((1, "a"), tuple[int, ...], r"\[1\]"),
        ((1, 2), tuple[int, str], r"\[1\]"),
        ([[1], ["a"]], list[list[int]] | None, r"\[1\]\[0\]"),
        ({"a": {"b": None}}, dict[str, dict[str, int]], r"\.a\.b"),
        ({3: 1}, dict[str, int], ": a name in it"),
    ],
)
def test_what_is_inside_is_checked_and_its_path_is_told(value, hint, path):
    with pytest.raises(TraceError, match=f"^file: field{path}: expected"):
        check_type(value, hint, "file: field", error=TraceError)


def test_a_whole_number_becomes_what_its_annotation_says():
    assert [type(one) for one in check_type((1, 1, 1), tuple[float, int, float | None], "")] == [float, int, float]


def test_the_error_of_a_class_is_told_with_the_file():
    with pytest.raises(RunError, match=r"^file: inner: Ema: decay must lie from 0 to 1"):
        from_json({"inner": {"is": "Ema", "decay": 3}}, table_of((Ema,)), where="file")


def test_tensors_replace_a_link_and_are_read_from_files_only(tmp_path):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    save_tensors(tmp_path / "link", {"a": torch.ones(2)}, {"b": 1}, header="about")
    assert (tmp_path / "mine").read_text() == "mine"
    told, tensors = load_tensors(tmp_path / "link", header="about")
    assert told == {"b": 1}
    assert tensors["a"].tolist() == [1, 1]
    for place in ("/dev/zero", tmp_path, tmp_path / "none"):
        with pytest.raises(OSError, match=r"no regular file|no such file"):
            load_tensors(place, header="about")


def test_the_json_beside_tensors_is_bounded(tmp_path):
    save_file({"a": torch.ones(2)}, tmp_path / "a", metadata={"about": "[" * 100_000})
    with pytest.raises(OSError, match="nested more than 64 deep"):
        load_tensors(tmp_path / "a", header="about")


def test_no_two_classes_share_a_name():
    assert table_of((Leaf, Leaf)) == {"Leaf": Leaf}
    with pytest.raises(OptionError, match="two classes are called Leaf"):
        table_of((Leaf, type("Leaf", (), {})))
