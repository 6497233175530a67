"""The container of a GGUF file: metadata and tensors, every count, length and offset checked before it is believed.

A header may say anything. Nothing is allocated for it beyond what the file itself is long, and every error says where.

Tokenisers in GGUF: a fixed list of ways to cut a text, each as a tokenizer.json and back; with what llama.cpp puts
around a text, and the chat template.

`gpt2` is byte-level BPE with one of llama.cpp's pre-tokenisers; `llama` is SentencePiece's BPE, which merges by score.
"""

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import numpy as np
import torch
from torch import Tensor

from clearhead import extras, files
from clearhead.errors import DataError, OptionError, unreadable
from clearhead.interop.tables import Config
from clearhead.interop.tokenizer import ImportedTokenizer, checked_template
from clearhead.text.templates import ChatTemplate
from clearhead.text.tokenizer import SpecialIds, Tokenizer

MAGIC, VERSIONS = b"GGUF", (2, 3)
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""The kinds of a value that is a number, and how struct reads them."""
STRING, ARRAY = 8, 9
LEAST_INFO, LEAST_VALUE = 33, 13
"""Bytes that a tensor's description, and a value with its key, have at least."""
MOST_DIMENSIONS, MOST_NAME = 4, 65_535
ALIGNMENT = "general.alignment"


class Info(NamedTuple):
    """Where a tensor lies. `shape` is as torch has it, the longest stride first; `kind` is ggml's number of it."""

    shape: tuple[int, ...]
    kind: int
    offset: int
    n_bytes: int


@dataclass
class Cursor:
    """Reads a header from its start; it never asks for more bytes than are left."""

    file: BufferedReader
    size: int
    where: str
    at: int = 0

    @property
    def left(self) -> int:
        return self.size - self.at

    def take(self, count: int, what: str) -> bytes:
        if count > self.left:
            raise self.error(f"{what} should have {count:,} bytes, and {self.left:,} are left")
        self.at += count
        return self.file.read(count)

    def number(self, form: str, what: str) -> Any:
        return struct.unpack(f"<{form}", self.take(struct.calcsize(form), what))[0]

    def text(self, what: str) -> str:
        try:
            return self.take(self.number("Q", what), what).decode()
        except UnicodeDecodeError:
            raise self.error(f"{what} is not UTF-8") from None

    def error(self, problem: str) -> OptionError:
        return OptionError(f"{self.where}: byte {self.at:,}: {problem}")


class GGUF(Mapping[str, Tensor]):
    """An open file: `metadata`, and as a mapping the tensors by name, dequantised to float32 when asked for."""

    def __init__(self, path: str | Path) -> None:
        self.where = str(path)
        with unreadable(path, error=OptionError):
            self.file = files.open_regular(path)
        try:
            size = self.file.seek(0, 2)
            self.file.seek(0)
            self.metadata, self.infos = read_header(Cursor(self.file, size, self.where))
        except BaseException:
            self.file.close()
            raise

    def __enter__(self) -> "GGUF":
        return self

    def __exit__(self, *error: object) -> None:
        self.file.close()

    def raw(self, name: str) -> np.ndarray:
        """Return a tensor's bytes as they are in the file, a row for each row of it."""
        info = self.infos[name]
        self.file.seek(info.offset)
        data = np.frombuffer(self.file.read(info.n_bytes), np.uint8)
        if len(data) != info.n_bytes:
            raise OptionError(f"{self.where}: {name[:60]}: the file has become shorter since it was opened")
        return data.reshape(*info.shape[:-1], -1)

    def __getitem__(self, name: str) -> Tensor:
        gguf = extras.import_peer("gguf")
        kind = gguf.GGMLQuantizationType(self.infos[name].kind)
        try:
            values = gguf.quants.dequantize(self.raw(name), kind)
        except NotImplementedError:
            raise OptionError(f"{self.where}: {name[:60]} is {kind.name}, which gguf cannot dequantise") from None
        return torch.from_numpy(np.ascontiguousarray(values, np.float32).copy())

    def __iter__(self) -> Iterator[str]:
        return iter(self.infos)

    def __len__(self) -> int:
        return len(self.infos)


def read_header(cursor: Cursor) -> tuple[dict[str, Any], dict[str, Info]]:
    """Return the metadata, and where each tensor lies."""
    if cursor.left < len(MAGIC) or cursor.take(len(MAGIC), "the magic") != MAGIC:
        raise OptionError(f"{cursor.where}: is no GGUF file: it does not begin with GGUF")
    version = cursor.number("I", "the version")
    if version not in VERSIONS:
        raise cursor.error(f"version {version} is not supported; there are {', '.join(map(str, VERSIONS))}")
    n_tensors, n_values = (cursor.number("Q", name) for name in ("the number of tensors", "the number of values"))
    if n_tensors > cursor.left // LEAST_INFO or n_values > cursor.left // LEAST_VALUE:
        raise cursor.error(f"{n_tensors:,} tensors and {n_values:,} values have no room in {cursor.left:,} bytes")
    values: dict[str, Any] = {}
    for _ in range(n_values):
        key = cursor.text("a key")
        if key in values or len(key) > MOST_NAME:
            raise cursor.error(f"the key {key[:60]!r} is there twice, or too long")
        values[key] = read_value(cursor, cursor.number("I", key[:60]), key[:60])
    raw = [read_info(cursor) for _ in range(n_tensors)]
    return values, place_tensors(cursor, values, raw)


def read_value(cursor: Cursor, kind: int, key: str) -> Any:
    """Return a value of the metadata: a number, a text, or a list of either."""
    if kind == STRING:
        return cursor.text(key)
    if kind in SCALARS:
        return cursor.number(SCALARS[kind], key)
    if kind != ARRAY:
        raise cursor.error(f"{key} is of a kind {kind} that there is not")
    inner, count = cursor.number("I", key), cursor.number("Q", key)
    if inner == STRING:
        if count > cursor.left // 8:
            raise cursor.error(f"{key}: {count:,} texts have no room in {cursor.left:,} bytes")
        return [cursor.text(key) for _ in range(count)]
    if inner not in SCALARS:
        raise cursor.error(f"{key}: a list of kind {inner} is not supported")
    form = SCALARS[inner]
    data = cursor.take(count * struct.calcsize(form), key)
    return list(struct.unpack(f"<{count}{form}", data))


def read_info(cursor: Cursor) -> tuple[str, tuple[int, ...], int, int]:
    """Return a tensor's name, its shape with the rows first, its kind, and where it lies in the data."""
    name = cursor.text("a tensor's name")
    n_dimensions = cursor.number("I", name[:60])
    if not 1 <= n_dimensions <= MOST_DIMENSIONS:
        raise cursor.error(f"{name[:60]}: has {n_dimensions} dimensions; there are 1 to {MOST_DIMENSIONS}")
    shape = tuple(cursor.number("Q", name[:60]) for _ in range(n_dimensions))
    return name, shape[::-1], cursor.number("I", name[:60]), cursor.number("Q", name[:60])


def place_tensors(
    cursor: Cursor, values: Mapping[str, Any], raw: list[tuple[str, tuple[int, ...], int, int]]
) -> dict[str, Info]:
    """Return where each tensor lies in the file; OptionError if one does not fit into it, or all together do not."""
    alignment = values.get(ALIGNMENT, 32)
    if type(alignment) is not int or not 1 <= alignment <= 65_536 or alignment & (alignment - 1):
        raise cursor.error(f"{ALIGNMENT} must be a power of two up to 65536; came {str(alignment)[:40]}")
    start = -(-cursor.at // alignment) * alignment
    room, total, placed = max(0, cursor.size - start), 0, dict[str, Info]()
    for name, shape, kind, offset in raw:
        n_bytes = count_bytes(cursor, name[:60], shape, kind)
        total += n_bytes
        if name in placed or offset % alignment or offset + n_bytes > room:
            raise cursor.error(
                f"{name[:60]}: {n_bytes:,} bytes from {offset:,} on do not lie in the {room:,} there are, or the name "
                "is there twice"
            )
        placed[name] = Info(shape, kind, start + offset, n_bytes)
    if total > room:
        raise cursor.error(f"the tensors have {total:,} bytes in all, and there are {room:,}")
    return placed


def count_bytes(cursor: Cursor, name: str, shape: tuple[int, ...], kind: int) -> int:
    gguf = extras.import_peer("gguf")
    try:
        block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(kind)]
    except (KeyError, ValueError):
        raise cursor.error(f"{name}: is of a kind {kind} that gguf does not know") from None
    count = 1
    for n in shape:  # Python's numbers do not overflow
        count *= n
    if count < 1 or shape[-1] % block:
        raise cursor.error(f"{name}: {shape} is no shape of numbers in blocks of {block}")
    return count // block * size


NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""The kinds of token in GGUF."""
SPACE = "▁"
LONGEST = 512
"""Characters of a token at most, where every cut of it is tried."""
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
REST = r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def byte_level(*, regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": regex}


def split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


PRE: Mapping[str, tuple[dict[str, Any], ...]] = {
    "gpt-2": (byte_level(regex=True),),
    "llama-bpe": (split(CONTRACTIONS + REST % "{1,3}"), byte_level(regex=False)),
    "qwen2": (split(CONTRACTIONS + REST % ""), byte_level(regex=False)),
    "smollm": ({"type": "Digits", "individual_digits": True}, byte_level(regex=True)),
}
"""llama.cpp's names of pre-tokenisers, and the parts of a tokenizer.json that do the same."""
NORMALIZED = {"qwen2": {"type": "NFC"}}


def find_pre_tokenizer(config: Mapping[str, Any]) -> str:
    """Return llama.cpp's name of the pre-tokeniser of a tokenizer.json; OptionError if it has none for it."""
    model = config["model"]
    if model["type"] != "BPE" or model.get("byte_fallback"):
        raise OptionError(f"a tokeniser of type {model['type']}, not on bytes: llama.cpp would cut texts in other ways")
    parts = [part for part in flat_parts(config.get("pre_tokenizer")) if part.get("behavior") != "MergedWithPrevious"]
    if not model["merges"] and parts and all(part["type"] == "ByteLevel" for part in parts):
        parts = [byte_level(regex=True)]  # where nothing is merged, it does not matter where a text is cut
    for name, known_parts in PRE.items():
        fits = len(parts) == len(known_parts) and all(map(is_same_part, parts, known_parts))
        if fits and config.get("normalizer") == NORMALIZED.get(name):
            return name
    raise OptionError(
        f"a pre-tokeniser that llama.cpp has no name for; it has {', '.join(PRE)}, each with its own normaliser"
    )


def flat_parts(part: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    if part is None:
        return []
    return [dict(inner) for inner in part["pretokenizers"]] if part["type"] == "Sequence" else [dict(part)]


def is_same_part(part: Mapping[str, Any], known_part: Mapping[str, Any]) -> bool:
    """Return whether two parts cut alike; where a token begins within its text does not matter."""
    return all(part.get(name) == value for name, value in known_part.items() if name != "trim_offsets")


def tokenizer_metadata(config: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return GGUF's metadata of a byte-level tokenizer.json, whose tokens by id are these."""
    pre = find_pre_tokenizer(config)
    added = {token["id"]: token for token in config["added_tokens"]}
    for token in added.values():
        if odd := [name for name in ("single_word", "lstrip", "rstrip") if token[name]]:
            raise OptionError(
                f"the added token {token['content']!r:.40} with {odd[0]}: llama.cpp cuts texts without that"
            )
    used_ids = {*config["model"]["vocab"].values(), *added}
    kinds = [
        UNUSED
        if i not in used_ids
        else CONTROL
        if i in added and added[i]["special"]
        else USER
        if i in added
        else NORMAL
        for i in range(len(names))
    ]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in config["model"]["merges"]]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": list(names),
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": merges,
    }


def tokenizer_json(metadata: Mapping[str, Any], where: str) -> str:
    """Return the tokenizer.json of a GGUF file; OptionError if its tokeniser is none of these."""
    kind, tokens = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.tokens")
    if not is_texts(tokens) or len(set(tokens)) < len(tokens):
        raise OptionError(f"{where}: tokenizer.ggml.tokens: expected a list of different texts")
    kinds = metadata.get("tokenizer.ggml.token_type", [NORMAL] * len(tokens))
    if not isinstance(kinds, list) or len(kinds) != len(tokens):
        raise OptionError(f"{where}: tokenizer.ggml.token_type: expected a number for each of {len(tokens):,} tokens")
    if kind == "gpt2":
        components = byte_level_json(metadata, tokens, where)
    elif kind == "llama":
        components = sentencepiece_json(metadata, tokens, where)
    else:
        raise OptionError(f"{where}: a tokeniser of kind {str(kind)[:40]!r} cannot be read; there are gpt2 and llama")
    added = [
        add_token(i, tokens[i], special=token_kind != USER)
        for i, token_kind in enumerate(kinds)
        if token_kind in (UNKNOWN, CONTROL, USER)
    ]
    config = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "post_processor": None}
    return json.dumps(config | components, ensure_ascii=False)


def is_texts(value: object) -> TypeGuard[list[str]]:
    return isinstance(value, list) and bool(value) and all(isinstance(item, str) for item in value)


def add_token(token_id: int, content: str, *, special: bool) -> dict[str, Any]:
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token_id, "content": content, **plain, "special": special}


def byte_level_json(metadata: Mapping[str, Any], tokens: list[str], where: str) -> dict[str, Any]:
    pre, merges = metadata.get("tokenizer.ggml.pre", "gpt-2"), metadata.get("tokenizer.ggml.merges", [])
    if pre not in PRE:
        raise OptionError(f"{where}: the pre-tokeniser {str(pre)[:40]!r} cannot be read; there are {', '.join(PRE)}")
    pairs = [merge.split(" ") for merge in merges] if merges == [] or is_texts(merges) else [[]]
    if not all(len(pair) == 2 for pair in pairs):
        raise OptionError(f"{where}: tokenizer.ggml.merges: expected texts of two tokens with a blank between")
    parts = list(PRE[pre])
    return {
        "normalizer": NORMALIZED.get(pre),
        "pre_tokenizer": parts[0] if len(parts) == 1 else {"type": "Sequence", "pretokenizers": parts},
        "decoder": byte_level(regex=True),
        "model": bpe(tokens, pairs),
    }


def bpe(tokens: list[str], pairs: list[list[str]], **more: Any) -> dict[str, Any]:
    plain = {"dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None}
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    defaults = {"fuse_unk": False, "byte_fallback": False, "ignore_merges": False}
    return {"type": "BPE", **plain, **defaults, **more, "vocab": vocabulary, "merges": pairs}


def sentencepiece_json(metadata: Mapping[str, Any], tokens: list[str], where: str) -> dict[str, Any]:
    """Return SentencePiece's BPE: a token is merged of any two that make it, the best score first."""
    scores = metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(tokens):
        raise OptionError(f"{where}: tokenizer.ggml.scores: expected a number for each of {len(tokens):,} tokens")
    if (longest := max(map(len, tokens))) > LONGEST:
        raise OptionError(f"{where}: a token has {longest:,} characters; SentencePiece's have at most {LONGEST}")
    id_of = {token: token_id for token_id, token in enumerate(tokens)}
    ranked: list[tuple[float, int, int, list[str]]] = []
    for token, score in zip(tokens, scores, strict=True):
        for cut in range(1, len(token)):
            first, second = token[:cut], token[cut:]
            if first in id_of and second in id_of:
                ranked.append((-score, id_of[first], id_of[second], [first, second]))
    unknown = metadata.get("tokenizer.ggml.unknown_token_id", 0)
    named = tokens[unknown] if isinstance(unknown, int) and 0 <= unknown < len(tokens) else None
    prefix = [{"type": "Prepend", "prepend": SPACE}] if metadata.get("tokenizer.ggml.add_space_prefix", True) else []
    normalizers = [*prefix, {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}]
    show = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        *([{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []),
    ]
    return {
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": show},
        "model": bpe(
            tokens, [merge[3] for merge in sorted(ranked)], unk_token=named, fuse_unk=True, byte_fallback=True
        ),
    }


ROLES = {"pad": "padding", "unknown": "unknown", "start": "bos", "end": "eos", "mask": "mask"}
"""What GGUF calls the special tokens."""
OPENED = ("llama-bpe", "llama3", "llama-v3")
"""Pre-tokenizers with which llama.cpp puts a start token before a text, unless the file says otherwise."""


def read_tokenizer_of_gguf(path: Path, vocabulary: int) -> ImportedTokenizer:
    """Read the tokenizer of a GGUF file whose model's table has `vocabulary` rows."""
    with GGUF(path) as file:
        settings = {name.removeprefix("tokenizer.ggml."): value for name, value in file.metadata.items()}
        text = tokenizer_json(file.metadata, str(path))
        template = file.metadata.get("tokenizer.chat_template")
    config = Config(settings, str(path))
    special_ids = {role: next(iter(config.tokens(f"{name}_token_id")), None) for role, name in ROLES.items()}
    for role, token_id in special_ids.items():
        if token_id is not None and token_id >= vocabulary:
            raise DataError(f"{path}: {ROLES[role]}_token_id: the id {token_id} has no row in a table of {vocabulary}")
    special = SpecialIds(vocabulary=vocabulary, **special_ids)
    tokenizer = Tokenizer(text, name=str(path), special=special)
    opened = settings.get("model") == "llama" or settings.get("pre") in OPENED
    before = () if special.start is None or not config.flag("add_bos_token", opened) else (special.start,)
    after = () if special.end is None or not config.flag("add_eos_token", False) else (special.end,)
    return ImportedTokenizer(tokenizer, before, after, chat_of(template, tokenizer, special, str(path)))


def chat_of(template: Any, tokenizer: Tokenizer, special: SpecialIds, where: str) -> ChatTemplate | None:
    """Return the chat template, with the special tokens that templates name."""
    if not isinstance(template, str):
        return None
    names = {"bos_token": special.start, "eos_token": special.end, "unk_token": special.unknown}
    tokens = {name: tokenizer.token(token_id) for name, token_id in names.items() if token_id is not None}
    return checked_template(template, tokens, f"{where}: tokenizer.chat_template")
