"""The server under load: 200 clients against `clearhead serve`, every answer held to the offline one.

    clearhead demo
    python benchmarks/serving.py runs/demo                          # 200 clients for 5 minutes
    python benchmarks/serving.py runs/demo --minutes 1 --peer       # and CTranslate2 behind the same front
    python benchmarks/serving.py runs/de-en --source test.de
    python benchmarks/serving.py runs/demo --pinned                 # the server has one core, the clients another
    python benchmarks/serving.py runs/demo --chaos --minutes 1      # slow readers, hang-ups, 1 GB bodies, floods, …

The load comes from a process of its own (benchmarks/serving_load.py) on the same machine; its processor time is told,
since it takes cores from the server. Of the requests some are beams, some are streams, and some have no token.

Offline means `clearhead.generate` on batches of as many texts as the server has slots, in the order of the texts, on
ids that are there already, with nothing else of ours on the machine: by one thread on one core, and by as many threads
as there are cores, each once before the load and once after it, the better counts. The server is held to the better of
the two. So without `--pinned` offline has all cores, and the server shares them with its clients. With `--pinned` both
have one: the server, requests and model, is bound to core 0, offline batches to the same one, the clients to core 1.
What a server adds (HTTP, JSON, tokenising, streams) counts against it.

An answer may differ from the offline one only from a token on whose two best choices were within 1e-4 (greedy), or by a
score that is within 1e-4 (beams): matrices of other shapes round otherwise. Such answers are counted.
"""

import argparse
import json
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from measure import table

import clearhead as ch
from clearhead.cli.number_words import draw, german
from clearhead.decoding import Beam, Greedy, Rules, generate
from clearhead.serve.api.sequences import translation

CLOSE = 1e-4
"""How near the two best choices must be where an answer differs."""
WARM_UP = 10.0
"""Seconds of load before memory and time are measured."""


class Offline:
    """What a run answers without a server, and how fast."""

    def __init__(self, run, texts, beam):
        self.run, self.texts, self.beam = run, texts, beam
        self.best = dict(enumerate(run.scored_translations(texts, beam=1)))
        self.searched = dict(enumerate(run.scored_translations(texts, beam=beam)))

    def compare(self, place, beam, text, score):
        """ "same", "close" or "wrong"."""
        [written] = (self.searched if beam > 1 else self.best)[place]
        if text == written.text:
            return "same"
        if beam > 1:
            return "close" if abs(score - written.score) <= CLOSE else "wrong"
        return "close" if text in self.close_ones(place) else "wrong"

    def describe(self, place, beam, seconds, text, score):
        """An answer beside the offline one."""
        [written] = (self.searched if beam > 1 else self.best)[place]
        return {"beam": beam, "text": text, "score": score, "offline": written.text, "its score": written.score}

    def close_ones(self, place):
        """The texts that differ from the greedy one from a token on whose two best choices were within `CLOSE`."""
        job = self.jobs([place], Greedy())[0]
        found, prefixes = set(), [()]
        while prefixes:
            forced = prefixes.pop()
            rules = replace(job.rules, max_new=max(1, job.rules.max_new - len(forced)))
            start = [[*job.prefix, *forced]]
            [[one]] = generate(self.run.model, [job.inputs], Greedy(), rules=rules, prefix=start, candidates=2)
            found.add(self.run.task.tokenizers["target"].decode([*forced, *one.tokens]))
            for at, candidates in enumerate(one.candidates):
                (_, first), (second, other) = candidates[:2]
                if first - other <= CLOSE:
                    prefixes.append((*forced, *one.tokens[:at], second))
        return found

    def jobs(self, places, method):
        rows = self.run.tokenizer.encode_batch([self.texts[place] for place in places])
        return [translation(self.run.task, row, method).first for row in rows]

    def seconds(self, slots, cores):
        """Seconds of processor and wall time for a text: {beam: {threads: (processor, wall)}}, of as many as slots."""
        before = os.sched_getaffinity(0)
        found = {1: {}, self.beam: {}}
        for threads in sorted({1, len(cores or before)}):
            os.sched_setaffinity(0, cores or (before if threads > 1 else {min(before)}))
            torch.set_num_threads(threads)
            for beam, by_threads in found.items():
                by_threads[threads] = self.seconds_now(beam, slots)
        os.sched_setaffinity(0, before)
        return found

    def seconds_now(self, beam, slots):
        places = [place % len(self.texts) for place in range(20 * slots)]
        jobs = self.jobs(places, Greedy() if beam == 1 else Beam(width=beam))
        self.decode(jobs[:slots], max(1, slots // beam))
        began = clocks()
        self.decode(jobs, max(1, slots // beam))
        return tuple((now - then) / len(jobs) for now, then in zip(clocks(), began, strict=True))

    def decode(self, jobs, size):
        for start in range(0, len(jobs), size):
            batch = jobs[start : start + size]
            longest = max(job.rules.max_new for job in batch)
            rules = Rules(max_new=longest, end=batch[0].rules.end, never=batch[0].rules.never)
            prefix = [list(batch[0].prefix)]
            generate(self.run.model, [job.inputs for job in batch], batch[0].method, rules=rules, prefix=prefix)


def clocks():
    """Processor time of this process, and time on the wall."""
    return time.process_time(), time.perf_counter()


def best_of(measured, answers):
    """For each number of threads the seconds of processor and wall time for these answers, the best of several."""
    count = {beam: sum(width == beam for _, width, *_ in answers) for beam in measured[0]}
    return {
        threads: [
            sum(n * min(one[beam][threads][clock] for one in measured) for beam, n in count.items())
            for clock in range(2)
        ]
        for threads in measured[0][1]
    }


class Served:
    """A server in a process of its own."""

    def __init__(self, command, token, log, cores=()):
        environment = {**os.environ, "CLEARHEAD_TOKEN": token}
        self.process = subprocess.Popen(
            bound(command, cores), stdout=subprocess.PIPE, stderr=log, text=True, env=environment
        )
        self.address, self.token = self.process.stdout.readline().strip(), token
        if not self.address:
            raise SystemExit(f"the server did not start: {' '.join(command)}")
        self.port = int(self.address.rsplit(":", 1)[1])
        for _ in range(600):
            try:
                urllib.request.urlopen(f"{self.address}/readyz", timeout=60)
                return
            except OSError:
                time.sleep(0.1)

    def metrics(self):
        asked = urllib.request.Request(f"{self.address}/metrics", headers={"Authorization": f"Bearer {self.token}"})
        lines = urllib.request.urlopen(asked, timeout=60).read().decode().splitlines()
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if not line.startswith("#")}

    @property
    def memory(self):
        """MB of all processes of the server; weights that they share count in each."""
        return self.total("process_resident_memory_bytes", "clearhead_model_resident_memory_bytes") / 1e6

    @property
    def processor(self):
        """Seconds of processor time of the process that answers requests, and of the models' own."""
        return self.total("process_cpu_seconds_total"), self.total("clearhead_model_cpu_seconds_total")

    def total(self, *names):
        return sum(value for key, value in self.metrics().items() if key.partition("{")[0] in names)


def bound(command, cores):
    """A command that runs on these cores; on all of them where none are named."""
    return ["taskset", "-c", ",".join(map(str, cores)), *command] if cores else command


@contextmanager
def serving(command, folder, cores=()):
    with open(folder / "server.log", "w", encoding="utf-8") as log:
        made = Served(command, secrets.token_urlsafe(24), log, cores)
        try:
            yield made
        finally:
            made.process.terminate()
            made.process.wait(60)


def loaded(served, texts, asked, seconds, folder):
    """What the clients got within so many seconds."""
    plan = {"port": served.port, "token": served.token, "texts": texts, "clients": asked.clients, "seconds": seconds}
    plan |= {"beam": asked.beam, "beams": asked.beams, "streams": asked.streams}
    (folder / "plan.json").write_text(json.dumps(plan))
    script = Path(__file__).with_name("serving_load.py")
    command = [sys.executable, str(script), str(folder / "plan.json"), str(folder / "answers.json")]
    subprocess.run(bound(command, asked.pinned and [1]), check=True)
    return json.loads((folder / "answers.json").read_text())


def measure(name, command, offline, asked, folder):
    """A row of the table: one server under the load."""
    cores = [0] if asked.pinned else []
    measured = [offline.seconds(asked.slots, cores)]
    with serving(command, folder, cores) as served:
        loaded(served, offline.texts, asked, WARM_UP, folder)
        memory, processor = served.memory, served.processor
        found = loaded(served, offline.texts, asked, asked.minutes * 60, folder)
        memory = memory, served.memory
        requests, model = (now - then for now, then in zip(served.processor, processor, strict=True))
        rows = served.metrics()
    measured.append(offline.seconds(asked.slots, cores))
    answers = found["answers"]
    kinds = [offline.compare(place, beam, text, score) for place, beam, _, text, score in answers]
    wrong = [one for one, kind in zip(answers, kinds, strict=True) if kind == "wrong"]
    alone = best_of(measured, answers)
    cpu, wall = (min(times) for times in zip(*alone.values(), strict=True))
    times = sorted(seconds for _, _, seconds, *_ in answers)
    steps = sum(value for key, value in rows.items() if key.startswith("clearhead_batch_rows_sum"))
    count = sum(value for key, value in rows.items() if key.startswith("clearhead_batch_rows_count"))
    each = 1000 / len(answers)
    return {
        "server": name,
        "answers": len(answers),
        "same": kinds.count("same"),
        "close": kinds.count("close"),
        "wrong": kinds.count("wrong"),
        "failed": len(found["failed"]),
        "without a token": f"{found['without'].count(401)} of {len(found['without'])} refused",
        "answers/s": len(answers) / found["wall"],
        **{f"offline/s, {threads} threads": len(answers) / one[1] for threads, one in alone.items()},
        "of offline (wall)": wall / found["wall"],
        "of offline (processor)": cpu / (requests + model),
        "p50 s": statistics.median(times),
        "p99 s": times[int(len(times) * 0.99)],
        "memory MB": f"{memory[0]:.0f} → {memory[1]:.0f} ({100 * (memory[1] / memory[0] - 1):+.1f} %)",
        "jobs a step": steps / max(count, 1),
        "ms on the wall, an answer": each * found["wall"],
        "processor ms, an answer: requests": each * requests,
        "processor ms, an answer: model": each * model,
        "processor ms, an answer: load": each * found["processor"],
        "processor s: server, load": f"{requests + model:.0f}, {found['processor']:.0f}",
        "first failures": found["failed"][:3],
        "first wrong": [offline.describe(*one) for one in wrong[:5]] if asked.json else len(wrong),
    }


def read_texts(asked, run):
    if asked.source:
        return [line for line in Path(asked.source).read_text(encoding="utf-8").splitlines() if line.strip()][
            : asked.texts
        ]
    if not (run.folder.path / "demo.json").exists():
        raise SystemExit("give --source FILE: a text to translate on each line")
    return [german(number) for number in draw(1, train=100, held_out=asked.texts).held_out]


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("run", help="a run that translates")
    options.add_argument("--minutes", type=float, default=5.0)
    options.add_argument("--clients", type=int, default=200)
    options.add_argument("--slots", type=int, default=32)
    options.add_argument("--beam", type=int, default=4)
    options.add_argument("--beams", type=float, default=0.05, help="share of requests that are beams")
    options.add_argument("--streams", type=float, default=0.05, help="share of requests that stream")
    options.add_argument("--texts", type=int, default=2000)
    options.add_argument("--source", help="a file with a text on each line; the demo has its own")
    options.add_argument("--peer", action="store_true", help="CTranslate2 behind the same front, too")
    options.add_argument("--chaos", action="store_true", help="attack the server instead, and see whether it is right")
    options.add_argument("--pinned", action="store_true", help="the server on core 0 alone, the clients on core 1")
    options.add_argument("--only-peer", action="store_true", help="leave out `clearhead serve` itself")
    options.add_argument("--json", action="store_true")
    asked = options.parse_args()
    if asked.chaos:
        from serving_chaos import attack

        attack(asked)
        return
    run = ch.load(asked.run, device="cpu")
    offline = Offline(run, read_texts(asked, run), asked.beam)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        slots = ["--slots", str(asked.slots)]
        command = [sys.executable, "-m", "clearhead", "serve", asked.run, "--port", "0", "--log-format", "json", *slots]
        rows = [] if asked.only_peer else [measure("clearhead serve", command, offline, asked, folder)]
        if asked.peer or asked.only_peer:
            export = [
                sys.executable,
                "-m",
                "clearhead",
                "export",
                asked.run,
                "--to",
                "ctranslate2",
                "-o",
                folder / "ct2",
            ]
            subprocess.run(export, check=True, stdout=subprocess.DEVNULL)
            command = [sys.executable, str(Path(__file__).with_name("serving_peer.py")), asked.run, str(folder / "ct2")]
            rows.append(measure("CTranslate2, same front", [*command, *slots], offline, asked, folder))
            rows[0]["of CTranslate2"] = rows[0]["answers/s"] / rows[-1]["answers/s"]
    if asked.json:
        print(json.dumps(rows))
        return
    title = f"{asked.clients} clients for {asked.minutes:g} minutes, {asked.slots} slots, {os.cpu_count()} cores"
    print(
        table(
            title,
            ["", *(row["server"] for row in rows)],
            [[key, *(row.get(key, "") for row in rows)] for key in list(rows[0])[1:]],
        )
    )


if __name__ == "__main__":
    main()
