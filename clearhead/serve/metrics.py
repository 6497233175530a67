"""Metrics in Prometheus's text format: counters, gauges and histograms, kept by hand.

>>> metrics = Metrics()
>>> metrics.count("requests_total", route="/v1/translate", status="200")
>>> metrics.observe("request_seconds", 0.3, route="/v1/translate")
>>> print(metrics.text().splitlines()[2])
clearhead_requests_total{route="/v1/translate",status="200"} 1
"""

import os
import threading
import time
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
ROWS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)


class MetricKind(NamedTuple):
    """A metric's type, its help text, and the upper bounds of a histogram's buckets."""

    kind: str
    about: str
    bounds: tuple[float, ...] = ()


KINDS = {
    "requests_total": MetricKind("counter", "Requests that were answered, by route and status."),
    "disconnects_total": MetricKind("counter", "Clients that hung up, or were dropped, before their answer was sent."),
    "prompt_tokens_total": MetricKind("counter", "Tokens that were read."),
    "generated_tokens_total": MetricKind("counter", "Tokens that were written."),
    "steps_total": MetricKind("counter", "Steps of the batch: each is a token for every row of it."),
    "sequences_running": MetricKind("gauge", "Sequences that are being decoded."),
    "sequences_waiting": MetricKind("gauge", "Sequences that wait for a place in the batch."),
    "pending": MetricKind("gauge", "Texts that were taken and are not answered yet."),
    "requests_running": MetricKind("gauge", "Requests that are being answered."),
    "ready": MetricKind("gauge", "1 while requests are taken."),
    "request_seconds": MetricKind("histogram", "Seconds from a request to the end of its answer.", SECONDS),
    "first_token_seconds": MetricKind("histogram", "Seconds to the first token of a stream.", SECONDS),
    "batch_rows": MetricKind("histogram", "Sequences in the batch at each step.", ROWS),
    "model_cpu_seconds_total": MetricKind("counter", "Processor time of a model's own processes in seconds."),
    "model_resident_memory_bytes": MetricKind(
        "gauge", "Memory of a model's own processes in bytes, the shared weights in each."
    ),
}
Labels = tuple[tuple[str, str], ...]


class Histogram:
    """Counts by upper bound, and their sum."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds, self.counts, self.total = bounds, [0] * (len(bounds) + 1), 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class Metrics:
    """Every metric of the server. A lock keeps additions of several threads whole."""

    def __init__(self) -> None:
        self.values: dict[str, dict[Labels, float]] = {}
        self.histograms: dict[str, dict[Labels, Histogram]] = {}
        self.lock = threading.Lock()

    def count(self, name: str, by: int | float = 1, **labels: str) -> None:
        key = tuple(sorted(labels.items()))
        with self.lock:
            series = self.values.setdefault(name, {})
            series[key] = series.get(key, 0) + by

    def set(self, name: str, value: int | float, **labels: str) -> None:
        with self.lock:
            self.values.setdefault(name, {})[tuple(sorted(labels.items()))] = value

    def observe(self, name: str, value: float, **labels: str) -> None:
        key = tuple(sorted(labels.items()))
        with self.lock:
            series = self.histograms.setdefault(name, {})
            if key not in series:
                series[key] = Histogram(KINDS[name].bounds)
            series[key].add(value)

    def text(self) -> str:
        """Return every metric as Prometheus reads it, and the memory and processor time of this process."""
        with self.lock:
            lines = [line for name in KINDS for line in self.lines_of(name)]
        memory = resident_bytes()
        if memory is not None:
            lines += header("process_resident_memory_bytes", MetricKind("gauge", "Memory of this process in bytes."))
            lines.append(f"process_resident_memory_bytes {memory}")
        processor = MetricKind("counter", "Processor time of this process in seconds.")
        lines += header("process_cpu_seconds_total", processor)
        lines.append(f"process_cpu_seconds_total {time.process_time():.3f}")
        return "\n".join(lines) + "\n"

    def lines_of(self, name: str) -> Iterator[str]:
        full, kind = f"clearhead_{name}", KINDS[name]
        if name in self.values or name in self.histograms:
            yield from header(full, kind)
        for labels, value in self.values.get(name, {}).items():
            yield f"{full}{braces(labels)} {value:.15g}"
        for labels, histogram in self.histograms.get(name, {}).items():
            reached = 0
            for bound, count in zip((*histogram.bounds, None), histogram.counts, strict=True):
                reached += count
                upper = "+Inf" if bound is None else f"{bound:g}"
                yield f"{full}_bucket{braces((*labels, ('le', upper)))} {reached}"
            yield f"{full}_sum{braces(labels)} {histogram.total:.9g}"
            yield f"{full}_count{braces(labels)} {reached}"


def header(name: str, kind: MetricKind) -> list[str]:
    return [f"# HELP {name} {kind.about}", f"# TYPE {name} {kind.kind}"]


def braces(labels: Labels) -> str:
    """Return labels as Prometheus writes them.

    >>> braces((("model", 'a "b"'),))
    '{model="a \\\\"b\\\\""}'
    """
    escaped = ((key, value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")) for key, value in labels)
    inside = ",".join(f'{key}="{value}"' for key, value in escaped)
    return f"{{{inside}}}" if inside else ""


def resident_bytes(process: int | str = "self") -> int | None:
    """Return the memory of a process; None where the system has no /proc, or the process has ended."""
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError, AttributeError):
        return None


def cpu_seconds(process: int) -> float | None:
    """Return the processor time of a process, in hundredths; None where the system has no /proc, or it has ended."""
    try:
        user, system = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError):
        return None
