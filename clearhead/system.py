"""What operating systems do differently, in one place: flags of `open`, folders, locks, processes, out of memory.

Linux is where all of it is tested. macOS has the same calls. Windows has no `fcntl`, opens no folder, and has no flag
against links: its branches run here only in a simulation (tests/test_system.py), and are untested on Windows itself.
"""

import contextlib
import ctypes
import errno
import math
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

NO_LINK: int = getattr(os, "O_NOFOLLOW", 0)
"""Do not follow a link. If there is no such flag, `check_no_link` looks before the file is opened."""
NO_WAIT: int = getattr(os, "O_NONBLOCK", 0)
"""Do not wait for the other end of a pipe."""
OPEN_IS_REMOVED = fcntl is not None
"""Whether a file can be removed while it is open; Windows refuses that."""
LOCKLESS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL)
"""What `flock` says on a disk that has no locks: NFS without its lock service, Lustre without -o flock, and others."""
FOLDER: int | None = getattr(os, "O_DIRECTORY", None)
OUT_OF_MEMORY = re.compile(r"(can't|cannot) allocate memory|not enough memory|out of memory|bad_alloc", re.IGNORECASE)
PR_SET_PDEATHSIG = 1
MADV_HUGEPAGE, MADV_COLLAPSE = 14, 25
LARGE_PAGE = 1 << 21
"""Bytes of a large page, with which a core reads much memory faster: otherwise it also waits for page tables."""
LAUNCHER = "CLEARHEAD_LAUNCHER"
"""The variable that holds the number of the process that has started this one, and that it ends with."""
CONTAINER = Path("/sys/fs/cgroup/memory.max")
"""Where Linux says how much memory a container may use."""
LOCKED_BYTE = 1 << 30
"""The byte that stands for the file where locks are of bytes. It lies past the content, which stays readable."""


def machine_memory() -> float:
    """Return the bytes of memory of this machine, or of the container that this process is in; inf if unknown."""
    try:
        there = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):  # Windows
        return math.inf
    with contextlib.suppress(OSError, ValueError):  # "max" is no number
        there = min(there, float(CONTAINER.read_text(encoding="utf-8")))
    return there


def use_large_pages(address: int, n_bytes: int) -> None:
    """Ask Linux (6.1 and later) to move memory that is in use into large pages; elsewhere nothing happens.

    These are all pages that any of the bytes is in, so that neighbours in this process come with them.
    """
    if not sys.platform.startswith("linux"):
        return
    call = ctypes.CDLL(None).madvise
    for page in range(address // LARGE_PAGE * LARGE_PAGE, address + n_bytes, LARGE_PAGE):
        for advice in (MADV_HUGEPAGE, MADV_COLLAPSE):
            # Refused where a part of the page is not in use, and by older kernels: then it stays as it is.
            call(ctypes.c_void_p(page), ctypes.c_size_t(LARGE_PAGE), advice)


def process_seconds() -> float:
    """Return how long this process has run; where the system does not say, how long it has computed."""
    try:
        started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
        return time.clock_gettime(time.CLOCK_BOOTTIME) - started
    except (AttributeError, IndexError, OSError, ValueError):
        return time.process_time()


def end_with_parent(parent: int, *, poll: float = 1.0) -> None:
    """End this process with the one that has started it, whatever it does: at once on Linux, elsewhere within `poll`
    seconds. What a run has saved is whole at any moment.

    Where something stands between the two, as a program that starts Python and waits for it, it is within `poll`
    seconds on Linux too.
    """
    child = os.getppid() == parent
    if child and sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:
            return
    if has_ended(parent, child=child):
        os._exit(1)
    threading.Thread(target=watch_parent, args=(parent, child, poll), name="end-with-parent", daemon=True).start()


def has_ended(process: int, *, child: bool) -> bool:
    """Check whether a process is gone: `child` if it has started this one itself."""
    if child or os.name != "posix":
        return os.getppid() != process
    try:
        os.kill(process, 0)  # sends nothing
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False


def watch_parent(parent: int, child: bool, poll: float) -> None:
    while not has_ended(parent, child=child):
        time.sleep(poll)
    os._exit(1)


def end_with_launcher() -> None:
    """End this process with its launcher, if it is a worker that has one."""
    if LAUNCHER in os.environ:
        end_with_parent(int(os.environ[LAUNCHER]))


def check_no_link(path: str | Path) -> None:
    """Raise OSError for a link, where the flag of `open` against links does not exist."""
    if not NO_LINK and os.path.islink(path):
        raise OSError("it is a link")


def open_folder(path: Path) -> int | None:
    """Open a folder, to flush it or to hold it; None on Windows, where a folder is not opened."""
    return None if FOLDER is None else os.open(path, os.O_RDONLY | FOLDER)


def open_to_flush(path: Path) -> int | None:
    """Open a file or a folder for fsync, which on Windows takes a file that is open to be written, and no folder."""
    if path.is_dir():
        return open_folder(path)
    return os.open(path, os.O_RDWR if FOLDER is None else os.O_RDONLY)


def try_lock(handle: int, *, shared: bool = False) -> bool:
    """Lock an open file without waiting; False where another process has locked it. The lock ends with the process.

    A `shared` lock is refused only where another process has one that is not; Windows has none of that kind. OSError
    where the file cannot be locked at all: `has_no_locks` tells whether that is its disk's nature.
    """
    try:
        if fcntl is not None:
            fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        else:
            lock_byte(handle, "LK_NBLCK")
    except (BlockingIOError, PermissionError):
        return False
    return True


def has_no_locks(error: OSError) -> bool:
    """Return whether an error of `try_lock` says that the disk has no locks."""
    return error.errno in LOCKLESS


def unlock(handle: int) -> None:
    """Give up the lock of `try_lock`."""
    if fcntl is not None:
        fcntl.flock(handle, fcntl.LOCK_UN)
    else:
        lock_byte(handle, "LK_UNLCK")


def lock_byte(handle: int, mode: str) -> None:
    """Lock or unlock the byte that stands for the file, as the C library of Windows does."""
    import msvcrt

    windows: Any = msvcrt
    os.lseek(handle, LOCKED_BYTE, os.SEEK_SET)
    windows.locking(handle, getattr(windows, mode), 1)


def count_running() -> int | None:
    """Return how many threads of the whole machine run or wait for a core at this moment; None if it is not told.

    Linux tells it in /proc/loadavg: `0.20 0.18 0.12 1/80 11206` has 1 of 80.
    """
    try:
        with open("/proc/loadavg", encoding="ascii") as file:
            return int(file.read().split()[3].partition("/")[0])
    except (OSError, ValueError, IndexError):
        return None


def is_alive(process: int) -> bool:
    """Return whether there is a process of this number; always True on Windows, where asking by `kill` would end it."""
    if fcntl is None:
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def is_out_of_memory(error: Exception) -> bool:
    """Return whether Python or an allocator of torch ran out of memory; torch has no class for that of its CPU."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and bool(OUT_OF_MEMORY.search(str(error)))
