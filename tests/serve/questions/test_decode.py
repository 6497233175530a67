"""Decoding with edits: the tree of a changed model is what `generate` finds on a model changed by hand."""

import copy

import pytest
import torch

import clearhead as ch
from clearhead.decoding import Beam, generate
from clearhead.serve.explorer import Explorer
from clearhead.serve.questions.decode import grow, request_of
from clearhead.tracing.edits import Edit, Swap
from clearhead.tracing.names import Names
from tests.serve.asking import ask

pytestmark = pytest.mark.usefixtures("one_thread")

TEXTS = {"translator": "zwei null vier", "documents": "the cat"}


@pytest.fixture(params=TEXTS)
def case(request):
    return request.getfixturevalue(request.param), TEXTS[request.param]


def without_head(model, site, head):
    """Return a copy of the model in which nothing of one head passes W_O."""
    changed = copy.deepcopy(model)
    layer = Names(changed).sites[site]
    d_value = layer.output.weight.shape[1] // layer.shape.n_heads
    with torch.no_grad():
        layer.output.weight[:, head * d_value : (head + 1) * d_value] = 0
    return changed


def found_by(model, request, width):
    prefix = request.prefix
    [found] = generate(model, [request.source], Beam(width=width, n_best=width), rules=request.rules, prefix=prefix)
    return found


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.slow
def test_a_head_switched_off_is_decoded_as_by_a_model_without_it(case, width):
    run, text = case
    request = request_of(run, text, 12)
    differ = 0
    for site, layer in Names(run.model).sites.items():
        for head in range(layer.shape.n_heads):
            off = Edit(at=site, step="context", head=head, times=0.0)
            grown = grow(run, request, width=width, candidates=3, changes=[off])
            wanted = found_by(without_head(run.model, site, head), request, width)
            assert [one.tokens for one in grown.hypotheses] == [one.tokens for one in wanted]
            assert [one.score for one in grown.hypotheses] == pytest.approx([one.score for one in wanted], abs=1e-4)
            plain = found_by(run.model, request, width)
            differ += [one.score for one in plain] != pytest.approx([one.score for one in wanted], abs=1e-4)
    assert differ, "no head matters to this run, so the test tells nothing"


def test_a_change_that_changes_nothing_is_decoded_as_without_it(case):
    run, text = case
    request = request_of(run, text, 12)
    same = Swap(at="decoder.0.attention", weighting=ch.weighting.Softmax())
    found = grow(run, request, width=3, candidates=2, changes=[same]).hypotheses
    wanted = found_by(run.model, request, 3)
    assert [one.tokens for one in found] == [one.tokens for one in wanted]
    assert [one.score for one in found] == pytest.approx([one.score for one in wanted], abs=1e-4)


@pytest.mark.slow
def test_an_edit_of_one_place_is_decoded_as_the_trace_writes_it(translator):
    text = TEXTS["translator"]
    for query in (0, 1, 2):
        edit = Edit(at="decoder.0.cross", step="score", head=0, query=query, key=1, to=9.0)
        grown = grow(translator, request_of(translator, text, None), width=1, candidates=2, changes=[edit])
        traced = ch.trace(translator, text, edits=[edit])
        end = translator.task.tokenizers["target"].end
        written = [token for token in grown.hypotheses[0].tokens if token != end]
        assert written == traced.sides["decoder"].ids[1:]


def test_the_page_decodes_with_the_edits_it_sends(translator):
    explorer, text = Explorer(translator), TEXTS["translator"]
    edits = [
        {"at": "encoder.0.attention", "step": "context", "times": 0.0},
        {"at": "decoder.0.cross", "step": "score", "query": 60, "key": 0, "to": 3.0},
    ]
    plain = ask(explorer, "decode", {"source": text, "beam": 2})
    changed = ask(explorer, "decode", {"source": text, "beam": 2, "edits": edits})
    assert (plain["edits"], changed["edits"]) == ([], edits)
    assert plain["outputs"] != changed["outputs"]
    ids = changed["outputs"][0]["ids"]
    meta = ask(explorer, "trace", {"source": text, "target": ids[:-1], "edits": edits[:1]})
    [cross] = [ask(explorer, "row", {"site": "decoder.0.cross", "head": "mean", "query": 1}, meta["id"])["weight"]]
    assert changed["cross"][1]["weight"][0] == pytest.approx(cross, abs=1e-6)


def test_an_edit_that_cannot_be_is_told(translator):
    wrong = {"source": "eins", "edits": [{"at": "decoder.9.cross", "step": "context", "times": 0.0}]}
    with pytest.raises(ch.errors.OptionError, match=r"no attention called 'decoder\.9\.cross'"):
        ask(Explorer(translator), "decode", wrong)
