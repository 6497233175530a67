"""What an answer comes from: the parts of its logit, and patches from another text."""

import pytest

import clearhead as ch
from clearhead.errors import OptionError
from clearhead.serve.budget import AnswerBudget
from clearhead.serve.explorer import Explorer, GoneError, side_by_side
from tests.serve.asking import ask
from tests.training.small_runs import classifying, documents, filling, trained, translating


@pytest.mark.parametrize("kind", [translating, documents, filling, classifying])
def test_the_page_has_the_parts_that_python_has(kind, tmp_path_factory):
    run = trained(kind, tmp_path_factory)
    explorer, text = Explorer(run), "zwei drei" if kind is translating else "red plum"
    trace = ask(explorer, "trace", {"source": text})["id"]
    answer = ask(explorer, "attribution", {"token": 1, "other": 0}, trace)
    found = ch.attribute(run, text, answer=1, other=0)
    assert {part["name"]: part["value"] for part in answer["parts"]} == found.parts
    assert (answer["total"], answer["place"]) == (found.total, found.place)
    assert [answer["answer"]["text"], answer["other"]["text"]] == list(found.names)
    heads = [part for part in answer["parts"] if part["kind"] == "head"]
    assert {part["site"] for part in heads} == set(found.heads)
    assert all(part["name"] == f"{part['site']}.head.{part['head']}" for part in heads)
    assert {part["kind"] for part in answer["parts"]} <= {"embedding", "head", "feed_forward", "constant", "output"}


def test_with_edits_it_is_the_changed_model(tmp_path_factory):
    run = trained(documents, tmp_path_factory)
    explorer = Explorer(run)
    off = {"at": "decoder.0.attention", "step": "context", "head": 1, "times": 0.0}
    trace = ask(explorer, "trace", {"source": "the cat", "edits": [off]})["id"]
    parts = {part["name"]: part for part in ask(explorer, "attribution", {}, trace)["parts"]}
    assert parts["decoder.0.attention.head.1"]["value"] == 0
    assert parts["decoder.0.attention.head.0"]["value"] != 0
    assert abs(parts["edits"]["value"]) < 1e-4


def trace_id(explorer, source, **more):
    return ask(explorer, "trace", {"source": source, **more})["id"]


@pytest.mark.parametrize("by", ["layer", "attention", "feed_forward", "head"])
def test_rows_asked_for_one_by_one_are_the_map_of_python(by, tmp_path_factory):
    run = trained(documents, tmp_path_factory)
    explorer = Explorer(run)
    ids = {"text": trace_id(explorer, "the cat eats the"), "source": trace_id(explorer, "the dog eats the")}
    found = ch.patch(run, "the cat eats the", "the dog eats the", by=by, answer=7, other=6, progress=False)
    asked = {**ids, "by": by, "token": 7, "other": 6}
    groups = ask(explorer, "patch", asked)["groups"]
    rows = {}
    for at in groups:
        answer = ask(explorer, "patch", {**asked, "at": at})
        assert (answer["before"], answer["source"]) == pytest.approx((found.before, found.source), abs=1e-5)
        rows |= {row["name"]: row for row in answer["rows"]}
    assert list(rows) == list(found.patched)
    for name, row in rows.items():
        assert row["patched"] == pytest.approx(found.patched[name].tolist(), abs=1e-5)
        # a share of a difference that is near 0 would show its rounding
        recovered = [found.before + share * (found.source - found.before) for share in row["recovered"]]
        assert recovered == pytest.approx(row["patched"], abs=1e-5)
        assert row["head"] is None or row["name"] == f"{row['site']}.head.{row['head']}"


def test_a_translator_is_patched_on_both_sides(tmp_path_factory):
    run = trained(translating, tmp_path_factory)
    explorer = Explorer(run)
    text = trace_id(explorer, "zwei drei")
    target = explorer.find_trace(text).trace.sides["decoder"].ids[1:]
    source = trace_id(explorer, "drei vier", target=target)
    answer = ask(explorer, "patch", {"text": text, "source": source, "by": "head", "token": 7, "other": 6})
    found = ch.patch(run, "zwei drei", "drei vier", by="head", answer=7, other=6, progress=False)
    assert {row["side"] for row in answer["rows"]} == {"encoder", "decoder"}
    assert {row["name"]: row["patched"] for row in answer["rows"]} == {
        name: pytest.approx(values.tolist(), abs=1e-5) for name, values in found.patched.items()
    }


def test_values_may_come_from_the_run_beside(tmp_path_factory):
    run = trained(classifying, tmp_path_factory)
    explorer = side_by_side(run, run)
    text, source = trace_id(explorer, "red plum"), trace_id(explorer.beside, "red cow")
    answer = ask(explorer, "patch", {"text": text, "source": source, "beside": 1})
    assert (answer["token"]["text"], answer["other"]["text"]) == ("beast", "fruit")
    with pytest.raises(GoneError):
        ask(explorer, "patch", {"text": text, "source": source})
    with pytest.raises(OptionError, match="there is no run beside this one"):
        ask(explorer.beside, "patch", {"text": source, "source": source, "beside": 1})


def test_what_is_not_there_or_too_much_is_refused(tmp_path_factory):
    run = trained(documents, tmp_path_factory)
    explorer = Explorer(run, AnswerBudget(cells=80))
    ids = {"text": trace_id(explorer, "the cat"), "source": trace_id(explorer, "the dog")}
    with pytest.raises(OptionError, match=r"at: there is no 'decoder.9.attention' to patch; the nearest is"):
        ask(explorer, "patch", {**ids, "by": "head", "at": "decoder.9.attention"})
    explorer.budget = AnswerBudget(cells=1)
    for traced in explorer.traces.values.values():
        traced.budget = explorer.budget
    with pytest.raises(OptionError, match=r"6 patches takes .* ask for one row at a time"):
        ask(explorer, "patch", {**ids, "token": 7, "other": 6})
