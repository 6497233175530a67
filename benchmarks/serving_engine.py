"""Continuous batching beside static batches, one job at a time, and offline batches of `generate`; no HTTP.

    python benchmarks/serving_engine.py               # a translator of the tiny preset
    python benchmarks/serving_engine.py RUN --write   # your own run; and the plot into docs/figures
    python benchmarks/serving_engine.py --device cuda --write       # the base model on a GPU, in about three minutes

Jobs have 24 source tokens and 1 to 47 new ones (24 on average), greedy. First all at once: throughput beside offline
batches of the same size, and whether results are those of each job alone. Then they arrive at random (Poisson, a fixed
seed) at rates that are shares of what offline batches can do. On the CPU, time is processor time of this process with
one thread, and waiting for the next arrival takes none: on a machine with other work the figures are what a quiet one
would show, but for caches that are shared. On a GPU it is the time on the wall, from when results are there. Ratios are
of the same run. Every engine decodes some jobs before it is measured: kernels are loaded, and steps recorded.
"""

import argparse
import json
import pathlib
import random
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from differences import Tally, compare
from measure import table

import clearhead as ch
from clearhead.decoding import Rules, generate
from clearhead.decoding.continuous import ContinuousBatch
from clearhead.decoding.request import Model
from clearhead.decoding.scheduler import Chosen, Event, Finished, Job, Scheduler
from clearhead.model import presets

N_SOURCE, N_NEW, VOCABULARY = 24, 24, 1000
CUDA_VOCABULARY, CUDA_SLOTS, CUDA_JOBS = 16_000, 64, 256
ROOT = pathlib.Path(__file__).parents[1]
RATES = (0.1, 0.25, 0.5, 0.75, 0.9)
SEED = 0


class InGroups(Scheduler):
    """Static batching: the next jobs, `size` at most, begin when all before them are done."""

    def __init__(self, engine: ContinuousBatch, size: int) -> None:
        self.engine, self.size, self.queue, self.tickets, self.next_ticket = (
            engine,
            size,
            deque[tuple[int, Job]](),
            {},
            0,
        )

    def add(self, job: Job) -> int:
        self.next_ticket += 1
        self.queue.append((self.next_ticket, job))
        return self.next_ticket

    def cancel(self, ticket: int) -> None:
        raise NotImplementedError("nothing is cancelled in a benchmark")

    def step(self) -> list[Event]:
        if not self.engine.busy:
            group = [self.queue.popleft() for _ in range(min(self.size, len(self.queue)))]
            self.tickets = {self.engine.add(job): ticket for ticket, job in group}
        return [event._replace(ticket=self.tickets[event.ticket]) for event in self.engine.step()]

    @property
    def running(self) -> int:
        return self.engine.running + self.engine.waiting

    @property
    def waiting(self) -> int:
        return len(self.queue)


def make_jobs(model: Model, count: int, *, ragged: bool) -> list[Job]:
    draw, encoder = random.Random(SEED), len(model.stacks) > 1
    vocabulary = (model.encoder if encoder else model).spec.vocabulary
    return [
        Job(
            inputs=tuple(draw.randrange(vocabulary) for _ in range(N_SOURCE)),
            prefix=(0,) if encoder else None,
            rules=Rules(max_new=draw.randint(1, 2 * N_NEW - 1) if ragged else N_NEW),
        )
        for _ in range(count)
    ]


def clock_of(model: Model) -> Callable[[], float]:
    """The clock that is read: a thread that waits for a GPU takes processor time too, and others take some for it."""
    return time.process_time if next(model.parameters()).device.type == "cpu" else time.perf_counter


def run_offline(model: Model, jobs: Sequence[Job], size: int) -> float:
    """Return the seconds of `generate` on batches of jobs with the same rules."""
    now = clock_of(model)
    begin = now()
    for first in range(0, len(jobs), size):
        batch = jobs[first : first + size]
        prefix = None if batch[0].prefix is None else [batch[0].prefix]
        generate(model, [job.inputs for job in batch], rules=batch[0].rules, prefix=prefix)
    return now() - begin


def serve(
    scheduler: Scheduler, jobs: Sequence[Job], arrivals: Sequence[float], clock: Callable[[], float]
) -> dict[str, Any]:
    """Return seconds, tokens, the latency of every job and its result; `arrivals` are in ascending order.

    `now` is the time that was spent in the scheduler, and what passed while nobody was there.
    """
    now, place, tokens, owner, latency, found = 0.0, 0, 0, {}, [], {}
    while place < len(jobs) or scheduler.busy:
        if not scheduler.busy:
            now = max(now, arrivals[place])
        begin = clock()
        while place < len(jobs) and arrivals[place] <= now:
            owner[scheduler.add(jobs[place])] = place
            place += 1
        events = scheduler.step()
        now += clock() - begin
        for event in events:
            tokens += isinstance(event, Chosen)
            if isinstance(event, Finished):
                latency.append(now - arrivals[owner[event.ticket]])
                found[owner[event.ticket]] = event.hypotheses
    return {"seconds": now, "tokens": tokens, "latency": latency, "found": [found[i] for i in range(len(jobs))]}


def measure_throughput(model: Model, slots: int, count: int) -> dict[str, Any]:
    """Measure all jobs at once beside offline batches of the same size, in turn; and compare some results."""
    jobs, taken = make_jobs(model, count, ragged=False), {"offline": [], "batch": []}
    at_once, found, clock = [0.0] * count, [], clock_of(model)
    columns, source_columns = (2 * N_NEW, N_SOURCE) if len(model.stacks) > 1 else (2 * N_NEW + N_SOURCE, None)
    engine = ContinuousBatch(model, slots=slots, columns=columns, source_columns=source_columns)
    for _ in range(4):  # the first warms up
        taken["offline"].append(run_offline(model, jobs, slots))
        served = serve(engine, jobs, at_once, clock)
        taken["batch"].append(served["seconds"])
        found = served["found"]
    seconds = {name: statistics.median(values[1:]) for name, values in taken.items()}
    tally = Tally()
    for job, hypotheses in zip(jobs[:slots], found, strict=False):
        tally.add(compare(model, job, hypotheses))
    return {"seconds": seconds, "tokens": count * N_NEW, "tally": str(tally)}


def measure_rates(model: Model, slots: int, count: int, most: float) -> list[dict[str, Any]]:
    """Measure the three schedulers at arrival rates that are shares of `most` jobs a second."""
    jobs, rows = make_jobs(model, count, ragged=True), []
    kinds: dict[str, Scheduler] = {
        "continuous": ContinuousBatch(model, slots=slots),
        "static": InGroups(ContinuousBatch(model, slots=slots), slots),
        "one at a time": InGroups(ContinuousBatch(model, slots=1), 1),
    }
    clock = clock_of(model)
    for name, scheduler in kinds.items():  # twice, as a step is recorded the second time that it is seen
        for _ in range(2):
            some = jobs[: 4 if name == "one at a time" else slots]
            serve(scheduler, some, [0.0] * len(some), clock)
    for share in RATES:
        draw, at, arrivals = random.Random(SEED + 1), 0.0, []
        for _ in jobs:
            at += draw.expovariate(share * most)
            arrivals.append(at)
        for name, scheduler in kinds.items():
            served = serve(scheduler, jobs, arrivals, clock)
            ordered = sorted(served["latency"])
            rows.append(
                {
                    "scheduler": name,
                    "share": share,
                    "jobs a second": share * most,
                    "tokens a second": served["tokens"] / served["seconds"],
                    "p50": ordered[len(ordered) // 2],
                    "p99": ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))],
                }
            )
    return rows


def plot(rows: list[dict[str, Any]], path: pathlib.Path) -> None:
    import matplotlib.pyplot as plt  # an extra

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for name in dict.fromkeys(row["scheduler"] for row in rows):
        mine = [row for row in rows if row["scheduler"] == name]
        rates = [row["jobs a second"] for row in mine]
        axes[0].plot(rates, [row["tokens a second"] for row in mine], marker="o", label=name)
        axes[1].plot(rates, [row["p99"] for row in mine], marker="o", label=name)
    axes[0].set(xlabel="jobs that come a second", ylabel="tokens a second")
    axes[1].set(xlabel="jobs that come a second", ylabel="p99 latency, seconds", yscale="log")
    axes[0].legend(frameon=False)
    figure.savefig(path, metadata={"Date": None})
    print(f"wrote {path.relative_to(ROOT)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", help="a run folder; by default a translator of the tiny preset, untrained")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--slots", type=int, help="32 on the CPU, 64 on a GPU, unless given")
    parser.add_argument("--jobs", type=int, help="jobs at every rate: 128 on the CPU, 256 on a GPU, unless given")
    parser.add_argument("--json", type=pathlib.Path, help="write the figures there too")
    parser.add_argument("--write", action="store_true", help="write the plot into docs/figures")
    options = parser.parse_args()
    on_cpu = options.device == "cpu"
    options.slots = options.slots or (32 if on_cpu else CUDA_SLOTS)
    options.jobs = options.jobs or (128 if on_cpu else CUDA_JOBS)
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    usual = presets.tiny(vocabulary=VOCABULARY) if on_cpu else presets.base(vocabulary=CUDA_VOCABULARY)
    model = (ch.load(options.run, device=options.device).model if options.run else usual.build()).to(options.device)
    model.eval()
    at_once = measure_throughput(model, options.slots, options.jobs)
    offline = at_once["seconds"]["offline"]
    speeds = [
        [name, f"{at_once['tokens'] / seconds:,.0f}", offline / seconds] for name, seconds in at_once["seconds"].items()
    ]
    print(table("All at once", ["engine", "tokens a second", "beside offline"], speeds))
    print(f"results beside each job alone: {at_once['tally']}\n")
    rows = measure_rates(model, options.slots, options.jobs, options.jobs / offline)
    columns = ["scheduler", "share", "jobs a second", "tokens a second", "p50", "p99"]
    print(table("Random arrivals", columns, [[row[name] for name in columns] for row in rows]))
    if options.json:
        options.json.write_text(json.dumps({"at once": at_once, "rates": rows}, indent=1), encoding="utf-8")
    if options.write:
        plot(rows, ROOT / f"docs/figures/serving-engine{'' if on_cpu else '-gpu'}.svg")


if __name__ == "__main__":
    main()
