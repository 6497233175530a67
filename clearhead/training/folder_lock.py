"""Hold a run folder: only one process writes to it, and that process notices when the folder is moved.

Whoever writes to a folder, or removes something from it, holds its lock from the first look at what is there to the
last change. The lock is a file, `.lock`. A process that made it and leaves no run behind removes it. So whoever opened
the file and then got its lock checks that the file is still in its place.
"""

import contextlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from types import MappingProxyType

from clearhead.errors import RunError
from clearhead.files import make_folders, remove_empty
from clearhead.system import (
    NO_LINK,
    NO_WAIT,
    OPEN_IS_REMOVED,
    check_no_link,
    has_no_locks,
    open_folder,
    try_lock,
    unlock,
)
from clearhead.training.reporting import to_stderr

LOCK, RUN = ".lock", "run.json"
TRIES = 100
"""How often the lock is tried again if another process has removed it meanwhile."""
Log = Callable[[str], None]


@contextlib.contextmanager
def lock(folder: Path, log: Log = to_stderr) -> Iterator[bool]:
    """Lock a folder for this process, whose number stands in its .lock meanwhile. The lock ends with the process.

    The folder is made if it is not there. If there is no run in it in the end, the lock is removed again, and so are
    the folders made here that are empty. Yields False, and says so to `log`, on a disk that has no locks: then nothing
    keeps other processes out.
    """
    made: list[Path] = []
    try:
        handle, is_new, guarded = open_locked(folder, made, log)
    except BaseException:
        remove_empty(made)
        raise
    is_over = False
    try:
        before = read_start(handle)
        # The number is only for the message to others. A full disk is reported by the first file that matters.
        with contextlib.suppress(OSError):
            write_over(handle, str(os.getpid()).encode())
        try:
            yield guarded
        finally:
            with contextlib.suppress(OSError):  # a broken disk has told its first error, and that one counts
                # As it was before: a process that is refused changes nothing.
                write_over(handle, before)
                has_run = os.path.lexists(folder / RUN)
                is_over = is_new and guarded and is_in_place(handle, folder) and not has_run
                if is_over and OPEN_IS_REMOVED:
                    os.unlink(folder / LOCK)
            with contextlib.suppress(OSError):
                unlock(handle)
    finally:
        with contextlib.suppress(OSError):
            os.close(handle)
        if is_over:
            if not OPEN_IS_REMOVED:  # a file that another process has opened by now stays there
                with contextlib.suppress(OSError):
                    os.unlink(folder / LOCK)
            remove_empty(made)


def open_locked(folder: Path, made: list[Path], log: Log) -> tuple[int, bool, bool]:
    """Return the handle of a folder's lock, whether the file is new, and whether it is locked; RunError where another
    process has the lock. Folders that had to be made are added to `made`.
    """
    for _ in range(TRIES):
        try:
            made += make_folders(folder)
            handle, is_new = open_lock(folder / LOCK)
        except (FileNotFoundError, FileExistsError):
            continue  # another process has removed the file, or made it, this very moment
        except OSError as error:
            if (folder / LOCK).is_symlink():
                raise RunError(f"{folder / LOCK}: is a link, and nothing is written through links; remove it") from None
            raise RunError(f"{folder}: cannot be written to ({error.strerror}); choose another folder") from None
        try:
            guarded = lock_or_warn(handle, folder, log)
            if is_in_place(handle, folder):
                return handle, is_new, guarded
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # it is another file by now, or none: its lock keeps nobody out
    raise RunError(f"{folder}: other processes make its {LOCK} and remove it all the time; try again")


def open_lock(path: Path) -> tuple[int, bool]:
    """Open a lock's file, and return whether it is new; OSError for a link, or if another process makes or removes it
    at this moment.
    """
    check_no_link(path)
    flags = os.O_RDWR | NO_LINK | NO_WAIT
    try:
        return os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o644), True
    except FileExistsError:
        return os.open(path, flags), False


def is_in_place(handle: int, folder: Path) -> bool:
    """Return whether this open file is the folder's lock: another process may have removed it, or the folder."""
    try:
        return os.path.samestat(os.fstat(handle), os.lstat(folder / LOCK))
    except FileNotFoundError:
        return False


def lock_or_warn(handle: int, folder: Path, log: Log) -> bool:
    """Lock an open file; False if the disk has no locks, which `log` is told. RunError if it is taken."""
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        raise RunError(f"{folder / LOCK}: is no regular file; remove it")
    try:
        if try_lock(handle):
            return True
    except OSError as error:
        if not has_no_locks(error):
            raise RunError(f"{folder}: cannot be locked ({error.strerror or error}); choose another folder") from None
        log(
            f"WARNING: {folder}: its disk has no file locks ({error.strerror}), so nothing keeps a second process from "
            "writing to this folder at the same time: use it with one process only. A run that is refused leaves its "
            "files there"
        )
        return False
    number = read_start(handle).decode(errors="replace")
    holder = f"process {number}" if number else "another process"
    raise RunError(f"{folder}: is in use by {holder}; wait for it, or choose another folder")


def read_start(handle: int) -> bytes:
    """Read the number in an open lock file, wherever locking has moved in it."""
    os.lseek(handle, 0, os.SEEK_SET)
    return os.read(handle, 32)


def write_over(handle: int, data: bytes) -> None:
    """Make the content of an open file this and nothing else."""
    os.ftruncate(handle, 0)
    os.lseek(handle, 0, os.SEEK_SET)
    os.write(handle, data)


class Hold:
    """Folders that are held open, to notice when the path of one no longer leads to it.

    `guarded` is whether other processes are kept out: only then may anything be removed. `saved` is the name of the
    last checkpoint that was saved or resumed from.
    """

    def __init__(self, run: Path, *, guarded: bool = True, log: Log = to_stderr) -> None:
        self.run, self.guarded, self.log = run, guarded, log
        # Held open, so that no folder made later can be mistaken for it; None where the system opens no folders.
        self.handles: dict[Path, int | None] = {}
        self.stats: dict[Path, os.stat_result] = {}
        self.saved: str | None = None
        self.stack = contextlib.ExitStack()
        self.add(run)

    def add(self, folder: Path) -> None:
        """Hold one more folder, that of the checkpoints; locked too where it is not in the run folder."""
        if folder in self.handles:
            return
        if self.run not in (folder, folder.parent):
            self.guarded &= self.stack.enter_context(lock(folder, self.log))
        try:
            handle = open_folder(folder)
            self.stats[folder] = os.stat(folder) if handle is None else os.fstat(handle)
        except OSError as error:
            raise RunError(f"{folder}: cannot be written to ({error.strerror}); choose another folder") from None
        self.handles[folder] = handle
        if handle is not None:
            self.stack.callback(os.close, handle)

    def __enter__(self) -> "Hold":
        return self

    def __exit__(self, *failed: object) -> None:
        with contextlib.suppress(OSError):  # a broken disk has told its first error, and that one counts
            self.stack.close()

    def check(self) -> None:
        """Raise RunError if a folder was moved, removed or replaced since it was held."""
        for path, stat_before in self.stats.items():
            try:
                # The run folder may be reached through a link; the checkpoints are not.
                stat_now = os.stat(path, follow_symlinks=path == self.run)
            except OSError:
                stat_now = None
            if stat_now is None or not os.path.samestat(stat_now, stat_before):
                raise self.moved(path)

    def moved(self, path: Path) -> RunError:
        """Return the error that says where the folder is now, and where the last whole checkpoint."""
        paths = {folder: place_of(handle) for folder, handle in self.handles.items()}
        became = "was moved, removed or replaced" if paths[path] is None else f"was moved to {paths[path]}"
        checkpoints_path = paths[[*paths][-1]]
        last = "There is no checkpoint to go on from."
        if self.saved is not None:
            saved = self.saved if checkpoints_path is None else checkpoints_path / self.saved
            last = f"The last whole checkpoint is {saved}."
        run = paths[self.run] or self.run
        elsewhere = "" if path == self.run else f" --checkpoints {checkpoints_path or 'FOLDER'}"
        return RunError(
            f"{path}: {became} while the run was in training, which has stopped. {last} Put the folder back and go on "
            f"with --resume, or: clearhead train {run} --resume{elsewhere}"
        )


HELD: ContextVar[Mapping[tuple[int, str], Hold]] = ContextVar("HELD", default=MappingProxyType({}))
"""What is held here: by the number of the process, since a fork inherits the variable and not the right to write."""


@contextlib.contextmanager
def hold_folder(run: Path, log: Log = to_stderr) -> Iterator[Hold]:
    """Lock a run folder and hold it, until the outermost of these contexts for the same folder ends."""
    key = os.getpid(), os.path.realpath(run)
    held = HELD.get().get(key)
    if held is not None:
        yield held
        return
    with lock(run, log) as guarded, Hold(run, guarded=guarded, log=log) as hold:
        token = HELD.set({**HELD.get(), key: hold})
        try:
            yield hold
        finally:
            HELD.reset(token)


def place_of(handle: int | None) -> Path | None:
    """Return where a folder that is held open lies now, None if it was removed or the system does not say."""
    if handle is None:
        return None
    try:
        path = os.readlink(f"/proc/self/fd/{handle}")
    except OSError:
        return None
    return None if path.endswith(" (deleted)") else Path(path)
