"""The server under load: 200 clients against `clearhead serve`, every answer held to the offline one.

    clearhead demo
    python benchmarks/serving.py runs/demo                          # 200 clients for 5 minutes
    python benchmarks/serving.py runs/demo --minutes 1 --peer       # and CTranslate2 behind the same front
    python benchmarks/serving.py runs/de-en --source test.de
    python benchmarks/serving.py runs/demo --pinned                 # the server has one core, the clients another

The load comes from a process of its own (benchmarks/serving_load.py) on the same machine; its processor time is told,
since it takes cores from the server. Of the requests some are beams, some are streams, and some have no token.

Offline means `clearhead.generate` on batches of as many rows as a process of the server has slots (32 texts, or 8 beams
of 4), in the order of the texts, on ids that are there already. It is measured in turn with the load, before and after
every half a minute of it, while clients and server wait: this machine's speed changes by a third from one minute to
the next. A round of load is compared with the offline batches just before and after it: by one thread on one core, and
by as many threads as there are cores, whichever is faster over all rounds. So without `--pinned` offline has all cores,
and the server shares them with its clients. With `--pinned` both have one: the server, requests and model, is bound to
core 0, offline batches to the same one, the clients to core 1. What a server adds (HTTP, JSON, tokenising, streams)
counts against it. Only answers that came before a round's time was over count as throughput; all are compared.

Told besides: the ratio to what the cores would give without the clients' processor time, and the ratio to as many
offline processes at once as there are cores.

An answer may differ from the offline one only from a token on whose two best choices were within 1e-4 (greedy), or by a
score that is within 1e-4 (beams): matrices of other shapes round otherwise. Such answers are counted.
"""

import argparse
import json
import os
import random
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

from measure import table
from serving_offline import Pace, make_jobs

import clearhead as ch
from clearhead.cli.demo_page import BELOW, german
from clearhead.decoding import Greedy, generate

CLOSE = 1e-4
"""How near the two best choices must be where an answer differs."""
WARM_UP = 10.0
"""Seconds of load before memory and time are measured."""
ROUND = 30.0
"""Seconds of load between two measurements of offline batches."""


class Offline:
    """What a run answers without a server."""

    def __init__(self, run, texts, beam):
        self.run, self.texts = run, texts
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
        [job] = make_jobs(self.run, [self.texts[place]], Greedy())
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
    """A row of the table: one server under the load, in turn with offline batches."""
    cores = [0] if asked.pinned else []
    rounds = max(1, round(asked.minutes * 60 / ROUND))
    seconds = asked.minutes * 60 / rounds
    pace = Pace(asked.run, offline.texts, asked.batch or asked.slots, asked.beam, cores)
    with serving(command, folder, cores) as served:
        loaded(served, offline.texts, asked, WARM_UP, folder)
        memory, processor = served.memory, served.processor
        found, paces = [], [pace.measure()]
        for _ in range(rounds):
            found.append(loaded(served, offline.texts, asked, seconds, folder))
            paces.append(pace.measure())
        memory = memory, served.memory
        requests, model = (now - then for now, then in zip(served.processor, processor, strict=True))
        rows = served.metrics()
    pace.close()
    every = [one for part in found for one in (*part["answers"], *part["late"])]
    kinds = [offline.compare(place, beam, text, score) for place, beam, _, text, score in every]
    wrong = [one for one, kind in zip(every, kinds, strict=True) if kind == "wrong"]
    failed, without = ([one for part in found for one in part[key]] for key in ("failed", "without"))
    in_time, load = sum(len(part["answers"]) for part in found), sum(part["processor"] for part in found)
    alone = {mode: [offline_seconds(*turn, mode) for turn in turns(found, paces)] for mode in paces[0]}
    best = min((mode for mode in alone if "processes" not in mode), key=lambda mode: sum(alone[mode]))
    ratios = sorted(one / seconds for one in alone[best])
    # What the server could have had of the cores, were the clients on another machine.
    left = 1 - load / (sum(part["wall"] for part in found) * len(cores or os.sched_getaffinity(0)))
    times = sorted(taken for _, _, taken, *_ in every)
    steps = sum(value for key, value in rows.items() if key.startswith("clearhead_batch_rows_sum"))
    count = sum(value for key, value in rows.items() if key.startswith("clearhead_batch_rows_count"))
    each = 1000 / len(every)
    return {
        "server": name,
        "answers": len(every),
        "same": kinds.count("same"),
        "close": kinds.count("close"),
        "wrong": kinds.count("wrong"),
        "failed": len(failed),
        "without a token": f"{without.count(401)} of {len(without)} refused",
        "answers/s": in_time / (rounds * seconds),
        **{f"offline/s, {mode}": in_time / sum(walls) for mode, walls in alone.items()},
        f"of offline, {best}": sum(alone[best]) / (rounds * seconds),
        "  in each round": f"{ratios[0]:.2f} to {ratios[-1]:.2f}, median {statistics.median(ratios):.2f}",
        "  without the clients' processor time": sum(alone[best]) / (rounds * seconds) / (1 if asked.pinned else left),
        **{f"of offline, {mode}": sum(walls) / (rounds * seconds) for mode, walls in alone.items() if mode != best},
        "p50 s": statistics.median(times),
        "p99 s": times[int(len(times) * 0.99)],
        "memory MB": f"{memory[0]:.0f} → {memory[1]:.0f} ({100 * (memory[1] / memory[0] - 1):+.1f} %)",
        "jobs a step": steps / max(count, 1),
        "processor ms, an answer: requests": each * requests,
        "processor ms, an answer: model": each * model,
        "processor ms, an answer: load": each * load,
        "processor s: server, load": f"{requests + model:.0f}, {load:.0f}",
        "first failures": failed[:3],
        "first wrong": [offline.describe(*one) for one in wrong[:5]] if asked.json else len(wrong),
    }


def turns(found, paces):
    """Each round of load, with what was measured of offline batches before and after it."""
    return zip(found, paces, paces[1:], strict=False)


def offline_seconds(part, before, after, mode):
    """Seconds on the wall in which offline batches would have given the answers of a round."""
    widths = [width for _, width, *_ in part["answers"]]
    return sum(widths.count(beam) * (before[mode][beam] + after[mode][beam]) / 2 for beam in before[mode])


def read_texts(asked, run):
    if asked.source:
        return [line for line in Path(asked.source).read_text(encoding="utf-8").splitlines() if line.strip()][
            : asked.texts
        ]
    if not (run.folder.path / "demo.json").exists():
        raise SystemExit("give --source FILE: a text to translate on each line")
    return [german(number) for number in random.Random(1).sample(range(BELOW), asked.texts)]


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("run", help="a run that translates")
    options.add_argument("--minutes", type=float, default=5.0)
    options.add_argument("--clients", type=int, default=200)
    options.add_argument("--slots", type=int, default=32, help="rows of a batch, of each process")
    options.add_argument("--batch", type=int, help="rows of an offline batch; as many as --slots unless given")
    options.add_argument("--replicas", type=int, help="processes that decode; as many as cores unless given")
    options.add_argument("--beam", type=int, default=4)
    options.add_argument("--beams", type=float, default=0.05, help="share of requests that are beams")
    options.add_argument("--streams", type=float, default=0.05, help="share of requests that stream")
    options.add_argument("--texts", type=int, default=2000)
    options.add_argument("--source", help="a file with a text on each line; the demo has its own")
    options.add_argument("--peer", action="store_true", help="CTranslate2 behind the same front, too")
    options.add_argument("--pinned", action="store_true", help="the server on core 0 alone, the clients on core 1")
    options.add_argument("--only-peer", action="store_true", help="leave out `clearhead serve` itself")
    options.add_argument("--json", action="store_true")
    asked = options.parse_args()
    asked.replicas = asked.replicas or (1 if asked.pinned else len(os.sched_getaffinity(0)))
    run = ch.load(asked.run, device="cpu")
    offline = Offline(run, read_texts(asked, run), asked.beam)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        slots = ["--slots", str(asked.slots), "--replicas", str(asked.replicas)]
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
    title = f"{asked.clients} clients for {asked.minutes:g} minutes, {asked.replicas} x {asked.slots} slots, "
    title += f"{os.cpu_count()} cores"
    print(
        table(
            title,
            ["", *(row["server"] for row in rows)],
            [[key, *(row.get(key, "") for row in rows)] for key in list(rows[0])[1:]],
        )
    )


if __name__ == "__main__":
    main()
