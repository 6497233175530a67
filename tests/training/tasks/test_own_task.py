"""A task of your own, that of docs/your-own-task.md, is served, fitted to minutes, compared and exported like ours."""

import importlib
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from clearhead.errors import OptionError
from clearhead.experiments.comparing import compare, one_by_one, varied
from clearhead.interop.export import export
from clearhead.text.encoding import Corpus
from clearhead.text.sources import Aligned
from clearhead.training.recipe import Budget
from clearhead.training.tasks import default_recipe
from clearhead.training.train import train
from tests.registering import registry_restored
from tests.serve.api_serving import serving

PAGE = Path(__file__).parents[3] / "docs" / "your-own-task.md"
TEXT = "the old saw saw a plant"

pytestmark = [pytest.mark.slow, pytest.mark.plain]


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """The page's recipe for the page's text, in a folder with the page's module."""
    make_text, module = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[:2]
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "tagging.py").write_text(module)
    exec(make_text, {})
    with registry_restored():
        importlib.import_module("tagging")
        corpus = Corpus(train=Aligned(source=("train.words",), target=("train.tags",)))
        yield replace(default_recipe("tagging:Tagging", corpus), budget=Budget(steps=40))
        sys.modules.pop("tagging")


def test_it_is_served_by_the_same_server_as_ours(recipe, tmp_path):
    run = train(tmp_path / "run", recipe, log=lambda _: None)
    with serving([run]) as client:
        [facts] = client.get("/v1/models")[1]["data"]
        assert (facts["task"], facts["routes"]) == ("tag", ["/v1/embeddings", "/v1/answer"])
        found = client.answer("/v1/answer", input=[TEXT, " ", "a dog"])["data"]
        assert [entry["output"] for entry in found] == [entry["output"] for entry in run.answer([TEXT, " ", "a dog"])]
        assert found[1]["output"] == ""
        assert len(found[0]["output"].split()) == len(TEXT.split())
        [traced] = client.answer("/v1/answer", input=[TEXT], attention={"heads": [0]})["data"]
        assert traced["attention"]["tokens"] == {"encoder": TEXT.split()}
        assert client.refused("/v1/classify", input=[TEXT], model="run")[2].startswith("run was trained to tag")


def test_its_own_size_is_trained_for_as_many_steps_as_the_minutes_allow(recipe, tmp_path):
    fitted = replace(recipe, budget=Budget(minutes=0.2), open=("budget", "model", "batch", "evaluate"))
    run = train(tmp_path / "run", fitted, log=lambda _: None)
    taken = run.folder.recipe()
    assert taken.budget.steps is None or taken.budget.steps > 0
    assert taken.model.d_model == recipe.model.d_model
    assert run.step > 20


def test_it_is_compared(recipe, tmp_path):
    few = replace(recipe, budget=Budget(steps=4))
    arms = one_by_one([{}, {"attention": "cosine"}], lambda choice: varied(few, choice))
    comparison = compare(tmp_path / "all", arms, seeds=(1,), log=lambda _: None)
    assert not comparison.failures
    assert {outcome.arm for outcome in comparison.outcomes} == {arm.name for arm in arms}
    assert "accuracy %" in (tmp_path / "all" / "comparison.md").read_text(encoding="utf-8")


def test_it_is_exported_where_a_program_can_say_it_and_refused_by_name_elsewhere(recipe, tmp_path):
    run = train(tmp_path / "run", replace(recipe, budget=Budget(steps=4)), log=lambda _: None)
    assert export(run, to="torch", path=tmp_path / "torch").figures.passed
    with pytest.raises(OptionError, match=r"hf.*none is there to tag|hf.*Tags"):
        export(run, to="hf", path=tmp_path / "hf")
