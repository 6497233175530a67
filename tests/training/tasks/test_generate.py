"""To generate: the line to beat of a language model, from its own text to the end of its training."""

import json
from dataclasses import replace

import pytest

from clearhead.text.encoding import split_records, texts_of
from clearhead.training.baseline import score_ngrams
from clearhead.training.recipe import Budget
from clearhead.training.train import train
from tests.training import small_runs
from tests.training.tiny import recipe_for, work_on


def test_the_ngram_is_counted_on_the_training_text_and_scored_on_the_dev_text(tmp_path, monkeypatch):
    """Both as they stand in the files, split as for training, with as many bytes as the stores count."""
    recipe = recipe_for(small_runs.documents, tmp_path)
    work = work_on(recipe, tmp_path)
    task, stores = work.task, (work.prepared.train, work.prepared.dev)
    found = task.baseline(recipe.corpus, work.prepared)
    notes = work.prepared.notes
    layout = task.usual_layout()
    records = list(split_records(recipe.corpus, layout, notes))
    sides = [
        [texts_of(one, layout, record)[0].encode() for one, record, dev in records if dev is held]
        for held in (False, True)
    ]
    assert replace(found, seconds=0.0) == replace(score_ngrams(*sides), seconds=0.0)
    assert [found.text_bytes, found.dev_bytes] == [store.sizes["text"].text_bytes for store in stores]
    monkeypatch.setattr("clearhead.training.baseline.PILOT_BYTES", found.train_bytes // 10)
    few, all_ = (task.baseline(recipe.corpus, work.prepared, seconds=seconds).train_bytes for seconds in (0.0, 1e3))
    assert few < 0.2 * found.train_bytes
    assert all_ == found.train_bytes


@pytest.mark.slow
def test_a_language_model_is_compared_with_it_at_the_end(tmp_path):
    told = []
    run = train(tmp_path / "run", recipe_for(small_runs.stretch, tmp_path, budget=Budget(steps=3)), log=told.append)
    evaluation = run.folder.read_evaluation()
    line = json.loads(run.folder.baseline.read_text(encoding="utf-8"))["bits_per_byte"]
    assert evaluation["ngram"]["bits_per_byte"] == line
    assert evaluation["bits_per_byte"] > line  # three steps teach nothing
    assert any(text.startswith("the line to beat: a byte 7-gram") for text in told)
    assert f"the byte 7-gram is better: {line:.3f} bits/byte" in told[-1]
