"""The merges that made a token: replayed, they give the library's own tokens for every text."""

import itertools
import random

import pytest

from clearhead.text.merges import MergeRules
from clearhead.text.tokenizer import Tokenizer

TEXTS = [
    "the lowest of the lower towers is slower than the newest",
    "größere Bäume wachsen langsamer; 1234 Äpfel!",
    "naïve café — 東京 тест 😀",
]
KINDS = ("bpe", "metaspace", "unigram", "word", "char", "byte")


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request):
    size = None if request.param in ("word", "char", "byte") else 460
    return Tokenizer.train(TEXTS * 8, request.param, size)


def test_a_tree_makes_its_token_of_its_characters(tokenizer):
    rules = MergeRules.of(tokenizer)
    seen = 0
    for text in TEXTS:
        for span in tokenizer.spans(text):
            nodes = rules.tree(span.token)
            if tokenizer.kind in ("unigram", "word"):
                assert nodes is None
                continue
            if nodes is None:
                assert span.token.startswith("<0x")  # a byte of a character that has no token
                continue
            assert nodes[-1].text == tokenizer.pieces([span.id])[0]
            leaves = [node for node in nodes if node.rank is None]
            assert len(nodes) == 2 * len(leaves) - 1
            for place, node in enumerate(nodes[len(leaves) :], len(leaves)):
                assert node.left < place
                assert node.right < place
                assert rules.shown(list(rules.merges)[node.rank][0]) == nodes[node.left].text
                assert rules.shown(list(rules.merges)[node.rank][1]) == nodes[node.right].text
            seen += len(nodes) > 1
    assert (seen > 5) == (tokenizer.kind in ("bpe", "metaspace"))


@pytest.mark.parametrize("kind", ["bpe", "metaspace"])
def test_merging_whole_words_by_rank_gives_the_same_tokens(kind):
    """By another way than the tree's: all of a word at once, as the library does it."""
    tokenizer = Tokenizer.train(TEXTS * 8, kind, 460)
    rules = MergeRules.of(tokenizer)
    draw = random.Random(0)
    letters = sorted({letter for text in TEXTS[:2] for letter in text if letter.isalpha()})
    for _ in range(200):
        word = "".join(draw.choices(letters, k=draw.randint(1, 12)))
        spans = tokenizer.spans(word)
        if len({span.word for span in spans}) != 1:
            continue
        parts = list("".join(span.token for span in spans))
        while True:
            pairs = [(rules.merges.get(pair, 10**9), i) for i, pair in enumerate(itertools.pairwise(parts))]
            rank, i = min(pairs, default=(10**9, 0))
            if rank == 10**9:
                break
            parts[i : i + 2] = [parts[i] + parts[i + 1]]
        assert parts == [span.token for span in spans]


def test_bytes_of_tokens_are_those_of_the_text(tokenizer):
    rules = MergeRules.of(tokenizer)
    for text in TEXTS:
        spans = tokenizer.spans(text)
        assert [span.id for span in spans] == tokenizer.encode(text)
        joined = b"".join(rules.bytes_of(span.token) for span in spans)
        if tokenizer.kind == "word":
            assert joined == text.replace(" ", "").encode()
        else:
            assert joined.removeprefix(b" ") == text.encode()


def test_spans_lie_in_the_text(tokenizer):
    for span in tokenizer.spans("the tower"):
        assert 0 <= span.start <= span.stop <= len("the tower")


def test_a_unigram_piece_has_its_log_probability():
    tokenizer = Tokenizer.train(TEXTS * 8, "unigram", 460)
    rules = MergeRules.of(tokenizer)
    assert all(rules.scores[span.token] < 0 for span in tokenizer.spans("the lowest"))
    assert rules.model == "Unigram"


def test_a_suffix_at_the_end_of_a_word_belongs_to_its_last_letter():
    rules = MergeRules(
        model="BPE", merges={("a", "t</w>"): 0, ("c", "at</w>"): 1}, scores={}, suffix="</w>", byte_level=False
    )
    assert [node.text for node in rules.tree("cat</w>")] == ["c", "a", "t</w>", "at</w>", "cat</w>"]
    assert rules.tree("cat") is None
    assert rules.bytes_of("cat</w>") == b"cat"
