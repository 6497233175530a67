"""Damage files in every way there is, one at a time, and see what comes of it: a clear error, or nothing at all.

`python -m tests.training.mutating 10000` attacks so many times and prints what was not told clearly. An attack writes
one damaged file into a folder, loads it, compares what it gives, and puts the file back: some milliseconds each.
"""

import contextlib
import json
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import torch

import clearhead as ch
from clearhead.cli.runs import look_into
from clearhead.errors import ClearheadError
from clearhead.model import presets
from clearhead.serialization import load_tensors, save_tensors
from clearhead.text.preparing import open_prepared
from clearhead.tracing.saving import HEADER
from clearhead.tracing.trace import trace_model
from clearhead.training.reporting import read_metrics
from clearhead.training.train import train
from tests.attack.changing import RESEALED, change, change_json
from tests.training import small_runs
from tests.training.tiny import recipe_for

KINDS = {"translate": small_runs.translating, "classify": small_runs.classifying}

SLOW = 60.0
"""Seconds after which an attack counts as one that hangs."""


class Attack:
    """Attacks on one target, and what they came to. `faults` must stay empty."""

    def __init__(self, seed):
        self.draw, self.counts, self.faults = random.Random(seed), Counter(), []

    def __call__(self, files, use, expected, *, sealed, damage=None):
        """Damage one of the files and use the target: `use()` must raise ClearheadError or give what is expected.

        Where a checksum was made anew, or there is none, other values are what the file says; `use` gives None where
        it told what it passed over.
        """
        path = self.draw.choice(files)
        before = path.read_bytes()
        damaged, how = damage or change(before, self.draw)
        resealed = how.endswith(RESEALED)
        path.write_bytes(damaged)
        started = time.process_time()
        try:
            found = use()
            same = found is None or found == expected
            if not same and sealed(path) and not resealed:
                self.fault(path, damaged, "gives something else, and says nothing")
            self.counts["same" if same else "changed by a stranger"] += 1
        except ClearheadError:
            self.counts["told"] += 1
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            self.fault(path, damaged, f"{type(error).__name__}: {str(error)[:300]}")
        finally:
            path.write_bytes(before)
        if time.process_time() - started > SLOW:
            self.fault(path, damaged, f"took {time.process_time() - started:.1f} s of the processor")

    def fault(self, path, damaged, said):
        self.counts["FAULT"] += 1
        self.faults.append(f"{path.name}: {said}")
        place = Path(tempfile.gettempdir()) / f"fault-{len(self.faults)}-{path.name}"
        place.write_bytes(damaged)


def tiny_run(folder, task):
    """Train a run in a folder, as small as a run can be."""
    recipe = recipe_for(KINDS[task], folder / f"text of {task}")
    return train(folder / task, recipe, log=lambda _: None, watcher=lambda _: None).folder.path


def use_of(path):
    """Return a function that loads a run and lists it, and gives all that came of it; None where it told of damage."""
    whole = replace(look_into(path, path.parent), disk_bytes=0, changed="")

    def use():
        told = []
        listed = replace(look_into(path, path.parent), disk_bytes=0, changed="")
        run = ch.load(path, device="cpu", log=told.append)
        ids = torch.tensor([run.tokenizer.encode("old plum")[:16] or [0]])
        with torch.inference_mode():
            logits = run.model(ids, ids) if run.task.name == "translate" else run.model(ids)
        decoded = run.tokenizer.decode(ids[0].tolist())
        labels = getattr(run.task, "labels", ())
        if told:
            return None
        listed = whole if listed.problem else listed  # a problem in the list is told, but excuses no other output
        return listed, logits.tolist(), decoded, labels, run.task.context, run.step

    return use


def use_of_data(home):
    def use():
        prepared = open_prepared(home)
        stores = [store[name] for store in (prepared.train, prepared.dev) for name in store.fields]
        return [(one.ids.tolist(), one.ends.tolist()) for one in stores], prepared.labels

    return use


def use_of_log(path):
    return lambda: read_metrics(path)


def attack_run(path, count, seed):
    """Attack a run folder: what loading reads, its token ids, and its log."""
    attack = Attack(seed)
    [home] = (path / "data").iterdir()
    data = [one for one in home.rglob("*") if one.is_file()]
    log = [path / "metrics.jsonl"]
    mine = (".lock", "curves.svg", *(one.name for one in log))
    loaded = [one for one in path.rglob("*") if one.is_file() and one not in data and one.name not in mine]
    loaded = [one for one in loaded if one.parent.name != "film"]  # loading the best weights does not read the film
    aims = [(loaded, use_of(path), 12), (data, use_of_data(home), 7), (log, use_of_log(log[0]), 1)]
    aims = [(files, use, use(), share) for files, use, share in aims]
    for _ in range(count):
        files, use, expected, _ = attack.draw.choices(aims, [share for *_, share in aims])[0]
        attack(files, use, expected, sealed=lambda file: file not in log)
    assert aims[0][1]() == aims[0][2]
    return attack


def tiny_trace(path):
    """Save a trace."""
    torch.manual_seed(0)
    model = presets.classic(9, size=small_runs.SIZE)
    changes = [ch.Edit(at="decoder.0.cross", step="context", head=1, times=0.0)]
    trace_model(model.build().eval(), torch.tensor([[1, 2, 3]]), torch.tensor([[4, 5]]), changes=changes).save(path)
    return path


def attack_trace(path, count, seed):
    """Attack a saved trace: the JSON in its header as often as its bytes."""
    attack = Attack(seed)

    def use():
        trace = ch.Trace.load(path)
        weights = [head.weight.tolist() for site in trace.sites.values() for head in site.head]
        return trace.kind, trace.notes, trace.sides, trace.candidates, weights, repr(trace)

    expected = use()
    for _ in range(count):
        damage = change_header(attack, path) if attack.draw.random() < 0.5 else None
        attack([path], use, expected, sealed=lambda file: True, damage=damage)
    assert use() == expected
    return attack


def change_header(attack, path):
    """Change the JSON in a trace's header, and return the file; with a new seal half the time, as a stranger would."""
    told, tensors = load_tensors(path, header=HEADER)
    changed, how = change_json(json.dumps(told).encode(), attack.draw)
    beside = path.with_suffix(".changed")
    with contextlib.suppress(ValueError, AttributeError, RecursionError):  # what is no JSON object is no header
        save_tensors(beside, tensors, json.loads(changed), header=HEADER)
        return beside.read_bytes(), how
    return change(path.read_bytes(), attack.draw)


def attack_all(count, seed, folder, tasks=("translate", "classify")):
    """Attack runs and a trace; return all attacks by target."""
    share = count // (len(tasks) + 1)
    made = {f"a run to {task}": attack_run(tiny_run(folder, task), share, seed + i) for i, task in enumerate(tasks)}
    return made | {"a trace": attack_trace(tiny_trace(folder / "a.trace"), share, seed + 12)}


if __name__ == "__main__":
    torch.set_num_threads(1)
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as home:
        made = attack_all(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 13, Path(home))
    for name, one in made.items():
        print(name, dict(one.counts))
        for line, times in Counter(one.faults).most_common(12):
            print(f"  {times}x {line}")
    print(f"{time.perf_counter() - begun:.0f} s")
    sys.exit(any(one.faults for one in made.values()))
