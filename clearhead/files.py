"""Read and write files safely: writes are atomic, reads are bounded, links are never written through.

A file is written under another name beside its place, flushed to the disk, and renamed: a crash leaves the old file or
the new one. JSON of ours is sealed: it carries the version of its format and a checksum of its own content.
"""

import contextlib
import errno
import hashlib
import itertools
import json
import math
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

from clearhead.bounds import JSON_BYTES, JSON_DEPTH, JSON_VALUES
from clearhead.errors import ClearheadError, RunError
from clearhead.system import NO_LINK, NO_WAIT, check_no_link, open_folder, open_to_flush, try_lock

FORMAT = 3
"""The version of all files that a run or a trace is made of, which every sealed JSON carries; no other is read."""
LONGEST_NAME = 255
"""Bytes of a file's name at most, as disks have it."""
PARTIAL = ".partial"
"""How the name of a file ends that is not whole yet."""


def partial_of(path: Path) -> Path:
    """Return a name beside a path for what is not finished yet; OSError for a path that has no name."""
    if not path.name:
        raise IsADirectoryError(f"{str(path)!r} is not the name of a file")
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}{PARTIAL}")


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a name beside `path` to write to; on success flush that file and rename it to `path`.

    The name is new and unpredictable, so nothing that lies there is written through or over. A link at `path` is
    replaced, not followed. Raises the first OSError, with `path` as it was.
    """
    partial = partial_of(path)
    try:
        os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_LINK, 0o666))
        yield partial
        flush(partial)
        os.replace(partial, path)
        flush(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):  # a disk that stays broken has told its first error
            partial.unlink(missing_ok=True)
        raise


def check_writable(path: Path) -> None:
    """Raise RunError if a folder cannot be made at a path, or written to, as far as it shows before it is tried.

    Its parents are made with it: so the nearest one that is there must be a folder that may be written to.
    """
    home = Path(os.path.abspath(path))
    nearest = next(folder for folder in (home, *home.parents) if os.path.lexists(folder))
    if not nearest.is_dir():
        raise RunError(f"{path}: cannot be written to, since {nearest} is not a folder; choose another folder")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise RunError(f"{path}: cannot be written to, since {nearest} is read-only for you; choose another folder")


@contextlib.contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """Yield a new folder beside `path`, whose parents are made; on success rename it to `path`, which may be an empty
    folder. Whatever is raised leaves nothing behind, not even a parent that was made.

    The new folder is locked as long as it is written, so that what a killed process left of one is known: it is removed
    by the next that writes to the same path.
    """
    made: list[Path] = []
    handle, partial = None, path
    try:
        made = make_folders(path.parent)
        remove_abandoned(path)
        partial, handle = make_locked(path)
        yield partial
        for folder, _, names in os.walk(partial, topdown=False):  # some are written by libraries, which do not flush
            for name in names:
                flush(Path(folder, name))
            flush(Path(folder))
        if path.exists():
            path.rmdir()  # it was empty, and a rename onto a folder fails on Windows
        partial.rename(path)
        flush(path.parent)
    except BaseException:
        if partial != path:
            shutil.rmtree(partial, ignore_errors=True)
        remove_empty(made)
        raise
    finally:
        if handle is not None:
            with contextlib.suppress(OSError):
                os.close(handle)


def make_locked(path: Path) -> tuple[Path, int | None]:
    """Make a folder of a new name beside `path`, and lock it; None for the lock where a folder cannot be locked."""
    while True:
        partial = partial_of(path)
        partial.mkdir()
        # Another process may take it for abandoned before it is locked, and remove it.
        with contextlib.suppress(FileNotFoundError, BlockingIOError):
            handle = lock_folder(partial)
            if handle is None or os.path.lexists(partial):
                return partial, handle
            os.close(handle)


def lock_folder(folder: Path) -> int | None:
    """Open a folder and lock it; None where folders cannot be locked, BlockingIOError where another process has it."""
    handle = open_folder(folder)
    if handle is None:
        return None
    try:
        is_free = try_lock(handle)
    except OSError:
        os.close(handle)
        return None
    if not is_free:
        os.close(handle)
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), str(folder))
    return handle


def remove_abandoned(path: Path) -> None:
    """Remove folders that `replacing_folder` has begun for this path, and whose processes were killed."""
    pattern = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{8}}{re.escape(PARTIAL)}")
    for name in filter(pattern.fullmatch, os.listdir(path.parent)):
        abandoned = path.with_name(name)
        with contextlib.suppress(OSError):  # its process lives, another one removes it, or it is no folder
            handle = None if abandoned.is_symlink() else lock_folder(abandoned)
            if handle is not None:
                shutil.rmtree(abandoned, ignore_errors=True)
                os.close(handle)


def make_folders(path: Path) -> list[Path]:
    """Make a folder and those above it that are missing; return the ones made here, the innermost first.

    Another process may make or remove one meanwhile: what it has made is not in the list. OSError if one cannot be
    made, with none of them left.
    """
    made: list[Path] = []
    try:
        for folder in reversed([path, *path.parents]):
            if not folder.is_dir():
                with contextlib.suppress(FileExistsError):
                    folder.mkdir()
                    made.insert(0, folder)
        if not path.is_dir():
            missing = not os.path.lexists(path)  # another process has removed it again
            number = errno.ENOENT if missing else errno.ENOTDIR
            raise OSError(number, os.strerror(number), str(path))
    except BaseException:
        remove_empty(made)
        raise
    return made


def remove_empty(folders: Iterable[Path]) -> None:
    """Remove folders, the innermost first, except those that hold something by now."""
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file atomically; OSError if it cannot be."""
    with replacing(path) as partial:
        partial.write_bytes(data)


def write_json(path: Path, content: object) -> None:
    """Write a value as indented JSON, whole or not at all; ValueError for a number that is not finite."""
    write_text(path, json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a text in UTF-8 atomically; OSError if it cannot be."""
    write_bytes(path, text.encode())


def flush(path: Path) -> None:
    """Flush a file to the disk itself. Flushing a folder makes a rename in it last, where a folder can be flushed."""
    handle = open_to_flush(path)
    if handle is None:
        return
    try:
        os.fsync(handle)
    finally:
        with contextlib.suppress(OSError):  # what fsync says counts
            os.close(handle)


@contextlib.contextmanager
def os_errors_as_run_errors(path: Path) -> Iterator[None]:
    """Re-raise an OSError, such as that of a full disk, as a RunError that says what could not be written."""
    try:
        yield
    except OSError as error:
        raise RunError(
            f"{path}: could not be written ({error}); what was saved before is as it was. "
            "Free some space, or mend the folder's permissions, and go on with --resume"
        ) from None


def remove_partials(folder: Path, names: str) -> None:
    """Remove what a killed process left of files whose names match an expression, this version's or an earlier one's;
    and what `safetensors` left, which writes to a file such as `.tmpA1b2C3` and renames it. The folder is locked, and
    ours.
    """
    pattern = re.compile(rf"\.?({names})(\.[0-9a-f]{{8}}|\.\d+)?{re.escape(PARTIAL)}|\.tmp[A-Za-z0-9]{{6}}")
    for path in folder.iterdir():
        if pattern.fullmatch(path.name) and (path.is_symlink() or not path.is_dir()):
            path.unlink(missing_ok=True)


def set_aside(path: Path) -> Path:
    """Rename a file or folder to the first numbered name that is free, and return it: metrics.1.jsonl, step-5.1."""
    names = (path.with_name(f"{path.stem}.{number}{path.suffix}") for number in itertools.count(1))
    aside = next(name for name in names if not os.path.lexists(name))
    path.rename(aside)
    return aside


def open_log(path: Path, *, new: bool = False) -> BinaryIO:
    """Open a file to append to. With `new` it must not be there yet. A link or a device raises OSError."""
    check_no_link(path)
    handle = os.open(
        path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | (os.O_EXCL if new else 0) | NO_LINK | NO_WAIT, 0o666
    )
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError("it is no regular file")
    return os.fdopen(handle, "ab")


def open_regular(path: str | Path) -> BufferedReader:
    """Open a regular file to read; OSError for anything else. A pipe or a device is not waited for."""
    handle = os.open(path, os.O_RDONLY | NO_WAIT)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError("it is no regular file")
    return os.fdopen(handle, "rb")


def read_bytes(path: str | Path, *, most: int = JSON_BYTES) -> bytes:
    """Read a regular file of at most `most` bytes; OSError for anything else, a device or a pipe too."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(f"it has {max(size, len(data)):,} bytes, and {most:,} are the most that are read")
    return data


def read_json(path: str | Path, *, most: int = JSON_BYTES, error: type[ClearheadError] = RunError) -> Any:
    """Read a JSON file, bounded in size and depth. Raises `error`, or FileNotFoundError if there is no such file."""
    try:
        return parse_json(read_bytes(path, most=most))
    except (FileNotFoundError, NotADirectoryError) as missing:
        raise FileNotFoundError(missing.errno, missing.strerror, str(path)) from None
    except OSError as problem:
        raise error(f"{path}: cannot be read ({problem.strerror or problem})") from None
    except MemoryError:
        raise error(f"{path}: there is not enough memory to read it; close other programs") from None
    except ValueError as problem:
        raise error(f"{path}: is not JSON as Clearhead writes it ({problem})") from None


def parse_json(data: bytes | str) -> Any:
    """Parse JSON; ValueError for NaN and infinities, a name twice in one object, or nesting too deep."""
    try:
        text = data if isinstance(data, str) else data.decode()
        if text.count(",") + text.count("[") + text.count("{") > JSON_VALUES:  # the text of a value may have some too
            raise ValueError(f"it has more than {JSON_VALUES:,} values, as far as commas and brackets tell")
        value = json.loads(
            text, parse_constant=refuse_constant, parse_float=finite_float, object_pairs_hook=object_of_pairs
        )
    except RecursionError:
        raise ValueError(f"it is nested more than {JSON_DEPTH} deep") from None
    check_depth(value)
    return value


def refuse_constant(name: str) -> float:
    raise ValueError(f"there is no {name} in JSON")


def finite_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:30]} is too large for a number")
    return value


def object_of_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))
        raise ValueError(f"the name {twice[:60]!r} is there twice")
    return content


def check_depth(value: Any) -> None:
    """Raise ValueError where lists and objects are nested too deeply. It uses no recursion itself."""
    level = [value]
    for _ in range(JSON_DEPTH):
        inner: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                inner.extend(item.values())
            elif isinstance(item, list):
                inner.extend(item)
        if not inner:
            return
        level = inner
    raise ValueError(f"it is nested more than {JSON_DEPTH} deep")


def seal(content: Mapping[str, Any]) -> dict[str, Any]:
    """Add the format's version and a checksum of everything else.

    >>> sealed = seal({"task": "translate"})
    >>> sealed["format"], len(sealed["sha256"])
    (3, 64)
    """
    # As JSON has it: tuples become lists and keys strings, or the checksum of what is read would be another.
    versioned = {"format": FORMAT, **json.loads(json.dumps(content, allow_nan=False))}
    return {**versioned, "sha256": checksum(versioned)}


def checksum(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 of JSON content, whatever its spacing and the order of its names."""
    unsealed = {name: value for name, value in content.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(unsealed, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def write_sealed(path: Path, content: Mapping[str, Any]) -> dict[str, Any]:
    """Seal content, write it atomically as JSON, and return it. OSError if it cannot be written."""
    sealed = seal(content)
    text = json.dumps(sealed, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    # UTF-8 has no half of a surrogate pair, as in a file name of other bytes. JSON calls it just what this does.
    write_bytes(path, text.encode(errors="backslashreplace"))
    return sealed


def read_sealed(path: str | Path) -> dict[str, Any]:
    """Read what `write_sealed` wrote.

    Raises RunError if the file cannot be read, is of another format or was changed since it was written;
    FileNotFoundError if there is none.
    """
    content = read_json(path)
    if not isinstance(content, dict):
        raise RunError(f"{path}: expected a JSON object; came {type(content).__name__}")
    check_seal(content, str(path))
    return content


def check_seal(content: Mapping[str, Any], where: str, *, error: type[ClearheadError] = RunError) -> None:
    """Raise `error` where sealed content is of another format, or its checksum is wrong or missing."""
    check_format(content, where, error=error)
    if content.get("sha256") != checksum(content):
        raise error(
            f"{where}: was changed since it was written: its checksum is wrong. Put the file back as it was, "
            "or start anew"
        )


def check_format(content: Mapping[str, Any], where: str, *, error: type[ClearheadError] = RunError) -> None:
    """Raise `error` where content is not of this version's format."""
    version = content.get("format")
    if type(version) is not int or version < 1:
        raise error(f"{where}: has no format version, so Clearhead did not write it. Put the file back as it was")
    if version != FORMAT:
        what_to_do = "install a newer one" if version > FORMAT else "install the one that wrote it, or make it anew"
        raise error(
            f"{where}: was written in format {version}, and this version of Clearhead reads format {FORMAT}; "
            f"{what_to_do}"
        )


def check_file_name(name: str, where: str) -> str:
    """Return the name of a file that another file mentions; raise RunError for one that leads out of its folder.

    >>> check_file_name("tokenizer.json", "model.json")
    'tokenizer.json'
    """
    if not name or name.startswith(".") or any(sign in name for sign in "/\\:\0"):
        raise RunError(f"{where}: {name[:60]!r} is no name of a file in this folder")
    return name


def is_plain_name(name: object) -> bool:
    """Return whether this is the name of a file in a folder, and leads nowhere else.

    >>> [is_plain_name(name) for name in ("tokenizer.json", "../x", "..", "", "ü" * 128, "half \\ud800")]
    [True, False, False, False, False, False]
    """
    return (
        isinstance(name, str)
        and len(name.encode(errors="replace")) <= LONGEST_NAME
        and not set(name) & {"/", "\\", "\0"}
        and not any("\ud800" <= sign <= "\udfff" for sign in name)  # no file system can be asked for it
        and name.strip(".") != ""
    )


def is_inside(folder: Path, path: Path) -> bool:
    """Return whether a path, with every link in it followed, lies in a folder."""
    return Path(os.path.realpath(folder)) in Path(os.path.realpath(path)).parents


def sha256_of_file(path: str | Path) -> str:
    """Return the SHA-256 of a regular file; OSError if it cannot be read."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
