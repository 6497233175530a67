"""Stop strings are cut exactly, wherever tokens begin and end; pieces are never taken back."""

from hypothesis import given
from hypothesis import strategies as st

from clearhead.serve.api.writing import OutputText, Stops

LETTERS = st.text("ab", max_size=12)


def cut(text, stops):
    """The text before the stop string that is complete first, by the definition."""
    ends = [
        (place + len(one), place)
        for one in stops
        for place in range(len(text))
        if text[place : place + len(one)] == one
    ]
    return text[: min(ends)[1]] if ends else text


@given(st.lists(LETTERS, max_size=6), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_pieces_give_the_text_before_the_first_stop_string_however_it_is_cut(pieces, strings):
    stops = Stops(strings)
    sent = ""
    for piece in pieces:
        sent += stops.add(piece)
        assert cut("".join(pieces), strings).startswith(sent)
    sent += "" if stops.is_found else stops.rest()
    assert sent == stops.text == cut("".join(pieces), strings)


def test_tokens_at_once_and_one_by_one_are_the_same_text(stretch):
    row, ids = stretch.tokenizer.encode("the "), stretch.tokenizer.encode("cat eats, größer ẞ")
    values = [-0.5] * len(ids)
    whole, single = OutputText(stretch.tokenizer, row), OutputText(stretch.tokenizer, row, details=True)
    whole.add_all(ids, values, ())
    pieces = [single.add(token, -0.5) for token in ids]
    assert (whole.close(ended=False), single.close(ended=True)) == ("cat eats, größer ẞ", "")
    assert "".join(pieces) == whole.text == single.text == "cat eats, größer ẞ"
    assert (whole.finish, single.finish) == ("length", "stop")
    assert "".join(one.text for one in single.written if "<0x" not in one.text) == single.text


def test_a_stop_string_ends_it_and_takes_its_tokens_along(stretch):
    ids = stretch.tokenizer.encode("one END two")
    writing = OutputText(stretch.tokenizer, stops=("END",), details=True)
    writing.add_all(ids, [-0.5] * len(ids), ())
    writing.close(ended=False)
    assert (writing.text, writing.finish, writing.stopped) == ("one ", "stop", True)
    assert [one.text for one in writing.written] == list("one ")
    assert len(writing.ids) == len("one END")


def test_half_a_character_is_held_back_to_the_end(stretch):
    ids = stretch.tokenizer.encode("ö")
    writing = OutputText(stretch.tokenizer)
    assert [writing.add(token, 0.0) for token in ids] == ["", "ö"]
    assert writing.add(ids[0], 0.0) == ""
    assert writing.close(ended=False) == "\ufffd"
