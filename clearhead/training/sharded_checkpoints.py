"""Save and restore what several processes have: whole weights by the first of them, shards by torch's Distributed
Checkpoint.

Each process writes its shards as safetensors into the checkpoint's partial folder, while training goes on; the first
one then joins them, one tensor at a time, into the same two files that a single process writes, seals them and renames
the folder. A kill at any moment leaves what a kill of a single process leaves: the checkpoints before, and a partial
folder that the next save removes. Distributed Checkpoint's own metadata, which is pickled, is neither written nor read.
"""

import json
import os
import shutil
import struct
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from torch import Tensor

from clearhead.errors import RunError
from clearhead.files import flush
from clearhead.training import checkpoints as writing
from clearhead.training.checkpoints import MODEL, TRAINING, Checkpoint, Checkpoints, copy_into
from clearhead.training.distributed import Processes, new_gloo_group

SHARDS = "sharded"
"""Where Distributed Checkpoint puts shards, in the folder it is given."""
JOINED = {MODEL: "model-00001-of-00002.safetensors", TRAINING: "model-00002-of-00002.safetensors"}
"""What it calls the two files that it joins them into."""


class Saved(NamedTuple):
    """A checkpoint that is whole, and the state in it."""

    step: int
    state: Mapping[str, Any]


class Saver(ABC):
    """A way to save checkpoints, called by all processes in the same order."""

    def __init__(self, checkpoints: Checkpoints) -> None:
        self.checkpoints = checkpoints
        self.finished: Saved | None = None

    @abstractmethod
    def save(
        self, step: int, model: Mapping[str, Tensor], training: Mapping[str, Tensor], state: Mapping[str, Any]
    ) -> None:
        """Save a checkpoint, or begin to."""

    def wait(self) -> None:
        """Wait until all that was begun is whole; RunError if it could not be written."""
        return

    def take_finished(self) -> Saved | None:
        """Return the checkpoint that has become whole since the last call, None if none has."""
        finished, self.finished = self.finished, None
        return finished


class WholeSaver(Saver):
    """Every process has all weights, and the first one writes them."""

    def __init__(self, checkpoints: Checkpoints, processes: Processes) -> None:
        super().__init__(checkpoints)
        self.processes = processes

    def save(
        self, step: int, model: Mapping[str, Tensor], training: Mapping[str, Tensor], state: Mapping[str, Any]
    ) -> None:
        if self.processes.is_first:
            self.checkpoints.save(step, model, training, state)
            self.finished = Saved(step, state)
        self.processes.wait()  # for a disk that is slow; elsewhere they wait for each other no longer than in a step


class ShardedSaver(Saver):
    """Every process writes its shards in the background, and the first one joins them there."""

    def __init__(self, checkpoints: Checkpoints, processes: Processes) -> None:
        super().__init__(checkpoints)
        self.processes = processes
        self.group = new_gloo_group()
        self.pending: Future[Saved] | None = None

    def save(
        self, step: int, model: Mapping[str, Tensor], training: Mapping[str, Tensor], state: Mapping[str, Any]
    ) -> None:
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
        from torch.distributed.checkpoint.state_dict_saver import async_save

        self.wait()
        if duplicates := model.keys() & training.keys():
            raise RunError(f"{sorted(duplicates)[0]}: a weight has the name of another tensor of a checkpoint")
        everything = {**model, **training}
        if self.processes.is_first:
            with self.checkpoints.writing(step) as partial:
                (partial / SHARDS).mkdir()
        self.processes.wait()
        # Tensors that are not sharded are the first process's. A number alone is written as a row of one: Distributed
        # Checkpoint (torch 2.13) loses those without an axis when it joins shards.
        mine = {
            name: tensor.detach().reshape(1) if tensor.ndim == 0 else tensor.detach()
            for name, tensor in everything.items()
            if hasattr(tensor, "to_local") or self.processes.is_first
        }
        writer = HuggingFaceStorageWriter(
            str(self.checkpoints.partial(step)),
            fqn_to_index_mapping={name: 1 if name in model else 2 for name in everything},
            save_distributed=True,
            enable_consolidation=True,
        )
        response = async_save(mine, storage_writer=writer, process_group=self.group)
        upload = getattr(response, "upload_completion", response)
        self.pending = Future()
        scalars = {name for name, tensor in everything.items() if tensor.ndim == 0}
        threading.Thread(
            target=self.follow, args=(upload, self.pending, Saved(step, dict(state)), scalars), daemon=True
        ).start()

    def follow(self, upload: Future[Any], completed: Future[Saved], saved: Saved, scalars: set[str]) -> None:
        """Wait, in a thread, until the shards are joined; then the first process seals the checkpoint."""
        try:
            upload.result()
            if self.processes.is_first:
                with self.checkpoints.writing(saved.step, begun=True) as partial:
                    for name, joined in JOINED.items():
                        writing.between_writes(name)
                        fix_scalars(partial / joined, scalars)
                        os.replace(partial / joined, partial / name)
                        flush(partial / name)
                    for leftover in partial.iterdir():
                        if leftover.name not in JOINED:
                            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
                    self.checkpoints.finish(saved.step, saved.state)
            completed.set_result(saved)
        except BaseException as error:  # in a thread: whoever waits for the result is given it
            completed.set_exception(error)

    def take_finished(self) -> Saved | None:
        if self.pending is not None and self.pending.done():
            self.wait()
        return super().take_finished()

    def wait(self) -> None:
        if self.pending is None:
            return
        pending, self.pending = self.pending, None
        try:
            self.finished = pending.result()
        except (RunError, KeyboardInterrupt):
            raise
        except BaseException as error:  # torch's CheckpointException is one
            raise RunError(
                f"{self.checkpoints.folder}: a checkpoint could not be written ({root_of(error)}). Those before it are "
                "as they were; go on with --resume"
            ) from error


def root_of(error: BaseException) -> str:
    """Return the first line of what Distributed Checkpoint has wrapped."""
    failures = getattr(error, "failures", None)
    if failures:
        error = next(iter(failures.values()))[0]
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def fix_scalars(path: Path, scalars: set[str]) -> None:
    """Give tensors of a safetensors file that are numbers alone their shape back, in its header."""
    with path.open("r+b") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
        for name in scalars & header.keys():
            header[name]["shape"] = []
        text = json.dumps(header).encode().ljust(size)
        assert len(text) == size
        file.seek(8)
        file.write(text)


def restore_tensors(tensors: Mapping[str, Tensor], checkpoint: Checkpoint) -> None:
    """Copy a checkpoint's tensors into existing ones; of those that are sharded, each process reads its own part.

    The checksum is looked at by the first process, when it looks for the checkpoint.
    """
    sharded = {name: tensor for name, tensor in tensors.items() if hasattr(tensor, "to_local")}
    where = str(checkpoint.folder)
    if not sharded:
        copy_into(tensors, checkpoint.training(), where)
        return
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    with safe_open(checkpoint.folder / TRAINING, framework="pt") as file:
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        fits = {name: torch.empty(shapes[name], device="meta") for name in shapes}
        check_same(tensors, fits, where)
        unsharded = {name: tensor for name, tensor in tensors.items() if name not in sharded}
        copy_into(unsharded, {name: file.get_tensor(name) for name in unsharded}, where)
    load(dict(sharded), storage_reader=HuggingFaceStorageReader(where))


def check_same(tensors: Mapping[str, Tensor], saved: Mapping[str, Tensor], where: str) -> None:
    """Raise RunError where names or shapes differ."""
    copy_into({name: torch.empty(tensor.shape, device="meta") for name, tensor in tensors.items()}, saved, where)
