"""The examples a page offers: texts of the run's own, of which its tokeniser knows every word."""

import json
import shutil

import numpy as np
import pytest

from clearhead.serve.curves import Curves
from clearhead.serve.questions.run import examples, run_facts
from clearhead.training.run import load

LOST = "\ufffd"


@pytest.fixture
def copied(tmp_path):
    def copy(run):
        return load(shutil.copytree(run.folder.path, tmp_path / "run"), device="cpu")

    return copy


def with_samples(run, samples):
    """Log one more evaluation, with these samples."""
    line = {"kind": "evaluation", "step": 1, "loss": 1.0, "scores": {}, "samples": samples, "best": False}
    with run.folder.metrics.open("a") as log:
        log.write(json.dumps(line) + "\n")
    return [one["source"] for one in examples(run, Curves(run.folder.metrics))]


def forget_some(run, keep):
    """Make every token of the held-out texts unknown, but those of the texts from `keep` on."""
    [folder] = run.folder.data.glob("*/dev")
    told = json.loads((folder / "store.json").read_text())
    ids = np.memmap(folder / "text.ids", told["dtype"]["text"], mode="r+")
    ends = np.fromfile(folder / "text.ends", np.int64)
    ids[: ends[keep - 1]] = run.tokenizer.unknown
    ids.flush()
    return len(ends)


def test_a_logged_sample_with_an_unknown_word_is_no_example(copied, classifier):
    run = copied(classifier)
    assert with_samples(run, [{"input": f"red {LOST}"}, {"input": "red plum"}]) == ["red plum"]


def test_where_all_samples_have_unknown_words_the_data_gives_others(copied, classifier):
    run = copied(classifier)
    n = forget_some(run, keep=7)
    assert n > 10
    found = with_samples(run, [{"input": LOST}])
    assert len(found) == 5
    assert not any(LOST in text for text in found)


def test_of_data_that_is_all_unknown_the_vocabulary_gives_an_example(copied, classifier):
    run = copied(classifier)
    forget_some(run, keep=0)
    [found] = with_samples(run, [{"input": LOST}])
    assert found
    assert LOST not in found
    assert run.tokenizer.unseen(found) == ""


def test_half_a_character_is_no_beginning(copied, stretch):
    run = copied(stretch)
    found = with_samples(run, [{"input": "caf\ufffd"}])
    assert found
    assert not any(LOST in text for text in found)


def test_an_encoder_decoders_target_counts_too(copied, translator):
    run = copied(translator)
    samples = [{"input": "eins", "reference": LOST}, {"input": "zwei", "reference": "2"}]
    assert with_samples(run, samples) == ["zwei"]


def test_an_imported_run_has_no_training_to_show_and_opens_on_what_it_can_read(copied, documents, monkeypatch):
    run = copied(documents)
    no_curves = Curves(run.folder.path / "none.jsonl")
    assert "imported" not in run_facts(run, no_curves)
    own = type(run.folder).read_description
    monkeypatch.setattr(type(run.folder), "read_description", lambda folder: {**own(folder), "data": None})
    monkeypatch.setattr(type(run), "unseen", lambda run, text: "sea" if "sea" in text else "")
    facts = run_facts(run, no_curves)
    assert facts["imported"]
    assert "trained elsewhere" in facts["absent"]["training"]
    assert len(facts["examples"]) == 2
    assert all("window" in one["source"] for one in facts["examples"])
