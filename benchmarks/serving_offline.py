"""Offline batches for benchmarks/serving.py: `clearhead.generate` in processes of its own, timed when asked.

    python benchmarks/serving_offline.py RUN      # JSON lines in, JSON lines out

A line names the texts, the beam, how many texts are a batch, the threads and the cores. The texts are ids before the
clock starts, in the order they came in, and nothing is sorted by length.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import torch

import clearhead as ch
from clearhead.decoding import Beam, Greedy, Rules, generate
from clearhead.training.tasks.answering import WritingOptions


def make_jobs(run, texts, method):
    """The jobs that the server would make of these texts."""
    return [run.task.passage(row, method, WritingOptions()).first for row in run.tokenizer.encode_batch(texts)]


def decode(run, jobs, size):
    for start in range(0, len(jobs), size):
        batch = jobs[start : start + size]
        longest = max(job.rules.max_new for job in batch)
        rules = Rules(max_new=longest, end=batch[0].rules.end, never=batch[0].rules.never)
        prefix = [list(batch[0].prefix)]
        generate(run.model, [job.inputs for job in batch], batch[0].method, rules=rules, prefix=prefix)


class Pace:
    """How fast offline batches are now: a process for each core, all loaded before, which sleep until they are asked.

    One process decodes by one thread on one core, then by a thread on each core; then all processes decode at once,
    each on a core of its own. That is more than one batch of this size: it is told, and the server not held to it.
    """

    def __init__(self, run, texts, slots, beam, cores):
        self.texts, self.slots, self.beam = texts, slots, beam
        self.cores = cores or sorted(os.sched_getaffinity(0))
        command = [sys.executable, str(Path(__file__)), run]
        self.workers = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in self.cores
        ]
        self.measure()  # warms up

    def measure(self):
        """Return seconds on the wall for a text: {mode: {beam: seconds}}."""
        n, first = len(self.cores), self.workers[:1]
        modes = {"1 thread": (first, 1, [self.cores[:1]])}
        if n > 1:
            modes[f"{n} threads"] = first, n, [self.cores]
            modes[f"{n} processes"] = self.workers, 1, [[core] for core in self.cores]
        return {
            name: {beam: self.seconds(beam, *mode) / len(mode[0]) for beam in (1, self.beam)}
            for name, mode in modes.items()
        }

    def seconds(self, beam, workers, threads, cores):
        size = max(1, self.slots // beam)
        count = (16 if beam == 1 else 8) * size
        texts = [self.texts[place % len(self.texts)] for place in range(count)]
        for worker, own in zip(workers, cores, strict=True):
            asked = {"texts": texts, "beam": beam, "size": size, "threads": threads, "cores": own}
            worker.stdin.write(json.dumps(asked) + "\n")
            worker.stdin.flush()
        return max([json.loads(worker.stdout.readline()) for worker in workers]) / count

    def close(self):
        for worker in self.workers:
            worker.stdin.close()
            worker.wait()


def main():
    run = ch.load(sys.argv[1], device="cpu")
    for line in sys.stdin:
        asked = json.loads(line)
        os.sched_setaffinity(0, asked["cores"])
        torch.set_num_threads(asked["threads"])
        method = Greedy() if asked["beam"] == 1 else Beam(width=asked["beam"])
        jobs = make_jobs(run, asked["texts"], method)
        decode(run, jobs[: asked["size"]], asked["size"])
        began = time.perf_counter()
        decode(run, jobs, asked["size"])
        sys.stdout.write(f"{json.dumps(time.perf_counter() - began)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
