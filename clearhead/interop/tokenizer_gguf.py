"""Read the tokenizer of a GGUF file, with what llama.cpp puts around a text, and the chat template."""

from pathlib import Path
from typing import Any

from clearhead.errors import DataError
from clearhead.interop.config import Config
from clearhead.interop.gguf_file import GGUF
from clearhead.interop.gguf_tokenizer import tokenizer_json
from clearhead.interop.tokenizer import ImportedTokenizer, checked_template
from clearhead.text.templates import ChatTemplate
from clearhead.text.tokenizer import SpecialIds, Tokenizer

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
