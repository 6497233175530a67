"""Loaders of the same tokens beside each other in one run: windows a second, and how well each one shuffles.

    python -m benchmarks.loaders speed --out build/loaders
    python -m benchmarks.loaders shuffle --out build/loaders

Speed: every loader reads the same windows, shuffled, from files of its own form on this disk, in batches of int64 and
in a process of its own; they take an epoch each in turn. What is printed are tokens a second, by the median epoch, of
processor time (of all threads) and of the clock, and the median ratio to Clearhead's epoch of the same round.

Shuffle: how far neighbours of the text are apart in the first epoch, by the median, as a share of what a uniform
permutation gives; how many pairs of a batch were within 64 places of each other in the text; and how evenly 16 sources,
which lie in the text one after another, are mixed within batches: chi squared by its degrees of freedom is 1 by chance.
Loaders and samples are those of benchmarks/resumes.py. What is not installed is left out, and it is said.
"""

import argparse
import importlib.util
import itertools
import json
import multiprocessing
import statistics
import time
from pathlib import Path

import numpy as np
import torch

from benchmarks import resumes

WIDTH, WINDOWS, ROWS, SHARDS, VOCABULARY = 1024, 16_384, 16, 8, 50_000
BUFFER, SEED = 1_000, 7
SAMPLES, SAMPLE_SHARDS, SOURCES, NEAR = 1 << 18, 64, 16, 64
"""Of the shuffle: samples, their shards, the sources, and how near places are that count as neighbours."""


def draw_windows():
    return np.random.default_rng(SEED).integers(0, VOCABULARY, (WINDOWS, WIDTH), np.uint16)


def batches_of(data, **options):
    """Return batches by torch's own DataLoader, as every peer documents it."""
    loader = torch.utils.data.DataLoader(data, batch_size=ROWS, **options)
    return (batch["tokens"] for batch in loader)


def clearhead(folder):
    from clearhead.text.store import StoreWriter

    with StoreWriter(folder / "store", {"text": VOCABULARY}) as writer:
        writer.add({"text": draw_windows().ravel()}, {})
        writer.close({})
    stream = resumes.our_stream(folder / "store", tokens=ROWS * WIDTH, context=WIDTH)
    batches = stream.batches(0)
    while True:
        yield (batch["tokens"] for batch in itertools.islice(batches, stream.count()))


def datasets(folder):
    """Arrow on the disk, every row anywhere."""
    from datasets import Dataset, Features, List, Value, load_from_disk

    features = Features({"tokens": List(Value("int32"), length=WIDTH)})
    Dataset.from_dict({"tokens": draw_windows().astype(np.int32)}, features=features).save_to_disk(
        str(folder / "arrow")
    )
    data = load_from_disk(str(folder / "arrow")).with_format("torch")
    while True:
        yield batches_of(data, shuffle=True)


def datasets_streamed(folder):
    """Parquet shards, streamed with a shuffle buffer."""
    import pyarrow
    from datasets import load_dataset
    from pyarrow import parquet

    kind = pyarrow.list_(pyarrow.int32(), WIDTH)
    for i, part in enumerate(np.array_split(draw_windows().astype(np.int32), SHARDS)):
        column = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(part.ravel()), type=kind)
        parquet.write_table(pyarrow.table({"tokens": column}), folder / f"part-{i}.parquet", row_group_size=256)
    files = sorted(map(str, folder.glob("*.parquet")))
    data = load_dataset("parquet", data_files=files, split="train", streaming=True, cache_dir=str(folder / "cache"))
    data = data.shuffle(seed=SEED, buffer_size=BUFFER).with_format("torch")
    for epoch in itertools.count():
        data.set_epoch(epoch)
        yield batches_of(data)


def streaming(folder):
    """MDS shards in its default order."""
    resumes.stub_torchvision()
    from streaming import MDSWriter, StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()
    with MDSWriter(out=str(folder / "mds"), columns={"tokens": f"ndarray:int32:{WIDTH}"}) as out:
        for row in draw_windows().astype(np.int32):
            out.write({"tokens": row})
    data = StreamingDataset(local=str(folder / "mds"), shuffle=True, shuffle_seed=SEED, batch_size=ROWS)
    while True:
        yield batches_of(data)


def webdataset(folder):
    """Tar shards with a shuffle buffer."""
    import webdataset as web

    for i, part in enumerate(np.array_split(draw_windows().astype(np.int32), SHARDS)):
        with web.TarWriter(str(folder / f"part-{i}.tar")) as out:
            for number, row in enumerate(part):
                out.write({"__key__": f"{i}-{number:08}", "tokens.npy": row})
    files = sorted(map(str, folder.glob("*.tar")))
    data = web.WebDataset(files, shardshuffle=100, seed=SEED, empty_check=False).shuffle(BUFFER).decode()
    data = data.rename(tokens="tokens.npy")
    while True:
        yield batches_of(data)


SPEED = {
    "clearhead": ("clearhead", clearhead),
    "datasets, in memory-mapped Arrow": ("datasets", datasets),
    f"datasets, streamed, buffer of {BUFFER:,}": ("datasets", datasets_streamed),
    "MosaicML Streaming": ("streaming", streaming),
    f"WebDataset, buffer of {BUFFER:,}": ("webdataset", webdataset),
}
"""Loaders by name: the package, and what yields an iterator over each epoch."""


def serve_epochs(pipe, name, folder):
    """Take an epoch whenever asked, and send seconds of processor time and of the clock, and what was read."""
    torch.set_num_threads(1)
    folder.mkdir(parents=True)
    epochs = SPEED[name][1](folder)
    for epoch in epochs:
        if not pipe.recv():
            break
        clock, cpu, rows, total = time.perf_counter(), time.process_time(), 0, 0
        for batch in epoch:
            tokens = batch.long()
            rows, total = rows + len(tokens), total + int(tokens.sum())
        pipe.send((time.process_time() - cpu, time.perf_counter() - clock, rows, total))


def is_installed(name, package):
    if importlib.util.find_spec(package) is None:
        print(f"{name}: not installed")
        return False
    return True


def compare_speed(out, rounds):
    context, pipes = multiprocessing.get_context("spawn"), {}
    for i, (name, (package, _)) in enumerate(SPEED.items()):
        if is_installed(name, package):
            pipes[name], theirs = context.Pipe()
            context.Process(target=serve_epochs, args=(theirs, name, (out / str(i)).absolute()), daemon=True).start()
    taken = {name: [] for name in pipes}
    whole = int(draw_windows().sum(dtype=np.int64))
    for number in range(rounds + 1):  # the first one is for imports, forms and caches
        for name, pipe in pipes.items():
            pipe.send(True)
            cpu, clock, rows, total = pipe.recv()
            # Clearhead's windows begin at another token in each epoch, so that one of them does not fit.
            assert rows == WINDOWS - 1 if name == "clearhead" else (rows, total) == (WINDOWS, whole), name
            if number:
                taken[name].append((cpu, clock))
    for pipe in pipes.values():
        pipe.send(False)
    print(
        "| loader | million tokens a second of processor time | of the clock | processor time, by Clearhead's | clock |"
    )
    print("|---|---|---|---|---|")
    found = {}
    for name, seconds in taken.items():
        medians = [statistics.median(each) for each in zip(*seconds, strict=True)]
        pairs = zip(seconds, taken["clearhead"], strict=True)
        ratios = [statistics.median(each) for each in zip(*((a / c, b / d) for (a, b), (c, d) in pairs), strict=True)]
        rates = [WINDOWS * WIDTH / median / 1e6 for median in medians]
        found[name] = {"seconds": seconds, "rates": rates, "ratios": ratios}
        print(f"| {name} | {rates[0]:.3g} | {rates[1]:.3g} | {ratios[0]:.3g} x | {ratios[1]:.3g} x |")
    (out / "speed.json").write_text(json.dumps(found, indent=1))


def measure_order(batches):
    """Return how far neighbours travel, how many of a batch are neighbours, and how sources are mixed in batches."""
    order = np.concatenate(batches)
    assert np.array_equal(np.sort(order), np.arange(SAMPLES))
    places = np.empty(SAMPLES, np.int64)
    places[order] = np.arange(SAMPLES)
    apart = float(np.median(np.abs(np.diff(places)))) / (SAMPLES * (1 - 0.5**0.5))
    whole = order[: len(order) // resumes.BATCH * resumes.BATCH].reshape(-1, resumes.BATCH)
    ordered = np.sort(whole)
    near = sum((ordered[:, k:] - ordered[:, :-k] <= NEAR).sum(1) for k in range(1, resumes.BATCH)).mean()
    counts = np.stack([(whole * SOURCES // SAMPLES == source).sum(1) for source in range(SOURCES)])
    expected = resumes.BATCH / SOURCES
    chi = ((counts - expected) ** 2 / expected).sum(0).mean() / (SOURCES - 1)
    return {"apart": apart, "near": float(near), "sources": float((counts > 0).sum(0).mean()), "chi": float(chi)}


def compare_shuffles(out):
    resumes.N, resumes.SHARDS = SAMPLES, SAMPLE_SHARDS
    orders = {"a uniform permutation": [np.random.default_rng(SEED).permutation(SAMPLES)]}
    for name in ("clearhead", "streaming", "datasets", "webdataset"):
        if is_installed(name, name):
            folder = (out / name).absolute()
            folder.mkdir(parents=True)
            resumes.write_samples(folder, name)
            loader = resumes.LOADERS[name]
            reading, orders[name] = loader(folder, loader.worlds[0]), []
            while (read := reading.next())[0] == 0:
                orders[name].append(read[1])
            reading.close()
    print(
        "| loader | neighbours apart, of uniform | pairs of neighbours in a batch | sources in a batch | chi squared |"
    )
    print("|---|---|---|---|---|")
    found = {name: measure_order(batches) for name, batches in orders.items()}
    for name, row in found.items():
        print(f"| {name} | {row['apart']:.2%} | {row['near']:.3g} | {row['sources']:.3g} | {row['chi']:.3g} |")
    (out / "shuffle.json").write_text(json.dumps(found, indent=1))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("speed", "shuffle"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    given.out.mkdir(parents=True)
    if given.what == "speed":
        compare_speed(given.out, given.rounds)
    else:
        compare_shuffles(given.out)


if __name__ == "__main__":
    main()
