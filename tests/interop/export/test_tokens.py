"""Tokens by id, and the tokenisers beside an export."""

from clearhead.interop.export.tokens import save_tokenizers, token_names
from clearhead.text.tokenizer import Tokenizer
from tests.interop.export.random_runs import TOKENIZER, draw_spec, run_of


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
