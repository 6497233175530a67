"""One text gives one answer, several give a list; what is no text is told by its name and place."""

import inspect

import pytest

from clearhead.errors import ClearheadError
from clearhead.training.verbs import check_list, check_max_new, check_text, check_text_or_pair, one_or_several


class Shouter:
    """A run with one verb, which answers a list."""

    @one_or_several(check_text)
    def shout(self, texts: list[str], *, mark: str = "!") -> list[str]:
        return [text.upper() + mark for text in texts]


RUN = Shouter()


def test_a_str_is_one_text_and_several_give_a_list():
    assert RUN.shout("vier") == "VIER!"
    assert RUN.shout(["vier", "zwei"]) == ["VIER!", "ZWEI!"]
    assert RUN.shout([]) == []
    assert RUN.shout((text for text in ("a", "b")), mark="?") == ["A?", "B?"]
    assert RUN.shout(texts="vier") == "VIER!"


def test_the_signature_says_that_both_are_taken():
    signature = inspect.signature(Shouter.shout)
    assert signature.parameters["texts"].annotation == str | list[str]
    assert signature.return_annotation == str | list[str]


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (4, "texts: expected a str, or several of them in a list; came int"),
        (b"vier", "texts: expected a str, or several of them in a list; came bytes"),
        (["vier", 4], r"texts\[1\]: expected a text, a str; came 4"),
    ],
)
def test_what_is_no_text_is_told(texts, said):
    with pytest.raises(ClearheadError, match=said):
        RUN.shout(texts)


def test_a_pair_is_two_texts():
    assert check_list("texts", [("a", "b"), "c"], check_text_or_pair) == [("a", "b"), "c"]
    with pytest.raises(ClearheadError, match="expected a text, a str, or a pair of two; came"):
        check_text_or_pair("texts[0]", ("a", "b", "c"))


@pytest.mark.parametrize("number", [0, -1, True, 1.5, "3"])
def test_at_least_one_new_token_is_asked_for(number):
    assert check_max_new(3) == 3
    with pytest.raises(ClearheadError, match="max_new: at least one token must be asked for, a whole number; came"):
        check_max_new(number)
