"""Parameters: a wrong value is refused with its name, and so is an option that would not be followed."""

import json

import pytest

from clearhead.serve.errors import ApiError
from clearhead.serve.params import Params, read_json


def options(**values):
    return Params(values, typed=True)


@pytest.mark.parametrize("value", [True, "2", 1.0, 0, 9, [1], 10**400])
def test_a_wrong_number_is_refused_by_name(value):
    with pytest.raises(ApiError, match="n") as found:
        options(n=value).integer("n", least=1, below=9, default=1)
    assert (found.value.status, found.value.param) == (400, "n")


def test_the_text_of_an_address_may_be_a_number():
    assert Params({"n": "2"}, "the address").integer("n", below=9) == 2


@pytest.mark.parametrize("value", [float("nan"), "0.5", True, 3, -0.1, 10**400, -(10**400)])
def test_a_wrong_fraction_is_refused(value):
    with pytest.raises(ApiError, match="top_p"):
        options(top_p=value).number("top_p", default=1.0, least=0, most=1)
    if value not in (3, -0.1):
        with pytest.raises(ApiError, match="expected a finite number"):
            options(to=value).number("to")


def test_null_counts_as_not_given():
    assert options(n=None).integer("n", least=1, below=9, default=3) == 3
    options(tools=None).only("n")


def test_unknown_options_and_values_that_cannot_be_followed_are_refused():
    with pytest.raises(ApiError, match="'temprature' is not an option here; there are temperature"):
        options(temprature=1).only("temperature")
    options(tools=[]).refuse({"tools": []}, "are not there")
    with pytest.raises(ApiError, match="tools: are not there; leave it out"):
        options(tools=[{}]).refuse({"tools": []}, "are not there")


@pytest.mark.parametrize(
    ("value", "status"),
    [("x" * 11, 413), (["a"] * 4, 413), ([], 400), (3, 400), ([3], 400), ("\ud800", 400), (None, 400)],
)
def test_texts_are_texts_and_not_too_many_or_long(value, status):
    with pytest.raises(ApiError) as found:
        options(input=value).texts("input", most=3, longest=10)
    assert (found.value.status, found.value.param) == (status, "input")


def test_the_deepest_list_that_json_has_is_refused_in_a_sentence():
    """It was read well, and then too deep for the message."""
    depth = 1
    while True:
        try:
            asked = read_json(json.dumps({"n": 0}).replace("0", "[" * depth + "]" * depth).encode())
        except ApiError:
            break
        with pytest.raises(ApiError, match="expected a whole number"):
            asked.integer("n")
        depth += 1 + depth // 50
