"""Options: a wrong value is refused with its name, and so is an option that would not be followed."""

import pytest

from clearhead.serve.api.errors import ApiError
from clearhead.serve.api.options import Options
from clearhead.serve.params import Params


def options(**values):
    return Options(Params(values))


@pytest.mark.parametrize("value", [True, "2", 1.0, 0, 9, [1]])
def test_a_wrong_number_is_refused_by_name(value):
    with pytest.raises(ApiError, match="n: ") as found:
        options(n=value).integer("n", 1, least=1, most=8)
    assert (found.value.status, found.value.param) == (400, "n")


@pytest.mark.parametrize("value", [float("nan"), "0.5", True, 3, -0.1])
def test_a_wrong_fraction_is_refused(value):
    with pytest.raises(ApiError, match="top_p"):
        options(top_p=value).number("top_p", 1.0, least=0, most=1)


def test_null_counts_as_not_given():
    assert options(n=None).integer("n", 3, least=1, most=8) == 3
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
