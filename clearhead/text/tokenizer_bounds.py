"""What a tokenizer.json of someone else's may do to a text: how much longer it may make it, and that it ends.

The library has no bounds. Eight normalisers that each write a hundred letters for one make 10^16 of a single letter.
"""

import base64
import binascii
import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tokenizers as library

from clearhead.bounds import TOKENIZER, TOKENIZER_BYTES, call_bounded
from clearhead.errors import DataError
from clearhead.files import read_bytes

MOST_GROWTH, MOST_PARTS = 100, 100
"""How many times as long a text may become, and how many parts may work on it one after another."""
ROLES = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
INNER = ("normalizers", "pretokenizers", "processors", "decoders")
TRIALS = ("the cat eats 12 plums.", " " * 300 + "x", "a" * 300 + "!", "1" * 300, "\n" * 300, "Aé😀漢ﷺ\t" * 30)
"""Texts on which a tokenizer is tried, beside repetitions of what its own patterns mention."""


def check_growth(config: Any, name: str) -> None:
    """Raise DataError, beginning with `name`, for a tokenizer.json that can make a text far longer than it is."""
    for role in ROLES:
        parts = list(flat_parts(config.get(role))) if isinstance(config, dict) else []
        growth = math.prod(GROWTH.get(str(part.get("type")), no_growth)(part) for part in parts)
        if len(parts) > MOST_PARTS or growth > MOST_GROWTH:
            raise DataError(
                f"{name}: its {role} has {len(parts):,} parts that make a text up to {growth:,.4g} times as long; "
                f"at most {MOST_PARTS} parts and {MOST_GROWTH} times are taken"
            )


def flat_parts(part: Any) -> Iterator[dict[str, Any]]:
    """Yield a part and those inside it, in the order in which they work."""
    if isinstance(part, dict):
        yield part
        for inner in INNER:
            for one in part[inner] if isinstance(part.get(inner), list) else ():
                yield from flat_parts(one)


def replacement_growth(part: Mapping[str, Any]) -> float:
    """Return how many times as long a text can become by a replacement; an expression may match nothing at all."""
    pattern, content = part.get("pattern"), str(part.get("content", ""))
    text = pattern.get("String") if isinstance(pattern, dict) else None
    return max(1.0, len(content) / len(text)) if isinstance(text, str) and text else 1.0 + len(content)


def charsmap_growth(part: Mapping[str, Any]) -> float:
    """Return the length of the longest text that a table of SentencePiece's writes for a character.

    The table is the size of a tree, the tree, and the texts, each with a NUL after it.
    """
    try:
        data = base64.b64decode(part.get("precompiled_charsmap") or "")
        return max(1.0, max(map(len, data[4 + int.from_bytes(data[:4], "little") :].split(b"\0"))) / 4)
    except (binascii.Error, TypeError, ValueError):
        return 1.0  # the library refuses it


def no_growth(part: Mapping[str, Any]) -> float:
    return 1.0


def template_growth(part: Mapping[str, Any]) -> float | int:
    """Return how often a template writes a text."""
    templates = [part.get(name) for name in ("single", "pair")]
    return max(1, *(str(template).count("'Sequence'") for template in templates))


GROWTH: Mapping[str, Callable[[Mapping[str, Any]], float]] = {
    "Replace": replacement_growth,
    "Prepend": lambda part: 1.0 + len(str(part.get("prepend", ""))),
    "Precompiled": charsmap_growth,
    "TemplateProcessing": template_growth,
}
"""Parts that can make a text longer than Unicode does, by the name of their type."""


def try_tokenizer(path: str, config: Any) -> None:
    """Build a tokenizer.json in a bounded process, and encode short texts; DataError if it ends badly."""
    patterns = (part.get("pattern") for role in ROLES for part in flat_parts(config.get(role)))
    mentioned = "".join(str(pattern.get("Regex", "")) for pattern in patterns if isinstance(pattern, dict))
    signs = "".join(sign for sign in dict.fromkeys(mentioned) if sign.isalnum())[:100]
    arguments = {"path": path, "texts": [*TRIALS, *(f"{sign * 100}\0" for sign in signs)]}
    where = f"{path}: the tokenizers library cannot use it"
    call_bounded(try_here, arguments, TOKENIZER, where=where, error=DataError)


def try_here(path: str, texts: list[str]) -> None:
    """Try in this process, which is a bounded one. An ordinary error is told where the tokenizer is used."""
    try:
        tokenizer = library.Tokenizer.from_str(read_bytes(path, most=TOKENIZER_BYTES).decode())
    except Exception:  # the library raises nothing narrower
        return
    with contextlib.suppress(Exception):
        tokenizer.encode("a", "b")  # a pair may be framed otherwise; a long one that is cut takes its length squared
    for text in texts:
        try:
            ids = tokenizer.encode(text).ids
            tokenizer.decode(ids)
        except MemoryError:
            raise
        except Exception:  # a vocabulary may have no token for these
            continue
