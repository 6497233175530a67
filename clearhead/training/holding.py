"""Hold a run folder: only one process writes to it, and that process notices when the folder is moved."""

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import final

from clearhead.errors import RunError
from clearhead.system import NO_LINK, NO_WAIT, check_no_link, open_folder, try_lock, unlock

__all__ = ["LOCK", "Hold", "lock"]

LOCK = ".lock"


@contextlib.contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Lock a folder for this process, whose number stands in its .lock meanwhile. The lock ends with the process."""
    try:
        check_no_link(folder / LOCK)
        handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | NO_LINK | NO_WAIT, 0o644)
    except OSError as error:
        if (folder / LOCK).is_symlink():
            raise RunError(f"{folder / LOCK}: is a link, and nothing is written through links; remove it") from None
        raise RunError(f"{folder}: cannot be written to ({error.strerror}); choose another folder") from None
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise RunError(f"{folder / LOCK}: is no regular file; remove it")
        if not try_lock(handle):
            number = read_start(handle).decode(errors="replace")
            holder = f"process {number}" if number else "another process"
            raise RunError(f"{folder}: is in use by {holder}; wait for it, or choose another folder")
        before = read_start(handle)
        # The number is only for the message above. A full disk is reported by the first file that matters.
        with contextlib.suppress(OSError):
            write_over(handle, str(os.getpid()).encode())
        try:
            yield
        finally:
            # As it was before: a process that is refused changes nothing.
            with contextlib.suppress(OSError):
                write_over(handle, before)
            unlock(handle)
    finally:
        os.close(handle)


def read_start(handle: int) -> bytes:
    """Read the number in an open lock file, wherever locking has moved in it."""
    os.lseek(handle, 0, os.SEEK_SET)
    return os.read(handle, 32)


def write_over(handle: int, data: bytes) -> None:
    """Make the content of an open file this and nothing else."""
    os.ftruncate(handle, 0)
    os.lseek(handle, 0, os.SEEK_SET)
    os.write(handle, data)


@final
class Hold:
    """Folders that are held open, to notice when the path of one no longer leads to it.

    `saved` is the name of the last checkpoint that was saved or resumed from.
    """

    def __init__(self, run: Path) -> None:
        self.run = run
        # Held open, so that no folder made later can be mistaken for it; None where the system opens no folders.
        self.handles: dict[Path, int | None] = {}
        self.stats: dict[Path, os.stat_result] = {}
        self.saved: str | None = None
        self.stack = contextlib.ExitStack()
        self.add(run)

    def add(self, folder: Path) -> None:
        """Hold one more folder, that of the checkpoints; locked too where it is not in the run folder."""
        if self.run not in (folder, folder.parent):
            self.stack.enter_context(lock(folder))
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
        self.stack.close()

    def check(self) -> None:
        """Raise RunError where a folder was moved, removed or replaced since it was held."""
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


def place_of(handle: int | None) -> Path | None:
    """Return where a folder that is held open lies now, None if it was removed or the system does not say."""
    if handle is None:
        return None
    try:
        path = os.readlink(f"/proc/self/fd/{handle}")
    except OSError:
        return None
    return None if path.endswith(" (deleted)") else Path(path)
