"""Checkpoints: folders that are there whole or not at all. Safetensors and JSON, a checksum for every file.

A checkpoint is written under a temporary name, every file and the folder are flushed to disk, and then it is renamed.
What a crash leaves half-written has the temporary name, and the next save removes it. The folder of checkpoints has a
marker with the run's id, and so has every checkpoint: what belongs to another run is neither used nor removed.
"""

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from clearhead.errors import OptionError, RunError
from clearhead.files import (
    flush,
    os_errors_as_run_errors,
    parse_json,
    read_bytes,
    read_sealed,
    remove_partials,
    set_aside,
    sha256_of_file,
    write_sealed,
)
from clearhead.serialization import check_fields
from clearhead.training.reporting import ignore

NAME, HALF = re.compile(r"step-(\d{1,18})"), re.compile(r"\.step-\d+(\.old)?\.partial")
MODEL, TRAINING, STATE = "model.safetensors", "training.safetensors", "state.json"
MARKER = "run.json"
"""The file that names the run whose checkpoints a folder holds. A disk that is not mounted has none."""
STATE_FIELDS: Mapping[str, Any] = {
    "step": int,
    "seconds": float,
    "tokens": int,
    "places": int,
    "metrics_size": int,
    "best": dict | None,
    "since_best": int,
    "finished": bool,
    "step_tokens": int,
    "pacing": dict,
}
"""The fields of a state.json beside its seal and what binds it to the run, and their types."""
PACING_FIELDS: Mapping[str, Any] = {
    "planned": int,
    **dict.fromkeys(("spent", "position", "stride", "step_seconds"), float),
    "over": bool,
    **dict.fromkeys(("preparing", "evaluating", "evaluation"), float),
    "evaluated": int,
    "log_factor": float,
    "sample": int | None,
    "cut": float,
}
"""What a checkpoint keeps of a pacing: the steps of its plan, and attributes."""
UNTRAINED: Mapping[str, Any] = {
    "seconds": 0.0,
    "tokens": 0,
    "places": 0,
    "metrics_size": 0,
    "best": None,
    "since_best": 0,
    "finished": False,
    "step_tokens": 0,
    "pacing": {},
}
"""The state, except its step, of weights that were never trained."""
BEST_FIELDS: Mapping[str, Any] = {"step": int, "score": float}
WEIGHTS = ("model.", "average.")
"""Prefixes of the weights in `training.safetensors`; all other tensors are the optimiser's."""
Hook = Callable[[str], None]


between_writes: Hook = ignore
"""Called with the name of each stage of writing: a test slows it down, to kill the process in between."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A checkpoint on disk. `state` is its JSON: the step, the scores, the size of the log; `sums` are its files'
    checksums.
    """

    folder: Path
    step: int
    state: Mapping[str, Any]
    sums: Mapping[str, str]

    def model(self) -> dict[str, Tensor]:
        """Load the weights to use; RunError if they are not as they were written, or not finite."""
        return dict(self.read_tensors(MODEL))

    def training(self) -> dict[str, Tensor]:
        """Load the weights in training, the optimiser's moments and the average."""
        return dict(self.read_tensors(TRAINING))

    def read_tensors(self, name: str) -> Iterator[tuple[str, Tensor]]:
        """Yield the names and tensors of a file; RunError if it is damaged or its weights are not finite.

        They are read one at a time, so that looking for damage needs the memory of the largest only.
        """
        path = self.folder / name
        try:
            if sha256_of_file(path) != self.sums[name]:
                raise RunError(f"{path}: its checksum is wrong, so it was changed or cut off since it was written")
            with safe_open(path, framework="pt") as file:
                for key in file.keys():  # noqa: SIM118 (it is no dictionary)
                    tensor = file.get_tensor(key)
                    # Only weights: the optimiser's own tensors may hold anything.
                    is_weight = name == MODEL or key.startswith(WEIGHTS)
                    if is_weight and tensor.is_floating_point() and not tensor.isfinite().all():
                        raise RunError(f"{path}: {key} has values that are no numbers (NaN or infinite)")
                    yield key, tensor
        except RunError:
            raise
        except OSError as error:
            raise RunError(f"{path}: cannot be read ({error.strerror or error})") from None
        except (SafetensorError, RuntimeError) as error:  # torch's own for a file that is removed meanwhile
            raise RunError(f"{path}: cannot be read ({error})") from None

    def find_damage(self) -> str | None:
        """Return what is wrong with the files of tensors, None if nothing is."""
        try:
            for name in (MODEL, TRAINING):
                for _ in self.read_tensors(name):
                    pass
        except RunError as error:
            return str(error)
        return None


class Checkpoints:
    """The checkpoints of a run in their folder.

    `run` is the run's id; `model` is the checksum of its model.json, None if there is none yet.
    """

    def __init__(self, folder: Path, *, run: str | None, model: str | None = None) -> None:
        self.folder, self.run, self.model = folder, run, model

    def create(self) -> None:
        """Make the folder and mark it as this run's; RunError if it holds anything else."""
        with os_errors_as_run_errors(self.folder):
            self.folder.mkdir(exist_ok=True)
            check_no_link(self.folder)
            if not self.is_marked():
                write_sealed(self.folder / MARKER, {"run": self.run})

    def is_marked(self) -> bool:
        """Return whether the folder is marked as this run's; RunError if it holds anything else."""
        if (self.folder / MARKER).exists():
            self.check_marker()
            return True
        names = os.listdir(self.folder) if self.folder.exists() else []
        if foreign := [name for name in names if not name.startswith(".")]:
            raise RunError(
                f"{self.folder}: holds {', '.join(sorted(foreign)[:3])}, and is not the folder of this run's "
                "checkpoints; nothing was touched. Choose an empty folder, or a new one"
            )
        return False

    def check_marker(self) -> None:
        """Raise RunError if this is not the folder that the run saved to."""
        try:
            content = read_sealed(self.folder / MARKER)
        except FileNotFoundError:
            reason = "it is empty, or another folder" if self.folder.is_dir() else "there is no such folder"
            raise self.unreachable_error(reason) from None
        if content.get("run") != self.run:
            raise self.unreachable_error(f"its {MARKER} is of another run")

    def unreachable_error(self, reason: str) -> RunError:
        return RunError(
            f"{self.folder}: the checkpoints of this run cannot be reached there ({reason}): a disk that is not "
            "mounted, or a folder that was moved or may not be read? Put it back as it was; nothing was changed. Where "
            "the folder is elsewhere now, go on with --resume --checkpoints FOLDER"
        )

    def save(
        self, step: int, model: Mapping[str, Tensor], training: Mapping[str, Tensor], state: Mapping[str, Any]
    ) -> None:
        """Write a checkpoint. Where that fails, the checkpoints before it are as they were."""
        with self.writing(step) as partial:
            for name, tensors in ((MODEL, model), (TRAINING, training)):
                between_writes(name)
                write_tensors(partial / name, tensors)
            self.finish(step, state)

    def partial(self, step: int) -> Path:
        """Return the folder that a checkpoint is written into until it is whole."""
        return self.folder / f".step-{step:08d}.partial"

    @contextlib.contextmanager
    def writing(self, step: int, *, begun: bool = False) -> Iterator[Path]:
        """Make the partial folder of a checkpoint, unless it was begun before; remove it where writing fails."""
        partial = self.partial(step)
        try:
            with os_errors_as_run_errors(self.folder / f"step-{step:08d}"):
                if not begun:
                    self.check_marker()
                    self.clean()
                    partial.mkdir()
                yield partial
        except RunError:
            shutil.rmtree(partial, ignore_errors=True)
            raise

    def finish(self, step: int, state: Mapping[str, Any]) -> None:
        """Seal a checkpoint whose tensors are all in its partial folder, and give it its name; OSError on failure."""
        final, partial = self.folder / f"step-{step:08d}", self.partial(step)
        between_writes(STATE)
        sums = {name: sha256_of_file(partial / name) for name in (MODEL, TRAINING)}
        bound = {"run": self.run, "model": self.model, "step": step, "files": sums}
        write_sealed(partial / STATE, {**state, **bound})
        flush(partial)
        between_writes("rename")
        self.make_room(final)
        partial.rename(final)
        flush(self.folder)

    def make_room(self, final: Path) -> None:
        """Remove this run's checkpoint of the same step; set aside whatever else has its name."""
        if os.path.lexists(final):
            if self.is_own(final):
                remove_folder(final)
            else:
                set_aside(final)

    def folders(self) -> list[Path]:
        """Return the folders named like checkpoints, the newest first; RunError if they cannot be listed."""
        self.check_marker()
        try:
            names = os.listdir(self.folder)
        except OSError as error:
            raise self.unreachable_error(error.strerror or str(error)) from None
        return sorted((self.folder / name for name in names if NAME.fullmatch(name)), key=step_of, reverse=True)

    def all(self, log: Callable[[str], None] = ignore) -> list[Checkpoint]:
        """Return the checkpoints of this run, the newest first; those that cannot be used are logged and left out."""
        checkpoints = []
        for path in self.folders():
            try:
                checkpoints.append(self.read(path))
            except RunError as error:
                log(f"{error}; the checkpoint is passed over")
        return checkpoints

    def at(self, step: int) -> Checkpoint | None:
        """Return the checkpoint of a step, None if there is none; RunError if it cannot be used."""
        return next((self.read(path) for path in self.folders() if step_of(path) == step), None)

    def read(self, path: Path) -> Checkpoint:
        """Read the state of a checkpoint; RunError if it is damaged, or not of this run and its model."""
        if path.is_symlink():
            raise RunError(f"{path}: is a link, and checkpoints are not read through links")
        state = read_state(path)
        if state.get("run") != self.run:
            raise RunError(f"{path}: is a checkpoint of another run ({str(state.get('run'))[:40]})")
        if self.model is not None and state.get("model") != self.model:
            raise RunError(f"{path}: was saved with another model.json than the one that is there now")
        if state["step"] != step_of(path):
            raise RunError(f"{path}: holds step {state['step']}, so the folder was renamed")
        return Checkpoint(folder=path, step=step_of(path), state=state, sums=state["files"])

    def is_own(self, path: Path) -> bool:
        """Return whether this run saved it, damaged or not: the state has the run's id."""
        try:
            state = parse_json(read_bytes(path / STATE))
            return not path.is_symlink() and isinstance(state, dict) and state.get("run") == self.run
        except (OSError, ValueError):
            return False

    def newest(self, log: Callable[[str], None] = ignore) -> Checkpoint | None:
        """Return the newest whole checkpoint, None if there is none; damaged ones are logged and passed over."""
        return next(self.intact(log), None)

    def intact(self, log: Callable[[str], None] = ignore) -> Iterator[Checkpoint]:
        for checkpoint in self.all(log):
            wrong = checkpoint.find_damage()
            if wrong is None:
                yield checkpoint
            else:
                log(f"{wrong}; the checkpoint is passed over")

    def prune(self, keep: int, best: int | None, last: int) -> None:
        """Remove all that this run saved but the newest `keep` up to step `last`, and the best.

        Checkpoints beyond `last` were passed over by a resume from an earlier one, and their log lines are gone. What
        this run cannot be shown to have saved stays.
        """
        steps = [checkpoint.step for checkpoint in self.all() if checkpoint.step <= last]
        for path in self.folders():
            if step_of(path) not in (*steps[:keep], best) and self.is_own(path):
                with os_errors_as_run_errors(path):
                    remove_folder(path)

    def clean(self) -> None:
        """Remove what a crash has left half-written."""
        remove_partials(self.folder, re.escape(MARKER))
        for name in os.listdir(self.folder):
            if HALF.fullmatch(name):
                path = self.folder / name
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)


def write_tensors(path: Path, tensors: Mapping[str, Tensor], about: dict[str, str] | None = None) -> None:
    """Write tensors to a file, with metadata `about` them, and flush it to disk; OSError if that fails."""
    try:
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path, metadata=about)
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
    """Remove a checkpoint. It is renamed first, so that a kill in between leaves nothing half there."""
    away = path.with_name(f".{path.name}.old.partial")
    shutil.rmtree(away, ignore_errors=True)
    path.rename(away)
    shutil.rmtree(away, ignore_errors=True)


def read_state(path: Path) -> dict[str, Any]:
    """Read and check a state.json."""
    file = path / STATE
    try:
        state = read_sealed(file)
    except FileNotFoundError:
        raise RunError(f"{file}: cannot be read (No such file or directory)") from None
    sums = state.get("files")
    if not isinstance(sums, dict) or not all(isinstance(sums.get(name), str) for name in (MODEL, TRAINING)):
        raise RunError(f"{file}: is no state of a checkpoint: it has no checksums of its files")
    state_fields = {name: value for name, value in state.items() if name in STATE_FIELDS}
    check_fields(state_fields, STATE_FIELDS, str(file), what="the state of a checkpoint")
    if state["best"] is not None:
        check_fields(state["best"], BEST_FIELDS, f"{file}: best")
    if state["pacing"]:
        check_fields(state["pacing"], PACING_FIELDS, f"{file}: pacing")
    return state


def saved_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Return the buffers of a model that checkpoints hold, by name."""
    held = model.state_dict(keep_vars=True)
    return {name: one for name, one in model.named_buffers() if name in held}


def check_buffers(model: nn.Module) -> None:
    """Raise OptionError if a buffer is not finite before training: no checkpoint with it could be read."""
    for name, one in saved_buffers(model).items():
        if one.is_floating_point() and not one.isfinite().all():
            raise OptionError(
                f"{name} has values that are no numbers (NaN or infinite), and checkpoints hold finite ones alone. "
                "Where it is a constant, such as a mask of -inf, write register_buffer(..., persistent=False)"
            )


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return every tensor of a model once, by name; a tied table has the first of its names."""
    tensors: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            tensors[name] = tensor
    return tensors


@torch.no_grad()
def copy_into(tensors: Mapping[str, Tensor], saved: Mapping[str, Tensor], where: str) -> None:
    """Copy saved values into existing tensors. Their memory stays: its alignment can change the last bits of a sum."""
    if tensors.keys() != saved.keys():
        odd = sorted(tensors.keys() ^ saved.keys())
        raise RunError(f"{where}: its tensors are not this model's; they differ in {', '.join(odd[:3])}")
    for name, tensor in tensors.items():
        if tensor.shape != saved[name].shape:
            raise RunError(f"{where}: {name} is {tuple(saved[name].shape)} and should be {tuple(tensor.shape)}")
        tensor.copy_(saved[name])
