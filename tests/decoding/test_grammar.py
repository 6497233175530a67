"""Grammars: every output is of its grammar, alone and in a batch, and wrong grammars are refused."""

import json
import re
import sys

import pytest
import torch

from clearhead.decoding import Beam, Greedy, Rules, Sample, generate, grammar
from clearhead.decoding.continuous import ContinuousBatch
from clearhead.decoding.grammar import Grammar, TokenBytes, json_grammar
from clearhead.decoding.scheduler import Job
from clearhead.errors import OptionError
from clearhead.model import presets
from clearhead.text.tokenizer import Tokenizer
from tests.decoding.serving import decode

TEXTS = [
    'the cat eats {"name": "x", "age": 12}',
    "größ [1, 2, 3] true false null",
    "2026-11-18 a-b 3456789 0 pet dog",
] * 3
SCHEMA = {
    "type": "object",
    "properties": {
        "pet": {"enum": ["cat", "dog"]},
        "ages": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 2},
    },
    "required": ["pet", "ages"],
    "additionalProperties": False,
}
METHODS = [Greedy(), Sample(seeds=3), Sample(temperature=2.0, top_k=9, seeds=5)]


@pytest.fixture
def library():
    return pytest.importorskip("llguidance")


@pytest.fixture(scope="module", params=["byte", "bpe", "unigram", "char"])
def tokenizer(request):
    return Tokenizer.train(TEXTS, request.param)


@pytest.fixture(scope="module")
def tokens(tokenizer):
    return TokenBytes(tokenizer.token_bytes)


@pytest.fixture(scope="module")
def model(tokenizer):
    torch.manual_seed(0)
    return presets.gpt2("tiny", vocabulary=tokenizer.vocabulary).build().double().eval()


def text_of(tokens, hypothesis, end):
    return b"".join(tokens.tokens[token] for token in hypothesis.tokens if token != end).decode()


@pytest.mark.parametrize("method", METHODS)
def test_json_is_of_its_schema_and_ends_where_nothing_can_follow(library, tokenizer, tokens, model, method):
    rules = Rules(max_new=200, grammar=json_grammar(SCHEMA, tokens))
    [found] = generate(model, tokenizer.encode("the cat"), method, rules=rules)
    value = json.loads(text_of(tokens, found, -1))
    assert set(value) == {"pet", "ages"}
    assert value["pet"] in ("cat", "dog")
    assert len(value["ages"]) <= 2
    assert all(isinstance(age, int) for age in value["ages"])
    assert len(found.tokens) < 200


@pytest.mark.parametrize("method", METHODS)
def test_text_matches_a_regular_expression_and_ends_only_where_it_is_complete(
    library, tokenizer, tokens, model, method
):
    end = tokenizer.end
    rules = Rules(max_new=40, end=(end,), grammar=Grammar("regex", "[0-9]{2}-(a|b)+", tokens))
    [found] = generate(model, tokenizer.encode("the"), method, rules=rules)
    text = text_of(tokens, found, end)
    assert re.fullmatch("[0-9]{2}-[ab]+", text)
    assert found.ended or len(found.tokens) == 40


def test_log_probabilities_are_the_model_s_own(library, tokenizer, tokens, model):
    [one] = generate(model, [7, 8], rules=Rules(max_new=1, grammar=Grammar("regex", "[0-9]", tokens)))
    with torch.no_grad():
        own = torch.log_softmax(model(torch.tensor([[7, 8]]))[0, -1], -1)
    assert one.log_probs[0] == pytest.approx(float(own[one.tokens[0]]), abs=1e-9)
    digits = [i for i, token in enumerate(tokens.tokens) if re.fullmatch(rb"[0-9]", token)]
    assert one.tokens[0] == max(digits, key=lambda i: float(own[i]))


def test_in_a_batch_each_follows_its_own_grammar_as_alone(library, tokenizer, tokens, model):
    grammars = [
        Grammar("regex", "[0-9]+-a", tokens),
        json_grammar(SCHEMA, tokens),
        None,
        Grammar("regex", "(cat|the) ", tokens),
    ]
    jobs = [
        Job(inputs=(5 + i, 6), rules=Rules(max_new=30, grammar=grammar), method=method)
        for i, grammar in enumerate(grammars)
        for method in METHODS
    ]
    for job, [found] in zip(jobs, decode(ContinuousBatch(model, slots=5), jobs), strict=True):
        [alone] = generate(model, job.inputs, job.method, rules=job.rules)
        assert found.tokens == alone.tokens


def test_a_second_job_goes_on_where_the_first_was(library, tokenizer, tokens, model):
    batch = ContinuousBatch(
        model, slots=1, tokens=tokens
    )  # the grammar came without its tokens, as from another process
    begun = next(iter(tokens.cut(b"1")))
    [[found]] = decode(
        batch, [Job(inputs=(5, begun), rules=Rules(max_new=3, grammar=Grammar("regex", "12?a")), begun=(begun,))]
    )
    assert text_of(tokens, found, -1) in ("a", "2a")


def test_an_output_has_ended_where_its_grammar_is_complete_and_not_where_it_passes_its_bounds(library, monkeypatch):
    torch.manual_seed(0)
    model = presets.gpt2("tiny", vocabulary=256).build().double()
    text = 'start: "a"~5 s~2 "d"\ns: "x" | "x" "y" | "x" "y" "y"'
    for most, ended in ((1000, True), (20, False)):
        byte_tokens = TokenBytes(lambda: [bytes([byte]) for byte in range(256)])
        rules = Rules(max_new=200, grammar=Grammar("lark", text, byte_tokens))
        limits = library.LLParserLimits(step_max_items=most, verbose_errors=False)
        with monkeypatch.context() as patched:
            patched.setattr(
                grammar, "make_matcher", lambda *made, at=limits: library.LLMatcher(*made, limits=at, log_level=0)
            )
            [found] = generate(model, [5], rules=rules)
        assert 0 < len(found.tokens) < 200
        assert found.ended == ended == text_of(byte_tokens, found, -1).endswith("d")


def test_a_grammar_that_no_token_can_begin_gives_nothing(library, model):
    tokens = TokenBytes(lambda: [b"x"] * model.decoder.spec.vocabulary)
    [found] = generate(model, [5], rules=Rules(max_new=3, grammar=Grammar("regex", "[0-9]", tokens)))
    assert found.tokens == ()
    tokens = TokenBytes(lambda: [b"x", b"a"] * (model.decoder.spec.vocabulary // 2))
    [found] = generate(model, [5], rules=Rules(max_new=3, grammar=Grammar("regex", "ab", tokens)))
    assert text_of(tokens, found, -1) == "a"


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("regex", "(a", "the regex cannot be followed: .*unclosed group"),
        ("json_schema", '{"type": "objekt"}', "the json_schema cannot be followed: Invalid type: objekt"),
        ("json_schema", '{"type": "array", "uniqueItems": true}', "cannot be followed: .*uniqueItems"),
        ("json_schema", "{", "the json_schema cannot be read"),
        ("regex", "((a{1000}){1000}){1000}", "cannot be followed: it is too large"),
        ("regex", "(a?){5000}a{5000}", "cannot be followed: it is too large"),
        ("json_schema", '{"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}]}}}', "or no text fits"),
        ("json_schema", '{"$ref": "file:///etc/passwd"}', "cannot be followed: .*does not fetch"),
        ("bnf", "x", "kind is one of json_schema, regex, lark; came 'bnf'"),
    ],
)
def test_wrong_grammars_are_refused(library, kind, text, message):
    with pytest.raises(OptionError, match=message):
        Grammar(kind, text)


def test_what_a_grammar_cannot_do_without_is_said(library, tokens, model):
    grammar = Grammar("regex", "a")
    with pytest.raises(OptionError, match="give it the model's tokens=TokenBytes"):
        generate(model, [5], rules=Rules(max_new=3, grammar=grammar))
    with pytest.raises(OptionError, match="a beam has none"):
        generate(model, [5], Beam(), rules=Rules(max_new=3, grammar=grammar))


def test_without_the_package_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(
        OptionError, match="A grammar needs the package llguidance, which is not installed: pip install 'llguidance"
    ):
        Grammar("regex", "a")
