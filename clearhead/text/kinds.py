"""The kinds of tokenizer: how each cuts a text into pieces, learns a vocabulary, and joins pieces again.

Two things hold for every kind. Text that only looks like a special token, such as a "<s>" that somebody typed, stays
text; and nothing about a text is changed but its case, and that only if asked for.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass
from functools import cache
from operator import itemgetter
from typing import Any

import tokenizers as library
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

SPECIALS = ("<pad>", "<unk>", "<s>", "</s>", "<mask>")
"""The special tokens of every tokenizer that is trained here: their ids are 0 to 4."""

UNKNOWN = SPECIALS[1]
SPACE = "▁"
BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))
BYTE_LEVEL = tuple(sorted(pre_tokenizers.ByteLevel.alphabet()))
FIRST = len(SPECIALS)

ESCAPE = "\x10"
ESCAPES = ((ESCAPE, f"{ESCAPE}."), (SPACE, f"{ESCAPE}_"))
"""A text may itself contain the sign that stands for a space. It is written with an escape, and so is the escape."""

UNSPACED = (
    r"\x{0E00}-\x{0EFF}\x{1000}-\x{109F}\x{1780}-\x{17FF}\x{3005}-\x{3006}\x{3041}-\x{309F}\x{30A1}-\x{30FA}"
    r"\x{30FC}-\x{30FF}\x{31F0}-\x{31FF}\x{3400}-\x{4DBF}\x{4E00}-\x{9FFF}\x{F900}-\x{FAFF}\x{FF66}-\x{FF9F}"
    r"\x{20000}-\x{3FFFF}"
)
"""Scripts that put no spaces between words: Thai, Lao, Burmese, Khmer, kana and Han. A word of another script ends at
their letters; within them, merging alone finds words.
"""
LETTER = rf"[\p{{L}}\p{{M}}&&[^{UNSPACED}]]"
WORD_PARTS = "|".join(
    rf"{SPACE}?{part}"
    for part in (
        r"['’](?i:s|t|re|ve|m|ll|d)(?![\p{L}\p{M}])",
        rf"[\p{{L}}\p{{M}}&&[{UNSPACED}]]+",
        rf"{LETTER}+(?:['’\x{{200C}}\x{{200D}}]{LETTER}+)*",
        r"\p{N}",
        rf"[^\s{SPACE}\p{{L}}\p{{M}}\p{{N}}]+",
    )
)
"""What nothing is merged across: a word, an English ending that an apostrophe begins, a digit, or signs, each with the
space before it. An apostrophe between letters is part of the word, and so are the joiners of Persian and Indic scripts.
"""

LONG = re.compile(r"(\S{1000})(?=\S)")
"""A stretch without a space so long that it is no word; the cost of merging grows with the square of its length."""

Learn = Callable[[library.Tokenizer, Iterable[str], int, int], library.Tokenizer]
Least = Callable[[library.Tokenizer, Set[str]], int]


@dataclass(frozen=True, kw_only=True)
class TokenizerKind:
    """A kind of tokenizer: its parts, and how it learns from texts.

    `untrained` makes the parts. `learn` reads the texts once and returns a tokenizer of at most that many tokens, and
    merges what occurs at least that often.
    `least` is how many it needs for texts of these characters. `lossless`: every text comes back exactly.
    """

    about: str
    untrained: Callable[[], library.Tokenizer]
    learn: Learn
    least: Least
    lossless: bool


def guard(tokens: Iterable[str]) -> pre_tokenizers.PreTokenizer:
    """Return a pre-tokenizer that cuts what looks like one of these tokens, or like a byte: no model ever sees it
    whole.
    """
    starts = [f"{re.escape(token[0])}(?={re.escape(token[1:])})" for token in tokens]
    return pre_tokenizers.Split(Regex("|".join([*starts, "<(?=0x[0-9A-F]{2}>)"])), "merged_with_previous")


def add_lower_case(tokenizer: library.Tokenizer) -> library.Tokenizer:
    """Make the tokenizer lower-case its text before anything else, and return it."""
    existing = [tokenizer.normalizer] if tokenizer.normalizer else []
    tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *existing])
    return tokenizer


def kind_of(tokenizer: library.Tokenizer) -> tuple[str, bool]:
    """Return the name of the kind, and whether it makes text lower-case: "given" for a tokenizer from elsewhere."""
    if tuple(map(tokenizer.id_to_token, range(FIRST))) == SPECIALS:
        shape = shape_of(json.loads(tokenizer.to_str()))
        return next((found for found, ours in our_shapes() if ours == shape), ("given", False))
    return "given", False


@cache
def our_shapes() -> list[tuple[tuple[str, bool], dict[str, Any]]]:
    """Return each kind, and whether it makes text lower-case, with its shape."""
    plain = [((name, False), kind.untrained()) for name, kind in KINDS.items()]
    lower = [((name, True), add_lower_case(kind.untrained())) for name, kind in KINDS.items()]
    return [(found, shape_of(json.loads(tokenizer.to_str()))) for found, tokenizer in (*plain, *lower)]


def has_our_parts(config: dict[str, Any]) -> bool:
    """Return whether a tokenizer.json cuts and joins texts as one of the kinds does, and puts nothing around them."""
    shape = shape_of(config)
    return config.get("post_processor") is None and any(ours == shape for _, ours in our_shapes())


def shape_of(config: dict[str, Any]) -> dict[str, Any]:
    """Return everything in a tokenizer.json that is not learned."""
    learned, model = ("vocab", "merges", "unk_id"), config.get("model")
    fixed = {name: value for name, value in model.items() if name not in learned} if isinstance(model, dict) else {}
    return {"model": fixed} | {part: config.get(part) for part in ("normalizer", "pre_tokenizer", "decoder")}


def byte_level(*, words: bool) -> library.Tokenizer:
    """Return a tokenizer of bytes, each written as a visible character; merged within words, or not at all.

    Within words each digit stands alone: the parts that llama.cpp knows as smollm.
    """
    tokenizer = library.Tokenizer(models.BPE(unk_token=UNKNOWN))
    cut = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=words)
    alone = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([alone, cut]) if words else cut
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def metaspace(model: models.Model) -> library.Tokenizer:
    """Return a tokenizer of words with the space before them; line ends and tabs alone; unknown characters as bytes.

    Words are split from signs and digits. A space is put before the whole text, so that its first word is the same
    token as elsewhere, and taken off again.
    """
    tokenizer = library.Tokenizer(model)
    hide = [normalizers.Replace(sign, escaped) for sign, escaped in ESCAPES]
    tokenizer.normalizer = normalizers.Sequence([*hide, normalizers.Prepend(SPACE)])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Metaspace(SPACE, prepend_scheme="never"),
            pre_tokenizers.Split(Regex(r"[\t\n\r]"), "isolated"),
            pre_tokenizers.Split(Regex(WORD_PARTS), "isolated"),
            guard(SPECIALS),
        ]
    )
    show = [decoders.Replace(escaped, sign) for sign, escaped in reversed(ESCAPES)]
    decode_words = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*decode_words, *show, decoders.Strip(" ", 1, 0)])
    return tokenizer


def words() -> library.Tokenizer:
    tokenizer = library.Tokenizer(models.WordLevel(unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), guard(SPECIALS)])
    return tokenizer


def characters() -> library.Tokenizer:
    tokenizer = library.Tokenizer(models.BPE(unk_token=UNKNOWN))
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def break_long_stretches(texts: Iterable[str]) -> Iterator[str]:
    """Return the texts with a space put into stretches that have none for long."""
    return (LONG.sub(r"\1 ", text) for text in texts)


def learn_byte_merges(tokenizer: library.Tokenizer, texts: Iterable[str], size: int, often: int) -> library.Tokenizer:
    return learn_merges(tokenizer, texts, size, often, alphabet=BYTE_LEVEL)


def learn_space_merges(tokenizer: library.Tokenizer, texts: Iterable[str], size: int, often: int) -> library.Tokenizer:
    config = json.loads(learn_merges(tokenizer, texts, size - len(BYTES), often).to_str())
    learned = sorted(config["model"]["vocab"], key=config["model"]["vocab"].__getitem__)[FIRST:]
    config["model"]["vocab"] = {token: token_id for token_id, token in enumerate((*SPECIALS, *BYTES, *learned))}
    return library.Tokenizer.from_str(json.dumps(config))


def learn_merges(
    tokenizer: library.Tokenizer, texts: Iterable[str], size: int, often: int, *, alphabet: Iterable[str] = ()
) -> library.Tokenizer:
    """Train BPE. A pair that occurs only a few times is not merged: it is no pattern."""
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=often,
        special_tokens=list(SPECIALS),
        initial_alphabet=list(alphabet),
        show_progress=False,
    )
    tokenizer.train_from_iterator(break_long_stretches(texts), trainer)
    return tokenizer


def learn_pieces(tokenizer: library.Tokenizer, texts: Iterable[str], size: int, often: int) -> library.Tokenizer:
    trainer = trainers.UnigramTrainer(
        vocab_size=size - len(BYTES), special_tokens=list(SPECIALS), unk_token=UNKNOWN, show_progress=False
    )
    tokenizer.train_from_iterator(break_long_stretches(texts), trainer)
    config = json.loads(tokenizer.to_str())
    fixed = [(token, 0.0) for token in (*SPECIALS, *BYTES)]
    vocabulary = [*fixed, *stabilise(map(tuple, config["model"]["vocab"][FIRST:]))]
    config["model"] |= {"vocab": vocabulary, "unk_id": SPECIALS.index(UNKNOWN), "byte_fallback": True}
    return library.Tokenizer.from_str(json.dumps(config))


def stabilise(pieces: Iterable[tuple[str, float]]) -> list[tuple[str, float]]:
    """Return the pieces and their log-probabilities, free of what differs between two trainings on the same texts.

    The library adds up in the order of a hash table, which is another one each time, so that the last digits differ.
    In that order too it gives out the scores of characters that no best path uses: the lowest, and 0.0001 more each.
    """
    ranked = sorted(pieces, key=itemgetter(1))
    lowest, unused = ranked[0][1], set[str]()
    for piece, score in ranked:
        if len(piece) == 1 and abs(score - lowest - 1e-4 * len(unused)) < 1e-8:
            unused.add(piece)
    rounded = [(piece, round(lowest if piece in unused else score, 3)) for piece, score in ranked]
    return sorted(rounded, key=lambda piece: (-piece[1], piece[0]))


def learn_words(tokenizer: library.Tokenizer, texts: Iterable[str], size: int, often: int) -> library.Tokenizer:
    trainer = trainers.WordLevelTrainer(
        vocab_size=size, min_frequency=1, special_tokens=list(SPECIALS), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def learn_characters(tokenizer: library.Tokenizer, texts: Iterable[str], size: int, often: int) -> library.Tokenizer:
    characters: set[str] = set()
    for text in texts:
        characters.update(text)
    return with_tokens(tokenizer, sorted(normalise(tokenizer, characters)))


def learn_nothing(tokenizer: library.Tokenizer, texts: Iterable[str], size: int, often: int) -> library.Tokenizer:
    """Train nothing. The texts are read all the same, so that their problems are reported."""
    for _ in texts:
        pass
    return with_tokens(tokenizer, BYTE_LEVEL)


def with_tokens(tokenizer: library.Tokenizer, tokens: Iterable[str]) -> library.Tokenizer:
    vocabulary = {token: token_id for token_id, token in enumerate((*SPECIALS, *tokens))}
    tokenizer.model = models.BPE(vocab=vocabulary, merges=[], unk_token=UNKNOWN)
    tokenizer.add_special_tokens(list(SPECIALS))
    return tokenizer


def normalise(tokenizer: library.Tokenizer, characters: Set[str]) -> set[str]:
    """Return the characters that the model sees when the texts have these."""
    normalizer = tokenizer.normalizer
    return set().union(*map(normalizer.normalize_str, characters)) if normalizer else set(characters)


def least_bytes(tokenizer: library.Tokenizer, characters: Set[str]) -> int:
    return FIRST + len(BYTE_LEVEL)


def least_characters(tokenizer: library.Tokenizer, characters: Set[str]) -> int:
    return FIRST + len(normalise(tokenizer, characters))


def least_spaced(tokenizer: library.Tokenizer, characters: Set[str]) -> int:
    return FIRST + len(BYTES) + len(normalise(tokenizer, characters) - {" "})


def least_pieces(tokenizer: library.Tokenizer, characters: Set[str]) -> int:
    """Return room for one more piece than the characters: if they fill the vocabulary, the library never stops."""
    return least_spaced(tokenizer, characters) + 1


def least_words(tokenizer: library.Tokenizer, characters: Set[str]) -> int:
    return FIRST + 1


KINDS: dict[str, TokenizerKind] = {
    "bpe": TokenizerKind(
        about="bytes, the frequent neighbours within a word merged; signs and digits apart",
        untrained=lambda: byte_level(words=True),
        learn=learn_byte_merges,
        least=least_bytes,
        lossless=True,
    ),
    "metaspace": TokenizerKind(
        about="characters, the frequent neighbours within a word merged; signs and digits apart; a space is ▁",
        untrained=lambda: metaspace(models.BPE(unk_token=UNKNOWN, byte_fallback=True)),
        learn=learn_space_merges,
        least=least_spaced,
        lossless=True,
    ),
    "unigram": TokenizerKind(
        about="the most probable pieces of words; signs and digits apart; a space is ▁",
        untrained=lambda: metaspace(models.Unigram([(UNKNOWN, 0.0)], unk_id=0, byte_fallback=True)),
        learn=learn_pieces,
        least=least_pieces,
        lossless=True,
    ),
    "word": TokenizerKind(
        about="what stands between spaces; the rarer words are unknown",
        untrained=words,
        learn=learn_words,
        least=least_words,
        lossless=False,
    ),
    "char": TokenizerKind(
        about="every character; those not in the texts are unknown",
        untrained=characters,
        learn=learn_characters,
        least=least_characters,
        lossless=False,
    ),
    "byte": TokenizerKind(
        about="every byte of the text in UTF-8",
        untrained=lambda: byte_level(words=False),
        learn=learn_nothing,
        least=least_bytes,
        lossless=True,
    ),
}
