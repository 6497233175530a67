"""Read the tokenizer of a GGUF file, with what llama.cpp puts around a text, and the chat template."""

from pathlib import Path
from typing import Any

from clearhead.errors import DataError
from clearhead.interop.config import Config
from clearhead.interop.gguf_file import GGUF
from clearhead.interop.gguf_tokenizer import tokenizer_json
from clearhead.interop.tokenizer import ImportedTokenizer
from clearhead.text.tokenizer import SpecialIds, Tokenizer
from clearhead.training.chat import ChatTemplate

__all__ = ["read_tokenizer_of_gguf"]

ROLES = {"pad": "padding", "unknown": "unknown", "start": "bos", "end": "eos", "mask": "mask"}
"""What GGUF calls the special tokens."""
OPENED = ("llama-bpe", "llama3", "llama-v3")
"""Pre-tokenizers with which llama.cpp puts a start token before a text, unless the file says otherwise."""


def read_tokenizer_of_gguf(path: Path, vocabulary: int) -> ImportedTokenizer:
    """Read the tokenizer of a GGUF file whose model's table has `vocabulary` rows."""
    with GGUF(path) as file:
        said = {name.removeprefix("tokenizer.ggml."): value for name, value in file.metadata.items()}
        text = tokenizer_json(file.metadata, str(path))
        template = file.metadata.get("tokenizer.chat_template")
    found = Config(said, str(path))
    places = {role: next(iter(found.tokens(f"{name}_token_id")), None) for role, name in ROLES.items()}
    for role, place in places.items():
        if place is not None and place >= vocabulary:
            raise DataError(f"{path}: {ROLES[role]}_token_id: the id {place} has no row in a table of {vocabulary}")
    special = SpecialIds(vocabulary=vocabulary, **places)
    tokenizer = Tokenizer(text, name=str(path), special=special)
    opened = said.get("model") == "llama" or said.get("pre") in OPENED
    before = () if special.start is None or not found.flag("add_bos_token", opened) else (special.start,)
    after = () if special.end is None or not found.flag("add_eos_token", False) else (special.end,)
    return ImportedTokenizer(tokenizer, before, after, chat_of(template, tokenizer, special))


def chat_of(template: Any, tokenizer: Tokenizer, special: SpecialIds) -> ChatTemplate | None:
    """Return the chat template, with the special tokens that templates name."""
    if not isinstance(template, str):
        return None
    names = {"bos_token": special.start, "eos_token": special.end, "unk_token": special.unknown}
    return ChatTemplate(template, {name: tokenizer.token(place) for name, place in names.items() if place is not None})
