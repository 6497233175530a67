"""Kill preparing and training at random moments while their text comes from a web server that fails, cuts and lies:

`python -m tests.text.killed_on_shards HOME --kills 20`: what comes out must be what comes out of processes that are
left alone, byte for byte. Processes are forks of this one, which has imported everything.
"""

import argparse
import hashlib
import os
import random
import signal
import sys
import time
from pathlib import Path

from clearhead.text import parts, remote
from clearhead.text.encoding import Corpus
from clearhead.text.preparing import Tokenizing, prepare
from clearhead.text.sources import Documents
from clearhead.training.folder import RunFolder
from clearhead.training.reporting import read_metrics
from clearhead.training.resume import resume
from clearhead.training.tasks import TASKS
from clearhead.training.train import train
from tests.text.shard_server import ShardServer
from tests.training.tiny import quiet

N_SHARDS = 24
STEPS = 60


def make_shards(folder: Path) -> list[str]:
    folder.mkdir()
    names = [f"part-{i:02}.txt" for i in range(N_SHARDS)]
    for i, name in enumerate(names):
        lines = (f"shard {i} has line {j} with {i * j % 97} ships\n" for j in range(200))
        (folder / name).write_text("".join(lines))
    return names


def in_fork(work, *, kill_after: float | None) -> bool:
    """Run work in a fork; return whether it came to its end before it was killed."""
    child = os.fork()
    if not child:
        status = 1
        try:
            work()
            status = 0
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
        finally:
            os._exit(status)
    if kill_after is None:
        _, status = os.waitpid(child, 0)
        assert status == 0
        return True
    time.sleep(kill_after)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return not os.WIFSIGNALED(status)


def digests(folder: Path) -> dict[str, str]:
    """Return the hash of every file below a folder of prepared text, but for what holds the address of the server."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "whole.json"
    }


def prepare_here(paths, folder: Path) -> None:
    corpus = Corpus(train=Documents(paths=tuple(paths), unit="line"))
    prepare(corpus, TASKS["generate"].layout(32), Tokenizing(kind="bpe", size=400), folder, quiet)


def train_here(paths, run: Path) -> None:
    if RunFolder(run).exists():
        resume(run, log=quiet, watcher=quiet)
        return
    options = {"task": "generate", "text": list(paths), "documents": "line", "steps": STEPS, "size": "30k"}
    train(
        run,
        log=quiet,
        watcher=quiet,
        context=16,
        batch_tokens=256,
        save_every=5,
        evaluate_every=20,
        log_every=1,
        seed=1,
        **options,
    )


def result_of(run: Path) -> tuple:
    """Return what a training came to: its losses by step, and its weights."""
    losses = [(line["step"], line["loss"]) for line in read_metrics(RunFolder(run).metrics) if line["kind"] == "step"]
    last = max((run / "checkpoints").glob("step-*/model.safetensors"))
    return losses, hashlib.sha256(last.read_bytes()).hexdigest()


def kill_again_and_again(work, kills: int, longest: float, chance: random.Random, fault) -> int:
    """Kill work so often, then let it come to its end; return how many kills fell inside."""
    inside = 0
    for _ in range(kills):
        fault()
        inside += not in_fork(work, kill_after=chance.uniform(0, longest))
    in_fork(work, kill_after=None)
    return inside


def main(home: Path, kills: int, seed: int = 0) -> dict[str, int]:
    home.mkdir(parents=True, exist_ok=True)
    chance = random.Random(seed)
    parts.PART_BYTES, remote.WAIT = 8_000, 0.0
    os.environ[remote.FOLDER] = str(home / "cache")
    names = make_shards(home / "web")
    server = ShardServer(home / "web")
    found = {}

    def fault() -> None:
        for name in chance.sample(names, 8):
            server.faults[f"/{name}"] = chance.sample([503, "cut", "short", "long", 500], 3)

    with server.serve() as address:
        paths = [f"{address}/{name}" for name in names]
        started = time.perf_counter()
        in_fork(lambda: prepare_here(paths, home / "alone"), kill_after=None)
        took = time.perf_counter() - started
        found["preparing"] = kill_again_and_again(
            lambda: prepare_here(paths, home / "killed"), kills, took / 3, chance, fault
        )
        assert digests(home / "killed") == digests(home / "alone")
        started = time.perf_counter()
        in_fork(lambda: train_here(paths, home / "run-alone"), kill_after=None)
        took = time.perf_counter() - started
        found["training"] = kill_again_and_again(
            lambda: train_here(paths, home / "run-killed"), kills, took / 8, chance, fault
        )
        assert result_of(home / "run-killed") == result_of(home / "run-alone")
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("home", type=Path)
    parser.add_argument("--kills", type=int, default=20)
    given = parser.parse_args()
    inside = main(given.home, given.kills)
    for what, count in inside.items():
        print(f"{what}: {given.kills} kills, {count} before its end; the same files as without a kill")
