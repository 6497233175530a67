"""The tokenizer: text to ids and back, trained here or loaded from any tokenizer.json."""

import codecs
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, final

import tokenizers as library
from tokenizers import pre_tokenizers

from clearhead.bounds import TOKENIZER_BYTES
from clearhead.errors import ClearheadError, DataError, OptionError, unreadable
from clearhead.files import parse_json, read_bytes, write_text
from clearhead.text import tokenizer_bounds, vocabulary_size
from clearhead.text.kinds import KINDS, SPACE, SPECIALS, TokenizerKind, add_lower_case, guard, has_our_parts, kind_of

USUAL_NAMES = {
    "pad": ("<pad>", "[PAD]", "<|pad|>", "<|padding|>", "<|finetune_right_pad_id|>"),
    "unknown": ("<unk>", "[UNK]", "<|unk|>"),
    "start": ("<s>", "[CLS]", "<bos>", "<|begin_of_text|>", "<|startoftext|>", "<|endoftext|>"),
    "end": ("</s>", "[SEP]", "<eos>", "<|end_of_text|>", "<|endoftext|>"),
    "mask": ("<mask>", "[MASK]", "<|mask|>"),
}
"""Names of special tokens in files from elsewhere, by their task, in the order of `SPECIALS`.

Padding never shares a token with the end, as it often does elsewhere: the end must be learned, padding must not.
"""

LOST = "\ufffd"
"""The text that `decode` returns for an unknown token, and for bytes that are no character."""
PARALLEL = "TOKENIZERS_PARALLELISM"
SPARSEST, SPARE = 4, 10_000
"""Ids are below this many times the number of tokens, and this many more: some files leave gaps for later tokens."""
LEAST_OFTEN, MOST_OFTEN = 2, 10
"""How often a pair must occur to become a token: twice where a size is asked for. Where none is, from 2 in a corpus of
400 kB or less to 10 in one of 2 MB or more: a token that is seen less often than that is hardly learned, and costs a
row of the output product all the same.
"""
BYTE = re.compile("<0x[0-9A-F]{2}>")
"""A token that stands for one byte."""
NO_ID = -1
"""The id of a special token that the tokenizer of an imported model lacks: no token has it."""


@dataclass(frozen=True, kw_only=True)
class SpecialIds:
    """The special tokens of an imported model's tokenizer by id, None if it has none; `vocabulary` is the number of
    rows of the model's table, which may be more than the tokenizer has tokens.
    """

    vocabulary: int
    pad: int | None = None
    unknown: int | None = None
    start: int | None = None
    end: int | None = None
    mask: int | None = None

    def __post_init__(self) -> None:
        for name, token_id in self.by_name().items():
            if token_id is not None and not 0 <= token_id < self.vocabulary:
                raise OptionError(f"{name}: the id {token_id} is not one of the model's, 0 to {self.vocabulary - 1}")

    def by_name(self) -> dict[str, int | None]:
        """Return the ids by what the tokens are for, in the order of `SPECIALS`."""
        return {name: getattr(self, name) for name in USUAL_NAMES}


class Span(NamedTuple):
    """A token of a text: its id, how the vocabulary writes it, the characters it stands for, and the number of its
    word.
    """

    id: int
    token: str
    start: int
    stop: int
    word: int | None


@final
class Tokenizer:
    """Text to ids and back, saved as a tokenizer.json that Hugging Face loads.

    `vocabulary` is the number of ids; `pad`, `unknown`, `start`, `end` and `mask` are the special ones. `kind` is one
    of `KINDS`, or "given" for a tokenizer from elsewhere. `lossless`: every text comes back exactly; False promises
    nothing.

    Args:
        text: Content of a tokenizer.json.
        name: Name of the file, for messages.
        special: Ids of the special tokens; found by their usual names if None.

    >>> tokenizer = Tokenizer.train(["ein Haus", "kein Haus", "<s> ein Garten"])
    >>> ids = tokenizer.encode("<s>ein Haus")
    >>> tokenizer.pieces(ids)
    ['<', 's', '>', 'ein', '▁Haus']
    >>> tokenizer.decode([tokenizer.start, *ids, tokenizer.end])
    '<s>ein Haus'
    """

    def __init__(self, text: str, *, name: str = "tokenizer.json", special: SpecialIds | None = None) -> None:
        """Build the tokenizer that this text of a tokenizer.json describes; errors call it `name`.

        With `special`, the tokenizer of an imported model, it is used as it stands: nothing is added, a special token
        that is written in a text is that token, and ids are those of `transformers`.
        """
        self.imported = special
        with library_errors_as_data_errors(name):
            self._library, ids = adopt(text, name) if special is None else keep(text, name, special)
            self.pad, self.unknown, self.start, self.end, self.mask = ids
            self.kind, self.lower = kind_of(self._library)
        lossless = self.kind in KINDS and KINDS[self.kind].lossless and not self.lower
        self.lossless = lossless and special is None
        tokens = self._library.get_vocab(with_added_tokens=True)
        self.vocabulary = 1 + max(tokens.values()) if special is None else special.vocabulary
        self._tokens: dict[int, str] = {token_id: token for token, token_id in tokens.items()}
        added = {token_id for token_id, token in self._library.get_added_tokens_decoder().items() if token.special}
        self.special = frozenset(ids if special is None else added)
        # A token that was added to be normalised is spoken as the normaliser writes it: ▁tool for tool, say.
        written = {place: self._library.id_to_token(place) or "" for place in self._library.get_added_tokens_decoder()}
        self._spoken = self._tokens | written | dict.fromkeys(added, "")
        self._lost = LOST if special is None else ""  # as transformers leaves out what it has no token for
        if special is None and self.unknown not in (self.pad, self.start, self.end, self.mask):
            self._spoken[self.unknown] = LOST

    @staticmethod
    def train(
        texts: Iterable[str],
        kind: str = "bpe",
        size: int | None = None,
        *,
        lower: bool = False,
        size_factor: float = 1.0,
    ) -> "Tokenizer":
        """Return a tokenizer of the kind with at most `size` tokens, special ones included, trained on the texts.

        The texts are read once and never held in memory together. Without a size it is `suggested_size` of their bytes,
        times `size_factor`, and fewer where frequent pairs run out; to know the bytes first, the texts are spooled to a
        temporary file. The same texts give the same tokenizer.
        """
        if kind not in KINDS:
            raise OptionError(f"kind: there is no tokenizer {kind!r}; the kinds are {', '.join(KINDS)}")
        if isinstance(texts, str):
            raise OptionError("texts: expected many texts, came a single one; put it into a list")
        tokenizer_kind = KINDS[kind]
        untrained = add_lower_case(tokenizer_kind.untrained()) if lower else tokenizer_kind.untrained()
        return Tokenizer(learn(tokenizer_kind, untrained, Reading(texts), size, size_factor).to_str())

    @staticmethod
    def load(path: str | Path, *, special: SpecialIds | None = None) -> "Tokenizer":
        """Return the tokenizer of a tokenizer.json, ours or any other; `special` are those of an imported model.

        Without `special`, special tokens are found by their usual names, and those it lacks are added as ids at the
        end. Truncation and padding that the file asks for are left out, and so are special tokens that it would put
        around a text.
        """
        with unreadable(path, error=DataError, after="; expected a tokenizer.json"):
            text = read_tokenizer_text(path)
        return Tokenizer(text, name=str(path), special=special)

    def save(self, path: str | Path) -> None:
        """Write it as a tokenizer.json, atomically: the file there is always whole."""
        try:
            write_text(Path(path), self.to_json())
        except OSError as error:
            raise DataError(f"{path}: the tokenizer cannot be written there: {error.strerror or error}") from error

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text: no special token is added, and text that looks like one stays text (not in an
        imported model's tokenizer).
        """
        return self._encoding(text).ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of many texts, encoded on all cores: the same as one by one."""
        if isinstance(texts, str):
            raise OptionError("texts: expected many texts, came a single one; put it into a list, or use encode")
        try:
            # The library would take a tuple for a pair of texts, and join the two.
            with library_errors_as_data_errors("this text", passing=TypeError):
                encodings = self._library.encode_batch_fast(list(map(require_text, texts)), add_special_tokens=False)
        except TypeError:
            for index, text in enumerate(texts):
                as_bytes(text, f"text {index + 1} of {len(texts)}")
            raise
        return [encoding.ids for encoding in encodings]

    def spans(self, text: str) -> list[Span]:
        """Return the tokens of a text, each with where it stands in the text and in which word."""
        encoding = self._encoding(text)
        parts = zip(encoding.ids, encoding.tokens, encoding.offsets, encoding.word_ids, strict=True)
        return [Span(token_id, token, start, stop, word) for token_id, token, (start, stop), word in parts]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of the ids, without special tokens.

        "\\ufffd" stands for the unknown token, for ids that do not exist, and for bytes that are no character. An
        imported model's tokenizer leaves out the first two, as `transformers` does.
        """
        spoken = [token for token in (self._spoken.get(token_id, self._lost) for token_id in map(int, ids)) if token]
        decoder = self._library.decoder
        with library_errors_as_data_errors("these ids"):
            return decoder.decode(spoken) if decoder else " ".join(spoken)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Return each token as it is shown to people: a space as ▁, a line end as \\n, part of a character as
        <0xE2>.
        """
        spell = from_byte_level if "ByteLevel" in str(self._library.decoder) else str
        tokens = (self._tokens.get(token_id, f"<id:{token_id}>") for token_id in map(int, ids))
        return ["".join(map(visible, spell(token))) for token in tokens]

    def token(self, token_id: int) -> str:
        """Return the token with this id as the vocabulary has it; blank if there is none."""
        return self._tokens.get(token_id, "")

    def token_bytes(self) -> list[bytes]:
        """Return the bytes that each token adds to a text that it continues; none for special tokens.

        >>> Tokenizer.train(["ein Haus"], kind="byte").token_bytes()[3:7]
        [b'', b'', b'!', b'"']
        """
        spell = spell_bytes if "ByteLevel" in str(self._library.decoder) else self.spell_after_letter()
        return [b"" if i in self.special else spell(self._tokens.get(i, "")) for i in range(self.vocabulary)]

    def spell_after_letter(self) -> Callable[[str], bytes]:
        """Return a function from a token to its bytes after a token of letters."""
        decoder = self._library.decoder
        join = decoder.decode if decoder else " ".join
        letters = [token for i, token in self._tokens.items() if i not in self.special and token.isalpha()]
        before = letters[:1]
        first = len(join(before))

        def spell(token: str) -> bytes:
            if BYTE.fullmatch(token):
                return bytes([int(token[3:5], 16)])
            return b"" if not token else join([*before, token])[first:].encode()

        return spell

    def unseen(self, text: str) -> str:
        """Return the characters of the text that are unknown, each once, in order; for tokens of words, the words."""
        encoding = self._encoding(text)
        spans = (
            span for token_id, span in zip(encoding.ids, encoding.offsets, strict=True) if token_id == self.unknown
        )
        unknown_texts = [text[start:stop] for start, stop in spans]
        if type(self._library.model).__name__ in ("WordLevel", "WordPiece"):
            return " ".join(dict.fromkeys(unknown_texts))
        return "".join(dict.fromkeys("".join(unknown_texts)))

    def to_json(self) -> str:
        """Return the text of its tokenizer.json."""
        return self._library.to_str(pretty=True)

    def fingerprint(self) -> str:
        """Return the SHA-256 of its tokenizer.json, whatever its layout: different tokenizers have different ones."""
        canonical = json.dumps(json.loads(self.to_json()), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    def __repr__(self) -> str:
        return f"Tokenizer(kind={self.kind!r}, vocabulary={self.vocabulary})"

    def _encoding(self, text: str) -> library.Encoding:
        try:
            with library_errors_as_data_errors("this text", passing=TypeError):
                return self._library.encode(text, add_special_tokens=False)
        except TypeError:
            as_bytes(text, "the text")
            raise


class Reading:
    """Texts read once, checked and counted: their bytes, and their set of characters."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts, self.n_bytes, self.characters = texts, 0, set[str]()

    def __iter__(self) -> Iterator[str]:
        for number, text in enumerate(self.texts, 1):
            self.n_bytes += len(as_bytes(text, f"text {number}"))
            self.characters.update(text)
            yield text
        if not "".join(self.characters).strip():
            raise DataError("texts: there is nothing in them to train a tokenizer on; give at least one word")


def learn(
    kind: TokenizerKind, untrained: library.Tokenizer, reading: Reading, size: int | None, size_factor: float = 1.0
) -> library.Tokenizer:
    """Return the tokenizer trained on the texts; `size` None is chosen once they have been counted."""
    if size is not None:
        # The tokenizer in training holds a lock that any question to it waits for, so its twin is asked.
        twin = library.Tokenizer.from_str(untrained.to_str())
        floor = kind.least(twin, frozenset())
        return kind.learn(untrained, check_size(kind, twin, reading, size), max(size, floor), LEAST_OFTEN)
    with spool_texts(reading) as texts:
        size = vocabulary_size.expected_size(reading.n_bytes, size_factor)
        size = max(size, kind.least(untrained, reading.characters))
        often = min(max(round(reading.n_bytes / 200_000 / size_factor), LEAST_OFTEN), MOST_OFTEN)
        return kind.learn(untrained, texts, size, often)


def check_size(kind: TokenizerKind, untrained: library.Tokenizer, reading: Reading, size: int) -> Iterator[str]:
    """Yield the texts; after the last, raise OptionError if `size` is too small for their characters."""
    yield from reading
    least = kind.least(untrained, reading.characters)
    if size < least:
        raise OptionError(
            f"these texts need a vocabulary of at least {least} tokens; came {size}. Raise --vocabulary, or size"
        )


@contextmanager
def spool_texts(texts: Iterable[str]) -> Iterator[Iterator[str]]:
    """Give the texts once more, from a temporary file."""
    with tempfile.TemporaryFile("w+", encoding="ascii") as file:
        file.writelines(f"{json.dumps(text)}\n" for text in texts)
        file.seek(0)
        yield map(json.loads, file)


def require_text(text: str) -> str:
    if not isinstance(text, str):
        raise TypeError(type(text).__name__)
    return text


def as_bytes(text: str, name: str) -> bytes:
    """Return the text in UTF-8; DataError for half of a surrogate pair, which is no character."""
    if not isinstance(text, str):
        raise DataError(f"{name}: expected text, came {type(text).__name__}")
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        problem = f"a lone surrogate, {text[error.start]!r}, at character {error.start + 1}"
        raise DataError(f"{name}: {problem}; read the file as UTF-8, or take it out") from error


def adopt(text: str, name: str) -> tuple[library.Tokenizer, list[int]]:
    """Return the library's tokenizer for this tokenizer.json, and the ids of the special tokens in the order of
    `SPECIALS`.
    """
    config = json.loads(parse_tokenizer(text, name).to_str()) | {"truncation": None, "padding": None}
    named = {token for names in USUAL_NAMES.values() for token in names}
    for token in config["added_tokens"]:
        token["special"] = token["special"] or token["content"] in named
    tokenizer = library.Tokenizer.from_str(json.dumps(config))
    names = special_names(tokenizer, config["model"])
    tokenizer.add_special_tokens(names)
    ids = tokenizer.get_vocab(with_added_tokens=True)
    return add_guard(tokenizer, unknown=names[1]), [ids[name] for name in names]


def keep(text: str, name: str, special: SpecialIds) -> tuple[library.Tokenizer, list[int]]:
    """Return the library's tokenizer as the file has it, and the ids of the special tokens in the order of `SPECIALS`.

    Padding is never seen, so if there is no token for it any other will do.
    """
    tokenizer = parse_tokenizer(text, name)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    largest = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=NO_ID)
    if largest >= special.vocabulary:
        raise DataError(f"{name}: has the id {largest}, and its model has only {special.vocabulary} rows")
    ids = [NO_ID if token_id is None else token_id for token_id in special.by_name().values()]
    return tokenizer, [max(ids[0], 0), *ids[1:]]


def read_tokenizer_text(path: str | Path) -> str:
    """Read a tokenizer.json, of which it is known then that the library can be given it; OSError if there is none.

    One whose parts are of our kinds is not tried: they are known to end.
    """
    try:
        text = read_bytes(path, most=TOKENIZER_BYTES).decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not text; expected a tokenizer.json (convert other formats to it)") from error
    config = check_tokenizer(text, str(path))
    if not has_our_parts(config):
        tokenizer_bounds.try_tokenizer(os.path.abspath(path), config)
    return text


def check_tokenizer(text: str, name: str) -> dict[str, Any]:
    """Return the JSON of a tokenizer.json; DataError if its ids or parts would take far more room than they have."""
    try:
        config = parse_json(text)
    except json.JSONDecodeError as error:
        raise DataError(f"{name}:{error.lineno}: not JSON: {error.msg}; expected a tokenizer.json") from error
    except ValueError as error:
        raise DataError(f"{name}: {error}; expected a tokenizer.json") from error
    check_ids(config, name)
    tokenizer_bounds.check_growth(config, name)
    return config if isinstance(config, dict) else {}


def parse_tokenizer(text: str, name: str) -> library.Tokenizer:
    """Return the library's tokenizer, once the text is known to be within bounds."""
    check_tokenizer(text, name)
    try:
        return library.Tokenizer.from_str(text)
    except Exception as error:  # the library raises nothing narrower
        problem = str(error)[:300]
        raise DataError(
            f"{name}: JSON, but not a tokenizer.json: {problem}; give one that `tokenizers` saved"
        ) from error


def check_ids(config: Any, name: str) -> None:
    """Raise DataError if an id is far beyond the number of tokens: the library makes a table as long as the
    largest.
    """
    config = config if isinstance(config, dict) else {}
    model, added = config.get("model"), config.get("added_tokens")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    listed = added if isinstance(added, list) else []
    ids = [*(vocabulary.values() if isinstance(vocabulary, dict) else ())]
    ids += [token.get("id") for token in listed if isinstance(token, dict)]
    count = len(listed) + (len(vocabulary) if isinstance(vocabulary, dict | list) else 0)
    most = SPARSEST * count + SPARE
    for token_id in ids:
        if isinstance(token_id, int | float) and not 0 <= token_id < most:
            raise DataError(
                f"{name}: has the id {token_id:,.20g}, and {count:,} tokens; ids are from 0 to {most - 1:,} here"
            )


@contextmanager
def library_errors_as_data_errors(name: str, *, passing: type[Exception] = MemoryError) -> Iterator[None]:
    """Re-raise errors of the library as DataError: bare Exceptions, and panics of Rust, which are BaseExceptions."""
    try:
        yield
    except (ClearheadError, MemoryError, passing):
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        message = next(iter(str(error).splitlines()), type(error).__name__)
        raise DataError(f"{name}: the tokenizers library cannot use it: {message[:300]}") from error


def special_names(tokenizer: library.Tokenizer, model: dict[str, Any]) -> list[str]:
    """Return the names of its special tokens, in the order of `SPECIALS`; those it lacks have our names."""
    unknown = model.get("unk_token")
    if model.get("unk_id") is not None:
        unknown = model["vocab"][model["unk_id"]][0]
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    names = USUAL_NAMES | {"unknown": (unknown, *USUAL_NAMES["unknown"])}
    pairs = zip(names.values(), SPECIALS, strict=True)
    return [next((name for name in usual if name in vocabulary), ours) for usual, ours in pairs]


def add_guard(tokenizer: library.Tokenizer, *, unknown: str) -> library.Tokenizer:
    """Add a cut that keeps text from becoming a special token, where the model would let it; return the tokenizer."""
    tokenizer.encode_special_tokens = True
    special = [token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special]
    if any(leaks(tokenizer, token) for token in special if token != unknown):
        before = [tokenizer.pre_tokenizer] if tokenizer.pre_tokenizer else []
        cut = guard(token for token in special if len(token) > 1)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*before, cut])
    return tokenizer


def leaks(tokenizer: library.Tokenizer, token: str) -> bool:
    """Return whether the token's name, written as text, becomes that token."""
    return tokenizer.token_to_id(token) in tokenizer.encode(token, add_special_tokens=False).ids


def byte_signs() -> dict[str, int]:
    """Return the byte each character stands for in byte-level tokens: itself where visible, else one past Latin-1."""
    printable = [byte for byte in range(256) if chr(byte).isprintable() and byte != ord(" ")]
    hidden = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + index): byte for index, byte in enumerate(hidden)}


BYTE_OF = byte_signs()


def from_byte_level(token: str) -> str:
    """Return the text of a byte-level token; a token that is not written in bytes stands for itself."""
    if not all(sign in BYTE_OF for sign in token):
        return token
    return bytes(BYTE_OF[sign] for sign in token).decode(errors="clearhead.hex")


def spell_bytes(token: str) -> bytes:
    """Return the bytes of a byte-level token; a token that is not written in bytes stands for itself."""
    return bytes(BYTE_OF[sign] for sign in token) if all(sign in BYTE_OF for sign in token) else token.encode()


def as_hex(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return "".join(f"<0x{byte:02X}>" for byte in error.object[error.start : error.end]), error.end


codecs.register_error("clearhead.hex", as_hex)


def visible(character: str) -> str:
    if character == " ":
        return SPACE
    return character if character.isprintable() else character.encode("unicode_escape").decode()


def before_fork() -> None:
    """Tell a forked process to work without the library's threads, which it does not have.

    Left to itself the library finds that out too, but prints a warning in every process.
    """
    FORKING.append(PARALLEL not in os.environ)
    os.environ.setdefault(PARALLEL, "false")


def after_fork() -> None:
    if FORKING.pop():
        del os.environ[PARALLEL]


FORKING: list[bool] = []
"""Whether a fork under way has set the variable itself."""

if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(before=before_fork, after_in_parent=after_fork)
