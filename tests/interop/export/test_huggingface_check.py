"""The check of Hugging Face's folders: it notices other ids, and does without transformers; and the model card."""

import importlib.util
import json

import pytest

from clearhead.errors import RunError
from clearhead.interop.export.huggingface import HuggingFace
from clearhead.interop.export.huggingface_check import check_ids, check_with_transformers, model_card
from clearhead.interop.export.samples import draw_samples
from clearhead.model import presets
from clearhead.model.presets import Size
from tests.interop.export.random_runs import draw_spec, run_of

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def written(tmp_path):
    run = run_of(presets.llama(Size(1, 32, 4, 2, 48)), tmp_path)
    HuggingFace().write(run, tmp_path, "float32")
    return run, tmp_path


def test_our_reader_compares_where_transformers_is_not_installed(written, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    figures = check_with_transformers(*written)
    assert figures.peer.startswith("clearhead's own reader")
    assert figures.difference < 1e-5


def test_other_ids_are_noticed(written):
    run, folder = written
    whole = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = whole["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (folder / "tokenizer.json").write_text(json.dumps(whole))
    with pytest.raises(RunError, match="AutoTokenizer reads"):
        check_ids(run, folder, draw_samples(run))


def test_a_trained_run_tells_its_scores(documents, tmp_path):
    card = model_card(documents, "GPT2LMHeadModel")
    assert card.startswith("---\nlibrary_name: transformers\npipeline_tag: text-generation\n")
    assert "- measured in training: `{" in card
    assert '"loss"' in card
    assert "AutoModelForCausalLM.from_pretrained" in card
    assert "measured" not in model_card(run_of(draw_spec("decoder", 0), tmp_path), "X")
