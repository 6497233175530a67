"""Tokenisers in GGUF: a fixed list of ways to cut a text, each as a tokenizer.json and back; with what llama.cpp puts
around a text, and the chat template.

`gpt2` is byte-level BPE with one of llama.cpp's pre-tokenisers; `llama` is SentencePiece's BPE, which merges by score.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from clearhead.errors import DataError, OptionError
from clearhead.interop.config import Config
from clearhead.interop.gguf_file import GGUF
from clearhead.interop.tokenizer import ImportedTokenizer, checked_template
from clearhead.text.templates import ChatTemplate
from clearhead.text.tokenizer import SpecialIds, Tokenizer

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
    """Return the tokenizer.json of a GGUF file; OptionError where its tokeniser is none of these."""
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
