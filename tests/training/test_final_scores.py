"""evaluation.json: the scores of the weights to use, beside those of the simple model that was fitted first."""

import pytest

from clearhead.errors import RunError
from clearhead.training.baseline import NgramScore
from clearhead.training.final_scores import read_score
from clearhead.training.recipe import Budget, Checkpointing
from clearhead.training.train import train
from tests.training import small_runs
from tests.training.tiny import quiet, recipe_for


def test_the_evaluation_is_of_the_weights_to_use(tmp_path):
    checkpointing = Checkpointing(log=2, evaluate=2, score_records=5, samples=2)
    recipe = recipe_for(small_runs.translating, tmp_path / "text", budget=Budget(steps=4), checkpointing=checkpointing)
    run = train(tmp_path / "run", recipe, log=quiet)
    saved = run.folder.read_evaluation()
    assert saved["step"] == run.step
    assert saved["on"] == "dev"
    assert saved["records"] == 20
    assert saved["parameters"] == sum(one.numel() for one in run.model.parameters())
    assert len(saved["samples"]) == 2
    assert {"loss", "bleu", "chrf", "exact_match", "training_seconds", "seconds"} <= saved.keys()


def test_a_classifier_stands_beside_the_linear_model(classifier):
    saved, baseline = classifier.folder.read_evaluation(), classifier.folder.read_own(classifier.folder.baseline)
    assert saved["linear"] == {name: baseline[name] for name in ("accuracy", "macro_f1", "features")}
    assert "ngram" not in saved


def test_a_language_model_stands_beside_the_byte_ngrams(documents):
    saved, baseline = documents.folder.read_evaluation(), documents.folder.read_own(documents.folder.baseline)
    assert saved["ngram"]["bits_per_byte"] == baseline["bits_per_byte"] != saved["bits_per_byte"]
    assert "linear" not in saved


@pytest.mark.parametrize("change", [{"train_bytes": []}, {"train_bytes": None}, None])
def test_a_baseline_that_is_none_is_named(documents, change):
    saved = documents.folder.read_own(documents.folder.baseline)
    saved = {**saved, **change} if change else {name: saved[name] for name in saved if name != "train_bytes"}
    with pytest.raises(RunError, match=r"baseline\.json: .*train_bytes"):
        read_score(NgramScore, saved, documents)
