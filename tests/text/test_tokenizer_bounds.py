"""A tokenizer.json of someone else's: what it may make of a text, and what ends it."""

import base64
import json

import pytest

from clearhead.errors import DataError
from clearhead.text import tokenizer as module
from clearhead.text import tokenizer_bounds
from clearhead.text.tokenizer import Tokenizer
from clearhead.text.tokenizer_bounds import check_growth

pytestmark = pytest.mark.plain
CHARS = json.loads(Tokenizer.train(["the cat eats the plum"], "char").to_json())


def replacing(pattern, content, kind="String"):
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def sequence(inner, *parts):
    return {"type": "Sequence", inner: list(parts)}


def charsmap(text):
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(b"\0\0\0\0a\0" + text + b"\0").decode()}


def saved(folder, **parts):
    (folder / "tokenizer.json").write_text(json.dumps(CHARS | parts))
    return folder / "tokenizer.json"


GROWING = {
    "chained replacements": {"normalizer": sequence("normalizers", *[replacing("a", "a" * 100)] * 8)},
    "nested": {"normalizer": sequence("normalizers", sequence("normalizers", *[replacing("a", "a" * 9)] * 3))},
    "an empty expression": {"normalizer": replacing("", "a" * 100, "Regex")},
    "prefixes": {"normalizer": sequence("normalizers", *[{"type": "Prepend", "prepend": "a" * 10}] * 3)},
    "a table": {"normalizer": charsmap(b"b" * 1000)},
    "a decoder": {"decoder": sequence("decoders", *[replacing("a", "aaa")] * 5)},
    "a template": {"post_processor": {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A"}}] * 101}},
    "many parts": {"pre_tokenizer": sequence("pretokenizers", *[{"type": "Whitespace"}] * 101)},
}


@pytest.mark.parametrize("name", GROWING)
def test_parts_that_make_a_text_far_longer_are_refused(tmp_path, name):
    with pytest.raises(DataError, match=r"tokenizer\.json: its \w+ has .* parts that make a text up to"):
        Tokenizer.load(saved(tmp_path, **GROWING[name]))


def test_what_published_tokenizers_have_is_taken():
    gemma = {"normalizer": replacing(" ", "▁"), "decoder": sequence("decoders", replacing("▁", " "))}
    t5 = {
        "normalizer": sequence("normalizers", charsmap("صلى الله عليه وسلم".encode()), replacing(" {2,}", "▁", "Regex"))
    }
    for config in (gemma, t5, {"normalizer": ["odd"], "decoder": {"type": ["odd"]}}, [], None):
        check_growth(config, "tokenizer.json")


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}}, "Cannot parse precompiled_charsmap"),
        (
            {
                "pre_tokenizer": {
                    "type": "Split",
                    "pattern": {"Regex": "(q+)+$"},
                    "behavior": "Isolated",
                    "invert": False,
                }
            },
            "limit",
        ),
        (
            {
                "post_processor": {
                    "type": "TemplateProcessing",
                    "single": [{"Sequence": {"id": "A", "type_id": 0}}],
                    "pair": [{"SpecialToken": {"id": "[NONE]", "type_id": 0}}],
                    "special_tokens": {},
                }
            },
            "no entry found",
        ),
    ],
)
def test_what_makes_the_library_break_down_is_told_in_a_sentence(tmp_path, capfd, parts, message):
    """Its own words, of a panic in Rust, went to stderr."""
    with pytest.raises(DataError, match=rf"tokenizer\.json: the tokenizers library cannot use it: .*{message}"):
        Tokenizer.load(saved(tmp_path, **parts))
    assert capfd.readouterr().err == ""


def test_a_tokenizer_of_our_kinds_is_not_tried(tmp_path, monkeypatch):
    monkeypatch.setattr(tokenizer_bounds, "try_tokenizer", lambda *args: pytest.fail("it was tried"))
    for kind in module.KINDS:
        for lower in (False, True):
            Tokenizer.train(["the cat eats"], kind, lower=lower).save(tmp_path / "t.json")
            assert Tokenizer.load(tmp_path / "t.json").kind == kind


def test_an_error_does_not_quote_the_file(tmp_path):
    with pytest.raises(DataError) as caught:
        Tokenizer.load(saved(tmp_path, model={"type": "x" * 5000}))
    assert len(str(caught.value)) < 1000
