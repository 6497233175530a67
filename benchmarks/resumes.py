"""What a kill costs: loaders of text stopped and resumed, once, twice, at an epoch's end, and on more processes.

    python -m benchmarks.resumes --out build/resumes

Every loader reads the same numbered samples from 8 shards, shuffled as it offers it, in batches of 64 over two
processes (one for WebDataset). MosaicML Streaming's are real ones; of the others one process has a loader for each. Its
own way to save and load its state is used; what comes after a kill is compared with a run that was left alone: samples
of the first two epochs that never came (lost), that came again (repeated), samples that came in another batch (moved),
seconds until the first batch, and memory beyond imports. Those that are not installed are left out, and it is said.
Streaming imports torchvision for images: where that is missing, an empty module stands in.
"""

import argparse
import importlib.machinery
import importlib.util
import itertools
import json
import multiprocessing
import os
import random
import resource
import socket
import subprocess
import sys
import time
import types
from collections import Counter
from pathlib import Path

import numpy as np

N, SHARDS, BATCH, SEED = 20_480, 8, 64, 7
BUFFER = 1_000
NAMES = ("clearhead", "datasets", "streaming", "webdataset", "torchtitan")


class Loader:
    """What each loader has beside `next` and `state`."""

    ready = 0.0
    """When it began to load, if it imports something first."""
    memory = 0.0
    """The MB that processes of its own have taken beyond their first batch."""

    def close(self):
        pass


def our_stream(folder, *, tokens, context):
    """Return Clearhead's batches of a store: so many tokens each, in windows of the context."""
    from clearhead.text.store import Store
    from clearhead.text.tokenizer import Tokenizer
    from clearhead.training.recipe import Batching, Machine
    from clearhead.training.tasks import TASKS
    from clearhead.training.train_step import BatchStream

    recipe = types.SimpleNamespace(seed=SEED, machine=Machine(), batching=Batching(tokens=tokens, context=context))
    task = TASKS["generate"](tokenizers={"text": Tokenizer.train(["a"], "byte")}, context=context)
    return BatchStream(recipe, task, Store(folder), filled=False)


class Ours(Loader):
    """Clearhead: the state is the number of batches."""

    worlds = (2, 4)

    def __init__(self, folder, world, state=None):
        from clearhead.training.parallel import share_rows

        self.stream = our_stream(folder / "store", tokens=BATCH, context=1)
        self.done, self.world, self.share = state or 0, world, share_rows
        self.batches = self.stream.batches(self.done)

    def next(self):
        batch = next(self.batches)
        epoch = self.done // self.stream.count()
        self.done += 1
        rows = [self.share(batch, rank, self.world)["tokens"].flatten().tolist() for rank in range(self.world)]
        return epoch, list(itertools.chain.from_iterable(rows))[: len(batch["tokens"])]

    def state(self):
        return self.done


class HuggingFace(Loader):
    """`datasets`: a streamed dataset with a shuffle buffer, split by node; a state for each process."""

    worlds = (2,)

    def __init__(self, folder, world, state=None):
        from datasets import load_dataset
        from datasets.distributed import split_dataset_by_node

        files = sorted(map(str, folder.glob("*.jsonl")))
        self.epoch, states = state or (0, None)
        whole = load_dataset("json", data_files=files, split="train", streaming=True, cache_dir=str(folder / "cache"))
        shuffled = whole.shuffle(seed=SEED, buffer_size=BUFFER)
        self.parts = [split_dataset_by_node(shuffled, rank, world) for rank in range(world)]
        for part, saved in zip(self.parts, states or [None] * world, strict=True):
            part.set_epoch(self.epoch)
            if saved is not None:
                part.load_state_dict(saved)
        self.iterators = [iter(part) for part in self.parts]

    def next(self):
        share = BATCH // len(self.parts)
        rows = [[row["n"] for row in itertools.islice(iterator, share)] for iterator in self.iterators]
        if not any(rows):
            self.epoch += 1
            for part in self.parts:
                part.set_epoch(self.epoch)
            self.iterators = [iter(part) for part in self.parts]
            return self.next()
        return self.epoch, list(itertools.chain.from_iterable(rows))

    def state(self):
        return self.epoch, [part.state_dict() for part in self.parts]


class Streaming(Loader):
    """MosaicML Streaming with its default shuffle, in processes of its own; the state is a count of samples."""

    worlds = (2, 4)

    def __init__(self, folder, world, state=None):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        context, self.ranks = multiprocessing.get_context("spawn"), []
        for rank in range(world):
            pipe, theirs = context.Pipe()
            ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
            place = {**ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            args = (theirs, str(folder), place, state)
            process = context.Process(target=stream_rank, args=args, daemon=True)
            process.start()
            self.ranks.append((process, pipe))
        for _, pipe in self.ranks:
            pipe.recv()  # it has imported what it needs
        self.ready = time.perf_counter()

    def ask(self, what):
        for _, pipe in self.ranks:
            pipe.send(what)
        return [pipe.recv() for _, pipe in self.ranks]

    def next(self):
        answers = self.ask("next")
        return answers[0][0], list(itertools.chain.from_iterable(rows for _, rows in answers))

    def state(self):
        return self.ask("state")[0]

    def close(self):
        Streaming.memory = max(Streaming.memory, self.ask("end")[0])
        for process, _ in self.ranks:
            process.join()


def stream_rank(pipe, folder, place, state):
    """Read a process's share of the batches, and send what is asked for. `place` is what torchrun would tell it."""
    os.environ.update({name: str(value) for name, value in place.items()})
    world = place["WORLD_SIZE"]
    stub_torchvision()
    from streaming import StreamingDataset
    from streaming.base.util import clean_stale_shared_memory
    from torch import distributed

    distributed.init_process_group("gloo")
    clean_stale_shared_memory()
    pipe.send("ready")
    share = BATCH // world
    data = StreamingDataset(
        local=f"{folder}/mds", shuffle=True, shuffle_seed=SEED, batch_size=share, num_canonical_nodes=1
    )
    epoch, taken, saved = state or (0, 0, None)
    if saved is not None:
        data.load_state_dict(saved)
    iterator, first = iter(data), None
    while (asked := pipe.recv()) != "end":
        if asked == "state":
            pipe.send((epoch, taken, data.state_dict(taken, from_beginning=True)))
            continue
        rows = [row["n"] for row in itertools.islice(iterator, share)]
        if not rows:
            epoch, taken, iterator = epoch + 1, 0, iter(data)
            rows = [row["n"] for row in itertools.islice(iterator, share)]
        taken += len(rows) * world
        first = first or peak_mb()
        pipe.send((epoch, rows))
    pipe.send(peak_mb() - first)


class WebDataset(Loader):
    """WebDataset: shards shuffled, then a shuffle buffer. It saves no state: an epoch begins again."""

    worlds = (1,)

    def __init__(self, folder, world, state=None):
        self.files, self.epoch = sorted(map(str, folder.glob("*.tar"))), state or 0
        self.begin()

    def begin(self):
        import webdataset

        data = webdataset.WebDataset(self.files, shardshuffle=100, seed=SEED + self.epoch, empty_check=False)
        self.iterator = iter(data.shuffle(BUFFER, rng=random.Random(SEED + self.epoch)))

    def next(self):
        rows = [int(row["n"]) for row in itertools.islice(self.iterator, BATCH)]
        if not rows:
            self.epoch += 1
            self.begin()
            return self.next()
        return self.epoch, rows

    def state(self):
        return self.epoch


class Titan(Loader):
    """torchtitan's text dataset, map-style: not shuffled in its first epoch; a state for each process."""

    worlds = (2,)

    def __init__(self, folder, world, state=None):
        from datasets import load_dataset
        from torchtitan.hf_datasets import DatasetConfig
        from torchtitan.hf_datasets import text_datasets as module

        files = sorted(map(str, folder.glob("*.jsonl")))

        def load(path):
            return load_dataset("json", data_files=files, split="train", cache_dir=str(folder / "cache"))

        module.logger.setLevel("ERROR")
        module.DATASETS["numbers"] = DatasetConfig(path="", loader=load, sample_processor=lambda row: row["n"])
        tokenizer = types.SimpleNamespace(encode=lambda number, **_: [number, number])
        make = module.HuggingFaceTextDataset
        self.parts = [make("numbers", "", tokenizer, 1, rank, world, infinite=True) for rank in range(world)]
        for part, saved in zip(self.parts, state or [None] * world, strict=True):
            if saved is not None:
                part.load_state_dict(json.loads(saved))
        self.iterators = [iter(part) for part in self.parts]

    def next(self):
        share = BATCH // len(self.parts)
        rows = [[int(one["input"]) for one, _ in itertools.islice(each, share)] for each in self.iterators]
        return self.parts[0]._epoch, list(itertools.chain.from_iterable(rows))

    def state(self):
        return [json.dumps(part.state_dict()) for part in self.parts]


LOADERS = dict(zip(NAMES, (Ours, HuggingFace, Streaming, WebDataset, Titan), strict=True))


def write_samples(folder, name):
    """Write the numbers below N in the form of a loader."""
    parts = np.array_split(np.arange(N), SHARDS)
    if name == "clearhead":
        from clearhead.text.store import StoreWriter

        with StoreWriter(folder / "store", {"text": N + 1}) as writer:
            writer.add({"text": [*range(N), N]}, {})
            writer.close({})
    elif name == "streaming":
        stub_torchvision()
        from streaming import MDSWriter

        with MDSWriter(out=str(folder / "mds"), columns={"n": "int"}, size_limit=N // SHARDS * 12) as out:
            for number in range(N):
                out.write({"n": number})
    elif name == "webdataset":
        import webdataset

        for i, part in enumerate(parts):
            with webdataset.TarWriter(str(folder / f"part-{i}.tar")) as out:
                for number in part.tolist():
                    out.write({"__key__": f"{number:08}", "n": str(number).encode()})
    else:
        for i, part in enumerate(parts):
            lines = (json.dumps({"n": number}) + "\n" for number in part.tolist())
            (folder / f"part-{i}.jsonl").write_text("".join(lines))


def stub_torchvision():
    """Let Streaming be imported where torchvision, which it takes for images alone, is not installed."""
    if importlib.util.find_spec("torchvision") is not None:
        return
    for name in ("torchvision", "torchvision.transforms", "torchvision.transforms.functional", "torchvision.datasets"):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__spec__ = importlib.machinery.ModuleSpec(name, None)
    sys.modules["torchvision.transforms.functional"].to_tensor = None
    sys.modules["torchvision.datasets"].VisionDataset = object


def take(loader, count):
    return [loader.next() for _ in range(count)]


def compare(found, reference):
    """Return what is lost and repeated in the first two epochs, and which share of samples comes in another batch."""
    lost = repeated = 0
    for epoch in (0, 1):
        counts = Counter(number for at, rows in found if at == epoch for number in rows)
        lost += N - len(counts)
        repeated += counts.total() - len(counts)
    pairs = zip(found, reference, strict=False)
    moved = sum(len(set(theirs) - set(rows)) for (_, rows), (_, theirs) in pairs) / (BATCH * len(reference))
    return {"lost": lost, "repeated": repeated, "moved": round(moved, 4)}


def run(loader, folder, kills, total, *, world, later_world=None):
    """Take batches, with a kill before each of these; the last one goes on with another number of processes."""
    current, found, seconds = loader(folder, world), [], []
    for number, at in enumerate(kills):
        found += take(current, at - len(found))
        saved = current.state()
        current.close()
        started = time.perf_counter()
        current = loader(folder, later_world if later_world and number == len(kills) - 1 else world, saved)
        found += take(current, 1)
        seconds.append(time.perf_counter() - max(started, current.ready))
    # An epoch that is shorter or longer than it should be ends elsewhere: the first two are compared as wholes.
    found += take(current, max(0, total - len(found)))
    while found[-1][0] < 2:
        found += take(current, 1)
    current.close()
    return found, max(seconds, default=0.0)


def measure(name, folder):
    write_samples(folder, name)
    loader, an_epoch = LOADERS[name], -(-N // BATCH)
    world, total = loader.worlds[0], 2 * an_epoch + an_epoch // 2
    first = loader(folder, world)  # imports, and caches that a library makes once
    first.next()
    first.close()
    before = peak_mb()
    reference, _ = run(loader, folder, [], total, world=world)
    cases = {
        "left alone": ([], None),
        "one kill": ([an_epoch * 2 // 5], None),
        "two kills": ([an_epoch * 2 // 5, an_epoch * 7 // 10], None),
        "at an epoch's end": ([an_epoch - 1], None),
        "on twice as many processes": ([an_epoch * 2 // 5], 2 * world),
    }
    rows = []
    for case, (kills, later) in cases.items():
        if later is not None and later not in loader.worlds:
            rows.append({"loader": name, "case": case, "note": "not offered"})
            continue
        found, seconds = run(loader, folder, kills, total, world=world, later_world=later)
        rows.append({"loader": name, "case": case, **compare(found, reference), "seconds": round(seconds, 3)})
    taken = max(peak_mb() - before, loader.memory)
    return [{**row, "memory_mb": round(taken, 1)} for row in rows]


def peak_mb():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--loader", choices=NAMES)
    given = parser.parse_args()
    if given.loader:
        print(json.dumps(measure(given.loader, given.out)))
        return
    for name in NAMES:
        if importlib.util.find_spec(name) is None:
            print(f"{name}: not installed")
            continue
        folder = (given.out / name).absolute()
        folder.mkdir(parents=True)
        command = [sys.executable, "-m", "benchmarks.resumes", "--loader", name, "--out", str(folder)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        if ran.returncode:
            print(f"{name}: failed\n{ran.stderr[-2000:]}")
            continue
        rows = json.loads(ran.stdout.splitlines()[-1])
        (given.out / f"{name}.json").write_text(json.dumps(rows, indent=1))
        for row in rows:
            print(" | ".join(str(value) for value in row.values()), flush=True)


if __name__ == "__main__":
    main()
