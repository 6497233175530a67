"""Tokens by id, and the tokenisers beside an export."""

import json

import pytest

import clearhead as ch
from clearhead.interop.export.tokens import save_tokenizers, special_tokens, token_names
from clearhead.text.tokenizer import Tokenizer
from tests.interop.export.random_runs import TOKENIZER, draw_spec, run_of
from tests.interop.saved_models import save


def test_every_id_has_a_name():
    for kind in ("char", "bpe", "unigram"):
        tokenizer = Tokenizer.train(["ab ab abc", "b c d e f g h"] * 3, kind=kind)
        names = token_names(tokenizer)
        assert len(names) == len(set(names)) == tokenizer.vocabulary
        assert names[tokenizer.end] == "</s>"


def test_source_and_target_have_a_file_each_where_they_differ(tmp_path):
    run = run_of(draw_spec("encoder-decoder", 0), tmp_path)
    save_tokenizers(run, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer.json"]
    run.task.tokenizers["target"] = Tokenizer(TOKENIZER.to_json())
    save_tokenizers(run, tmp_path)
    assert {"source.tokenizer.json", "target.tokenizer.json"} < {path.name for path in tmp_path.iterdir()}


@pytest.mark.slow
def test_an_imported_translator_starts_with_its_own_token_in_every_export(tmp_path):
    """Marian starts from its padding token."""
    save("marian", tmp_path / "theirs")
    run = ch.import_model(tmp_path / "theirs", tmp_path / "run")
    special = special_tokens(run)
    assert run.tokenizer.start != special.start
    assert special.start == special.pad == run.task.frame("target").before[0]
    assert special.source_end == special.end == run.tokenizer.end
    ch.export(run, to="hf", path=tmp_path / "hf")
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert config["decoder_start_token_id"] == special.start
    ch.export(run, to="ctranslate2", path=tmp_path / "ctranslate2")
    told = json.loads((tmp_path / "ctranslate2" / "config.json").read_text())
    assert told["decoder_start_token"] == token_names(run.tokenizer)[special.start]
