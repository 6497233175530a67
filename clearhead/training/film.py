"""The film of a training: weights at step 0 and at steps 1, 2, 4, 8, … in small files, for the explorer's step slider.

Frames are apart from checkpoints: nothing is resumed from them, and `--keep` does not remove them. Their steps do not
depend on the budget. So a run that is stopped early or goes on for longer has frames that are spread alike, and a
resumed run has those of one that was never stopped: 11 for 600 steps, 12 for 2,000, 18 for 100,000.
"""

import hashlib
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from clearhead import files, serialization
from clearhead.errors import RunError, unreadable
from clearhead.training.checkpoints import write_tensors

NAME = re.compile(r"step-(\d{1,18})\.safetensors")
EXACT = 1_000_000
"""Up to so many numbers a frame holds float32; a larger one bfloat16, whose rounding no picture shows."""
NOMINAL = 16
"""The frames of 32,000 steps: what the size of a film is counted by before it is known how long a run will be."""
MOST_BYTES = 200_000_000
"""The largest film that is made without being asked for: of a model of 6 million parameters."""


def is_frame(step: int) -> bool:
    """Return whether a step has a frame: step 0, and every power of two.

    >>> [step for step in range(100) if is_frame(step)]
    [0, 1, 2, 4, 8, 16, 32, 64]
    """
    return step & (step - 1) == 0


def frame_bytes(count: int) -> int:
    """Return the bytes of a frame of so many numbers.

    >>> frame_bytes(1_000_000), frame_bytes(1_000_001)
    (4000000, 2000002)
    """
    return count * (4 if count <= EXACT else 2)


def is_small(count: int) -> bool:
    """Return whether a film of a model with so many numbers is made without being asked for.

    >>> is_small(6_000_000), is_small(7_000_000)
    (True, False)
    """
    return NOMINAL * frame_bytes(count) <= MOST_BYTES


class Film:
    """The frames of a run in their folder. `run` is the run's id, `model` the checksum of its model.json."""

    def __init__(self, folder: Path, *, run: str | None = None, model: str | None = None) -> None:
        self.folder, self.run, self.model = folder, run, model

    def path(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}.safetensors"

    def write(self, step: int, tensors: Mapping[str, Tensor]) -> None:
        """Write a frame, whole or not at all; OSError if it cannot be written."""
        self.folder.mkdir(exist_ok=True)
        if self.folder.is_symlink():
            raise OSError("it is a link, and nothing is written through links")
        small = shrink(tensors)
        about = {"step": str(step), "run": self.run or "", "model": self.model or "", "sha256": checksum(small)}
        with files.replacing(self.path(step)) as partial:
            write_tensors(partial, small, about)

    def cut(self, last: int) -> None:
        """Remove this run's frames of later steps, which a resume makes again, and what a kill left half-written."""
        if self.folder.is_symlink() or not self.folder.is_dir():
            return
        files.remove_partials(self.folder, NAME.pattern)
        for step in self.steps():
            if step > last:
                self.path(step).unlink(missing_ok=True)

    def steps(self) -> list[int]:
        """Return the steps of this run's frames, in their order; files that are not its frames are left out."""
        try:
            names = [] if self.folder.is_symlink() else os.listdir(self.folder)
        except OSError:  # a run that makes no film has no such folder
            return []
        named_steps = [int(match[1]) for name in names if (match := NAME.fullmatch(name))]
        return sorted(step for step in named_steps if self.has(step))

    def has(self, step: int) -> bool:
        """Return whether there is a frame of this run for a step. Its numbers are not read."""
        path = self.path(step)
        return not path.is_symlink() and path.is_file() and self.find_fault(read_about(path), step) is None

    def find_fault(self, about: Mapping[str, str], step: int) -> str | None:
        """Return why a file with this metadata is no frame of this run and step, None if it is one."""
        if about.get("run") != (self.run or ""):
            return "is of another run"
        if about.get("step") != str(step):
            return f"holds step {about.get('step', '')[:20]}, so it was renamed"
        if self.model is not None and about.get("model") != self.model:
            return "was saved with another model.json than the one that is there now"
        return None

    def load(self, step: int) -> dict[str, Tensor]:
        """Return the weights of a frame in float32; RunError if it is damaged, not this run's, or not finite."""
        path = self.path(step)
        with unreadable(path, SafetensorError, RuntimeError, after=". Remove it: nothing but the film needs it"):
            serialization.check_regular(path)
            with safe_open(path, framework="pt") as file:
                about = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dictionary
        fault = self.find_fault(about, step)
        if fault is None and about.get("sha256") != checksum(tensors):
            fault = "was changed since it was written: its checksum is wrong"
        if fault is not None:
            raise RunError(f"{path}: {fault}. Remove it: nothing but the film needs it")
        return {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}


class FilmCamera:
    """Takes the frames of a run in training. `asked` is the recipe's choice: None is yes for a small model."""

    def __init__(
        self, film: Film, select: Callable[[], dict[str, Tensor]], *, asked: bool | None, log: Callable[[str], None]
    ) -> None:
        self.film, self.select, self.log = film, select, log
        count = sum(tensor.numel() for tensor in select().values())
        self.on = is_small(count) if asked is None else asked

    def begin(self, done: int) -> None:
        """Remove frames beyond the step that training goes on from, and take the first of a new run."""
        if self.on:
            try:
                self.film.cut(done)
            except OSError as error:
                self.log(f"{self.film.folder}: old frames could not be removed ({error}); training goes on")
            if done == 0:
                self.take(0)

    def take(self, step: int) -> None:
        """Write the frame of a step that has one. A full disk is logged, and does not end the training."""
        if not self.on or not is_frame(step):
            return
        tensors = self.select()
        if not all(bool(tensor.isfinite().all()) for tensor in tensors.values() if tensor.is_floating_point()):
            return  # the loop finds out itself that training has diverged
        try:
            self.film.write(step, tensors)
        except OSError as error:
            self.log(f"{self.film.path(step)}: could not be written ({error}); training goes on without this frame")


def shrink(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors as a frame has them: float32 in a small model, else bfloat16; whole numbers stay."""
    exact = sum(tensor.numel() for tensor in tensors.values()) <= EXACT
    dtype = torch.float32 if exact else torch.bfloat16
    return {
        name: (tensor.detach().to(dtype) if tensor.is_floating_point() else tensor.detach()).cpu().contiguous()
        for name, tensor in tensors.items()
    }


def checksum(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of the names and numbers of tensors."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def read_about(path: Path) -> Mapping[str, str]:
    """Return the metadata of a frame; none if the file cannot be read."""
    try:
        with safe_open(path, framework="pt") as file:
            return file.metadata() or {}
    except (OSError, SafetensorError):
        return {}
