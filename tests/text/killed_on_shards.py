"""Kill preparing and training at random moments while their text comes from a store that fails, stalls, cuts and lies:

`python -m tests.text.killed_on_shards HOME --store s3 --kills 20`: what comes out must be what comes out of the same
files on this disk, byte for byte. Every fault is in a fetch that counts: nothing is left in the cache of shards between
kills, and it takes a sixth of them. Processes are forks of this one, which has imported everything.
"""

import argparse
import contextlib
import hashlib
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from clearhead.text import parts, remote
from clearhead.text.encoding import Corpus
from clearhead.text.preparing import Tokenizing, prepare
from clearhead.text.sources import Documents
from clearhead.training.folder import RunFolder
from clearhead.training.reporting import read_metrics
from clearhead.training.resume import resume
from clearhead.training.tasks import TASKS
from clearhead.training.train import train
from tests.text.shard_server import BUCKET, ShardServer, object_store
from tests.training.tiny import quiet

N_SHARDS = 24
CACHED = 4
"""How many shards the cache has room for."""
STEPS = 60
FAULTS = [503, "cut", "short", "long", 500, "stall"]


class FaultyStore(NamedTuple):
    """A store: the server that fails, what the text is called in it, and what is asked of the server for it."""

    server: ShardServer
    paths: tuple[str, ...]
    asked: tuple[str, ...]


@contextlib.contextmanager
def on_the_web(folder: Path, names: list[str]) -> Iterator[FaultyStore]:
    server = ShardServer(folder)
    with server.serve() as address:
        yield FaultyStore(server, tuple(f"{address}/{name}" for name in names), tuple(f"/{name}" for name in names))


@contextlib.contextmanager
def in_a_bucket(folder: Path, names: list[str]) -> Iterator[FaultyStore]:
    """The text is named by a *, so that lists of objects go wrong as well."""
    with object_store() as (address, put):
        for name in names:
            put(f"text/{name}", (folder / name).read_bytes())
        server = ShardServer(upstream=address)
        with server.serve() as proxy:
            os.environ["AWS_ENDPOINT_URL"] = proxy
            asked = (f"/{BUCKET}", *(f"/{BUCKET}/text/{name}" for name in names))
            yield FaultyStore(server, (f"s3://{BUCKET}/text/part-*.txt",), asked)


STORES = {"web": on_the_web, "s3": in_a_bucket}


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


def digests(folder: Path, *but: str) -> dict[str, str]:
    """Return the hash of every file of the only text that is prepared in a folder, but for those of these names.

    whole.json has the address of the server, store.json of the training text the names of the sources.
    """
    (prepared,) = folder.iterdir()
    return {
        str(path.relative_to(prepared)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(prepared.rglob("*"))
        if path.is_file() and path.name not in but
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


def main(home: Path, kills: int, *, store: str, seed: int = 0) -> dict[str, int]:
    """Return how many kills fell inside of preparing and of training, and how many faults there were of each kind."""
    home.mkdir(parents=True, exist_ok=True)
    chance = random.Random(seed)
    parts.PART_BYTES, remote.WAIT, remote.SILENCE = 8_000, 0.0, 0.5
    cache = home / "cache"
    os.environ[remote.FOLDER] = str(cache)
    names = make_shards(home / "files")
    here = tuple(str(home / "files" / name) for name in names)
    os.environ[remote.GIGABYTES] = str(CACHED * max(map(os.path.getsize, here)) / 1e9)
    found: dict[str, int] = {}
    with STORES[store](home / "files", names) as (server, paths, asked):

        def fault() -> None:
            shutil.rmtree(cache, ignore_errors=True)
            for name in chance.sample(asked, 8):
                # On the web a HEAD that fails is followed by a GET, which must not lie: what a store says of a shard is
                # taken as the truth.
                server.faults[f"HEAD {name}"] = [chance.choice([500, 503])]
                server.faults[name] = [chance.choice([500, 503]), *chance.sample(FAULTS, 2)]

        def time_alone(work) -> float:
            shutil.rmtree(cache, ignore_errors=True)
            started = time.perf_counter()
            in_fork(work, kill_after=None)
            return time.perf_counter() - started

        in_fork(lambda: prepare_here(here, home / "alone"), kill_after=None)
        took = time_alone(lambda: prepare_here(paths, home / "once"))
        work = lambda: prepare_here(paths, home / "killed")  # noqa: E731
        found["preparing"] = kill_again_and_again(work, kills, took / 3, chance, fault)
        assert digests(home / "killed", "whole.json") == digests(home / "once", "whole.json")
        addresses = "whole.json", "store.json"
        assert digests(home / "killed", *addresses) == digests(home / "alone", *addresses)
        in_fork(lambda: train_here(here, home / "run-alone"), kill_after=None)
        took = time_alone(lambda: train_here(paths, home / "run-once"))
        work = lambda: train_here(paths, home / "run-killed")  # noqa: E731
        found["training"] = kill_again_and_again(work, kills, took / 8, chance, fault)
        assert result_of(home / "run-killed") == result_of(home / "run-once") == result_of(home / "run-alone")
    assert server.failed
    return found | {f"{kind} answers": count for kind, count in Counter(map(str, server.failed.elements())).items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("home", type=Path)
    parser.add_argument("--store", choices=STORES, default="s3")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    for what, count in main(given.home, given.kills, store=given.store, seed=given.seed).items():
        print(
            f"{what}: {count} of {given.kills} kills inside" if what in ("preparing", "training") else f"{count} {what}"
        )
    print("the same files, losses and weights as of the files on this disk without a kill")
