"""What a training tells while it runs: a line for every phase that takes long, the progress of `ch.train`, the peak of
memory, and a warning when the loss grows; and what it is told by signals: Ctrl-C and SIGTERM ask it to save and leave.

The command line has a richer display of progress (cli/progress.py), and prints the page at the end (cli/train.py).
This one needs nothing but the standard library.

The metrics of a run: a file of JSON lines that grows during training and is cut back by a resume; and the same
numbers as TensorBoard's event files.
"""

import contextlib
import json
import math
import os
import re
import shlex
import signal
import stat
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from io import TextIOBase
from pathlib import Path
from types import FrameType
from typing import Any, cast, final

import torch

from clearhead import extras, files
from clearhead.errors import OptionError, RunError

FIRST, NEXT = 8.0, 10.0
"""Seconds until the first line, and between those after it."""


def ignore(message: object) -> None:
    """Drop a message: where `log` is told if nobody is to hear of it."""


def to_stderr(text: str) -> None:
    """Print a line for the user: where `log` is told if nothing else is asked for."""
    print(text, file=sys.stderr)


@contextlib.contextmanager
def phase(name: str, log: Callable[[str], None], *, first: float = FIRST, each: float = NEXT) -> Iterator[None]:
    """Log the name of what goes on within, with the seconds so far, for as long as it takes.

    What is over before `first` seconds is not worth a line.
    """
    over = threading.Event()
    began = time.monotonic()

    def tell() -> None:
        wait = first
        while not over.wait(wait):
            log(f"{name}: {time.monotonic() - began:.0f} s so far")
            wait = each

    thread = threading.Thread(target=tell, name=f"phase {name}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


WIDTH = 24
PLAIN_SECONDS, DRAWN_SECONDS = 10.0, 0.2
"""Seconds between two lines in a log, and between two drawings of the bar."""


class ProgressLine:
    """A watcher that shows step, loss, speed and time left, and the scores of each evaluation."""

    def __init__(self, out: TextIOBase | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.out = cast(TextIOBase, sys.stderr) if out is None else out
        self.draws = self.out.isatty() or "ipykernel" in sys.modules
        self.clock, self.last = clock, clock()
        self.drawn = 0

    def __call__(self, line: Mapping[str, Any]) -> None:
        if line["kind"] == "step":
            self.step(line)
        elif line["kind"] == "evaluation":
            scores = "  ".join(f"{name} {value:.4g}" for name, value in line["scores"].items())
            self.write(f"dev at step {line['step']:,}  loss {line['loss']:.4f}  {scores}".rstrip(), ends=True)

    def step(self, line: Mapping[str, Any]) -> None:
        last = line["step"] >= line["total"]
        if not last and self.clock() - self.last < (DRAWN_SECONDS if self.draws else PLAIN_SECONDS):
            return
        self.last = self.clock()
        share = min(1.0, line["step"] / max(1, line["total"]))
        seconds_left = line["seconds"] * (1 / max(share, 1e-9) - 1)
        about = "about " if line.get("about") else ""
        bar = f"{'█' * round(WIDTH * share):<{WIDTH}}  " if self.draws else ""
        self.write(
            f"{bar}step {line['step']:,}/{about}{line['total']:,}  loss {line['loss']:.4f}  "
            f"{line['tokens_per_second']:,} tokens/s  {seconds_left / 60:.1f} min left",
            ends=not self.draws or last,
        )

    def write(self, text: str, *, ends: bool) -> None:
        """Write a line over the one that was drawn last; `ends`: it stays."""
        ahead = "\r" if self.draws else ""
        self.out.write(f"{ahead}{text:<{self.drawn}}" + ("\n" if ends else ""))
        self.out.flush()
        self.drawn = 0 if ends else len(text)


STATUS = Path("/proc/self/status")
"""Where Linux tells it. What it tells elsewhere, getrusage, begins in a new process with its parent's peak."""


def memory_mb(device: torch.device) -> int:
    """Return the peak so far in MB; 0 where the system does not say, as on Windows."""
    if device.type == "cuda":
        return round(torch.cuda.max_memory_allocated(device) / 2**20)
    if device.type == "mps":
        # What the driver has given to this process. It is seldom given back, so it is near the peak.
        return round(torch.mps.driver_allocated_memory() / 2**20)
    match = re.search(r"VmHWM:\s*(\d+) kB", STATUS.read_text(encoding="utf-8")) if STATUS.exists() else None
    if match is not None:
        return round(int(match[1]) / 2**10)
    try:
        import resource
    except ImportError:  # Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (2**20 if sys.platform == "darwin" else 2**10))


WINDOW = 3
"""The number of log lines that the loss is averaged over."""
GROWN = 10.0
"""How many times its best a loss must be for a warning."""
CALM = 5.0
"""Below how many times its best it must fall before another warning."""
LEAST = 0.01
"""A best loss below this counts as this: ten times nearly nothing is still nearly nothing."""


class LossWatch:
    """A comparison of the training loss, averaged over a few lines of the log, with its best since the warm-up.

    >>> watch = LossWatch(warmup=0)
    >>> [watch.see(step, loss) for step, loss in enumerate([0.5, 0.5, 0.5, 9.0, 9.0], start=1)]
    [None, None, None, None, 12.333333333333334]
    """

    def __init__(self, warmup: int) -> None:
        self.warmup = warmup
        self.recent: deque[float] = deque(maxlen=WINDOW)
        self.best: float | None = None
        self.is_high = False

    def see(self, step: int, loss: float) -> float | None:
        """Take the loss of a line; return how many times its best it is where it has just grown too high."""
        if step <= self.warmup:
            return None
        self.recent.append(loss)
        if len(self.recent) < WINDOW:
            return None
        mean = sum(self.recent) / WINDOW
        self.best = mean if self.best is None else min(self.best, mean)
        times = mean / max(self.best, LEAST)
        if times < CALM:
            self.is_high = False
        if times < GROWN or self.is_high:
            return None
        self.is_high = True
        return times


SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGBREAK") if hasattr(signal, name)]
"""SIGBREAK, which only Windows has, is how one process asks another to stop there."""
TOLD = b"stopping: it is saved first; Ctrl-C again leaves at once\n"


class Stopping:
    """A context in which signals are recorded instead of obeyed. `asked` is the signal that came, 0 if none has.

    `quiet`: nothing is said of it at once. Several processes that train together say it in the end, in one message.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self.signal, self.quiet = 0, quiet
        self.before: dict[int, object] = {}

    def __enter__(self) -> "Stopping":
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                self.before[number] = signal.signal(number, self.ask)
        return self

    def __exit__(self, *failed: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def ask(self, number: int, frame: FrameType | None) -> None:
        if self.signal:
            os._exit(128 + number)
        self.signal = number
        if self.quiet:
            return
        # Not by print: a signal may come in the middle of one, and a file may not be entered twice.
        with contextlib.suppress(OSError):
            os.write(2, TOLD)


class Stopped(RunError):
    """Training was asked to stop, and saved its steps; `exit_code` is what a shell expects of the signal."""

    def __init__(self, path: Path, step: int, number: int) -> None:
        where = f"at step {step}, and saved" if step else "before the first step"
        super().__init__(f"stopped {where}; go on with: clearhead train {shlex.quote(str(path))} --resume")
        self.exit_code = 128 + number


class StoppedScoring(RunError):
    """Ctrl-C ended the final scoring: the run is trained and saved, and only evaluation.json is missing."""

    def __init__(self, path: Path, step: int) -> None:
        super().__init__(
            f"stopped while scoring: all {step:,} steps are trained and saved, and only the final scores are missing. "
            f"To make them: clearhead train {shlex.quote(str(path))} --resume"
        )
        self.exit_code = 130


MOST_BYTES = 1_000_000_000
"""The largest log that is read: some ten million lines."""


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
                    wrong = f"{wrong}; it is set aside as {files.set_aside(path).name}"
                log(f"{path}: {wrong}, and a new log begins")
                size = 0
            self.file = files.open_log(path)
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
        *complete, last = files.read_bytes(path, most=MOST_BYTES).split(b"\n")
    except OSError as error:
        raise RunError(f"{path}: the metrics cannot be read: {error.strerror or error}") from error
    lines = [parse_line(line, path, number) for number, line in enumerate(complete, start=1)]
    return lines if is_torn(last) else [*lines, parse_line(last, path, len(complete) + 1)]


def is_torn(last: bytes) -> bool:
    """Return whether the bytes after the last line break are less than a line. Part of a JSON object is never JSON."""
    try:
        files.parse_json(last)
    except ValueError:
        return True
    return False


def parse_line(line: bytes, path: Path, number: int) -> dict[str, Any]:
    """Return a line as a dictionary; RunError if it is broken."""
    try:
        read = files.parse_json(line)
    except ValueError as error:
        raise RunError(f"{path}:{number}: this line of metrics is broken: {error}. Remove it, or mend it") from error
    if not isinstance(read, dict):
        raise RunError(f"{path}:{number}: expected a JSON object; came {line.decode():.60}. Remove it, or mend it")
    return read


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
            f"TensorBoard is not installed, or too old; install it: {extras.how_to_install('tensorboard')}"
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
