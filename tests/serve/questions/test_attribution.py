"""Direct logit attribution for the page: the same numbers as `ch.attribute`."""

import pytest

import clearhead as ch
from clearhead.serve.explorer import Explorer
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
