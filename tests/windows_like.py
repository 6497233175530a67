"""A process without what Windows lacks: `take_away` makes it so; `python -m tests.windows_like FOLDER` trains in it.

It is a simulation on POSIX, of what is known to differ: modules and calls that do not exist, folders that cannot be
opened, files that cannot be renamed or removed while they are open, locks of bytes. It is no Windows.
"""

import errno
import fcntl
import importlib
import os
import pkgutil
import shutil
import sys
import tempfile
import types
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

MODULES = ("fcntl", "resource", "termios", "pwd", "grp", "tty", "pty", "posix", "triton")
CALLS = (
    *("O_NOFOLLOW", "O_NONBLOCK", "O_DIRECTORY", "O_CLOEXEC", "fork", "forkpty", "register_at_fork", "pread", "pwrite"),
    *("killpg", "getuid", "geteuid", "getpgid", "setsid", "mkfifo", "fchmod", "fchown", "chown", "statvfs", "sync"),
    *("sysconf", "getloadavg", "sched_getaffinity", "posix_fadvise", "sendfile", "wait3", "wait4", "nice"),
)
FIRST = (
    *("asyncio", "concurrent.futures", "matplotlib.backends.backend_svg", "matplotlib.figure", "multiprocessing"),
    *("num2words", "rich.live", "sacrebleu", "safetensors.torch", "starlette.applications", "subprocess", "tempfile"),
    *("tokenizers", "torch", "torch.utils.tensorboard", "torch.nn.attention.flex_attention", "typer", "uvicorn"),
    "uvicorn.protocols.http.h11_impl",
)
"""What others wrote is imported before anything is taken away: it is not on trial, and knows which system this is."""


def take_away() -> None:
    """Make this process lack what Windows lacks. Call it before clearhead is imported."""
    assert not any(name.split(".")[0] == "clearhead" for name in sys.modules)
    for name in FIRST:
        importlib.import_module(name)
    sys.modules["msvcrt"] = byte_locks()
    replace_calls()
    for name in MODULES:
        sys.modules[name] = None  # pyright: ignore[reportArgumentType]
    for name in CALLS:
        if hasattr(os, name):
            delattr(os, name)
    # These two decide once, when they are imported, which system this is.
    shutil._use_fd_functions = False  # pyright: ignore[reportAttributeAccessIssue]
    tempfile.TemporaryFile = tempfile.NamedTemporaryFile
    # Windows reads and writes text in another encoding where none is named.
    warnings.filterwarnings("error", category=EncodingWarning, module=r"clearhead\.")


def byte_locks() -> types.ModuleType:
    """Return a module with the lock of Windows' C library: of bytes from where the file stands, by handle."""
    module: Any = types.ModuleType("msvcrt")
    module.LK_NBLCK, module.LK_UNLCK = 2, 0
    flock, modes = fcntl.flock, {2: fcntl.LOCK_EX | fcntl.LOCK_NB, 0: fcntl.LOCK_UN}

    def locking(handle: int, mode: int, count: int) -> None:
        # Bytes that are locked cannot be read by others: what the file holds must not be among them.
        assert os.lseek(handle, 0, os.SEEK_CUR) >= os.fstat(handle).st_size
        assert count == 1
        try:
            flock(handle, modes[mode])
        except BlockingIOError:
            raise PermissionError(errno.EACCES, "Permission denied") from None

    module.locking = locking
    return module


def replace_calls() -> None:
    """Put calls in the place of os's that refuse what Windows refuses."""
    get, access = fcntl.fcntl, os.O_ACCMODE
    opened, synced, link, isdir, listdir = os.open, os.fsync, os.readlink, os.path.isdir, os.listdir

    def open_file(path: Any, flags: int, *args: Any, **options: Any) -> int:
        if isinstance(path, str | os.PathLike) and isdir(path):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return opened(path, flags, *args, **options)

    def sync_file(handle: int) -> None:
        if get(handle, 3) & access == os.O_RDONLY:  # F_GETFL
            raise OSError(errno.EBADF, "Bad file descriptor")
        synced(handle)

    def is_open(path: Any) -> bool:
        """Return whether this process has the file open or mapped, or one in that folder."""
        there = os.path.realpath(os.path.dirname(os.fspath(path))) + os.sep + os.path.basename(os.fspath(path))
        found = []
        for number in listdir("/proc/self/fd"):
            try:
                found.append(link(f"/proc/self/fd/{number}"))
            except OSError:
                continue
        with open("/proc/self/maps", encoding="utf-8") as maps:
            found += [line.split(maxsplit=5)[5].rstrip("\n") for line in maps if len(line.split(maxsplit=5)) > 5]
        return any(name == there or name.startswith(there + os.sep) for name in found)

    def refuse_open(call: Callable[..., None]) -> Callable[..., None]:
        def refusing(*paths: Any, **options: Any) -> None:
            for path in paths:
                if is_open(path):
                    raise PermissionError(errno.EACCES, "it is open, and Windows would refuse", str(path))
            call(*paths, **options)

        return refusing

    def kill(process: int, number: int) -> None:
        raise AssertionError(f"os.kill({process}, {number}) would end that process on Windows")

    os.open, os.fsync, os.kill = open_file, sync_file, kill
    for name in ("replace", "rename", "unlink", "remove"):
        setattr(os, name, refuse_open(getattr(os, name)))


def quiet(line: str) -> None:
    """Log nothing."""


def import_all() -> list[str]:
    """Import every module of the package, but those that are written in Triton."""
    import clearhead

    found = [one.name for one in pkgutil.walk_packages(clearhead.__path__, "clearhead.")]
    names = [name for name in found if not name.endswith(("_triton", "__main__"))]
    for name in names:
        importlib.import_module(name)
    return names


def main(folder: Path) -> None:
    """Train a run, hold it, load it, use it, resume it, and draw it."""
    fork = os.fork
    take_away()
    names = import_all()
    import clearhead as ch
    from clearhead.experiments.rasp_run import compile_to_run
    from clearhead.rasp import PROGRAMS
    from clearhead.serve.curves import Curves, is_training
    from clearhead.training import (
        Batching,
        Budget,
        Checkpointing,
        Corpus,
        Documents,
        Machine,
        Tokenizing,
        default_recipe,
        resume,
        train,
    )
    from clearhead.training.folder import RunFolder

    (folder / "text.txt").write_text("one two three\nthree two one two\n" * 200, encoding="utf-8")
    recipe = replace(
        default_recipe("generate", Corpus(train=Documents(paths=(str(folder / "text.txt"),), unit="line"))),
        tokenizing=Tokenizing(kind="char"),
        batching=Batching(tokens=256, context=32),
        budget=Budget(steps=6),
        checkpointing=Checkpointing(log=2, evaluate=3, score_records=2, samples=1),
        machine=Machine(device="cpu", threads=1),
    )
    run = train(folder / "run", recipe, log=quiet)
    assert run.step > 0
    held = RunFolder(folder / "run")
    assert not is_training(held)
    with held.lock() as hold:
        assert is_training(held)
        hold.check()
        if (other := fork()) == 0:
            os._exit(try_to_lock(held.path))
        assert os.waitpid(other, 0)[1] == 0, "another process was given the lock"
    again = ch.load(folder / "run", device="cpu")
    assert again.generate(["one"], max_new=4) == again.generate(["one"], max_new=4)
    assert resume(folder / "run", budget=Budget(steps=8), log=quiet).step == 8
    assert Curves(held.metrics).after(6)
    assert held.curves.read_bytes().startswith(b"<?xml")
    compiled = ch.load(compile_to_run(PROGRAMS["sort"], folder / "sort").path, device="cpu")
    made = ch.trace(compiled, "c a b")
    made.save(folder / "sort.trace")
    assert ch.Trace.load(folder / "sort.trace").names
    print(f"{len(names)} modules imported; trained, loaded, resumed")


def try_to_lock(folder: Path) -> int:
    """Return 0 where the folder is refused because another process holds it."""
    from clearhead.errors import RunError
    from clearhead.training.folder import RunFolder

    try:
        with RunFolder(folder).lock():
            return 1
    except RunError as error:
        return 0 if "is in use by process" in str(error) else 2


if __name__ == "__main__":
    main(Path(sys.argv[1]))
