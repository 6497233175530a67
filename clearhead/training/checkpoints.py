"""Checkpoints: folders that are there whole or not at all. Safetensors and JSON, a checksum for every file.

A checkpoint is written under another name, every file and the folder flushed to disk, and renamed. What a crash leaves
half-written has the other name, and is removed by the next one. The folder of all of them has a marker with the run's
id, and so has every checkpoint: what is of another run is neither used nor removed.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from clearhead.errors import RunError
from clearhead.files import (
    flush,
    os_errors_as_run_errors,
    parse_json,
    read_bytes,
    read_sealed,
    set_aside,
    sha256_of_file,
    write_sealed,
)

__all__ = ["Checkpoint", "Checkpoints", "copy_into", "named_tensors"]

NAME, HALF = re.compile(r"step-(\d{1,18})"), re.compile(r"\.step-\d+(\.old)?\.partial")
MODEL, TRAINING, STATE = "model.safetensors", "training.safetensors", "state.json"
MARKER = "run.json"
"""The file that says of which run a folder of checkpoints is. A disk that is not mounted has none."""
FIELDS: Mapping[str, tuple[type, ...]] = {
    "step": (int,),
    "seconds": (float, int),
    "tokens": (int,),
    "places": (int,),
    "metrics_size": (int,),
    "best": (dict, type(None)),
    "since_best": (int,),
    "finished": (bool,),
}
"""What every state holds, since the first version."""
WEIGHTS = ("model.", "average.")
"""How the weights in `training.safetensors` are named; the rest is the optimiser's."""
Hook = Callable[[str], None]


def nothing(stage: str) -> None:
    """What a hook does unless a test puts another in its place."""


between_writes: Hook = nothing
"""Called with the name of each stage of writing: a test slows it down, to be killed in the middle."""


@final
@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """One checkpoint on disk. `state` is its JSON: the step, the scores, where the log was; `sums` are of its files."""

    folder: Path
    step: int
    state: Mapping[str, Any]
    sums: Mapping[str, str]

    def model(self) -> dict[str, Tensor]:
        """Load the weights to use; RunError where they are not as they were written, or are no numbers."""
        return self.load(MODEL)

    def training(self) -> dict[str, Tensor]:
        """Load the weights in training, and what the optimiser and the average hold."""
        return self.load(TRAINING)

    def load(self, name: str) -> dict[str, Tensor]:
        path = self.folder / name
        try:
            if sha256_of_file(path) != self.sums[name]:
                raise RunError(f"{path}: its checksum is wrong, so it was changed or cut off since it was written")
        except OSError as error:
            raise RunError(f"{path}: cannot be read ({error})") from None
        try:
            found = load_file(path)
        except (OSError, SafetensorError, RuntimeError) as error:  # torch's own for a file that is removed meanwhile
            raise RunError(f"{path}: cannot be read ({error})") from None
        for key, one in found.items():
            check_finite(path, key, one)
        return found

    def broken(self) -> str | None:
        """Return what is wrong with its tensors, if anything is."""
        for name in (MODEL, TRAINING):
            path = self.folder / name
            try:
                if sha256_of_file(path) != self.sums[name]:
                    return f"{path} was changed or cut off since it was written"
                with safe_open(path, framework="pt") as file:
                    for key in file.keys():  # noqa: SIM118 (it is no dictionary)
                        check_finite(path, key, file.get_tensor(key))
            except OSError as error:
                return f"{path}: cannot be read ({error.strerror or error})"
            except SafetensorError as error:
                return f"{path}: cannot be read ({error})"
            except RunError as error:
                return str(error)
        return None


def check_finite(path: Path, name: str, one: Tensor) -> None:
    """Raise RunError for weights that are no numbers. The optimiser's own numbers may be anything."""
    is_weight = path.name == MODEL or name.startswith(WEIGHTS)
    if is_weight and one.is_floating_point() and not one.isfinite().all():
        raise RunError(f"{path}: {name} has values that are no numbers (NaN or infinite)")


@final
class Checkpoints:
    """The checkpoints of a run in their folder.

    `run` is the run's id, None for a run from before there were ids; `model` is the checksum of its model.json.
    """

    def __init__(self, folder: Path, *, run: str | None = None, model: str | None = None) -> None:
        self.folder, self.run, self.model = folder, run, model

    def create(self, *, adopt: bool = False) -> None:
        """Make the folder and mark it as this run's. What is there must be empty, or of this run.

        `adopt`: what an earlier version saved here has no run's id, and is written down as this run's.
        """
        adopted: dict[str, str] = {}
        with os_errors_as_run_errors(self.folder):
            self.folder.mkdir(exist_ok=True)
            check_no_link(self.folder)
            if adopt:
                if (self.folder / MARKER).exists() and "adopted" not in read_sealed(self.folder / MARKER):
                    raise self.unreachable(f"its {MARKER} is of another run")
                there = [one.folder for one in Checkpoints(self.folder).all()]
                adopted = {path.name: sha256_of_file(path / STATE) for path in there}
            elif (self.folder / MARKER).exists():
                self.marker()
                return
            elif others := [name for name in os.listdir(self.folder) if not name.startswith(".")]:
                raise RunError(
                    f"{self.folder}: holds {', '.join(sorted(others)[:3])}, and is not the folder of this run's "
                    "checkpoints; nothing was touched. Choose an empty folder, or a new one"
                )
            write_sealed(self.folder / MARKER, {"run": self.run, **({"adopted": adopted} if adopt else {})})

    def marker(self) -> dict[str, Any]:
        """Read the marker; RunError where this is not the folder that the run saved to."""
        try:
            found = read_sealed(self.folder / MARKER)
        except FileNotFoundError:
            why = "it is empty, or another folder" if self.folder.is_dir() else "there is no such folder"
            raise self.unreachable(why) from None
        if found.get("run") != self.run:
            raise self.unreachable(f"its {MARKER} is of another run")
        adopted = found.get("adopted", {})
        return {**found, "adopted": adopted if isinstance(adopted, dict) else {}}

    def unreachable(self, why: str) -> RunError:
        return RunError(
            f"{self.folder}: the checkpoints of this run cannot be reached there ({why}): a disk that is not mounted, "
            "or a folder that was moved or may not be read? Put it back as it was; nothing was changed. Where the "
            "folder is elsewhere now, go on with --resume --checkpoints FOLDER"
        )

    def save(
        self, step: int, model: Mapping[str, Tensor], training: Mapping[str, Tensor], state: Mapping[str, Any]
    ) -> None:
        """Write one. Where it cannot be written, the ones before it are as they were."""
        final = self.folder / f"step-{step:08d}"
        partial = self.folder / f".{final.name}.partial"
        self.marker()
        try:
            with os_errors_as_run_errors(final):
                self.clean()
                partial.mkdir()
                for name, tensors in ((MODEL, model), (TRAINING, training)):
                    between_writes(name)
                    write_tensors(partial / name, tensors)
                between_writes(STATE)
                sums = {name: sha256_of_file(partial / name) for name in (MODEL, TRAINING)}
                bound = {"run": self.run, "model": self.model, "step": step, "files": sums}
                write_sealed(partial / STATE, {**state, **bound})
                flush(partial)
                between_writes("rename")
                self.make_room(final)
                partial.rename(final)
                flush(self.folder)
        except RunError:
            shutil.rmtree(partial, ignore_errors=True)
            raise

    def make_room(self, final: Path) -> None:
        """Remove a checkpoint of this run that is to be saved again; set aside whatever else has its name."""
        if os.path.lexists(final):
            if self.is_own(final):
                remove_folder(final)
            else:
                set_aside(final)

    def folders(self) -> list[Path]:
        """Return every folder that has the name of a checkpoint, the newest first; RunError where it cannot be read.

        Only for a run from before there were ids, a folder that is not there is one where nothing was saved.
        """
        try:
            if self.run is not None:
                self.marker()
            names = os.listdir(self.folder)
        except FileNotFoundError:
            if self.run is None and not os.path.lexists(self.folder):
                return []
            raise self.unreachable("it is a link that leads nowhere") from None
        except OSError as error:
            raise self.unreachable(error.strerror or str(error)) from None
        return sorted((self.folder / name for name in names if NAME.fullmatch(name)), key=step_of, reverse=True)

    def all(self, log: Callable[[str], None] = nothing) -> list[Checkpoint]:
        """Return the checkpoints of this run, the newest first. One that cannot be used is told about, and left out."""
        found = []
        for path in self.folders():
            try:
                found.append(self.read(path))
            except RunError as error:
                log(f"{error}; the checkpoint is passed over")
        return found

    def at(self, step: int) -> Checkpoint | None:
        """Return the checkpoint of a step, None if there is none; RunError where there is one that cannot be used."""
        return next((self.read(path) for path in self.folders() if step_of(path) == step), None)

    def read(self, path: Path) -> Checkpoint:
        """Read the state of a checkpoint; RunError where it is damaged, or not of this run and its model."""
        if path.is_symlink():
            raise RunError(f"{path}: is a link, and checkpoints are not read through links")
        state = read_state(path)
        if "format" in state and state.get("run") != self.run:
            raise RunError(f"{path}: is a checkpoint of another run ({str(state.get('run'))[:40]})")
        if "format" not in state and self.run is not None and not self.is_own(path):
            raise RunError(f"{path}: is a checkpoint without a run's id, which this run did not save")
        if "format" in state and self.model is not None and state.get("model") != self.model:
            raise RunError(f"{path}: was saved with another model.json than the one that is there now")
        if state["step"] != step_of(path):
            raise RunError(f"{path}: holds step {state['step']}, so the folder was renamed")
        sums = state["files"] if "format" in state else state["sha256"]
        return Checkpoint(folder=path, step=step_of(path), state=state, sums=sums)

    def is_own(self, path: Path) -> bool:
        """Whether this run saved it, damaged or not: the state has its id, or the marker has the state's checksum."""
        try:
            found = parse_json(read_bytes(path / STATE))
            if path.is_symlink() or not isinstance(found, dict):
                return False
            if "format" in found or self.run is None:
                return found.get("run") == self.run
            return self.marker()["adopted"].get(path.name) == sha256_of_file(path / STATE)
        except (OSError, ValueError):
            return False

    def newest(self, log: Callable[[str], None] = nothing) -> Checkpoint | None:
        """Return the newest whole one; those that are not are told about, and passed over."""
        return next(self.whole(log), None)

    def whole(self, log: Callable[[str], None] = nothing) -> Iterator[Checkpoint]:
        for checkpoint in self.all(log):
            wrong = checkpoint.broken()
            if wrong is None:
                yield checkpoint
            else:
                log(f"{wrong}; the checkpoint is passed over")

    def prune(self, keep: int, best: int | None, last: int) -> None:
        """Remove all that this run saved but the newest `keep` up to step `last`, and the best.

        What lies beyond `last` was passed over when the run went on from before it, and has no log any more. What this
        run did not save, or cannot be known by, stays.
        """
        steps = [one.step for one in self.all() if one.step <= last]
        for path in self.folders():
            if step_of(path) not in (*steps[:keep], best) and self.is_own(path):
                with os_errors_as_run_errors(path):
                    remove_folder(path)

    def clean(self) -> None:
        """Remove what a crash has left half-written."""
        for name in os.listdir(self.folder):
            if HALF.fullmatch(name):
                path = self.folder / name
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors to a file and flush it to the disk; OSError where that cannot be."""
    try:
        save_file({name: one.detach().cpu().contiguous() for name, one in tensors.items()}, path)
    except SafetensorError as error:
        raise OSError(str(error)) from None
    flush(path)


def step_of(folder: Path) -> int:
    return int(folder.name.removeprefix("step-"))


def check_no_link(folder: Path) -> None:
    if folder.is_symlink():
        raise RunError(
            f"{folder}: is a link, and nothing is written through links. Checkpoints on another disk are asked for by "
            f"an option: --checkpoints {os.path.realpath(folder)}"
        )


def remove_folder(path: Path) -> None:
    """Remove a checkpoint: renamed first, so that a kill in between leaves none that is half there."""
    away = path.with_name(f".{path.name}.old.partial")
    shutil.rmtree(away, ignore_errors=True)
    path.rename(away)
    shutil.rmtree(away, ignore_errors=True)


def read_state(path: Path) -> dict[str, Any]:
    """Read and check a state.json, of this format or of the first, whose checksums were by file."""
    file = path / STATE
    try:
        state = read_sealed(file)
    except FileNotFoundError:
        raise RunError(f"{file}: cannot be read (No such file or directory)") from None
    sums = state.get("files" if "format" in state else "sha256")
    if not isinstance(sums, dict) or not all(isinstance(sums.get(name), str) for name in (MODEL, TRAINING)):
        raise RunError(f"{file}: is no state of a checkpoint: it has no checksums of its files")
    if "format" not in state and sums.get(STATE) != state_sum(state):
        raise RunError(f"{file} was changed or cut off since it was written")
    for name, kinds in FIELDS.items():
        if name not in state:
            raise RunError(f"{file}: is no state of a checkpoint: it has no {name!r}")
        if type(state[name]) not in kinds:
            raise RunError(f"{file}: is no state of a checkpoint: {name!r} is {str(state[name])[:40]!r}")
    best = state["best"]
    if best is not None and not all(type(best.get(name)) in (int, float) for name in ("step", "score")):
        raise RunError(f"{file}: is no state of a checkpoint: 'best' is {str(best)[:60]!r}")
    return state


def state_sum(state: Mapping[str, Any]) -> str:
    """Return the checksum of a state of the first format, without its checksums."""
    rest = {name: value for name, value in state.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Every tensor of a model once: a table that is tied has the first of its names."""
    found: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, one in model.state_dict(keep_vars=True).items():
        if id(one) not in seen:
            seen.add(id(one))
            found[name] = one
    return found


@torch.no_grad()
def copy_into(tensors: Mapping[str, Tensor], saved: Mapping[str, Tensor], where: str) -> None:
    """Copies saved values into tensors that are there: where they lie in memory has a say in the last bits of a sum."""
    if tensors.keys() != saved.keys():
        odd = sorted(tensors.keys() ^ saved.keys())
        raise RunError(f"{where}: its tensors are not this model's; they differ in {', '.join(odd[:3])}")
    for name, one in tensors.items():
        if one.shape != saved[name].shape:
            raise RunError(f"{where}: {name} is {tuple(saved[name].shape)} and should be {tuple(one.shape)}")
        one.copy_(saved[name])
