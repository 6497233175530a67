"""Change a file as a stranger, a broken disk or a careless editor would: a bit, some bytes, or a value of its JSON."""

import json
import os
import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from clearhead.files import seal

VALUES: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 1, 2, 3, 2.5, 0.5, 10**6, 10**9, 2**31, 2**63, 10**30, 1e308, -1e300),
    *([], [1], {}, [[]], [None], {"a": 1}, {"is": "Heads"}, {"content": 5}, [[1, 2], [3]], [0] * 20_000),
    *("", "x", "gelu", "llama", "../../etc/passwd", "/dev/zero", "\x1b[2Jescape", "\ud800", "\x00", "9" * 5000),
    "{{ 'a' * 3000000000 }}",
)
NUMBERS = (0, 1, 2**16, 2**31 - 1, 2**32, 2**40, 2**62, 2**63, 2**64 - 1)
"""Lengths and offsets of binary formats that cannot be right."""
RESEALED = ", checksum recomputed"


def flip_bit(path: Path, draw: random.Random) -> str:
    """Flip one bit of a file; return where."""
    data = bytearray(path.read_bytes())
    place, bit = draw.randrange(len(data)), draw.randrange(8)
    data[place] ^= 1 << bit
    path.write_bytes(data)
    return f"bit {bit} of byte {place:,}"


def mutate(path: Path, draw: random.Random) -> str:
    """Change a file in a way that is drawn; return what was done."""
    if draw.random() < 0.15:
        return replace_file(path, draw)
    data, how = change(path.read_bytes(), draw)
    path.write_bytes(data)
    return how


def change(data: bytes, draw: random.Random) -> tuple[bytes, str]:
    """Return bytes changed in a way that is drawn, and how."""
    return (change_json if data[:1] in b"{[" and draw.random() < 0.6 else change_bytes)(data, draw)


def change_bytes(data: bytes, draw: random.Random) -> tuple[bytes, str]:
    near = len(data) if draw.random() < 0.5 else min(len(data), 4000)  # a header is where formats are fragile
    a, b = sorted(draw.randrange(near + 1) for _ in range(2))
    noise = draw.randbytes(draw.choice((1, 2, 6, 40)))
    number = struct.pack(draw.choice(("<Q", ">I")), draw.choice(NUMBERS) % 2**32)
    flipped = data[:a] + bytes([data[a] ^ 1 << draw.randrange(8)]) + data[a + 1 :] if a < len(data) else data + b"x"
    changed = {
        "a bit": flipped,
        "cut off": data[:a],
        "a part left out": data[:a] + data[b:],
        "a part twice": data[:b] + data[a:],
        "noise put in": data[:a] + noise + data[a:],
        "noise written over": data[:a] + noise + data[a + len(noise) :],
        "zeros written over": data[:a] + bytes(b - a) + data[b:],
        "a number that cannot be": data[:a] + number + data[a + len(number) :],
        "nested": data[:a] + b"[" * draw.choice((10, 1000, 100_000)) + data[a:],
        "empty": b"",
        "as UTF-16": data.decode("latin-1").encode("utf-16"),
        "with a byte order mark": b"\xef\xbb\xbf" + data,
    }
    how = draw.choice([*changed])
    return changed[how], how


def replace_file(path: Path, draw: random.Random) -> str:
    """Put something else in the place of a file: a folder, a pipe, a device, a link, nothing, or deep JSON."""
    how = draw.choice(("missing", "a folder", "a pipe", "a link to /dev/zero", "a link to itself", "deep JSON", "[]"))
    path.unlink()
    match how:
        case "a folder":
            path.mkdir()
        case "a pipe":
            os.mkfifo(path)
        case "a link to /dev/zero":
            path.symlink_to("/dev/zero")
        case "a link to itself":
            path.symlink_to(path.name)
        case "deep JSON":
            path.write_text("[" * 100_000 + "]" * draw.choice((0, 100_000)), encoding="utf-8")
        case "[]":
            path.write_text("[]", encoding="utf-8")
    return how


def change_json(data: bytes, draw: random.Random) -> tuple[bytes, str]:
    """Change one value of a JSON text, half the time with a right checksum, as a stranger would; what is no JSON any
    more is changed as bytes.
    """
    try:
        content = json.loads(data)
        how = change_value(content, draw)
    except (ValueError, IndexError, RecursionError):
        return change_bytes(data, draw)
    if isinstance(content, dict) and isinstance(content.get("sha256"), str) and draw.random() < 0.6:
        content = seal({key: value for key, value in content.items() if key not in ("format", "sha256")})
        how += RESEALED
    deep = b"[" * 3000 + b"]" * 3000
    return json.dumps(content).encode().replace(b'"DEEP"', deep), how


def change_value(content: Any, draw: random.Random) -> str:
    """Change one place in JSON content: another value, left out, renamed, nested, repeated or from another place."""
    places = list(places_in(content))
    holder, key, name = draw.choice(places)
    how = draw.choice(("another", "another", "another", "left out", "renamed", "nested", "deep", "repeated", "swapped"))
    value = holder[key]
    if how == "left out":
        del holder[key]
    elif how == "renamed" and isinstance(holder, dict):
        holder[f"{key}x"] = holder.pop(key)
    elif how == "nested":
        holder[key] = [value]
    elif how == "deep":
        holder[key] = "DEEP"
    elif how == "repeated" and isinstance(holder, dict):
        holder |= {f"{key}{i}": value for i in range(draw.choice((2, 2000)))}
    elif how == "repeated" and isinstance(holder, list):
        holder.insert(key, value)
    elif how == "swapped":
        other, place, _ = draw.choice(places)
        holder[key] = json.loads(json.dumps(other[place]))
    else:
        holder[key] = draw.choice((*VALUES, mistyped(value)))
        how = f"{holder[key]!r:.40}"
    return f"{name}: {how}"


def mistyped(value: Any) -> Any:
    """Return a value near another one, or of another type."""
    match value:
        case bool():
            return int(value)
        case int():
            return value * 2 + 1
        case float():
            return -value
        case str():
            return value[::-1]
        case _:
            return str(value)[:20]


def places_in(value: Any, name: str = "") -> Iterator[tuple[Any, Any, str]]:
    """Yield every place in JSON content: what holds it, its key there, and its name; of long lists and objects, which
    hold tokens, the first and the last.
    """
    inner = list(value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ())
    for key, one in inner if len(inner) <= 60 else (*inner[:4], *inner[-4:]):
        yield value, key, f"{name}.{key}".lstrip(".")
        yield from places_in(one, f"{name}.{key}")


class Kept:
    """A file as it was, to be put back."""

    def __init__(self, path: Path) -> None:
        self.path, self.data, self.about = path, path.read_bytes(), path.stat()

    def put_back(self) -> None:
        if self.path.is_dir() and not self.path.is_symlink():
            self.path.rmdir()
        else:
            self.path.unlink(missing_ok=True)
        self.path.write_bytes(self.data)
        os.utime(self.path, ns=(self.about.st_atime_ns, self.about.st_mtime_ns))
