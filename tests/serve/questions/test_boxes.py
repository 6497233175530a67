"""The feed-forward view's answers: names of tokens, what is told of an encoder, and what cannot be."""

import pytest

import clearhead as ch
from clearhead.serve.budget import AnswerBudget, TooMuchError
from clearhead.serve.explorer import Explorer
from tests.serve.asking import ask


def answer(run, text, at, **asked):
    explorer = Explorer(run)
    meta = ask(explorer, "trace", {"source": text, "edits": asked.pop("edits", [])})
    return ask(explorer, "neurons", {"at": at, **asked}, meta["id"])


def test_units_come_with_the_words_they_promote(documents):
    found = answer(documents, "the cat eats", "decoder.0.feed_forward", token=2, most=4)
    assert len(found["units"]) == 4
    assert found["silent"] == ""
    assert "pre_activation" in found["formula"]
    names = documents.task.answer_names
    for unit in found["units"]:
        for effect in (*unit["promotes"], *unit["suppresses"]):
            assert effect["text"] == names([effect["id"]])[0]
        assert all(effect["change"] > 0 for effect in unit["promotes"])
        assert all(effect["change"] < 0 for effect in unit["suppresses"])


def test_a_unit_is_shown_wherever_it_ranks_and_switched_off_by_an_edit(documents):
    at = "decoder.0.feed_forward"
    least = answer(documents, "the cat", at, token=1, most=64)["units"][-1]["unit"]
    found = answer(documents, "the cat", at, token=1, most=1, unit=least)
    assert [one["unit"] for one in found["units"]][1:] == [least]
    off = [{"at": at, "step": "hidden", "unit": least, "times": 0}]
    changed = answer(documents, "the cat", at, token=1, most=1, unit=least, edits=off)
    assert changed["units"][1]["steps"]["hidden"] == 0


def test_an_edit_of_a_unit_reaches_what_is_sampled_and_searched(documents):
    """The strongest unit off, at every token that is read, as by a model whose weights are zero there."""
    at, explorer = "decoder.0.feed_forward", Explorer(documents)
    unit = answer(documents, "the cat", at, token=1)["units"][0]["unit"]
    edits = [{"at": at, "step": "hidden", "unit": unit, "times": 0}]
    found = ask(explorer, "sample", {"source": "the cat", "max_new": 6, "edits": edits, "temperature": 1.5})
    searched = ask(explorer, "decode", {"source": "the cat", "max_new": 6, "edits": edits, "beam": 2})
    down = documents.model.stack.blocks[0].feed_forward.down
    kept = down.weight.detach().clone()
    try:
        down.weight.data[:, unit] = 0
        wanted = Explorer(documents)
        plain = ask(wanted, "sample", {"source": "the cat", "max_new": 6, "temperature": 1.5})
        beam = ask(wanted, "decode", {"source": "the cat", "max_new": 6, "beam": 2})
    finally:
        down.weight.data.copy_(kept)
    assert found["ids"] == plain["ids"]
    assert [one["p"] for one in found["steps"]] == pytest.approx([one["p"] for one in plain["steps"]], abs=1e-5)
    assert [one["ids"] for one in searched["outputs"]] == [one["ids"] for one in beam["outputs"]]


def test_an_encoder_says_why_nothing_is_promoted(translator):
    found = answer(translator, "zwei null", "encoder.0.feed_forward", token=0, most=2)
    assert "this is the encoder" in found["silent"]
    assert found["units"][0]["promotes"] == []


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"at": "decoder.0.attention"}, "no feed-forward with units"),
        ({"at": "x"}, "no feed-forward with units"),
        ({"at": "decoder.0.feed_forward", "token": 99}, "must be 0 to"),
        ({"at": "decoder.0.feed_forward", "unit": 10**6}, "no unit 1000000"),
        ({"at": "decoder.0.feed_forward", "most": 65}, "must be 1 to 64"),
    ],
)
def test_what_cannot_be_is_told(documents, wrong, said):
    with pytest.raises(ch.errors.OptionError, match=said):
        answer(documents, "the cat", **wrong)


def test_the_cost_is_checked_first(documents):
    explorer = Explorer(documents)
    meta = ask(explorer, "trace", {"source": "the cat"})
    explorer.traces.get(meta["id"]).budget = AnswerBudget(memory=1000)
    with pytest.raises(TooMuchError):
        ask(explorer, "neurons", {"at": "decoder.0.feed_forward"}, meta["id"])
