"""Fields of a config.json are checked one by one, and an error names the file and the field."""

import pytest

from clearhead.errors import OptionError
from clearhead.interop.architectures import find_architecture
from clearhead.interop.tables import Config


def config(**values):
    return Config(values, "x/config.json")


def test_fields_and_their_defaults():
    one = config(a=3, b=0.5, c=False, d="silu", e=[1, 2], f=7, id2label={"0": "x", "1": "y", "2": "z"})
    assert (one.count("a"), one.count("none", 8), one.layers("a")) == (3, 8, 3)
    assert (one.number("b"), one.number("a"), one.number("none", 2.0)) == (0.5, 3.0, 2.0)
    assert (one.flag("c", True), one.flag("none", True)) == (False, True)
    assert (one.choose("d", {"silu": 1}), one.choose("none", {"relu": 2}, "relu")) == (1, 2)
    assert (one.tokens("e"), one.tokens("f"), one.tokens("none")) == ((1, 2), (7,), ())
    assert (one.count_labels(), config().count_labels(), config(num_labels=4).count_labels()) == (3, 2, 4)
    one.require("a", 2, 3)
    one.require("none")


def test_the_task_follows_from_the_class():
    classes = {"A": "fill", "B": "embed"}
    assert config(architectures=["B"]).task(classes) == "embed"
    assert config().task(classes) == "fill"
    for wrong in (["C"], ["A", "B"], "A", [], [{}]):
        with pytest.raises(OptionError, match=r"architectures: .* cannot be read; there are A, B"):
            config(architectures=wrong).task(classes)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda one: one.count("text"), r"x/config\.json: text: expected a whole number from 1 to .*; came 'three'"),
        (lambda one: one.count("flag"), "flag: expected a whole number"),
        (lambda one: one.count("large"), "large: expected a whole number"),
        (lambda one: one.layers("many"), "many: expected at most 10,000; came 20,000"),
        (lambda one: one.number("nan"), "nan: expected a number above 0; came nan"),
        (lambda one: one.flag("text", True), "text: expected true or false; came 'three'"),
        (lambda one: one.tokens("text"), "text: expected a token id or a list of ids; came 'three'"),
        (lambda one: one.tokens("below"), "below: expected a token id"),
        (lambda one: one.choose("text", {"a": 1}), "text: 'three' is not supported; there are a"),
        (lambda one: one.require("text", "two"), "text: 'three' is not supported yet; expected 'two'"),
        (lambda one: one.require("long"), r"long: '000.*\.\.\. is not supported yet; expected none"),
    ],
)
def test_what_does_not_fit_is_named(ask, message):
    one = config(text="three", flag=True, large=2**40, many=20_000, nan=float("nan"), below=[-1], long="0" * 500)
    with pytest.raises(OptionError, match=message) as raised:
        ask(one)
    assert len(str(raised.value)) < 200


@pytest.mark.parametrize("came", [[0] * 20_000, "x" * 5_000, {"a": "x" * 5_000}])
def test_an_architecture_that_cannot_be_read_is_not_quoted_whole(came):
    with pytest.raises(OptionError, match=r"x/config\.json: model_type .* cannot be read; there are gpt2") as raised:
        find_architecture(config(model_type=came))
    assert len(str(raised.value)) < 400
