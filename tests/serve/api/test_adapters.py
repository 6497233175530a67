"""Adapters over HTTP: each answers at its own name as its run does alone, in the batch of the run it came from."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

import clearhead as ch
from clearhead.errors import OptionError
from clearhead.model.lora import Lora
from clearhead.serve.api.routes import Api
from clearhead.training import Budget, Corpus, Documents, train
from clearhead.training.fine_tuning import fine_tuning_recipe
from clearhead.training.recipe import Checkpointing
from tests.serve.api_serving import serving

NAMES = ["lent", "borrowed"]
LINES = ["the cat eats the cat eats the cat.", "the cat the plum the plum the plum."]


@pytest.fixture(scope="module")
def folders(api_runs, tmp_path_factory):
    """Two runs that were fine-tuned by LoRA from `documents`."""
    base, made = api_runs["documents"].folder.path, []
    for number, name in enumerate(NAMES):
        folder = tmp_path_factory.mktemp("tuned")
        folder.joinpath("text.txt").write_text(f"{LINES[number]}\n" * 60)
        corpus = Corpus(train=Documents(paths=(str(folder / "text.txt"),), unit="line"))
        recipe = fine_tuning_recipe(base, corpus, lora=Lora(rank=2 + number, maps=("all",)))
        optimizer = replace(recipe.optimizer, lr=0.05)
        few = {"budget": Budget(steps=20), "checkpointing": Checkpointing(evaluate=20), "optimizer": optimizer}
        train(folder / name, replace(recipe, **few), log=lambda line: None)
        made.append(folder / name)
    return made


@pytest.fixture(scope="module")
def served(api_runs, folders):
    base = ch.load(api_runs["documents"].folder.path, device="cpu")
    adapters = [ch.load(folder, device="cpu", merge=False) for folder in folders]
    with serving([base], names=["base"], adapters=adapters) as client:
        yield client


def ask(client, name, prompt, **how):
    asked = {"model": name, "prompt": prompt, "max_tokens": 20, "temperature": 0, **how}
    return [choice["text"] for choice in client.answer("/v1/completions", **asked)["choices"]]


def test_each_answers_as_its_run_does_alone_while_the_others_do(served, folders, api_runs):
    offline = {"base": api_runs["documents"]} | {
        f"base:{name}": ch.load(folder, device="cpu") for name, folder in zip(NAMES, folders, strict=True)
    }
    asked = [(name, prompt) for prompt in ("the cat", "the dog eats", "a") for name in offline] * 3
    with ThreadPoolExecutor(9) as pool:
        found = list(pool.map(lambda pair: ask(served, *pair), asked))
    wanted = [offline[name].generate([prompt], max_new=20, method=ch.Greedy()) for name, prompt in asked]
    assert found == wanted
    assert len({tuple(text) for text in wanted[:3]}) > 1


def test_they_are_listed_and_their_weights_are_there_once(served, folders):
    assert [one["id"] for one in served.get("/v1/models")[1]["data"]] == ["base", "base:lent", "base:borrowed"]
    base, lent, _ = served.models.values()
    assert lent.worker is base.worker
    assert lent.run.model.embedding.table.data_ptr() == base.run.model.embedding.table.data_ptr()
    assert served.refused("/v1/completions", model="base:nobody", prompt="a")[:2] == (404, "model")


def test_attention_of_an_adapter_is_its_run_s(served, folders):
    found = served.answer(
        "/v1/completions", model="base:lent", prompt="the cat", max_tokens=4, temperature=0, attention={"heads": [0]}
    )["choices"][0]["attention"]["sites"][0]
    run = ch.load(folders[0], device="cpu")
    trace = ch.trace(run, "the cat")
    own = trace.decoder[0].attention.head[0].weight
    weight = torch.tensor(found["weight"][0])[: own.shape[0], : own.shape[1]]
    assert (weight - own).abs().max() < 1e-5


def test_what_does_not_belong_together_is_refused(api_runs, folders):
    adapter = ch.load(folders[0], device="cpu", merge=False)
    with pytest.raises(OptionError, match="was not fine-tuned from a run that is served here"):
        Api([api_runs["stretch"]], adapters=[adapter])
    with pytest.raises(OptionError, match="load it with merge=False"):
        Api([ch.load(api_runs["documents"].folder.path)], adapters=[ch.load(folders[0], device="cpu")])
