"""The processes that train one run together: how they are started, which one prints, what all must agree on, and whose
error is shown.

They are started by torchrun, or by `clearhead train --processes N`, which starts it. Nodes, the rendezvous and what
happens when a process dies are torchrun's. The first process (rank 0) plans, speaks and writes; the others
are told what to do over a gloo group of their own, on which they may wait for hours. Nothing that is sent is pickled.

What torchrun says of a process that failed is left out: the process has said it in one message. Only of a process that
was killed nobody has spoken yet.
"""

import atexit
import contextlib
import json
import logging
import math
import os
import signal
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from clearhead.errors import ClearheadError, OptionError, RunError
from clearhead.system import LAUNCHER, end_with_parent

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.distributed_c10d import Store


STEP_TIMEOUT = timedelta(minutes=10)
"""How long a collective of a training step may take: a process that hangs ends the job after it."""
PATIENCE = timedelta(days=30)
"""How long the others wait for the first, which may be reading text or scoring. A process that dies ends it at once."""
FAILED, WAITED = "clearhead/failed", "clearhead/waited"
"""Names in torchrun's store: the exit code of what failed first; followed by a rank, that it has waited in vain."""
HANGS = 75
"""The exit code where a process hangs (EX_TEMPFAIL of sysexits.h: try again).

torchrun kills that process in the end; by this code `launch` knows that nobody else did.
"""
GRACE_SECONDS = 3.0
"""How long a process that has lost another one waits for that one's own words."""
LOST = ("connection closed", "connection reset", "broken pipe", "timed out", "nccl", "gloo", "recvvalue", "store")
"""What torch's errors say, in any case, where another process is gone; torch has no class for them."""


class EndedElsewhere(RunError):
    """Another process has failed and says why; this one ends silently, with the same exit code."""

    def __init__(self, exit_code: int) -> None:
        super().__init__("another process of this training has failed")
        self.exit_code = exit_code


class ProcessHangs(RunError):
    """A process of a training does not answer, and the others have waited for it long enough."""

    exit_code = HANGS


@dataclass(frozen=True)
class Processes:
    """The processes of a training, as one of them sees them; by default it is alone.

    `local_rank` and `local_count` are its number on its own machine, and how many there are.
    """

    rank: int = 0
    count: int = 1
    local_rank: int = 0
    local_count: int = 1
    store: "Store | None" = None
    control: "ProcessGroup | None" = None

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @property
    def together(self) -> bool:
        """Return whether torchrun has started this process, be it the only one."""
        return self.control is not None

    def send(self, value: Any) -> Any:
        """Return the first process's value, which JSON can hold, in every process."""
        if self.control is None:
            return value
        message = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8) if self.is_first else None
        size = torch.tensor([0 if message is None else len(message)])
        dist.broadcast(size, 0, group=self.control)
        text = torch.empty(int(size), dtype=torch.uint8) if message is None else message
        dist.broadcast(text, 0, group=self.control)
        return json.loads(bytes(text.tolist()))

    def highest(self, *numbers: float) -> list[float]:
        """Return the highest of each number over all processes, which wait for each other no longer than in a step."""
        if self.control is None:
            return list(numbers)
        maxima = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(maxima, dist.ReduceOp.MAX)
        return maxima.tolist()

    def moment(self, asked: int) -> tuple[float, int]:
        """Return the first process's clock, and the signal that any process was asked to stop by."""
        clock, signal = self.highest(time.perf_counter() if self.is_first else -math.inf, float(asked))
        return clock, int(signal)

    def wait(self) -> None:
        """Wait until every process is here: for the first as long as it takes, then for the others as in a step."""
        self.send(None)
        self.highest(0.0)

    def add_up(self, tensor: Tensor) -> None:
        """Replace a tensor by its sum over all processes."""
        if self.together:
            dist.all_reduce(tensor)

    @torch.no_grad()
    def copy_from_first(self, model: nn.Module) -> None:
        """Give every process the first one's weights and buffers, while they are still on the CPU."""
        if self.together:
            for tensor in (*model.parameters(), *model.buffers()):
                dist.broadcast(tensor.data, 0, group=self.control)

    def device(self, device: torch.device) -> torch.device:
        """Return this process's own device of a kind; OptionError if there are fewer than processes."""
        if device.type == "cpu" or not self.together:
            return device
        check_devices(device, self.local_count)
        torch.cuda.set_device(self.local_rank)
        return torch.device("cuda", self.local_rank)

    def threads(self, asked: int) -> int:
        """Return how many threads this process uses, so that all processes together have one for each core."""
        return asked if self.local_count == 1 else min(asked, max(1, (os.cpu_count() or 1) // self.local_count))

    def claim(self, exit_code: int) -> bool:
        """Return whether this process is the first of all to fail, and so the one that says why."""
        assert self.store is not None
        first = self.store.add(f"{FAILED}/count", 1) == 1
        if first:
            self.store.set(FAILED, str(exit_code))
        return first

    def one_error(self, error: Exception) -> Exception:
        """Return the error to raise in this process: of all that fail, one speaks."""
        if not self.together or isinstance(error, EndedElsewhere):
            return error
        assert self.store is not None
        try:
            if not isinstance(error, ClearheadError) and is_about_others(error):
                self.store.set(f"{WAITED}/{self.rank}", "")
                code = self.await_words()
                if code is not None or "timed out" not in str(error).lower():  # else nobody has failed: all wait
                    return EndedElsewhere(code or 1)
                error = ProcessHangs(self.explain_waiting())
            first = self.claim(getattr(error, "exit_code", 1))
        except (RuntimeError, OSError):  # the store is gone with torchrun
            return EndedElsewhere(1)
        return error if first else EndedElsewhere(getattr(error, "exit_code", 1))

    def explain_waiting(self) -> str:
        """Return the message for processes that have waited in vain: it names those that hang."""
        assert self.store is not None
        minutes = STEP_TIMEOUT.total_seconds() / 60
        silent = [rank for rank in range(self.count) if not self.store.check([f"{WAITED}/{rank}"])]
        who = f"process {' and '.join(map(str, silent))} of {self.count}" if silent else "one of them"
        return (
            f"the processes have waited for each other for {minutes:g} minutes in a step: {who} hangs, or its machine "
            "cannot be reached. The run folder is whole; go on with --resume"
        )

    def await_words(self) -> int | None:
        """Wait a little for the failed process to say why, and return its exit code; None where none has spoken: one
        that was killed cannot.
        """
        assert self.store is not None
        end = time.monotonic() + GRACE_SECONDS
        while time.monotonic() < end:
            if self.store.check([FAILED]):
                return int(self.store.get(FAILED).decode())
            time.sleep(0.05)
        return None


def check_devices(device: torch.device, count: int) -> None:
    """Raise OptionError where so many processes of this machine have no device of a kind each."""
    if device.type == "cpu" or count == 1:
        return
    if device.type != "cuda":
        raise OptionError(
            f"device: several processes train on cpu or cuda, and not on {device.type}; take --device cpu"
        )
    if count > torch.cuda.device_count():
        raise OptionError(
            f"processes: there are {count} on this machine, and {torch.cuda.device_count()} GPUs: start one for each "
            "GPU, or train with --device cpu"
        )


def is_about_others(error: Exception) -> bool:
    """Return whether torch says with an error that another process is gone."""
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(word in text for word in LOST)


class Membership:
    """The processes that this one has joined, and how many `joined` contexts it is in."""

    def __init__(self) -> None:
        self.processes, self.depth = Processes(), 0


MEMBERSHIP = Membership()


def current_processes() -> Processes:
    """Return the processes that this one trains with: it alone, unless it has joined others."""
    return MEMBERSHIP.processes


def is_launched() -> bool:
    """Return whether torchrun has started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ and "RANK" in os.environ


@contextlib.contextmanager
def joined() -> Iterator[Processes]:
    """Join the processes that torchrun has started with this one; alone if there are none.

    Of the errors that leave the outermost context in any of them, one is raised as it is: see `EndedElsewhere`. A
    process that has joined stays so until it ends.
    """
    if not is_launched():
        yield current_processes()
        return
    if not MEMBERSHIP.processes.together:
        MEMBERSHIP.processes = join()
        atexit.register(dist.destroy_process_group)
    MEMBERSHIP.depth += 1
    try:
        yield MEMBERSHIP.processes
    except Exception as error:
        reported = error if MEMBERSHIP.depth > 1 else MEMBERSHIP.processes.one_error(error)
        if reported is error:
            raise
        raise reported from None
    finally:
        MEMBERSHIP.depth -= 1


def new_gloo_group() -> "ProcessGroup":
    """Return a group of all processes on which they may wait for each other for long."""
    group = dist.new_group(backend="gloo", timeout=PATIENCE)
    assert not isinstance(group, int)  # what a process gets that is not in the group
    assert group is not None
    return group


def join() -> Processes:
    """Meet the other processes: a group for the training's numbers, by device, and one to agree on what to do."""
    if not dist.is_available() or not dist.is_gloo_available():
        raise OptionError("processes: this build of torch has no distributed training; train in one process")
    end_with_parent(int(os.environ.get(LAUNCHER, os.getppid())))
    nccl = torch.cuda.is_available() and dist.is_nccl_available()
    dist.init_process_group("cpu:gloo,cuda:nccl" if nccl else "gloo", timeout=STEP_TIMEOUT)
    return Processes(
        rank=dist.get_rank(),
        count=dist.get_world_size(),
        local_rank=int(os.environ["LOCAL_RANK"]),
        local_count=int(os.environ["LOCAL_WORLD_SIZE"]),
        store=dist.distributed_c10d._get_default_store(),  # pyright: ignore[reportAttributeAccessIssue]
        control=new_gloo_group(),
    )


ENDING = 15
"""What torchrun ends the other processes with, once one has failed."""


class ProcessKilled(RunError):
    """A process of a training was killed by a signal, and torchrun has ended the others."""


class ProcessFailed(RunError):
    """A process of a training has failed, and has said why."""

    def __init__(self, exit_code: int) -> None:
        super().__init__("a process of this training has failed")
        self.exit_code = exit_code


def launch(count: int, args: Sequence[str], *, run: str) -> None:
    """Run `clearhead ARGS` in so many processes that train together; return when all have ended well.

    Raises ProcessFailed with the exit code of the one that failed, or ProcessKilled.
    """
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_gloo_available():
        raise OptionError("processes: this build of torch has no distributed training; leave out --processes")
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    os.environ[LAUNCHER] = str(os.getpid())
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // count)))
    # Each of torchrun's loggers has a level of its own, set when it is imported.
    for name in [name for name in logging.root.manager.loggerDict if name.startswith("torch.distributed.")]:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=count,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        max_restarts=0,
        monitor_interval=0.1,
    )
    try:
        elastic_launch(config, entrypoint=sys.executable)("-m", "clearhead", *args)
    except ChildFailedError as error:
        raise explain_failure({rank: failure.exitcode for rank, failure in error.failures.items()}, run) from None
    except SignalException as error:
        raise ProcessFailed(128 + int(error.sigval)) from None


def explain_failure(codes: Mapping[int, int], run: str) -> RunError:
    """Return the error for exit codes by rank; a negative one is a signal.

    >>> str(explain_failure({1: -9, 0: 1}, "runs/x")).partition(";")[0]
    'runs/x: process 1 was killed (SIGKILL), and the others were ended'
    """

    killed = {rank: -code for rank, code in codes.items() if code < 0 and -code != ENDING}
    if killed and HANGS not in codes.values():
        rank, number = next(iter(killed.items()))
        return ProcessKilled(
            f"{run}: process {rank} was killed ({signal.Signals(number).name}), and the others were ended; the run "
            f"folder is whole. Go on with: clearhead train {run} --resume"
        )
    return ProcessFailed(next((code for code in codes.values() if code > 0), 1))
