"""The live page: its engine, under node, gives every number of the explorer; what it cannot compute is refused."""

import dataclasses
import math
import random

import pytest
import torch

from clearhead.decoding import Sample, generate
from clearhead.errors import OptionError, RunError
from clearhead.experiments.rasp_run import compile_to_run
from clearhead.model import presets
from clearhead.model.presets import Size
from clearhead.rasp import PROGRAMS
from clearhead.serve import live
from clearhead.serve.live import live_page, round_weights
from clearhead.text.tokenizer import Tokenizer
from clearhead.tracing.names import sides_of
from clearhead.training.folder import RunFolder
from clearhead.training.run import Run, load
from clearhead.training.tasks import Generate
from tests.covering import few
from tests.serve.asking import ask
from tests.serve.live_engine import ODD, Asked, Engine, everything, tile

pytestmark = pytest.mark.slow

TEXTS = {
    "translator": "zwei null vier",
    "documents": "the cat eats",
    "stretch": "the cow eats the plum",
    "filler": "the <mask> eats the <mask>, größer",
    "classifier": "red plum",
}


@pytest.fixture(scope="module")
def runs(translator, documents, stretch, filler, classifier):
    return {"translator": translator, "documents": documents, "stretch": stretch, "filler": filler,
            "classifier": classifier}  # fmt: skip


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.thorough) if kind == "documents" else kind for kind in TEXTS]
)  # a stretch is generated as well
def test_every_answer_is_the_explorers(kind, runs, script, tmp_path):
    run, text = runs[kind], TEXTS[kind]
    asked = Asked(script, run, tmp_path)
    meta = asked.expected("trace", "", {"source": text})
    requests = [
        ["run", {}],
        ["trace", {"source": text}],
        *everything(meta, ask(asked.explorer, "run")),
        ["positions", {"n": 16}],
    ]
    word = text.split()[-1]
    requests += [["context", {"texts": [text, f"{word} {word}"], "word": word}]]
    if run.task.target != "none":
        requests += [["decode", {"source": text, "beam": width, "candidates": 4}] for width in (1, 3)]
        drawn = {"source": text, "top_k": 5, "top_p": 0.9, "seed": 1, "max_new": 5, "candidates": 4}
        requests += [["sample", {**drawn, "mode": mode}] for mode in ("sample", "greedy")]
    asked.check(requests[1:])
    asked.check([["trace", {"source": part}] for part in ODD.split(" ") if part])
    if run.task.target != "none":
        asked.check([["trace", {"source": text, "target": "4"}], ["trace", {"source": text, "target": [6, 7]}]])


@pytest.mark.parametrize(
    "cuts", few([{"top_p": 0.7, "temperature": 1.5}, {"top_k": 9, "top_p": 0.9}, {}, {"top_k": 3}], 2)
)
def test_sampling_draws_what_the_library_draws_from_the_same_seed(cuts, stretch, script, tmp_path):
    page = Engine(script, stretch, tmp_path)
    source = stretch.task.trace_inputs("the cow").ids["decoder"]
    rules = stretch.task.decoding({"decoder": source}, max_new=10, usual=10).rules
    seeds = range(6)
    found = page.ask([["sample", {"source": "the cow", "max_new": 10, "seed": seed, **cuts}] for seed in seeds])
    for seed, got in zip(seeds, found, strict=True):
        method = Sample(**{"temperature": 0.8, **cuts}, seeds=seed)
        [[wanted]] = generate(stretch.model, [source], method, rules=rules)
        assert got["answer"]["ids"] == list(wanted.tokens), (seed, got)
        assert [step["p"] for step in got["answer"]["steps"]] == pytest.approx(
            [math.exp(one) for one in wanted.log_probs], abs=1e-4
        )


def edits_of(meta):
    """Changes of every kind, one trace each."""
    site = meta["sites"][-1]["name"]
    yield [{"at": site, "step": "context", "head": 1, "times": 0}]
    yield [{"at": site, "step": "query", "head": 0, "query": 0, "to": 0.5}, {"at": site, "step": "key", "times": 1.5}]
    for step in ("score", "scaled", "masked", "weight"):
        yield [{"at": site, "step": step, "head": 0, "query": 0, "key": 0, "to": 0.25}]
    yield [{"at": site, "step": "allowed", "head": 1, "key": 0, "to": False}]
    yield [{"at": site.rpartition(".")[0] + ".feed_forward", "step": "hidden", "query": 0, "times": 0}]
    yield [{"at": site.partition(".")[0] + ".embedding", "step": "out", "query": 0, "times": 2}]
    for weighting in ("argmax", "sigmoid", "sparsemax", "kernelized"):
        yield [{"at": site, "weighting": weighting}]


@pytest.mark.parametrize("kind", few(["translator", "stretch", "classifier"], 1))
def test_edits_change_what_they_change_in_the_explorer(kind, runs, script, tmp_path):
    run, text = runs[kind], TEXTS[kind]
    asked = Asked(script, run, tmp_path)
    meta = asked.expected("trace", "", {"source": text})
    site, requests = meta["sites"][-1]["name"], []
    for edits in edits_of(meta):
        requests.append(["trace", {"source": text, "edits": edits}])
        requests += [["tile", tile(site, head, step)] for head in (0, 1) for step in ("masked", "weight")]
        requests.append(
            ["box", {"trace": "$", "box": site.rpartition(".")[0] + ".feed_forward", "token": 0, "key": 0, "head": 0}]
        )
        if run.task.target != "none":
            requests.append(["decode", {"source": text, "beam": 2, "candidates": 2, "max_new": 4, "edits": edits}])
    asked.check(requests)


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train([ODD, "zwei null vier", "the cow eats the plum"], "char")


def test_a_large_model_is_rounded_and_the_page_is_equal_to_the_rounded_one(tokenizer, script, tmp_path):
    torch.manual_seed(0)
    spec = presets.gpt2(Size(1, 320, 4, 4, 1280), vocabulary=tokenizer.vocabulary)
    run = Run(RunFolder(tmp_path), Generate(tokenizers={"text": tokenizer}, context=40), spec.build().eval(), 0)
    before = {name: value.clone() for name, value in run.model.state_dict().items()}
    page = Engine(script, run, tmp_path / "exact")
    assert live_page(run).dtype == "float16"
    assert all(torch.equal(value, before[name]) for name, value in run.model.state_dict().items())
    round_weights(run.model)
    assert any(not torch.equal(value, before[name]) for name, value in run.model.state_dict().items())
    asked = Asked(script, run, tmp_path)
    asked.engine = page
    asked.check([["trace", {"source": "the cow"}], ["tile", tile("decoder.0.attention", 3, "weight")]])


@pytest.mark.parametrize("name", few(["reverse", "histogram"], 1))
def test_a_compiled_program_answers_on_the_page(name, script, tmp_path):
    compile_to_run(PROGRAMS[name], tmp_path / "run")
    run = load(tmp_path / "run", device="cpu")
    asked = Asked(script, run, tmp_path)
    [example, *_] = ask(asked.explorer, "run")["examples"]
    meta = asked.expected("trace", "", {"source": example["source"]})
    assert meta["program"]["answers"]
    asked.check([["trace", {"source": example["source"]}], *everything(meta, ask(asked.explorer, "run"))])


def check_texts(run, texts, script, folder):
    """Whole traces of texts: tokens, answers, and the last layer's weights and vectors."""
    asked, requests = Asked(script, run, folder), []
    for text in texts:
        site = f"{[*run_sides(run)][-1]}.0.attention"
        requests += [["trace", {"source": text}], ["tile", tile(site, 1, "weight")]]
        requests += [["stream", {"trace": "$", "side": side}] for side in run_sides(run)]
    asked.check(requests)


def run_sides(run):
    return sides_of(run.model)


def random_texts(kind, count):
    draw = random.Random(1)
    words = {
        "translator": ("null", "eins", "zwei", "drei", "vier", "xyz"),
        "stretch": ("the", "cow", "eats", "plum", "q"),
        "classifier": ("red", "old", "plum", "cow", "dog", "é"),
    }[kind]
    return [" ".join(draw.choices(words, k=draw.randint(1, 5))) for _ in range(count)]


@pytest.mark.parametrize("kind", few(["translator", "stretch", "classifier"], 1))
def test_random_texts(kind, runs, script, tmp_path):
    check_texts(runs[kind], random_texts(kind, 8), script, tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["translator", "stretch", "classifier"])
def test_two_hundred_random_texts(kind, runs, script, tmp_path):
    check_texts(runs[kind], random_texts(kind, 200), script, tmp_path)


def test_what_the_page_cannot_hold_is_refused(translator, documents, monkeypatch, tmp_path):
    monkeypatch.setattr(live, "MOST", 1000)
    with pytest.raises(OptionError, match=r"has [\d,]+ parameters, and a page that runs by itself holds 1,000 at most"):
        live_page(translator)
    monkeypatch.undo()
    odd = type("Own", (type(documents.task),), {})
    own = Run(
        documents.folder,
        odd(**{one.name: getattr(documents.task, one.name) for one in dataclasses.fields(documents.task)}),
        documents.model,
        0,
    )
    with pytest.raises(OptionError, match=r"does not know the task .*:.*Own"):
        live_page(own)


def test_without_a_built_page_it_says_what_to_run(translator, monkeypatch, tmp_path):
    monkeypatch.setattr(live, "TEMPLATE", tmp_path / "none.html")
    with pytest.raises(RunError, match=r"the page is not built: .* run `make web`"):
        _ = live_page(translator).text
    (tmp_path / "none.html").write_text("<html></html>")
    with pytest.raises(RunError, match=r"has no place for the numbers"):
        _ = live_page(translator).text


def test_the_page_says_nothing_of_where_the_run_lies(translator):
    assert str(translator.folder.path.resolve().parent) not in live_page(translator).data


def test_edits_that_cannot_be_are_refused_as_in_the_explorer(translator, script, tmp_path):
    asked = Asked(script, translator, tmp_path)
    wrong = [
        [{"at": "decoder.0.cross", "step": "context", "head": 9, "times": 0}],
        [{"at": "decoder.0.cross", "step": "context", "query": 99, "times": 0}],
        [{"at": "nowhere", "step": "context", "times": 0}],
        [{"at": "decoder.0.cross", "step": "juice", "times": 0}],
        [{"at": "encoder.embedding", "step": "out", "times": 1e38}],
        [{"at": "decoder.0.attention.norm", "step": "mean", "times": 0}],
    ]
    for edits, got in zip(
        wrong,
        asked.engine.ask([["trace", {"source": "vier", "target": "4", "edits": one}] for one in wrong]),
        strict=True,
    ):
        with pytest.raises(OptionError) as raised:
            asked.expected("trace", "", {"source": "vier", "target": "4", "edits": edits})
        said, expected = (text.partition("\n")[0].replace("'", "") for text in (got["error"], str(raised.value)))
        if edits[0]["step"] == "juice":  # the page lists the steps that it can change, and they are fewer
            said, expected = (text.partition("; ")[0] for text in (said, expected))
        assert said == expected
