"""What --must-export chooses: the nearest model that a format can express, as docs/export.md lists it."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from clearhead.errors import OptionError
from clearhead.interop.export import FORMATS, check_exportable, exportable_recipe
from clearhead.interop.export.huggingface import Expression, express
from clearhead.model import presets
from clearhead.model.presets import Size
from clearhead.text.encoding import Corpus
from clearhead.text.sources import Table
from clearhead.training import default_recipe, with_parts
from clearhead.training.fine_tuning import StartingRun, with_output_of
from clearhead.training.recipe import FineTuning
from clearhead.training.tasks import TASKS, Fill

PAGE = Path(__file__).parents[3] / "docs/export.md"
SAYS = {"": "✓", "tanh": "tanh GELU", "BERT's": "BERT's parts", "wide part": "no wide part"}


@pytest.fixture
def recipe_of(tmp_path):
    (tmp_path / "t.tsv").write_text("a\n")

    def make(task):
        fields = TASKS[task].fields()
        return default_recipe(
            task, Corpus(train=Table(paths=(str(tmp_path / "t.tsv"),), columns=fields, fields=fields))
        )

    return make


def rows_of_the_page() -> dict[str, list[str]]:
    lines = PAGE.read_text(encoding="utf-8").split("| task | hf |")[1].splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return {row[0]: row[1:] for row in cells if len(row) == 1 + len(FORMATS)}


@pytest.mark.parametrize("task", TASKS)
def test_the_page_says_what_is_chosen_for_each_task_and_format(recipe_of, task):
    recipe, said = recipe_of(task), []
    for name in FORMATS:
        try:
            chosen, words = exportable_recipe(recipe, [name])
        except OptionError:
            said.append("–")
            continue
        check_exportable(name, chosen.model, task, (recipe.tokenizing.kind,))
        assert bool(words) == (chosen != recipe)
        said.append(next(text for key, text in reversed(SAYS.items()) if key in words))
    assert rows_of_the_page()[task] == said


def test_parts_that_were_chosen_are_not_changed(recipe_of):
    recipe = recipe_of("generate")
    argmax = replace(recipe, model=with_parts(recipe.model, {"attention": "argmax"}, context=64))
    for may_change in (True, False):
        with pytest.raises(OptionError, match=re.escape("no Argmax() attention")):
            exportable_recipe(argmax, ["ctranslate2"], may_change=may_change)
    with pytest.raises(OptionError, match="which has no class for this model"):
        exportable_recipe(recipe_of("fill"), ["hf"], may_change=False)


@pytest.mark.parametrize(
    ("change", "name"),
    [({"segments": 2}, "Bert"), ({"segments": None}, "DistilBert"), ({"segments": 1}, "Bert")],
)
def test_a_bert_that_learns_to_classify_is_a_class_of_theirs(recipe_of, change, name):
    spec = presets.bert(Size(2, 32, 2, 2, 64), vocabulary=50, length=32)
    spec = replace(spec, embedding=replace(spec.embedding, **change))
    task = Fill(tokenizers={}, context=32)
    source = StartingRun("run", task, spec, FineTuning(source="run", run="", step=0, sha256=""))
    tuned = with_output_of(recipe_of("classify").model, source, "classify")
    expressed = express(tuned, "classify", 32, first=name.lower())
    assert isinstance(expressed, Expression), expressed
    assert expressed.class_name == f"{name}ForSequenceClassification"
