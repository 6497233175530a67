"""How much a file from elsewhere may take (bytes, memory, processor time, output), and a process that is held to it.

Where a library has no bound of its own (Jinja, Arrow, `tokenizers`), its work on a file is done in another process,
which is ended at its bounds. It is started when it is first needed, and kept for the next file.

On Linux the kernel counts memory and processor time. macOS counts processor time alone, and Windows neither: there a
deadline and the size of the output hold.
"""

import atexit
import contextlib
import importlib
import inspect
import json
import math
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

from clearhead import errors
from clearhead.errors import ClearheadError

try:
    import resource
except ImportError:  # Windows
    resource = None

JSON_BYTES, JSON_DEPTH, JSON_VALUES = 64_000_000, 64, 10_000_000
"""The largest JSON file that is read, its deepest nesting, and the most values in it: 90 bytes each in Python."""
TOKENIZER_BYTES = 200_000_000
"""The largest tokenizer.json that is read: several times as much as one with 260,000 tokens needs."""
TEMPLATE_BYTES = 1_000_000
"""The largest chat template. Those of large models with tools have 20 kB."""
UNPACKED, UNPACKED_RATIO = 1_000_000_000, 100
"""A packed text may be this long in any case, and beyond that as many times as long as its file. Text packs to a third,
and a table of few different values to a fiftieth.
"""


@dataclass(frozen=True, kw_only=True)
class FileBounds:
    """What work on a file may take: seconds of processor time and bytes of output until each value that it gives, and
    bytes of memory in all. Ten times the seconds, and ten, is the deadline where the machine is busy.
    """

    seconds: int
    memory: int
    output: int

    @property
    def deadline(self) -> float:
        return 10.0 * self.seconds + 10


RENDERING = FileBounds(seconds=2, memory=500_000_000, output=50_000_000)
"""A conversation through a chat template: 0.2 ms and a few kilobytes are usual."""
TABLE = FileBounds(seconds=60, memory=2_000_000_000, output=100_000_000)
"""A piece of a Parquet file; the largest row group as it is packed must fit into its memory."""
TOKENIZER = FileBounds(seconds=30, memory=2_000_000_000, output=1_000_000)
"""Building a tokenizer of someone else's, and trying it on short texts."""


def check_unpacked(unpacked: int, packed: int) -> None:
    """Raise ValueError if a packed text is far longer than its file."""
    if unpacked > UNPACKED and unpacked > UNPACKED_RATIO * packed:
        raise ValueError(
            f"it unpacks to more than {UNPACKED_RATIO} times its size and {UNPACKED / 1e9:.0f} GB; unpack it yourself "
            "if you trust it"
        )


def call_bounded(
    function: Callable[..., Any],
    arguments: Mapping[str, Any],
    bounds: FileBounds,
    *,
    where: str,
    error: type[ClearheadError],
    reuse: bool = True,
) -> Any:
    """Call a function of a module in a bounded process; its arguments and what it returns are plain JSON.

    Without `reuse` the process is ended afterwards: what ran in it may have changed it.

    Errors of the family are raised here as there. `error`, with `where` before it, where a bound is passed, where the
    process breaks down, and for any other exception.
    """
    values = list(stream_bounded(function, arguments, bounds, where=where, error=error, reuse=reuse))
    if len(values) != 1:
        raise error(f"{where}: came {len(values)} answers, expected one")
    return values[0]


def stream_bounded(
    function: Callable[..., Any],
    arguments: Mapping[str, Any],
    bounds: FileBounds,
    *,
    where: str,
    error: type[ClearheadError],
    reuse: bool = True,
) -> Generator[Any]:
    """Yield what a generator yields in a bounded process, as `call_bounded` returns a value."""
    name = f"{function.__module__}:{function.__qualname__}"
    request = json.dumps([name, arguments, bounds.seconds, bounds.memory, bounds.output]).encode()
    process = take_process(request)
    finished = False
    try:
        while True:
            kind, value = process.answer(bounds)
            if kind != "value":
                break
            yield value
        finished = reuse and kind in ("end", "raised", "failed")
    finally:
        process.put_back() if finished else process.end()
    if kind == "raised":
        raise family_of(value, error)
    if kind != "end":
        raise error(f"{where}: {value}")


def family_of(value: Any, error: type[ClearheadError]) -> ClearheadError:
    """Return the error of the family that a process names, with its message."""
    name, message = map(str, value) if isinstance(value, list) and len(value) == 2 else ("", value)
    found = getattr(errors, name, error)
    try:
        return (found if isinstance(found, type) and issubclass(found, ClearheadError) else error)(message)
    except TypeError:  # one that is made of more than a message
        return error(message)


class BoundedProcess:
    """A process that answers calls, one after another."""

    def __init__(self) -> None:
        program = "import sys; sys.path[:] = sys.argv[1:]; from clearhead.bounds import answer_calls; answer_calls()"
        quiet = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "1"}
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS"), "1")
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-c", program, *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # Rust and C++ write there when they break down
            env=os.environ | quiet | threads | {"TOKENIZERS_PARALLELISM": "false"},
        )
        self.late = False

    def ask(self, request: bytes) -> None:
        """Send a call; OSError if the process has ended."""
        write_frame(cast(BinaryIO, self.process.stdin), request)

    def answer(self, bounds: FileBounds) -> tuple[str, Any]:
        """Return the next answer: a `value`, the `end`, an error of the family (`raised`), another one (`failed`), or
        why there is none (`ended`).
        """
        timer = threading.Timer(bounds.deadline, self.expire)
        timer.daemon = True
        timer.start()
        try:
            data = read_frame(cast(BinaryIO, self.process.stdout), bounds.output + 1000)
            kind, value = json.loads(data) if data else ("ended", self.reason(bounds))
            return str(kind), value
        except (ValueError, TypeError, RecursionError):  # what runs there may write anything
            return "ended", too_long(bounds)
        finally:
            timer.cancel()

    def expire(self) -> None:
        self.late = True
        self.process.kill()

    def reason(self, bounds: FileBounds) -> str:
        """Return why the process has ended."""
        code = self.process.wait()
        if self.late or code == -getattr(signal, "SIGXCPU", 0):
            return f"was given up after {bounds.seconds} s of work; what is right takes far less"
        return (
            f"a library broke down over it, or it takes more than {bounds.memory / 1e9:g} GB of memory; what is right "
            "takes far less"
        )

    def put_back(self) -> None:
        """Keep the process for the next call."""
        if len(IDLE) < KEPT:
            IDLE.append(self)
        else:
            self.end()

    def end(self) -> None:
        """End the process, whatever it does."""
        with contextlib.suppress(OSError):
            self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                cast(BinaryIO, pipe).close()
        self.process.wait()

    def forget(self) -> None:
        """Leave the process to the one that has started it: this one is its fork."""
        self.process.returncode = 0
        for pipe in (self.process.stdin, self.process.stdout):
            os.close(cast(BinaryIO, pipe).fileno())


IDLE: list[BoundedProcess] = []
"""Processes that wait for a call."""
KEPT = 2
"""How many wait at most."""


def take_process(request: bytes) -> BoundedProcess:
    """Return a process that has been sent a call: one that waits, or a new one."""
    while True:
        try:
            process, is_new = IDLE.pop(), False
        except IndexError:
            process, is_new = BoundedProcess(), True
        try:
            process.ask(request)
            return process
        except OSError:  # somebody has ended it while it waited
            process.end()
            if is_new:
                raise


@atexit.register
def end_idle() -> None:
    while IDLE:
        IDLE.pop().end()


def forget_idle() -> None:
    while IDLE:
        IDLE.pop().forget()


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=forget_idle)


def too_long(bounds: FileBounds) -> str:
    return f"gives more than {bounds.output / 1e6:g} MB at once; what is right gives far less"


def write_frame(file: BinaryIO, data: bytes) -> None:
    file.write(struct.pack("<Q", len(data)) + data)
    file.flush()


def read_frame(file: BinaryIO, most: int) -> bytes:
    """Return the next frame, nothing at the end; ValueError if it is longer than `most`."""
    head = file.read(8)
    if len(head) < 8:
        return b""
    size = struct.unpack("<Q", head)[0]
    if size > most:
        raise ValueError(f"a frame of {size:,} bytes")
    data = file.read(size)
    return data if len(data) == size else b""


def answer_calls() -> None:
    """Answer calls from stdin until it is closed: what a bounded process does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal; the other process closes stdin, or ends this one
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    for number, mode in ((0, os.O_RDONLY), (1, os.O_WRONLY)):  # nothing to read; what a library prints is no answer
        os.dup2(os.open(os.devnull, mode), number)
    while data := read_frame(requests, sys.maxsize):
        name, arguments, *amounts = json.loads(data)
        del data
        bounds = FileBounds(seconds=amounts[0], memory=amounts[1], output=amounts[2])
        module, _, function = name.partition(":")
        lift_limits()  # those of the call before: what is imported now may take more than its work was allowed
        for answer in answers_to(getattr(importlib.import_module(module), function), arguments, bounds):
            encoded = json.dumps(answer).encode()
            if len(encoded) > bounds.output:
                encoded = json.dumps(["ended", too_long(bounds)]).encode()
            write_frame(answers, encoded)  # one that says "ended" is the last: the process is then ended


def answers_to(
    function: Callable[..., Any], arguments: Mapping[str, Any], bounds: FileBounds
) -> Iterator[tuple[str, Any]]:
    """Yield the answers to one call, as `BoundedProcess.answer` returns them."""
    try:
        limit_memory(bounds.memory)
        limit_time(bounds.seconds)
        found = function(**arguments)
        for value in found if inspect.isgenerator(found) else (found,):
            yield "value", value
            limit_time(bounds.seconds)
        yield "end", None
    except ClearheadError as error:
        yield "raised", [type(error).__name__, str(error)]
    except MemoryError:
        yield "ended", f"takes more than {bounds.memory / 1e9:g} GB of memory; what is right takes far less"
    except BaseException as error:  # a panic of Rust is no Exception
        yield "failed", next(iter(str(error).splitlines()), type(error).__name__)[:300]


def lift_limits() -> None:
    """Take back the limits of the last call, before the module of the next one is imported."""
    if resource is not None:
        for kind in (resource.RLIMIT_CPU, resource.RLIMIT_AS):
            hard = resource.getrlimit(kind)[1]
            resource.setrlimit(kind, (hard, hard))


def limit_time(seconds: int) -> None:
    """Let the kernel end this process after so many more seconds of processor time."""
    if resource is not None:
        set_limit(resource.RLIMIT_CPU, math.ceil(time.process_time()) + seconds)


def limit_memory(count: int) -> None:
    """Let allocations fail beyond so many more bytes, where the kernel says how many there are."""
    if resource is not None and os.path.exists("/proc/self/statm"):
        set_limit(resource.RLIMIT_CORE, 0)
        with open("/proc/self/statm", encoding="ascii") as file:
            pages = int(file.read().split()[0])
        set_limit(resource.RLIMIT_AS, pages * resource.getpagesize() + count)


def forbid_writing() -> None:
    """Let every further write to a file fail; pipes stay open."""
    if resource is not None:
        set_limit(resource.RLIMIT_FSIZE, 0)


def set_limit(kind: int, amount: int) -> None:
    assert resource is not None
    hard = resource.getrlimit(kind)[1]
    resource.setrlimit(kind, (amount if hard == resource.RLIM_INFINITY else min(amount, hard), hard))
