"""Change a file as a stranger, a broken disk or a careless editor would: a bit, some bytes, or a value of its JSON."""

import json
import os
import random
from pathlib import Path
from typing import Any

from clearhead.files import seal

VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 2.5, 10**9, 10**30, 1e308, [], {}, [[]], {"kind": "x"}, [1, 2, 3]),
    *("", "x", "../../etc/passwd", "/dev/zero", "\x1b[2Jescape", "\ud800", "9" * 5000),
)


def flip_bit(path: Path, draw: random.Random) -> str:
    """Flip one bit of a file; return where."""
    data = bytearray(path.read_bytes())
    place, bit = draw.randrange(len(data)), draw.randrange(8)
    data[place] ^= 1 << bit
    path.write_bytes(data)
    return f"bit {bit} of byte {place:,}"


def mutate(path: Path, draw: random.Random) -> str:
    """Change a file in a way that is drawn; return what was done."""
    ways = [change_bytes, change_bytes, replace_file]
    if path.suffix == ".json":
        ways += [change_json] * 6
    return draw.choice(ways)(path, draw)


def change_bytes(path: Path, draw: random.Random) -> str:
    data = path.read_bytes()
    a, b = sorted(draw.randrange(len(data) + 1) for _ in range(2))
    noise = draw.randbytes(draw.randint(1, 40))
    changed = {
        "cut off": data[:a],
        "a part left out": data[:a] + data[b:],
        "a part twice": data[:b] + data[a:],
        "noise put in": data[:a] + noise + data[a:],
        "noise written over": data[:a] + noise + data[a + len(noise) :],
        "zeros written over": data[:a] + bytes(b - a) + data[b:],
        "empty": b"",
        "as UTF-16": data.decode("latin-1").encode("utf-16"),
        "with a byte order mark": b"\xef\xbb\xbf" + data,
    }
    how = draw.choice([*changed])
    path.write_bytes(changed[how])
    return how


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


def change_json(path: Path, draw: random.Random) -> str:
    """Change one value of a JSON file: another value, left out, renamed or new; half the time with a right checksum."""
    content = json.loads(path.read_text(encoding="utf-8"))
    places = list(places_in(content))
    if not places:
        return change_bytes(path, draw)
    holder, key, name = draw.choice(places)
    how = draw.choice(("another", "another", "left out", "renamed", "nested"))
    value = holder[key]
    if how == "left out":
        del holder[key]
    elif how == "renamed" and isinstance(holder, dict):
        holder[f"{key}x"] = holder.pop(key)
    elif how == "nested":
        holder[key] = [value]
    else:
        holder[key] = draw.choice((*VALUES, mistyped(value)))
        how = f"{holder[key]!r:.40}"
    sealed = isinstance(content, dict) and isinstance(content.get("sha256"), str) and draw.random() < 0.6
    if sealed:
        content = seal({key: value for key, value in content.items() if key != "sha256"})
        how += ", checksum recomputed"
    path.write_text(json.dumps(content), encoding="utf-8")
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


def places_in(value: Any, name: str = "") -> Any:
    """Yield every place in JSON content: what holds it, its key there, and its name."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(items)[:50]:
        yield value, key, f"{name}.{key}".lstrip(".")
        yield from places_in(inner, f"{name}.{key}")


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
