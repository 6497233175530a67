"""Scores: translations score what sacrebleu says, classes and texts what a count by hand says."""

import logging
import math
from fractions import Fraction

import pytest
import sacrebleu
from hypothesis import given
from hypothesis import strategies as st

from clearhead.errors import OptionError
from clearhead.training.scores import TOKENIZERS, score_classes, score_text, score_translations

OUTPUTS = [
    "The cat sat on the mat.",
    "a dog , it seems , barked at night .",
    "",
    "我们去吃饭 well 吧",
    'He said: "It\'s 5.50 €"',
]
REFERENCES = [
    "The cat sat on a mat.",
    "A dog, it seems, barked at the night.",
    "nothing came",
    "我们 well 去吃饭吧",
    'He said: "It\'s 5.50 €"',
]
LABELS = ["red", "green", "blue", "grey"]
classes = st.lists(st.tuples(st.sampled_from(LABELS), st.sampled_from(LABELS[:3])), min_size=1, max_size=30)


@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("tokenize", TOKENIZERS)
def test_translations_score_what_sacrebleu_says(tokenize, lower):
    mine = score_translations(OUTPUTS, REFERENCES, tokenize=tokenize, lower=lower)
    bleu = sacrebleu.corpus_bleu(OUTPUTS, [REFERENCES], tokenize=tokenize, lowercase=lower)
    assert mine.bleu == bleu.score
    assert 0 < mine.bleu < 100
    assert mine.n == 5
    assert mine.exact_match == 1 / 5
    case = "lc" if lower else "mixed"
    assert mine.bleu_signature == (
        f"nrefs:1|case:{case}|eff:no|tok:{tokenize}|smooth:exp|version:{sacrebleu.__version__}"
    )
    assert mine.chrf_signature == f"nrefs:1|case:{case}|eff:yes|nc:6|nw:0|space:no|version:{sacrebleu.__version__}"
    # Its shortcut for chrF has no case to choose, so the text is lowered first.
    texts = [[text.lower() for text in side] for side in (OUTPUTS, REFERENCES)] if lower else [OUTPUTS, REFERENCES]
    assert mine.chrf == sacrebleu.corpus_chrf(texts[0], [texts[1]]).score


def test_case_and_tokens_make_a_difference():
    plain = score_translations(OUTPUTS, REFERENCES)
    assert score_translations(OUTPUTS, REFERENCES, lower=True).bleu > plain.bleu
    assert len({score_translations(OUTPUTS, REFERENCES, tokenize=name).bleu for name in TOKENIZERS}) == len(TOKENIZERS)


def test_an_exact_match_minds_case_and_inner_space_but_not_the_space_around():
    outputs, references = [" yes\n", "Yes", "a  b", "no", ""], ["yes", "yes", "a b", "\tno", " "]
    assert score_translations(outputs, references, lower=True).exact_match == 3 / 5


def test_the_reference_itself_scores_all():
    scores = score_translations(REFERENCES, REFERENCES)
    assert (scores.bleu, scores.chrf, scores.exact_match) == (pytest.approx(100), 100, 1)


def test_bleu_is_nothing_where_all_outputs_are_shorter_than_four_words():
    scores = score_translations(["forty two", "six"], ["forty two", "six"])
    assert (scores.bleu, scores.chrf, scores.exact_match) == (0, 100, 1)


def test_nothing_is_said_of_text_that_looks_tokenized(monkeypatch, capfd):
    """sacrebleu warns of a hundred lines that end in a space and a full stop, unless it is told not to."""
    outputs, records = ["it looks tokenized to me ."] * 120, []
    monkeypatch.setattr(logging.getLogger("sacrebleu"), "handle", records.append)
    monkeypatch.setattr(logging.getLogger(), "level", logging.DEBUG)
    score_translations(outputs, outputs)
    assert not records
    assert capfd.readouterr() == ("", "")
    logging.getLogger("sacrebleu").warning("heard")
    assert [record.getMessage() for record in records] == ["heard"]


@pytest.mark.parametrize(
    ("outputs", "references", "tokenize", "message"),
    [
        (["a"], ["a", "b"], "13a", "each output needs one reference; came 1 and 2"),
        ([], [], "13a", "nothing to score"),
        (["a"], ["a"], "12a", "tokenize must be one of 13a, char, intl, none, zh; came '12a'"),
        (["a"], ["a"], "flores200", "tokenize must be one of"),
    ],
)
def test_what_cannot_be_scored_is_refused(outputs, references, tokenize, message):
    with pytest.raises(OptionError, match=message):
        score_translations(outputs, references, tokenize=tokenize)


def test_classes_by_hand():
    """Six examples: red is right twice of three, green once of two, blue never; grey does not occur."""
    truths = ["red", "red", "red", "green", "green", "blue"]
    answers = ["red", "red", "green", "green", "red", "red"]
    scores = score_classes(answers, truths, LABELS)
    assert scores.confusion == [[2, 1, 0, 0], [1, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]]
    assert scores.f1 == {"red": 4 / 7, "green": 1 / 2, "blue": 0, "grey": 0}
    assert scores.accuracy == 1 / 2
    assert scores.macro_f1 == pytest.approx((4 / 7 + 1 / 2) / 3, abs=1e-15)
    assert scores.n == 6


@given(classes)
def test_f1_is_the_harmonic_mean_of_precision_and_recall(pairs):
    truths, answers = (list(side) for side in zip(*pairs, strict=True))
    scores = score_classes(answers, truths, LABELS)
    fractions = {label: harmonic_f1(pairs, label) for label in {*truths, *answers}}
    for label, fraction in fractions.items():
        assert scores.f1[label] == float(fraction)
    assert all(scores.f1[label] == 0 for label in LABELS if label not in fractions)
    assert scores.macro_f1 == pytest.approx(float(sum(fractions.values()) / len(fractions)), abs=1e-15)


def harmonic_f1(pairs, label) -> Fraction:
    """From precision and recall; where either has nothing to count, or nothing was right, it is 0."""
    right = sum(pair == (label, label) for pair in pairs)
    if not right:
        return Fraction(0)
    recall = Fraction(right, sum(truth == label for truth, _ in pairs))
    precision = Fraction(right, sum(answer == label for _, answer in pairs))
    return 2 * precision * recall / (precision + recall)


@given(classes)
def test_the_confusion_counts_every_example_once(pairs):
    truths, answers = (list(side) for side in zip(*pairs, strict=True))
    scores = score_classes(answers, truths, LABELS)
    trace = sum(scores.confusion[place][place] for place in range(len(LABELS)))
    assert sum(map(sum, scores.confusion)) == scores.n == len(pairs)
    assert scores.accuracy == trace / len(pairs)
    assert [sum(row) for row in scores.confusion] == [truths.count(label) for label in LABELS]
    assert [sum(column) for column in zip(*scores.confusion, strict=True)] == [answers.count(one) for one in LABELS]
    assert 0 <= scores.macro_f1 <= 1
    assert all(0 <= f1 <= 1 for f1 in scores.f1.values())
    assert list(scores.f1) == LABELS


@pytest.mark.parametrize(
    ("answers", "truths", "labels", "message"),
    [
        (["red"], [], LABELS, "each output needs one true label; came 1 and 0"),
        ([], [], LABELS, "nothing to score"),
        (["red"], ["pink"], ["red", "green"], r"must be a label \('red', 'green'\); came 'pink'"),
        (["pink"], ["red"], ["red"], "came 'pink'"),
        (["red"], ["red"], ["red", "red"], "labels must differ"),
    ],
)
def test_classes_that_cannot_be_scored_are_refused(answers, truths, labels, message):
    with pytest.raises(OptionError, match=message):
        score_classes(answers, truths, labels)


def test_text_that_is_a_fair_guess_among_256_bytes():
    """Where each byte is a token and any of 256 is as likely, a byte costs eight bits."""
    text = score_text(1000 * math.log(256), tokens=1000, n_bytes=1000)
    assert text.bits_per_byte == pytest.approx(8, abs=1e-12)
    assert text.perplexity == pytest.approx(256, rel=1e-12)
    assert text.loss == pytest.approx(math.log(256), abs=1e-12)
    assert (text.tokens, text.bytes) == (1000, 1000)


@given(st.floats(0, 1e5), st.integers(1, 10**6), st.integers(1, 10**6))
def test_bits_per_byte_do_not_ask_how_the_text_was_cut(nats, tokens, n_bytes):
    text = score_text(nats, tokens, n_bytes)
    assert text.bits_per_byte == score_text(nats, 1, n_bytes).bits_per_byte
    assert text.bits_per_byte * n_bytes == pytest.approx(text.loss * tokens * math.log2(math.e), rel=1e-12)


def test_a_hopeless_loss_has_infinite_perplexity():
    assert score_text(1e4, tokens=1, n_bytes=1).perplexity == math.inf


@pytest.mark.parametrize(("tokens", "n_bytes"), [(0, 5), (5, 0)])
def test_no_text_is_refused(tokens, n_bytes):
    with pytest.raises(OptionError, match=f"no text to score: expected tokens and bytes; came {tokens} and {n_bytes}"):
        score_text(1.0, tokens, n_bytes)
