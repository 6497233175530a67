"""A beam search as a tree, and sampling with what each token was drawn from."""

import copy

import pytest
import torch

import clearhead as ch
from clearhead.decoding import Beam, Greedy, Sample, generate
from clearhead.serve.budget import AnswerBudget, TooMuchError
from clearhead.serve.explorer import Explorer
from clearhead.serve.questions.decoding import WatchedSample, describe, draw, grow, request_of
from clearhead.tracing.edits import Edit, Swap
from clearhead.tracing.names import Names
from clearhead.tracing.recording import recording
from tests.serve.asking import ask

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


METHODS = (
    {},
    {"temperature": 1.7, "seed": 3},
    {"temperature": 1.2, "top_k": 4, "seed": 11},
    {"temperature": 1.5, "top_p": 0.7, "seed": 5},
    {"temperature": 2.0, "top_k": 9, "top_p": 0.8, "seed": 1},
)


def asked(text, **more):
    return {"source": text, **more}


def method_of(temperature=0.8, top_k=None, top_p=1.0, seed=0):
    return Sample(temperature=temperature, top_k=top_k, top_p=top_p, seeds=seed)


def steps_of(run, request, method):
    watched = WatchedSample(method, candidates=5)
    tokens = draw(run, request, watched, candidates=5)
    return [describe(request, token, seen, greedy=False) for token, seen in zip(tokens, watched.seen, strict=False)]


@pytest.mark.parametrize("given", METHODS)
def test_a_seed_gives_the_librarys_text(documents, given):
    """However many tokens are asked for at once: the page shows one after another."""
    text, explorer = "the cat", Explorer(documents)
    for n in (1, 5, 12):
        found = ask(explorer, "sample", asked(text, max_new=n, **given))
        assert [found["text"]] == documents.generate([text], max_new=n, method=method_of(**given))
        assert found["text"] == found["text"][: found["ends"][-1]]
        assert [step["token"] for step in found["steps"]] == found["ids"]


@pytest.mark.parametrize("given", METHODS)
def test_a_translator_draws_the_tokens_that_generate_draws(translator, given):
    text = TEXTS["translator"]
    request = request_of(translator, text, None)
    [[wanted]] = generate(
        translator.model, [request.source], method_of(**given), rules=request.rules, prefix=request.prefix
    )
    found = ask(Explorer(translator), "sample", asked(text, **given))
    assert (tuple(found["ids"]), found["ended"]) == (wanted.tokens, wanted.ended)
    own = [torch.tensor(step["p"]).log().item() for step in found["steps"]]
    assert own == pytest.approx(list(wanted.log_probs), abs=1e-5)
    assert len(found["cross"]) == len(found["ids"])


def test_greedy_is_the_likeliest_token_each_time(case):
    run, text = case
    request = request_of(run, text, 8)
    [[wanted]] = generate(run.model, [request.source], Greedy(), rules=request.rules, prefix=request.prefix)
    found = ask(Explorer(run), "sample", asked(text, mode="greedy", max_new=8))
    assert tuple(found["ids"]) == wanted.tokens
    for step in found["steps"]:
        assert (step["token"], step["drawn"], step["after"]) == (step["candidates"][0]["id"], None, 1.0)
        assert {one["cut"] for one in step["candidates"]} == {""}


@pytest.mark.parametrize("given", METHODS)
def test_the_probabilities_follow_from_the_models_logits(case, given):
    """From a plain forward pass of every prefix, by the definition of each cut."""
    run, text = case
    found = ask(Explorer(run), "sample", asked(text, max_new=6, candidates=7, **given))
    request, how = request_of(run, text, 6), method_of(**given)
    prompt = [*(request.prefix or [request.source])[0]]
    for n, step in enumerate(found["steps"]):
        rows = [torch.tensor([request.source])] if request.prefix else []
        with torch.inference_mode():
            logits = run.model(*rows, torch.tensor([[*prompt, *found["ids"][:n]]]))[0, -1].double()
        before = torch.softmax(logits, -1)
        order = (logits / how.temperature).argsort(descending=True, stable=True)
        kept = order[: how.top_k]
        share = torch.softmax(logits[kept] / how.temperature, -1)
        kept = kept[share.cumsum(-1) - share < how.top_p]
        share = torch.softmax(logits[kept] / how.temperature, -1)
        after = torch.zeros_like(logits).scatter(0, kept, share)
        assert step["left"] == len(kept)
        assert [one["id"] for one in step["candidates"][:3]] == before.topk(3).indices.tolist()
        for one in step["candidates"]:
            assert one["p"] == pytest.approx(before[one["id"]].item(), abs=1e-6)
            assert one["after"] == pytest.approx(after[one["id"]].item(), abs=1e-5)
            assert (one["cut"] != "") == (one["id"] not in kept)
            if one["cut"]:
                assert one["cut"] == ("top_k" if one["id"] not in order[: how.top_k] else "top_p")
        assert step["begins"] <= step["drawn"] + 1e-6 <= step["begins"] + step["after"] + 2e-6
        assert step["after"] == pytest.approx(after[step["token"]].item(), abs=1e-5)


def test_the_number_drawn_is_the_seeds(documents):
    found = ask(Explorer(documents), "sample", asked("the cat", seed=41, max_new=4))
    random = torch.Generator().manual_seed(41)
    assert [step["drawn"] for step in found["steps"]] == [torch.rand((), generator=random).item() for _ in range(4)]


def test_with_edits_the_changed_model_is_sampled(case):
    run, text = case
    changes = [Edit(at="decoder.0.attention", step="context", times=0.0)]
    edits = [{"at": "decoder.0.attention", "step": "context", "times": 0.0}]
    given = {"temperature": 1.3, "seed": 2, "max_new": 6}
    found = ask(Explorer(run), "sample", asked(text, edits=edits, **given))
    request = request_of(run, text, 6)
    prompt = [*(request.prefix or [request.source])[0]]
    rows = [torch.tensor([request.source])] if request.prefix else []
    random = method_of(temperature=1.3, seed=2).draws(1)
    wanted = []
    for _ in found["ids"]:
        with torch.inference_mode(), recording(run.model, changes):
            logits = run.model(*rows, torch.tensor([[*prompt, *wanted]]))[:, -1]
        wanted += method_of(temperature=1.3).choose(torch.log_softmax(logits, -1), random).tolist()
    assert found["ids"] == wanted
    plain = ask(Explorer(run), "sample", asked(text, **given))
    assert [one["p"] for one in plain["steps"]] != [one["p"] for one in found["steps"]]


def test_a_rule_is_told_apart_from_a_cut(documents):
    from dataclasses import replace

    request = request_of(documents, "the cat", 1)
    best = steps_of(documents, request, Sample())[0]["candidates"][0]["id"]
    never = replace(request, rules=replace(request.rules, never=(best,)))
    [step] = steps_of(documents, never, Sample(top_k=2))
    assert [one["cut"] for one in step["candidates"]] == ["never", "", "", "top_k", "top_k"]


def test_a_share_that_is_too_small_for_a_float_is_not_a_cut(documents):
    found = ask(Explorer(documents), "sample", asked("the cat", temperature=0.001, max_new=1))
    assert {one["cut"] for one in found["steps"][0]["candidates"]} == {""}
    assert found["steps"][0]["candidates"][-1]["after"] == 0.0


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"temperature": 0}, "temperature must be above 0"),
        ({"temperature": "1"}, "expected a finite number"),
        ({"top_k": 0}, "top_k must be 1 or more"),
        ({"top_p": 1.5}, "top_p is a probability"),
        ({"seed": -1}, "0 or more"),
        ({"mode": "beam"}, "one of greedy, sample"),
        ({"min_p": 1}, "'min_p' is not an option here"),
        ({"candidates": 51}, "1 to 50"),
    ],
)
def test_what_cannot_be_is_told(documents, wrong, said):
    with pytest.raises(ch.errors.OptionError, match=said):
        ask(Explorer(documents), "sample", asked("the cat", **wrong))


def test_a_text_that_fills_the_context_is_refused_and_room_is_told(documents):
    context = documents.task.context
    explorer = Explorer(documents)
    assert ask(explorer, "sample", asked("the cat", max_new=1))["room"] <= context
    with pytest.raises(ch.errors.OptionError, match="shorten it"):
        ask(explorer, "sample", asked("the cat " * context))


def test_the_cost_is_checked_first(documents):
    with pytest.raises(TooMuchError, match=r"sampling \d+ tokens with 10 candidates each"):
        ask(Explorer(documents, AnswerBudget(memory=10_000)), "sample", asked("the cat"))


def test_a_run_that_writes_nothing_says_so(filler):
    with pytest.raises(ch.errors.OptionError, match="answers in one step"):
        ask(Explorer(filler), "sample", asked("the <mask> eats"))
