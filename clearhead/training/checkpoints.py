"""Checkpoints: folders that are there whole or not at all. Safetensors and JSON, a checksum for every file.

A checkpoint is written under another name, every file and the folder flushed to disk, and renamed. What a crash leaves
half-written has the other name, and is removed by the next one.
"""

import contextlib
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
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from clearhead.errors import RunError

__all__ = ["Checkpoint", "Checkpoints", "copy_into", "named_tensors", "write_text", "writing"]

NAME = re.compile(r"step-(\d+)")
MODEL, TRAINING, STATE = "model.safetensors", "training.safetensors", "state.json"
Hook = Callable[[str], None]


def nothing(stage: str) -> None:
    """What a hook does unless a test puts another in its place."""


between_writes: Hook = nothing
"""Called with the name of each stage of writing: a test slows it down, to be killed in the middle."""


@final
@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """One on disk. `state` is its JSON: the step, the scores, where the log was."""

    folder: Path
    step: int
    state: Mapping[str, Any]

    def model(self) -> dict[str, Tensor]:
        """The weights to use."""
        return self.load(MODEL)

    def training(self) -> dict[str, Tensor]:
        """The weights in training, and what the optimiser and the average hold."""
        return self.load(TRAINING)

    def load(self, name: str) -> dict[str, Tensor]:
        path = self.folder / name
        try:
            if sha256(path) != self.state["sha256"][name]:
                raise RunError(f"{path}: its checksum is wrong, so it was changed or cut off since it was written")
            return load_file(path)
        except (OSError, SafetensorError) as error:
            raise RunError(f"{path}: cannot be read ({error})") from None

    def broken(self) -> str | None:
        """What is wrong with it, if anything is."""
        for name in (STATE, MODEL, TRAINING):
            path = self.folder / name
            try:
                found = state_sum(self.state) if name == STATE else sha256(path)
            except OSError as error:
                return f"{path}: cannot be read ({error.strerror})"
            if found != self.state["sha256"].get(name):
                return f"{path} was changed or cut off since it was written"
        return None


@final
class Checkpoints:
    """The checkpoints of a run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(
        self, step: int, model: Mapping[str, Tensor], training: Mapping[str, Tensor], state: Mapping[str, Any]
    ) -> None:
        """Writes one. Where it cannot, the ones before it are as they were."""
        final = self.folder / f"step-{step:08d}"
        partial = self.folder / f".{final.name}.partial"
        try:
            self.clean()
            partial.mkdir(parents=True)
            for name, tensors in ((MODEL, model), (TRAINING, training)):
                between_writes(name)
                save_file({key: one.detach().cpu().contiguous() for key, one in tensors.items()}, partial / name)
                flush(partial / name)
            between_writes(STATE)
            told = {**state, "step": step}
            sums = {MODEL: sha256(partial / MODEL), TRAINING: sha256(partial / TRAINING), STATE: state_sum(told)}
            write_flushed(partial / STATE, json.dumps({**told, "sha256": sums}, indent=1))
            flush(partial)
            between_writes("rename")
            shutil.rmtree(final, ignore_errors=True)
            partial.rename(final)
            flush(self.folder)
        except (OSError, SafetensorError) as error:
            shutil.rmtree(partial, ignore_errors=True)
            raise RunError(unwritten(final, error)) from None

    def folders(self) -> list[Path]:
        """Every folder that has the name of a checkpoint, the newest first."""
        found = [path for path in self.folder.glob("step-*") if NAME.fullmatch(path.name)]
        return sorted(found, key=step_of, reverse=True)

    def all(self, told: Callable[[str], None] = nothing) -> list[Checkpoint]:
        """Those there are, the newest first. A folder whose state cannot be read is none, and is told about."""
        found = []
        for path in self.folders():
            try:
                state = json.loads((path / STATE).read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                told(f"{path / STATE}: cannot be read ({error}); the checkpoint is passed over")
                continue
            if isinstance(state, dict) and isinstance(state.get("sha256"), dict):
                found.append(Checkpoint(folder=path, step=step_of(path), state=state))
            else:
                told(f"{path / STATE}: is no state of a checkpoint; the checkpoint is passed over")
        return found

    def newest(self, told: Callable[[str], None] = nothing) -> Checkpoint | None:
        """The newest whole one; those that are not are told about, and passed over."""
        return next(self.whole(told), None)

    def whole(self, told: Callable[[str], None] = nothing) -> Iterator[Checkpoint]:
        for checkpoint in self.all(told):
            wrong = checkpoint.broken()
            if wrong is None:
                yield checkpoint
            else:
                told(f"{wrong}; the checkpoint is passed over")

    def prune(self, keep: int, best: int | None, last: int) -> None:
        """Removes all but the newest `keep` up to step `last`, and the best.

        What lies beyond `last` was passed over when the run went on from before it, and has no log any more.
        """
        steps = [one.step for one in self.all() if one.step <= last]
        for path in self.folders():
            if step_of(path) not in (*steps[:keep], best):
                away = path.with_name(f".{path.name}.partial")
                shutil.rmtree(away, ignore_errors=True)
                with writing(path):
                    path.rename(away)
                shutil.rmtree(away, ignore_errors=True)

    def clean(self) -> None:
        """Removes what a crash has left half-written."""
        for path in self.folder.glob(".step-*.partial"):
            shutil.rmtree(path, ignore_errors=True)


def step_of(folder: Path) -> int:
    return int(folder.name.removeprefix("step-"))


def state_sum(state: Mapping[str, Any]) -> str:
    """The checksum of a state, without its checksums."""
    told = {name: value for name, value in state.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


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


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Within it, a disk that is full or a folder that cannot be written to is told as an error of the run."""
    try:
        yield
    except OSError as error:
        raise RunError(unwritten(path, error)) from None


def unwritten(path: Path, error: Exception) -> str:
    return (
        f"{path}: could not be written ({error}); what was saved before is as it was. "
        "Free some space, or mend the folder's permissions, and go on with --resume"
    )


def write_text(path: Path, text: str) -> None:
    """Written beside and renamed."""
    partial = path.with_name(f".{path.name}.partial")
    write_flushed(partial, text)
    partial.rename(path)


def write_flushed(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    flush(path)


def flush(path: Path) -> None:
    """To the disk itself; a folder's flush makes a rename last."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
