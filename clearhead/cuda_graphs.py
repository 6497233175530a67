"""CUDA graphs: work that is captured once and replayed, since launching its kernels one by one takes longer."""

import contextlib
import functools
import gc
from collections.abc import Callable, Iterator
from contextvars import ContextVar

import torch
from torch import Tensor

from clearhead.compiling import missing_triton
from clearhead.devices import FLOATS

Pool = tuple[int, int]

recorded: ContextVar[bool] = ContextVar("recorded", default=False)


def is_recorded() -> bool:
    """Check whether what runs is being captured, or warmed up for it: then only its kernels' time counts, not the time
    that Python takes to launch them.
    """
    return recorded.get()


def in_captured_training(x: Tensor) -> bool:
    """Check whether a Triton kernel with a backward may take x in a step that is captured: on a GPU, with a gradient,
    in a dtype that autocast does not change.
    """
    plain = x.is_cuda and x.requires_grad and x.dtype in FLOATS and not torch.is_autocast_enabled("cuda")
    return plain and is_recorded() and missing_triton("cuda") is None


@contextlib.contextmanager
def recording_kernels() -> Iterator[None]:
    """Take the kernels inside that a captured step takes."""
    token = recorded.set(True)
    try:
        yield
    finally:
        recorded.reset(token)


def warm_up(work: Callable[[], object], times: int) -> None:
    """Run some work a few times on a stream of its own, which capturing requires."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with recording_kernels(), torch.cuda.stream(stream):
        for _ in range(times):
            work()
    torch.cuda.current_stream().wait_stream(stream)


def capture_graph(work: Callable[[], object], pool: Pool | None = None) -> torch.cuda.CUDAGraph:
    """Return the work as a graph. It must have run before, on tensors of the same shapes; here it does not run.

    `torch.cuda.graph` does the same, but gives all cached memory back to the driver first, which decoding would then
    ask for again in every call.
    """
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    stream = capture_stream(torch.cuda.current_device())
    with without_garbage_collection(), recording_kernels(), torch.cuda.stream(stream):
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")  # type: ignore[arg-type]
        try:
            work()
        finally:
            graph.capture_end()
    return graph


@contextlib.contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Let Python look for cycles later: a graph that is freed while another is captured ends the capture.

    Nothing is collected before: in a large process that takes longer than a short decoding.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def capture(work: Callable[[], object], pool: Pool | None = None) -> Callable[[], None]:
    """Return a function that replays the work."""
    return capture_graph(work, pool).replay


@functools.cache
def capture_stream(device: int) -> torch.cuda.Stream:
    """Return the stream that work is captured on: always the same, as cuBLAS keeps memory for every stream."""
    return torch.cuda.Stream(device)


@functools.cache
def shared_pool(device: int) -> Pool:
    """Return a memory pool for graphs that never run at the same time: each reuses what another has freed.

    A pool lasts as long as a graph uses it, so a nearly empty graph keeps it; the driver is asked for memory once.
    """
    return anchor(device).pool()


@functools.cache
def anchor(device: int) -> torch.cuda.CUDAGraph:
    """Return a graph that does next to nothing, and holds a pool."""
    number = torch.zeros((), device=torch.device("cuda", device))
    number.add_(0)
    return capture_graph(lambda: number.add_(0))
