"""Shards from elsewhere: text in object stores and on the web, by fsspec, fetched whole into a local cache.

What is read is a local file, as ever: a shard is fetched under another name, its size is compared with what the store
said, and only then it is renamed. One that cannot be had is tried again, then named in an error; it is never passed
over. The cache is bounded, whatever a store sends: what was used longest ago goes first; what a process reads stays.
"""

import functools
import hashlib
import os
import re
import stat
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from clearhead.errors import DataError, ShardError
from clearhead.extras import has_package, how_to_install
from clearhead.files import flush, partial_of
from clearhead.system import try_lock

REMOTE = re.compile(r"[a-z][a-z0-9+.-]+://|hub:")
PACKAGES = {
    "s3": ("s3fs", "s3"),
    "gs": ("gcsfs", "gs"),
    "https": ("aiohttp", "https"),
    "http": ("aiohttp", "https"),
    "hf": ("huggingface_hub", "hub"),
}
"""The package that a protocol takes, and the extra it comes with."""
WEB = ("http", "https")
TAGS = ("ETag", "etag", "Content-MD5", "md5Hash", "blob_id", "LastModified", "Last-Modified", "mtime", "updated")
"""Where a file system says which version of a file it has; the first that is there counts."""
TRIES, WAIT = 5, 0.5
"""How often a shard is asked for, and the seconds before the second time; they double each time."""
SILENCE = 60.0
"""Seconds without a byte after which a connection is given up."""
HELD = 8
"""How many shards a process keeps from being removed: those it asked for last."""
FOLDER, GIGABYTES = "CLEARHEAD_SHARDS", "CLEARHEAD_SHARDS_GB"
"""Environment variables: the folder of the cache, and how much of it may be filled."""
DEFAULT_GIGABYTES = 20.0

SUFFIXES = re.compile(r"(?:\.\w{1,16}){1,2}$", re.ASCII)
"""The end of a name that says what is in a file; whatever else a name may have, the cache does not."""

Got = TypeVar("Got")


class Shard(NamedTuple):
    """What a store says of a file: its size in bytes and its version, None if it does not say."""

    size: int | None
    tag: str | None


def is_remote(path: str) -> bool:
    """Return whether a path is of another machine.

    >>> [is_remote(path) for path in ("s3://bucket/a.txt", "hub:datasets/me/text/*.parquet", "C:/a.txt", "a.txt")]
    [True, True, False, False]
    """
    return bool(REMOTE.match(path))


def list_remote(path: str) -> list[str]:
    """Return the files that are meant, by name: those that a * stands for, those of a folder, or the file itself."""
    return list(listed(path, cache_folder()))


@functools.cache
def listed(path: str, _cache: Path) -> tuple[str, ...]:
    system, inside = file_system(path)

    def find() -> list[str]:
        if protocol_of(path) in WEB:
            return [inside]
        if "*" in inside:
            return [name for name, about in system.glob(inside, detail=True).items() if about["type"] != "directory"]
        return [inside] if system.isfile(inside) else system.find(inside)

    found = sorted(persist(find, path))
    if not found:
        raise DataError(f"{path}: there is no such file, and nothing below it")
    return tuple(system.unstrip_protocol(name) for name in found)


def protocol_of(path: str) -> str:
    return "hf" if path.startswith("hub:") else path.partition("://")[0]


def file_system(path: str) -> tuple[Any, str]:
    """Return the file system of a path, and the path in it; DataError if a package is missing."""
    import fsspec

    protocol = protocol_of(path)
    package, extra = PACKAGES.get(protocol, ("fsspec", ""))
    if not has_package(package):
        raise DataError(f"{path}: {protocol}:// takes the package {package}: {how_to_install(extra)}")
    address = f"hf://{path.removeprefix('hub:')}" if path.startswith("hub:") else path
    if "::" in address:  # fsspec would open one file system through another, some of which run what a file says
        raise DataError(f"{path}: an address with :: in it is not read; copy what it stands for")
    try:
        system, inside = fsspec.core.url_to_fs(address, **options_of(protocol))
    except (ImportError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from error
    return system, inside


def options_of(protocol: str) -> Mapping[str, Any]:
    """Return the options of a file system that give up a connection on which nothing comes."""
    if protocol in WEB:
        from aiohttp import ClientTimeout  # pyright: ignore[reportMissingImports]

        timeout = ClientTimeout(total=None, sock_connect=SILENCE, sock_read=SILENCE)
        return {"client_kwargs": {"timeout": timeout}, "use_listings_cache": False}
    if protocol == "s3":
        patience = {"connect_timeout": SILENCE, "read_timeout": SILENCE, "retries": {"max_attempts": 1}}
        # s3fs would fetch large files in parts at once, into a file that is as long as it should be from the beginning:
        # bytes that did not come would be zeros.
        return {"config_kwargs": patience, "use_listings_cache": False, "max_concurrency": 1}
    return {}


def persist(attempt: Callable[[], Got], path: str) -> Got:
    """Return what an attempt gives, tried again where a store fails; ShardError that names the shard at the end.

    A file that is not there, or not allowed, is not asked for again.
    """
    for number in range(TRIES):
        try:
            return attempt()
        except DataError:
            raise
        except (FileNotFoundError, PermissionError) as error:
            kind = "there is no such file" if isinstance(error, FileNotFoundError) else "reading it is not allowed"
            raise DataError(f"{path}: {kind} ({error})") from error
        except Exception as error:  # file systems of many packages, each with errors of its own
            if number == TRIES - 1:
                said = f"{type(error).__name__}: {error}".splitlines()[0][:300]
                raise ShardError(
                    f"{path}: could not be fetched in {TRIES} tries ({said}). Nothing was left out: mend the "
                    "connection or the store, and start again; what was done stays"
                ) from error
            time.sleep(WAIT * 2**number)
    raise AssertionError


@functools.cache
def describe_shard(path: str) -> Shard:
    """Return what the store says of a shard, asked once in a process."""
    return persist(lambda: ask(path), path)


def ask(path: str) -> Shard:
    """Ask a store once."""
    system, inside = file_system(path)
    try:
        about = system.info(inside)
    except FileNotFoundError as error:  # on the web fsspec says so whatever failed
        if protocol_of(path) in WEB and may_pass(error.__cause__):
            raise OSError(str(error.__cause__)) from None
        raise
    tag = next((f"{name}={about[name]}" for name in TAGS if about.get(name)), None)
    return Shard(about.get("size"), tag)


def may_pass(error: BaseException | None) -> bool:
    """Check whether a request on the web that failed may succeed later."""
    from aiohttp import ClientConnectionError  # pyright: ignore[reportMissingImports]

    status = getattr(error, "status", 0)
    return isinstance(error, ClientConnectionError | TimeoutError) or status == 429 or status >= 500


def identify(path: str) -> str:
    """Return a hash of a shard's version, as its store tells it; of its content where the store tells none."""
    shard = describe_shard(path)
    if shard.tag is not None:
        return hashlib.blake2b(f"{shard.size} {shard.tag}".encode()).hexdigest()
    with open(local_path(path), "rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()


def size_of(path: str) -> int:
    """Return the bytes of a file, here or elsewhere; 0 where nobody knows."""
    return describe_shard(path).size or 0 if is_remote(path) else os.path.getsize(path)


def local_path(path: str) -> str:
    """Return where a file can be read on this machine: fetched into the cache if it is remote and not there yet."""
    if not is_remote(path):
        return path
    folder, shard = cache_folder(), describe_shard(path)
    name = hashlib.blake2b(f"{path}\n{shard}".encode(), digest_size=16).hexdigest()
    place = folder / f"{name}{''.join(SUFFIXES.findall(path)[-1:])}"
    while not hold(place):
        check_fits(path, shard.size or 0)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            make_room(folder, shard.size or 0)
        except OSError as error:
            raise DataError(f"{folder}: the cache of shards cannot be written ({error}); set {FOLDER}") from error
        persist(lambda: fetch(path, shard, place), path)
    return str(place)


def fetch(path: str, shard: Shard, place: Path) -> None:
    """Fetch a shard once, whole; OSError if it is not as long as its store says, or has changed meanwhile."""
    from fsspec import Callback

    system, inside = file_system(path)
    partial = partial_of(place)

    def watch(coming: int | None, came: int) -> None:
        size = max(coming or 0, came)
        if shard.size is None:
            check_fits(path, size)
            make_room(place.parent, 0)
        elif size > shard.size:
            raise OSError(f"{size:,} bytes came or were announced, and its store says that it has {shard.size:,}")

    # The hub's own file system holds to sizes by itself, and is slower with a callback.
    watched = {} if protocol_of(path) == "hf" else {"callback": Callback(hooks={"bound": watch})}
    try:
        system.get_file(inside, str(partial), **watched)
        size = partial.stat().st_size
        if shard.size is not None and size != shard.size:
            raise OSError(f"{size:,} bytes came, and its store says that it has {shard.size:,}")
        # s3fs goes on within a file where a connection broke, and another version may be there by then.
        if ask(path) != shard:
            raise OSError("it has changed in its store since it was asked for first")
        flush(partial)
        os.replace(partial, place)
    finally:
        partial.unlink(missing_ok=True)


HANDLES: OrderedDict[Path, int] = OrderedDict()
"""The shards that this process has asked for last, open and locked, so that no process removes them."""


def hold(place: Path) -> bool:
    """Keep a shard of the cache from being removed; False if it is not there."""
    if place in HANDLES and not os.fstat(HANDLES[place]).st_nlink:
        os.close(HANDLES.pop(place))  # removed: what is there now is another file
    if place not in HANDLES:
        try:
            handle = os.open(place, os.O_RDONLY)
        except FileNotFoundError:
            return False
        with suppress(OSError):  # a disk without locks
            try_lock(handle, shared=True)
        HANDLES[place] = handle
        while len(HANDLES) > HELD:
            os.close(HANDLES.popitem(last=False)[1])
    HANDLES.move_to_end(place)
    with suppress(OSError):
        os.utime(place)
    return place.exists()  # removed before it was locked, or by hand


def check_fits(path: str, size: int) -> None:
    """Raise DataError for a shard that is larger than the whole cache."""
    if size > cache_bytes():
        raise DataError(
            f"{path}: has more than the {cache_bytes() / 1e9:g} GB that the cache of shards may take; set {GIGABYTES}"
        )


def cache_bytes() -> float:
    given = os.environ.get(GIGABYTES, "")
    with suppress(ValueError):
        if (gigabytes := float(given or DEFAULT_GIGABYTES)) > 0:
            return gigabytes * 1e9
    raise DataError(f"{GIGABYTES}: expected a number above 0; came {given[:40]!r}")


def make_room(folder: Path, size: int) -> None:
    """Remove the shards that were used longest ago, until one of this size fits. Those that are read stay."""
    files: list[tuple[os.stat_result, Path]] = []
    for path in folder.iterdir():
        with suppress(FileNotFoundError):  # another process has renamed or removed it since
            if stat.S_ISREG((about := path.lstat()).st_mode):
                files.append((about, path))
    used = sum(about.st_size for about, _ in files)
    for about, path in sorted(files, key=lambda each: each[0].st_mtime):
        if used + size <= cache_bytes():
            return
        if time.time() - about.st_mtime < 2 * SILENCE and path.name.startswith("."):
            continue  # another process fetches it
        with suppress(OSError):
            handle = os.open(path, os.O_RDONLY)
            try:
                if path not in HANDLES and try_lock(handle):
                    path.unlink()
                    used -= about.st_size
            finally:
                os.close(handle)


def cache_folder() -> Path:
    """Return the folder that shards are kept in."""
    if FOLDER in os.environ:
        return Path(os.environ[FOLDER])
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "clearhead" / "shards"
