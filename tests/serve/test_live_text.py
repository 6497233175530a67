"""The texts of a live page: its tokenisers give the library's ids; what they cannot read is refused."""

import dataclasses
import random

import pytest

from clearhead.errors import OptionError
from clearhead.serve.live_text import to_javascript, tokenizer_plan
from clearhead.text.tokenizer import Tokenizer
from clearhead.training.run import Run
from tests.serve.live_engine import ODD, Asked

pytestmark = pytest.mark.slow

EVERY_TOKENIZER = [
    *(("bpe", False), ("metaspace", True), ("unigram", False), ("word", False), ("char", True), ("byte", False)),
    *(
        pytest.param(kind, lower, marks=pytest.mark.thorough)
        for kind, lower in (("bpe", True), ("metaspace", False), ("unigram", True), ("word", True), ("char", False))
    ),
]


@pytest.mark.parametrize(("kind", "lower"), EVERY_TOKENIZER)
def test_every_tokenizer_gives_the_same_ids(kind, lower, translator, script, tmp_path):
    made = Tokenizer.train(
        [ODD, "ein Haus, kein Haus", "vier und zwanzig 24", "it's don't we'll"] * 3, kind, lower=lower
    )
    run = Run(
        translator.folder,
        dataclasses.replace(translator.task, tokenizers={"source": made, "target": made}),
        translator.model,
        0,
    )
    draw = random.Random(0)
    letters = "".join(sorted(set(ODD))) + "ΣςİßǅéÅ\u0301\u200d\ufeff\x85\n\x10▁ヽ中०🇩🇪٣"
    texts = [ODD, "<s> <0xE2> </s>", "Ein  Haus's it's", *("".join(draw.choices(letters, k=20)) for _ in range(60))]
    page = Asked(script, run, tmp_path)
    for text, got in zip(texts, page.engine.ask([["tokens", text] for text in texts]), strict=True):
        ids = made.encode(text)
        wanted = {"ids": ids, "text": made.decode(ids), "pieces": [made.pieces([token])[0] for token in ids]}
        assert got["answer"] == {**wanted, "unseen": made.unseen(text)}, text
    page.check([["tokenize", {"text": text}] for text in texts])


@pytest.mark.parametrize("pattern", [r"\bword", r"(?>a)", r"a++", r"[[:alpha:]]"])
def test_a_regular_expression_that_javascript_has_not_is_refused(pattern):
    with pytest.raises(OptionError, match=r"a page that runs by itself cannot read .* of the regular expression"):
        to_javascript(pattern)


def test_a_component_that_the_page_has_not_is_refused_by_name():
    from tokenizers import pre_tokenizers

    made = Tokenizer.train(["ein Haus"], "char")
    made._library.pre_tokenizer = pre_tokenizers.UnicodeScripts()
    with pytest.raises(OptionError, match=r"pre_tokenizer: a page that runs by itself does not know UnicodeScripts"):
        tokenizer_plan(made)


LLAMA = "|".join(
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    )
)
"""What Llama 3 cuts a text with."""


def from_elsewhere(kind):
    """A tokenizer.json as BERT, Llama 3 or T5 have it, trained on a few words."""
    import tokenizers as library
    from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

    texts = [ODD, "ein Haus, kein Haus", "vier und zwanzig 1234567", "IT'S don't we'll"] * 3
    if kind == "bert":
        made = library.Tokenizer(models.WordPiece(unk_token="[UNK]"))
        made.normalizer = normalizers.BertNormalizer()
        made.pre_tokenizer, made.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
        trainer = trainers.WordPieceTrainer(
            vocab_size=150, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        )
    elif kind == "llama":
        made = library.Tokenizer(models.BPE(ignore_merges=True))
        cut = pre_tokenizers.Split(Regex(LLAMA), "isolated")
        made.pre_tokenizer = pre_tokenizers.Sequence(
            [cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
        made.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(vocab_size=330, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    else:
        made = library.Tokenizer(models.Unigram())
        made.normalizer = normalizers.NFKC()
        made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
        trainer = trainers.UnigramTrainer(vocab_size=120, special_tokens=["<pad>", "<unk>", "</s>"], unk_token="<unk>")
    made.train_from_iterator(texts, trainer)
    return Tokenizer(made.to_str())


@pytest.mark.parametrize("kind", ["bert", "llama", "t5"])
def test_tokenizers_from_elsewhere_give_the_same_ids(kind, translator, script, tmp_path):
    made = from_elsewhere(kind)
    task = dataclasses.replace(translator.task, tokenizers={"source": made, "target": made})
    page = Asked(script, Run(translator.folder, task, translator.model, 0), tmp_path)
    texts = [ODD, "Ein  Haus's IT'S 1234567\n\n ok", "[CLS] <s> naïve.", " zwei", "日本 x"]
    for text, got in zip(texts, page.engine.ask([["tokens", text] for text in texts]), strict=True):
        ids = made.encode(text)
        assert got["answer"]["ids"] == ids, text
        assert got["answer"]["text"] == made.decode(ids), text
    page.check([["tokenize", {"text": text}] for text in texts])
