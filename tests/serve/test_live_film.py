"""The film in a live page: each step has the run's own weights, rounded, and looks as it does in `clearhead look`."""

import dataclasses

import numpy as np
import pytest
import torch

import clearhead as ch
from clearhead.attention.heads import SlicedHeads
from clearhead.model.blocks import AttentionSpec
from clearhead.serve import live
from clearhead.serve.live import live_page
from clearhead.training.run import load
from tests.covering import few
from tests.serve.asking import ask
from tests.serve.live_engine import Asked, as_json, same, tile
from tests.training.small_runs import SIZE, documents, trained

pytestmark = pytest.mark.slow

NEAR = 0.01
"""How far a weight of attention may be from the same step's in `clearhead look`, as docs/live-page.md says."""
TEXTS = {
    "translator": "zwei null vier",
    "stretch": "the cow eats",
    "filler": "the <mask> eats",
    "classifier": "red plum",
}
BITS = {1: 32_767}
"""The levels of a vector; a matrix has 1023."""


@pytest.fixture(scope="module")
def runs(translator, stretch, filler, classifier):
    return {"translator": translator, "stretch": stretch, "filler": filler, "classifier": classifier}


def film_of(run):
    steps = run.folder.film.steps()
    return {step: load(run.folder.path, device="cpu", step=step) for step in steps}


def rounded(film):
    """The steps of a film with each number at the nearest of the levels that its row has in all of them."""
    states = {step: run.model.state_dict() for step, run in film.items()}
    names = [name for name, value in next(iter(states.values())).items() if value.is_floating_point()]
    with torch.no_grad():
        for name in names:
            rows = torch.stack([state[name] for state in states.values()])
            rows = rows.flatten(2) if rows.ndim > 2 else rows.unsqueeze(1)
            scale = rows.abs().amax((0, 2)) / BITS.get(states[0][name].ndim, 1023)
            for state in states.values():
                flat = state[name].view(len(scale), -1)
                flat.copy_((flat / scale.clamp_min(1e-30).unsqueeze(1)).round() * scale.unsqueeze(1))
    return film


def questions(run, text, step):
    """What of a page depends on the step."""
    sides = [side["side"] for side in ask_run(run)["sides"]]
    here = {"source": text, "step": step}
    yield ["trace", here]
    site = f"{sides[-1]}.0.attention"
    yield from (["tile", tile(site, head, name)] for head in (0, 1) for name in ("score", "weight"))
    yield ["lens", {"trace": "$"}]
    yield ["stream", {"trace": "$", "side": sides[0]}]
    yield ["effects", {"trace": "$", "site": site}]
    yield ["neighbours", {"table": f"{sides[0]}.embedding", "token": 5, "step": step}]
    yield ["positions", {"n": 16, "step": step}]
    yield ["context", {"texts": [text, f"{text} {text}"], "word": text.split()[-1], "step": step}]
    if run.task.target != "none":
        yield ["trace", {**here, "target": "4"}]
        yield ["decode", {**here, "beam": 2, "candidates": 3, "max_new": 5}]
        yield ["sample", {**here, "top_k": 5, "seed": 1, "max_new": 5, "candidates": 3}]


def ask_run(run):
    from clearhead.serve.explorer import Explorer

    return ask(Explorer(run), "run")


@pytest.mark.parametrize("kind", few([*TEXTS], 2))
def test_a_step_is_the_runs_own_rounded(kind, runs, script, tmp_path):
    run, text = runs[kind], TEXTS[kind]
    asked = Asked(script, run, tmp_path, film=True)
    film = rounded(film_of(run))
    for step, other in film.items():
        asked.explorer.others.get_or_make(step, lambda other=other: other)
    asked.check([one for step in (0, 8, 4, 32) for one in questions(run, text, step)])


def off(asked, requests):
    """How far the weights in these tiles are from those of the run's own steps."""
    worst, last = 0.0, ""
    for (method, given), got in zip(requests, asked.engine.ask(requests), strict=True):
        wanted = asked.expected(method, last, given)
        if method == "trace":
            last = wanted["id"]
            assert got["answer"]["step"] == given["step"]
        else:
            worst = max(worst, np.abs(np.array(got["answer"]["data"]) - np.array(wanted)).max())
    return worst


@pytest.mark.parametrize("kind", few([*TEXTS], 1))
def test_a_step_looks_as_in_the_explorer(kind, runs, script, tmp_path):
    run, text = runs[kind], TEXTS[kind]
    asked = Asked(script, run, tmp_path, film=True)
    given = {"source": text, "target": None if run.task.target == "none" else "4"}
    sites = asked.expected("trace", "", given)["sites"]
    requests = []
    for step in run.folder.film.steps():
        requests.append(["trace", {**given, "step": step}])
        requests += [["tile", tile(site["name"], head, "weight")] for site in sites for head in range(site["n_heads"])]
    assert 0 < off(asked, requests) < NEAR


def odd(folder):
    """A run of parts with numbers of their own in the plan: a scale that is learned, biases that begin with zero."""
    task, source, tokenizing, spec = documents(folder)
    heads = SlicedHeads(SIZE.n_heads, value_rank=2, bias=True)
    part = AttentionSpec(
        heads=heads, similarity=ch.similarity.Cosine(), position=ch.positions.T5Bias(buckets=8, reach=10)
    )
    blocks = tuple(dataclasses.replace(block, attention=part) for block in spec.blocks)
    return task, source, tokenizing, dataclasses.replace(spec, blocks=blocks)


def test_what_else_depends_on_the_step_is_in_the_page(script, tmp_path_factory, tmp_path):
    run = trained(odd, tmp_path_factory)
    asked = Asked(script, run, tmp_path, film=True)
    requests = []
    for step in (0, 32):
        requests.append(["trace", {"source": "the cow", "step": step}])
        requests += [["tile", tile("decoder.0.attention", head, "weight")] for head in range(SIZE.n_heads)]
    assert 0 < off(asked, requests) < NEAR
    [first, last] = asked.engine.ask([["positions", {"n": 64, "step": step}] for step in (0, 32)])
    wanted = [as_json(ask(asked.explorer, "positions", {"n": 64, "step": step}, None)) for step in (0, 32)]
    assert first["answer"]["bias"] != last["answer"]["bias"]
    same([first["answer"]["bias"], last["answer"]["bias"]], [one["bias"] for one in wanted])


def test_the_log_is_the_runs_own(translator, script, tmp_path, monkeypatch):
    asked = Asked(script, translator, tmp_path)
    asked.check([["curves", {}], ["curves", {"after": 10}], ["curves", {"after": 60}]])
    lines = [{"kind": "training", "step": step} for step in range(100)] + [{"kind": "evaluation", "step": 51}]
    monkeypatch.setattr(live.Curves, "after", lambda self, step: lines)
    monkeypatch.setattr(live, "MOST_LINES", 30)
    found = live.page_curves(translator)
    assert [one["step"] for one in found["lines"] if one["kind"] == "training"] == [*range(3, 100, 4)]
    assert (found["lines"][-1], found["last"]) == (lines[-1], 99)


def test_a_step_that_the_page_has_not_is_refused(classifier, script, tmp_path):
    asked = Asked(script, classifier, tmp_path, film=True)
    [got] = asked.engine.ask([["trace", {"source": "red plum", "step": 3}]])
    held = ", ".join(map(str, [*classifier.folder.film.steps(), classifier.step]))
    assert got["error"].startswith(f"This page does not hold the weights of step 3; it holds those of {held}.")


def test_a_film_without_room_is_thinned_and_then_left_out(classifier, monkeypatch):
    steps = classifier.folder.film.steps()
    whole = live_page(classifier, film=True).film
    assert (list(whole.steps), whole.of) == (steps, len(steps))
    monkeypatch.setattr(live, "MOST_FILM", sum(map(len, whole.lines)) - 1)
    fewer = live_page(classifier, film=True).film
    assert (list(fewer.steps), fewer.of) == (steps[::2], len(steps))
    assert sum(map(len, fewer.lines)) <= live.MOST_FILM
    monkeypatch.setattr(live, "MOST_FILM", 1000)
    none = live_page(classifier, film=True)
    assert (none.film.steps, none.film.of, none.film.lines) == ({}, len(steps), [])
    monkeypatch.undo()
    assert live_page(classifier).film.lines == []
