"""A run folder: its files, the run they belong to, and the lock that lets only one process write to it."""

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from clearhead.errors import DataError, RunError, errors_as, unreadable
from clearhead.files import (
    is_inside,
    is_plain_name,
    os_errors_as_run_errors,
    read_bytes,
    read_sealed,
    sha256_of_file,
    write_sealed,
    write_text,
)
from clearhead.model.sizes import Spec, spec_from_json, spec_to_json
from clearhead.serialization import check_fields, check_type, from_json, table_of, to_json
from clearhead.text.preparing import Prepared, save_tokenizers
from clearhead.text.templates import ChatTemplate
from clearhead.text.tokenizer import SpecialIds, Tokenizer
from clearhead.training.checkpoints import Checkpoints
from clearhead.training.film import Film
from clearhead.training.folder_lock import Hold, hold_folder
from clearhead.training.recipe import FineTuning, Origin, Recipe, read_origin, read_recipe, write_recipe
from clearhead.training.reporting import read_metrics, to_stderr
from clearhead.training.tasks import OTHERS, TASKS, Task, name_of, task_named
from clearhead.training.tasks.texts import Framing

MODEL_FIELDS: Mapping[str, Any] = {
    "task": str,
    "context": int,
    "tokenizers": dict,
    "files": dict,
    "labels": list,
    "documents": int | None,
    "data": str | None,
    "spec": dict,
}
"""The fields of model.json, and their types. An imported run has no `data`."""
IMPORTED_FIELDS: Mapping[str, Any] = {"special": dict, "framing": dict, "chat": dict}
"""The fields of an imported run's model.json: of each tokeniser its special tokens, of each field what is around its
texts, and the template of chats if it has one."""
PARTS = table_of((SpecialIds, Framing))
CHAT = "chat_template.jinja"
PRETRAINED, NGRAMS = "pretrained.safetensors", "ngrams.safetensors"
Part = TypeVar("Part", SpecialIds, Framing)


@dataclass(frozen=True)
class Inside:
    """The path of a name in the folder that is asked for it."""

    name: str

    def __get__(self, folder: "RunFolder", owner: type) -> Path:
        return folder.path / self.name


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run. Everything needed to use, resume or look into the run is inside.

    `run.json` has the run's id, which every other file of the run carries.
    """

    path: Path

    run_file = Inside("run.json")
    recipe_file = Inside("recipe.json")
    model_file = Inside("model.json")
    data = Inside("data")
    metrics = Inside("metrics.jsonl")
    curves = Inside("curves.svg")
    evaluation = Inside("evaluation.json")
    baseline = Inside("baseline.json")
    program_file = Inside("program.json")
    """The RASP program that was compiled into the run, if one was."""
    opening_file = Inside("opening.json")
    """What pages of the run open on, if the file is there: example texts, a site and a head."""
    pretrained_file = Inside(PRETRAINED)
    """The weights that a fine-tuned run starts from: the run needs no other folder."""
    ngrams_file = Inside(NGRAMS)
    """A classifier's wide part, which checkpoints do not hold."""
    checkpoints_file = Inside("checkpoints.json")
    """Where checkpoints are, if they are elsewhere."""

    @property
    def checkpoints(self) -> Checkpoints:
        """Return the checkpoints of this run, in its folder or wherever checkpoints.json says."""
        path = self.path / "checkpoints"
        if os.path.lexists(self.checkpoints_file):
            elsewhere = self.read_own(self.checkpoints_file).get("folder")
            if not isinstance(elsewhere, str) or not os.path.isabs(elsewhere):
                raise RunError(f"{self.checkpoints_file}: says no folder; put the file back as it was")
            path = Path(elsewhere)
        return self.checkpoints_at(path)

    def checkpoints_at(self, path: Path) -> Checkpoints:
        """Return the checkpoints of this run as they are, or would be, in another folder."""
        return Checkpoints(path, run=self.id(), model=self.model_sum())

    @property
    def film(self) -> Film:
        """Return the film of this run's training, which has no frames where none was made."""
        return Film(self.path / "film", run=self.id(), model=self.model_sum())

    def model_sum(self) -> str | None:
        """Return the checksum of model.json, None if there is none yet."""
        return self.read_own(self.model_file).get("sha256") if self.model_file.exists() else None

    def id(self) -> str | None:
        """Return the run's id, None for a folder that is not claimed yet; RunError where run.json holds none."""
        try:
            content = read_sealed(self.run_file)
        except FileNotFoundError:
            return None
        if not isinstance(content.get("run"), str):
            raise RunError(f"{self.run_file}: holds no run's id; put the file back as it was")
        return content["run"]

    def read_own(self, path: Path) -> dict[str, Any]:
        """Read a sealed file of this run; RunError if it is damaged or of another run, FileNotFoundError if none."""
        return self.check_own(path, read_sealed(path))

    def check_own(self, path: Path, content: dict[str, Any]) -> dict[str, Any]:
        """Return the content of a sealed file; RunError if it is of another run."""
        run = self.id()
        if run is None or content.get("run") != run:
            this_run = "this folder has no run.json" if run is None else f"this is {run}"
            raise RunError(
                f"{path}: is of another run ({str(content.get('run'))[:40]}; {this_run}). Put this run's own back"
            )
        return content

    def write_own(self, path: Path, content: Mapping[str, Any]) -> dict[str, Any]:
        """Write a sealed file of this run, and return what it holds."""
        with os_errors_as_run_errors(path):
            return write_sealed(path, {**content, "run": self.id()})

    def exists(self) -> bool:
        return self.recipe_file.exists()

    def recipe(self) -> Recipe:
        return read_recipe(self.recipe_file, check=lambda content: self.check_own(self.recipe_file, content))

    def origin(self) -> Recipe | Origin:
        """Read what the run's weights come from: the recipe of their training, or the origin of an imported model."""
        return read_origin(self.recipe_file, check=lambda content: self.check_own(self.recipe_file, content))

    def fine_tuning(self) -> FineTuning | None:
        """Return what the run was fine-tuned from, None if it was not."""
        origin = self.origin()
        return origin.fine_tuning if isinstance(origin, Recipe) else None

    def begin(self, recipe: Recipe | Origin) -> None:
        """Write the recipe, the last of the files that a run begins with."""
        write_recipe(recipe, self.recipe_file, run=self.id())

    def describe(
        self,
        spec: Spec,
        task: Task,
        prepared: Prepared | None = None,
        *,
        chat: ChatTemplate | None = None,
        pretrained: bool = False,
    ) -> None:
        """Write model.json and the tokenisers: what using the model needs beside its weights.

        `prepared` is the text that the run is trained on, None for an imported one; `pretrained` says that it starts
        from the weights in `pretrained_file`.
        """
        tokenizers = task.tokenizers if prepared is None else prepared.tokenizers
        files = save_tokenizers(tokenizers, self.path)
        with os_errors_as_run_errors(self.model_file):
            if chat is not None:
                write_text(self.path / CHAT, chat.text)
            sealed_files = [
                *files.values(),
                *([CHAT] if chat is not None else []),
                *([PRETRAINED] if pretrained else []),
                *([NGRAMS] if self.ngrams_file.exists() else []),
            ]
            sums = {file: sha256_of_file(self.path / file) for file in sealed_files}
        self.write_own(
            self.model_file,
            {
                "task": name_of(type(task)),
                "context": task.context,
                "tokenizers": files,
                "files": sums,
                "labels": list(task.labels),
                "documents": task.documents,
                "data": None if prepared is None else prepared.train.folder.parent.name,
                "spec": spec_to_json(spec),
                **describe_imported(task, files, chat),
            },
        )

    def read_description(self) -> dict[str, Any]:
        """Read model.json; RunError if it is missing, damaged, of another run, or lacks a field."""
        try:
            description = self.read_own(self.model_file)
        except FileNotFoundError:
            raise RunError(f"{self.path}: there is no model yet; train it, or go on with --resume") from None
        imported = {name: kind for name, kind in IMPORTED_FIELDS.items() if name in description}
        fields = {**MODEL_FIELDS, **imported}
        try:
            check_fields(
                {name: description[name] for name in fields if name in description}, fields, str(self.model_file)
            )
        except RunError as error:
            raise RunError(f"{error}; put the file back as it was") from None
        if ":" not in description["task"] and description["task"] not in (*TASKS, *OTHERS):
            raise RunError(f"{self.model_file}: there is no task {description['task'][:40]!r} in this version")
        data = () if description["data"] is None else (description["data"],)  # an imported run has none
        for name in (*data, *description["tokenizers"].values()):
            if not is_plain_name(name):
                raise RunError(f"{self.model_file}: {str(name)[:60]!r} is no name of a file beside it")
        return description

    def task(self) -> Task:
        description = self.read_description()
        with errors_as(RunError, self.model_file):
            kind = self.task_kind()
            special = self.read_parts(description, "special", SpecialIds)
            framing = self.read_parts(description, "framing", Framing)
        files = set(description["tokenizers"].values())
        loaded = {file: self.tokenizer(file, description["files"], special.get(file)) for file in files}
        return kind(
            tokenizers={field: loaded[file] for field, file in description["tokenizers"].items()},
            context=description["context"],
            labels=tuple(description["labels"]),
            documents=description["documents"],
            framing=framing if "framing" in description else None,
        )

    def task_kind(self) -> type[Task]:
        """Return the class of the run's task, which is known before its tokenisers and weights are read."""
        with errors_as(RunError, self.model_file):
            return task_named(self.read_description()["task"])

    def read_parts(self, description: Mapping[str, Any], field: str, kind: type[Part]) -> dict[str, Part]:
        """Return the parts in a field of model.json by name; RunError if one is of another kind."""
        parts: dict[str, Part] = {}
        for name, content in description.get(field, {}).items():
            where = f"{self.model_file}: {field}: {name[:60]}"
            part = from_json(content, PARTS, where=where)
            if not isinstance(part, kind):
                raise RunError(f"{where}: expected {kind.__name__}; came {type(part).__name__}")
            parts[name] = part
        return parts

    def chat(self) -> ChatTemplate | None:
        """Read the template of chats, None if the run has none; RunError if it was changed."""
        description = self.read_description()
        if "chat" not in description:
            return None
        path = self.path / CHAT
        self.check_sum(path, description["files"])
        with unreadable(path, UnicodeDecodeError):
            return ChatTemplate(
                read_bytes(path).decode(), check_type(description["chat"], dict[str, str], f"{path}: chat")
            )

    def check_sum(self, path: Path, sums: Mapping[str, str]) -> None:
        """Raise RunError if a file has changed since the run began; DataError if it cannot be read."""
        with unreadable(path, error=DataError, after=f"; expected {path.name}"):
            if not is_inside(self.path, path):
                raise RunError(
                    f"{path}: is a link that leads out of the run, and is not read. Put the file itself there"
                )
            if sha256_of_file(path) != sums.get(path.name):
                raise RunError(f"{path}: was changed since the run began: its checksum is wrong. Put it back as it was")

    def tokenizer(self, file: str, sums: Mapping[str, str], special: SpecialIds | None = None) -> Tokenizer:
        """Load a tokeniser; RunError if it has changed since the run began."""
        self.check_sum(self.path / file, sums)
        return Tokenizer.load(self.path / file, special=special)

    def spec(self) -> Spec:
        description = self.read_description()
        return spec_from_json(description["spec"], where=f"{self.model_file}: spec")

    def read_evaluation(self) -> dict[str, Any]:
        """Read evaluation.json; RunError if it is missing, damaged or of another run."""
        try:
            return self.read_own(self.evaluation)
        except FileNotFoundError:
            raise RunError(f"{self.evaluation}: is not there; the run has not ended. Go on with --resume") from None

    def best_evaluation(self) -> dict[str, Any]:
        """Return the scores of a run that has ended; of another, its best evaluation so far, or nothing."""
        if self.evaluation.exists():
            return self.read_evaluation()
        lines = read_metrics(self.metrics) if self.metrics.exists() else []
        best = [line for line in lines if line.get("kind") == "evaluation" and line.get("best")]
        return best[-1] if best else {}

    def lock(self, log: Callable[[str], None] = to_stderr) -> AbstractContextManager[Hold]:
        """Lock the folder for this process, once more if it holds it already. The lock goes with the process, however
        it ends.
        """
        return hold_folder(self.path, log)


def describe_imported(task: Task, files: Mapping[str, str], chat: ChatTemplate | None) -> dict[str, Any]:
    """Return the fields of model.json that only an imported run has."""
    if task.framing is None:
        return {}
    special = {files[field]: tokenizer.imported for field, tokenizer in task.tokenizers.items()}
    return {
        "special": {file: to_json(ids, PARTS) for file, ids in special.items() if ids is not None},
        "framing": {field: to_json(framing, PARTS) for field, framing in task.framing.items()},
        **({} if chat is None else {"chat": dict(chat.tokens)}),
    }
