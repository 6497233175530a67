"""`clearhead describe` of run folders and JSON files: the numbers are the run's own, and broken files are told."""

import json
from dataclasses import replace

import pytest

from clearhead.cli import run
from clearhead.cli.model_facts import gather_facts
from clearhead.errors import RunError
from clearhead.files import seal
from clearhead.model import presets
from clearhead.model.describe import describe
from clearhead.model.spec_json import spec_to_json
from clearhead.training.folder import RunFolder
from clearhead.training.recipe import write_recipe


@pytest.fixture
def said(capsys, plain_terminal):
    """Runs `clearhead describe`, and gives its exit code and what it printed."""

    def ran(*args):
        code = run(["describe", *map(str, args)])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return code, out + err

    return ran


@pytest.fixture
def spec_file(tmp_path):
    path = tmp_path / "spec.json"
    path.write_text(json.dumps(spec_to_json(presets.tiny(vocabulary=100))), encoding="utf-8")
    return path


def test_of_a_run_the_facts_are_those_of_its_model(classifier):
    folder = RunFolder(classifier.folder.path)
    facts = gather_facts(str(folder.path))
    assert facts.spec == classifier.model.spec
    assert facts.costs.parameters == sum(one.numel() for one in classifier.model.parameters())
    assert facts.costs.source == classifier.task.context
    assert (facts.purpose.task, facts.purpose.context) == ("classify", classifier.task.context)
    assert facts.purpose.labels == classifier.task.labels
    assert facts.purpose.steps == folder.checkpoints.all()[0].step > 0
    assert facts.purpose.scores["accuracy"] == folder.read_evaluation()["accuracy"]


def test_the_page_says_what_the_run_was_trained_to_do(said, classifier):
    code, page = said(classifier.folder.path)
    words = " ".join(page.split())
    assert code == 0
    assert f"trained to classify with {len(classifier.task.labels)} labels, context" in words
    assert "accuracy" in words
    assert "Heads(" in words


def test_json_has_the_spec_and_the_purpose(said, translator):
    code, text = said(translator.folder.path, "--json")
    found = json.loads(text)
    assert code == 0
    assert found["spec"] == spec_to_json(translator.model.spec)
    assert found["purpose"]["task"] == "translate"
    assert found["parameters"] == sum(one.numel() for one in translator.model.parameters())


@pytest.mark.slow
def test_a_spec_in_a_file_is_described_as_the_preset_it_is(spec_file):
    facts = gather_facts(str(spec_file), source=7, target=9)
    assert facts.costs == describe(presets.tiny(vocabulary=100), source=7, target=9)
    assert facts.purpose is None


def test_a_recipe_says_what_it_shall_be_trained_to_do(said, tmp_path, translator):
    path = tmp_path / "plan.json"
    write_recipe(replace(translator.folder.recipe(), parameters=30_000), path)
    code, page = said(path)
    assert code == 0
    assert "to be trained to translate, context" in page
    assert "size asked for: 30,000 parameters" in page


def test_a_runs_model_json_will_do(translator):
    facts = gather_facts(str(translator.folder.path / "model.json"))
    assert facts.spec == translator.model.spec
    assert facts.purpose.task == "translate"


def test_what_describes_no_model_is_told_in_a_line(said, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "is not a run folder: it has no model.json" in said(empty)[1]
    for content, why in (
        ("[1]", "expected a JSON object"),
        ("{", "Expecting property name"),
        ('{"model_type": "gpt2"}', "describes no model; expected the JSON of a spec or a recipe"),
        ('{"is": "Softmax", "temperature": 1.0}', "a model was expected"),
        (json.dumps(seal({"spec": {}, "task": 3, "context": 8})), "task"),
        ('{"spec": {}}', "has no format version"),
        ('{"is": "mine:Part"}', "mine:Part"),
    ):
        path = tmp_path / "odd.json"
        path.write_text(content, encoding="utf-8")
        code, told = said(path)
        assert (code, len(told.splitlines())) == (1, 1), told
        assert why in told
        assert str(path) in told
    code, told = said(tmp_path / "nowhere")
    assert code == 2
    assert "run folders and JSON files by their paths" in told


@pytest.mark.parametrize(
    ("field", "value"), [("d_model", 1 << 40), ("vocabulary", 1 << 62), ("d_model", 0), ("d_model", -4)]
)
def test_a_size_that_no_model_can_have_is_refused(said, spec_file, field, value):
    found = spec_to_json(presets.tiny(vocabulary=100).decoder)
    spec_file.write_text(json.dumps({**found, field: value}), encoding="utf-8")
    code, told = said(spec_file)
    assert code == 1
    assert len(told.splitlines()) == 1
    assert f"{spec_file}: the model cannot be built" in told


@pytest.mark.parametrize("option", [["--size", "10M"], ["--vocabulary", "9"]])
def test_sizes_are_for_names_only(said, spec_file, option):
    code, told = said(spec_file, *option)
    assert code == 2
    assert f"{option[0]}: goes with the name of a model" in told
    assert "has its own" in told


def test_a_changed_file_of_a_run_is_refused(tmp_path, translator):
    path = tmp_path / "recipe.json"
    content = json.loads(translator.folder.recipe_file.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**content, "seed": 99}), encoding="utf-8")
    with pytest.raises(RunError, match="checksum"):
        gather_facts(str(path))
