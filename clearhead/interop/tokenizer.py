"""Read the tokenizer of a model folder: tokenizer.json as it stands, and what `transformers` puts around a text.

What `tokenizer_config.json` has beside it is taken too: the names of special tokens, and the chat template.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers as library

from clearhead.bounds import TEMPLATE_BYTES
from clearhead.errors import DataError, OptionError, unreadable
from clearhead.files import read_bytes
from clearhead.interop.tables import Config
from clearhead.interop.tensor_files import file_in, read_object
from clearhead.text.templates import ChatTemplate
from clearhead.text.tokenizer import (
    SpecialIds,
    Tokenizer,
    library_errors_as_data_errors,
    parse_tokenizer,
    read_tokenizer_text,
)

FILE, SETTINGS, NAMES, TEMPLATE = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)
ROLES: Mapping[str, tuple[str, ...]] = {
    "pad": ("pad_token",),
    "unknown": ("unk_token",),
    "start": ("bos_token", "cls_token"),
    "end": ("eos_token", "sep_token"),
    "mask": ("mask_token",),
}
"""What the special tokens of Hugging Face's are for, the first that is there."""
NAMED = tuple(name for names in ROLES.values() for name in names)
PROBES = ("a", "the", "1", ".", " a", "\n")
"""Texts of which one has tokens in any vocabulary."""


class ImportedTokenizer(NamedTuple):
    """A tokenizer, the ids that it puts `before` and `after` a text, and the chat template if there is one."""

    tokenizer: Tokenizer
    before: tuple[int, ...]
    after: tuple[int, ...]
    chat: ChatTemplate | None
    between: tuple[int, ...] = ()
    """Ids between the two texts of a pair; none if the tokenizer does not say them."""
    segment: int = 0
    """The segment of the second."""


def read_tokenizer(home: Path, vocabulary: int, *, start: int | None, end: int | None) -> ImportedTokenizer:
    """Read the tokenizer of a folder whose model's table has `vocabulary` rows.

    `start` and `end` are the model's, for a tokenizer whose settings name none. DataError where tokenizer.json is
    missing or none, OptionError where another file is not as it should be.
    """
    path = file_in(home, FILE)
    try:
        text = read_tokenizer_text(path)
    except FileNotFoundError:
        raise DataError(
            f"{home}: has no {FILE}. Write one: "
            "transformers.AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        ) from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error}); expected a {FILE}") from None
    settings = read_settings(home)
    names = special_names(settings)
    with library_errors_as_data_errors(str(path)):
        adapted = with_special_tokens(parse_tokenizer(text, str(path)), settings, names, vocabulary)
        before, after = around_text(adapted)
        between, segment = around_pair(adapted, before, after)
        vocabulary_ids = adapted.get_vocab(with_added_tokens=True)
        ids = {role: first_place(vocabulary_ids, names, tokens) for role, tokens in ROLES.items()}
        if ids["unknown"] is None:
            ids["unknown"] = unknown_of(adapted)
        tokenizer_text = adapted.to_str()
    ids |= {role: token_id for role, token_id in (("start", start), ("end", end)) if ids[role] is None}
    special = SpecialIds(vocabulary=vocabulary, **ids)
    for token_id in (*before, *after, *between):
        if token_id >= vocabulary:
            raise DataError(
                f"{path}: puts the id {token_id} around a text, and the model's table has {vocabulary} rows"
            )
    chat = read_template(home, settings, names)
    return ImportedTokenizer(
        Tokenizer(tokenizer_text, name=str(path), special=special),
        before,
        after,
        chat,
        between=between,
        segment=segment,
    )


def read_settings(home: Path) -> Config:
    """Return the fields of tokenizer_config.json, and of special_tokens_map.json; either file may be missing."""
    fields: dict[str, Any] = {}
    for file in (NAMES, SETTINGS):
        if (home / file).exists():
            fields |= {name: value for name, value in read_object(home, file).items() if value is not None}
    settings = Config(fields, str(home / SETTINGS))
    settings.require("split_special_tokens", False)
    return settings


def special_names(settings: Config) -> dict[str, str]:
    """Return the special tokens by Hugging Face's names for them: `bos_token` is `<s>`."""
    names: dict[str, str] = {}
    for name in NAMED:
        value = settings.get(name)
        value = value.get("content") if isinstance(value, dict) else value
        if value is not None and not isinstance(value, str):
            raise settings.error(name, f"expected a token; came {value!r:.80}")
        if value:
            names[name] = value
    return names


def with_special_tokens(
    tokenizer: library.Tokenizer, settings: Config, names: Mapping[str, str], vocabulary: int
) -> library.Tokenizer:
    """Return the tokenizer with the special tokens of its settings, and without those that its model has no row for."""
    config = json.loads(tokenizer.to_str()) | {"truncation": None, "padding": None}
    largest = max(tokenizer.get_vocab(with_added_tokens=False).values(), default=-1)
    if largest >= vocabulary:
        raise DataError(f"{FILE}: has the id {largest}, and the model's table has only {vocabulary} rows")
    config["added_tokens"] = [added for added in config["added_tokens"] if added["id"] < vocabulary]
    adapted = library.Tokenizer.from_str(json.dumps(config))
    contents = {token.content for token in adapted.get_added_tokens_decoder().values()}
    room, more = vocabulary - adapted.get_vocab_size(with_added_tokens=True), list[library.AddedToken]()
    for token in (*listed_tokens(settings), *(special_token(name) for name in names.values())):
        is_new = adapted.token_to_id(token.content) is None
        if token.content not in contents and (room > 0 or not is_new):
            contents.add(token.content)
            more.append(token)
            room -= is_new
    adapted.add_tokens(more)  # all at once: each call goes through all tokens
    return adapted


def special_token(content: str) -> library.AddedToken:
    return library.AddedToken(content, special=True, normalized=False)


def listed_tokens(settings: Config) -> Iterator[library.AddedToken]:
    """Yield the tokens that tokenizer_config.json lists by id, in their order."""
    listed = settings.get("added_tokens_decoder") or {}
    if not isinstance(listed, dict):
        raise settings.error("added_tokens_decoder", "expected tokens by id")
    for token_id, description in sorted(listed.items(), key=lambda item: (len(item[0]), item[0])):
        content = description.get("content") if isinstance(description, dict) else None
        if not isinstance(content, str) or not content:
            raise settings.error(
                f"added_tokens_decoder: {token_id[:20]}", f"expected a token; came {description!r:.80}"
            )
        flags = {
            name: bool(description.get(name)) for name in ("lstrip", "rstrip", "single_word", "normalized", "special")
        }
        yield library.AddedToken(content, **flags)


def around_text(tokenizer: library.Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ids that the post-processor puts before and after a text.

    Settings such as `add_bos_token` have no say where there is a tokenizer.json, as in `transformers`.
    """
    for text in PROBES:
        encoding = tokenizer.encode(text, add_special_tokens=True)
        text_indices = [index for index, special in enumerate(encoding.special_tokens_mask) if not special]
        if text_indices:
            return tuple(encoding.ids[: text_indices[0]]), tuple(encoding.ids[text_indices[-1] + 1 :])
    return tuple(tokenizer.encode("", add_special_tokens=True).ids), ()


def around_pair(
    tokenizer: library.Tokenizer, before: tuple[int, ...], after: tuple[int, ...]
) -> tuple[tuple[int, ...], int]:
    """Return the ids that the post-processor puts between two texts, and the segment of the second.

    No ids where it has no template for pairs, or one with other tokens around the two than around a single text.
    """
    for text in PROBES:
        encoding = tokenizer.encode(text, text, add_special_tokens=True)
        first, second = ([i for i, sequence in enumerate(encoding.sequence_ids) if sequence == n] for n in (0, 1))
        if not first or not second:
            continue
        between, second_types = tuple(encoding.ids[first[-1] + 1 : second[0]]), encoding.type_ids[second[0] :]
        same_frame = tuple(encoding.ids[: first[0]]) == before and tuple(encoding.ids[second[-1] + 1 :]) == after
        if not same_frame or any(encoding.type_ids[: second[0]]) or len(set(second_types)) > 1:
            return (), 0
        return between, second_types[0]
    return (), 0


def first_place(ids: Mapping[str, int], names: Mapping[str, str], tokens: tuple[str, ...]) -> int | None:
    """Return the id of the first of these special tokens that there is."""
    return next((ids[names[token]] for token in tokens if names.get(token) in ids), None)


def unknown_of(tokenizer: library.Tokenizer) -> int | None:
    """Return the id of the unknown token, by the model of a tokenizer."""
    unknown = getattr(tokenizer.model, "unk_token", None)
    return tokenizer.token_to_id(unknown) if isinstance(unknown, str) else None


def read_template(home: Path, settings: Config, names: Mapping[str, str]) -> ChatTemplate | None:
    """Read the chat template: of its own file, or of tokenizer_config.json, of several there the `default`."""
    path = file_in(home, TEMPLATE)
    if path.exists():
        with unreadable(path, UnicodeDecodeError, error=OptionError):
            return checked_template(read_bytes(path, most=TEMPLATE_BYTES).decode(), names, str(path))
    template = settings.get("chat_template")
    if isinstance(template, list):
        several = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = several.get("default")
    if template is not None and not isinstance(template, str):
        raise settings.error("chat_template", f"expected a text; came {template!r:.80}")
    return None if template is None else checked_template(template, names, f"{settings.where}: chat_template")


def checked_template(text: str, names: Mapping[str, str], where: str) -> ChatTemplate:
    """Return a template that has been tried; OptionError, beginning with `where`, where it cannot be used."""
    template = ChatTemplate(text, dict(names))
    template.check(where)
    return template
