"""The metrics of a run: a file of JSON lines that grows during training and is cut back by a resume; and the same
numbers as TensorBoard's event files.
"""

import json
import math
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, final

from clearhead.errors import OptionError, RunError
from clearhead.extras import how_to_install
from clearhead.files import open_log, parse_json, read_bytes, set_aside
from clearhead.training.reporting import ignore

MOST_BYTES = 1_000_000_000
"""The largest log that is read: some ten million lines."""
TIMES = ("seconds", "tokens_per_second", "memory_mb")
"""Keys whose numbers differ between two runs that are otherwise equal."""


@final
class MetricsLog:
    """A file of metrics: one JSON object a line, which others can read as soon as it is written.

    A checkpoint keeps `size`; a resume from it opens the file with that size, and what came later is cut off.
    """

    def __init__(
        self,
        path: Path,
        *,
        size: int = 0,
        log: Callable[[str], None] = ignore,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Open the file, cut back to its first `size` bytes; with 0, start a new file.

        A file that is not such a log is set aside under a numbered name, and logged: nothing of it is lost. `check`
        raises where the folder is another one since: then the open file is somebody else's, and is not cut.
        """
        try:
            if (wrong := find_misfit(path, size)) is not None:
                if os.path.lexists(path):
                    wrong = f"{wrong}; it is set aside as {set_aside(path).name}"
                log(f"{path}: {wrong}, and a new log begins")
                size = 0
            self.file = open_log(path)
            try:
                check()
            except BaseException:
                self.file.close()
                raise
            self.file.truncate(size)
            self.file.seek(size)
        except OSError as error:
            raise RunError(f"{path}: the metrics cannot be written there: {error.strerror or error}") from error

    def write(self, line: Mapping[str, object]) -> None:
        """Append a line, its keys in the order given; a number that is not finite becomes null."""
        text = json.dumps(replace_nonfinite(line), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        # UTF-8 has no half of a surrogate pair. This error handler's \udXXX is just what JSON calls it.
        self.file.write(text.encode(errors="backslashreplace") + b"\n")
        self.file.flush()

    @property
    def size(self) -> int:
        """Return the size of the file in bytes."""
        return self.file.tell()

    def sync(self) -> None:
        """Flush the lines to disk, so that they survive a power cut."""
        os.fsync(self.file.fileno())

    def close(self) -> None:
        """Close the file; a second time does nothing."""
        self.file.close()


def find_misfit(path: Path, size: int) -> str | None:
    """Return why a log of `size` bytes cannot go on in this file, None if it can; OSError for what is no file."""
    if not os.path.lexists(path):
        return "the log of what came before is lost" if size else None
    about = path.lstat()
    if not stat.S_ISREG(about.st_mode):
        raise OSError("it is a link, or no regular file; put the log itself there, or remove it")
    if not size:
        return "holds the log of steps that are made again" if about.st_size else None
    with path.open("rb") as file:
        logged = file.read(size)
    if len(logged) < size or not logged.endswith(b"\n"):
        return (
            f"is not the log that the checkpoint is of: {size:,} bytes had been written, and no line ends there now "
            f"(the file has {about.st_size:,} bytes)"
        )
    try:
        for number, line in enumerate(logged[:-1].split(b"\n"), start=1):
            parse_line(line, path, number)
    except RunError as error:
        return f"is broken ({str(error).removeprefix(f'{path}:')})"
    return None


def replace_nonfinite(value: object) -> object:
    """Return the value with None for every number that is not finite: JSON has no such numbers."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: replace_nonfinite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [replace_nonfinite(inner) for inner in value]
    return value


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a file of metrics. A torn last line, whose writer was killed, is left out."""
    try:
        *complete, last = read_bytes(path, most=MOST_BYTES).split(b"\n")
    except OSError as error:
        raise RunError(f"{path}: the metrics cannot be read: {error.strerror or error}") from error
    lines = [parse_line(line, path, number) for number, line in enumerate(complete, start=1)]
    return lines if is_torn(last) else [*lines, parse_line(last, path, len(complete) + 1)]


def is_torn(last: bytes) -> bool:
    """Return whether the bytes after the last line break are less than a line. Part of a JSON object is never JSON."""
    try:
        parse_json(last)
    except ValueError:
        return True
    return False


def parse_line(line: bytes, path: Path, number: int) -> dict[str, Any]:
    """Return a line as a dictionary; RunError where it is broken."""
    try:
        read = parse_json(line)
    except ValueError as error:
        raise RunError(f"{path}:{number}: this line of metrics is broken: {error}. Remove it, or mend it") from error
    if not isinstance(read, dict):
        raise RunError(f"{path}:{number}: expected a JSON object; came {line.decode():.60}. Remove it, or mend it")
    return read


def without_times(lines: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the lines without what depends on the machine and the hour: equal for two equal runs."""
    return [{key: value for key, value in line.items() if key not in TIMES} for line in lines]


GROUPS = {"step": "train", "evaluation": "dev"}
"""The prefix of the curves of a kind of line."""

LEFT_OUT = ("kind", "step")


@final
class TensorBoard:
    """A writer of event files: curves such as train/loss and dev/bleu over the steps.

    Only finite numbers are written; texts stay in the metrics log.

    Args:
        folder: Folder of the event files.
        resumed: Step at which a run was resumed.

    >>> import pathlib, tempfile
    >>> from clearhead.training import TensorBoard
    >>> writer = TensorBoard(pathlib.Path(tempfile.mkdtemp()))
    """

    def __init__(self, folder: Path, *, resumed: int = 0) -> None:
        """Open the folder for writing; what was logged after step `resumed`, where a resume starts, is hidden."""
        self.writer = import_writer()(str(folder), purge_step=resumed + 1 if resumed else None, flush_secs=10)

    def write(self, line: Mapping[str, Any]) -> None:
        """Add the numbers of a line of the metrics log; a line that is no step and no evaluation has none."""
        if group := GROUPS.get(line.get("kind", "")):
            inner = {key: value for key, value in line.items() if key not in LEFT_OUT}
            # As a dictionary: the loss stands among the scores of a text once more.
            for name, number in dict(numbers(inner)).items():
                self.writer.add_scalar(f"{group}/{name}", number, line["step"])

    def close(self) -> None:
        """Write what is left and close the file."""
        self.writer.close()


def import_writer() -> Any:
    """Return torch's writer of event files; OptionError where TensorBoard, which it needs, cannot be imported."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise OptionError(
            f"TensorBoard is not installed, or too old; install it: {how_to_install('tensorboard')}"
        ) from error
    return SummaryWriter


def numbers(line: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the names and values of the finite numbers in a line; those under `scores` go by their own names."""
    for key, value in line.items():
        if isinstance(value, Mapping):
            prefix = "" if key == "scores" else f"{key}/"
            yield from ((prefix + name, number) for name, number in numbers(value))
        elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            yield key, float(value)
