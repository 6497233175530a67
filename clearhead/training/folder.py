"""A run folder: what lies where, and that only one process writes to it."""

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from clearhead.errors import RunError
from clearhead.model.saved import spec_from_json, spec_to_json
from clearhead.model.sizes import Spec
from clearhead.text.preparing import Prepared
from clearhead.text.tokenizer import Tokenizer
from clearhead.training.checkpoints import Checkpoints, write_text, writing
from clearhead.training.recipe import Recipe, read_recipe, write_recipe
from clearhead.training.tasks import TASKS, Task

__all__ = ["RunFolder"]


@final
@dataclass(frozen=True)
class RunFolder:
    """Where the things of a run are. Everything to use it, resume it or look into it is inside."""

    path: Path

    @property
    def recipe_file(self) -> Path:
        return self.path / "recipe.json"

    @property
    def model_file(self) -> Path:
        return self.path / "model.json"

    @property
    def data(self) -> Path:
        return self.path / "data"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def curves(self) -> Path:
        return self.path / "curves.svg"

    @property
    def evaluation(self) -> Path:
        return self.path / "evaluation.json"

    @property
    def checkpoints(self) -> Checkpoints:
        return Checkpoints(self.path / "checkpoints")

    def exists(self) -> bool:
        return self.recipe_file.exists()

    def recipe(self) -> Recipe:
        return read_recipe(self.recipe_file)

    def begin(self, recipe: Recipe) -> None:
        write_recipe(recipe, self.recipe_file)

    def describe(self, spec: Spec, task: Task, prepared: Prepared) -> None:
        """Writes what a use of the model needs beside its weights."""
        files = dict(prepared.notes["tokenizers"])
        told = {
            "task": task.name,
            "context": task.context,
            "tokenizers": files,
            "labels": list(task.labels),
            "documents": len(prepared.train) if task.name == "generate" else None,
            "data": prepared.train.folder.parent.name,
            "spec": spec_to_json(spec),
        }
        with writing(self.path):
            for field, file in files.items():
                prepared.tokenizers[field].save(self.path / file)
            write_text(self.model_file, json.dumps(told, indent=1, ensure_ascii=False) + "\n")

    def described(self) -> dict[str, Any]:
        try:
            return json.loads(self.model_file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise RunError(f"{self.path}: there is no model yet; train it, or go on with --resume") from None
        except (OSError, ValueError) as error:
            raise RunError(f"{self.model_file}: cannot be read ({error})") from None

    def task(self) -> Task:
        told = self.described()
        loaded = {file: Tokenizer.load(self.path / file) for file in set(told["tokenizers"].values())}
        return TASKS[told["task"]](
            tokenizers={field: loaded[file] for field, file in told["tokenizers"].items()},
            context=told["context"],
            labels=tuple(told["labels"]),
        )

    def spec(self) -> Spec:
        told = self.described()
        return spec_from_json(told["spec"], where=f"{self.model_file}: spec", old="format" not in told)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the folder for this process. The lock goes with the process, however it ends."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise RunError(f"{self.path}: cannot be written to ({error.strerror}); choose another folder") from None
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                number = os.read(handle, 32).decode(errors="replace")
                holder = f"process {number}" if number else "another process"
                raise RunError(f"{self.path}: is in use by {holder}; wait for it, or choose another folder") from None
            os.truncate(handle, 0)
            os.pwrite(handle, str(os.getpid()).encode(), 0)
            yield
        finally:
            os.close(handle)
