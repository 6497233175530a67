"""Lines of Python that every question begins with."""

import clearhead as ch
from clearhead.serve.python_lines import edit_code, head_code, text_arguments


def test_texts_targets_and_edits_are_written_as_calls_take_them():
    off = ch.Edit(at="decoder.0.attention", step="context", head=1, times=0.0)
    assert text_arguments('say "it"') == "'say \"it\"'"
    assert text_arguments("a", [3, 4], [off]) == f"'a', [3, 4], edits=[ch.{off!r}]"


def test_an_edit_written_as_code_makes_the_same_edit():
    for change in (
        ch.Edit(at="decoder.0.attention", step="allowed", query=1, key=0, to=False),
        ch.Swap(at="decoder.0.cross", weighting=ch.weighting.Softmax(temperature=2.0)),
    ):
        assert eval(edit_code(change), {"ch": ch}) == change


def test_the_mean_of_heads_is_a_sum():
    assert head_code("decoder.0.cross", 2, "weight") == "trace['decoder.0.cross'].head[2].weight"
    assert head_code("a.0.b", "mean", "weight").endswith("/ len(trace['a.0.b'].head)")
