"""Start the processes of one training on this machine: torchrun, as a library, with the command that each of them runs.

What torchrun says of a process that failed is left out: the process has said it in one message. Only of a process that
was killed nobody has spoken yet.
"""

import logging
import os
import signal
import sys
import uuid
from collections.abc import Mapping, Sequence

from clearhead.errors import OptionError, RunError
from clearhead.system import LAUNCHER

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
    from clearhead.training.distributed import HANGS

    killed = {rank: -code for rank, code in codes.items() if code < 0 and -code != ENDING}
    if killed and HANGS not in codes.values():
        rank, number = next(iter(killed.items()))
        return ProcessKilled(
            f"{run}: process {rank} was killed ({signal.Signals(number).name}), and the others were ended; the run "
            f"folder is whole. Go on with: clearhead train {run} --resume"
        )
    return ProcessFailed(next((code for code in codes.values() if code > 0), 1))
