"""What every format of export asks of a run: its task, spec and template, the fields of parts, and tensors by name."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any, cast

import torch
from torch import Tensor, nn

from clearhead.calls import is_default
from clearhead.errors import OptionError
from clearhead.model.sizes import Spec
from clearhead.text.templates import ChatTemplate
from clearhead.training.run import Run
from clearhead.training.tasks import OTHERS, TASKS, ClassifyPairs


def task_written_as(task: str) -> str:
    """Return the task that other programs know: a run that follows instructions generates."""
    kind = {**TASKS, **OTHERS}.get(task)
    return task if kind is None else kind.exports_as or task


def blocked_segments(spec: Spec, task: str) -> list[str]:
    """Return what a program whose only inputs are tokens lacks for pairs of texts that segments tell apart."""
    if task == ClassifyPairs.name and spec.decoder is None and (spec.embedding.segments or 1) > 1:
        return ["input for the segments, which tell the two texts of a pair apart"]
    return []


def chat_of(run: Run) -> ChatTemplate | None:
    """Return the chat template of the run; None if it has none, or is in no folder."""
    return run.folder.chat() if run.folder.model_file.exists() else None


def spec_of(run: Run) -> Spec:
    """Return the spec that the run's model was built from."""
    return cast(Spec, run.model.spec)


def skipped_token(spec: Spec) -> int | None:
    """Return the id of the token that takes no position in a model's first stack; None if there is none."""
    position = spec.stacks[0].embedding.position
    return None if position is None else position.skips


def unknown_fields(part: Any, known: Iterable[str]) -> Iterator[str]:
    """Yield `Class(field=value)` for each field that a format does not know and that is not at its default.

    So a field that a later version of Clearhead adds to a part is refused, and not left out in silence.
    """
    for field in fields(part):
        if field.name not in known and not is_default(part, field):
            yield f"{type(part).__name__}({field.name}={getattr(part, field.name)!r})"


class ModelTensors:
    """The tensors of a model by name: copies in float32 on the CPU. `check_all_taken` finds what nobody asked for."""

    def __init__(self, model: nn.Module) -> None:
        self.tensors: Mapping[str, Tensor] = model.state_dict(keep_vars=True)  # buffers decide outputs, too
        self.taken: set[int] = set()

    def __getitem__(self, name: str) -> Tensor:
        self.taken.add(id(self.tensors[name]))
        # A copy: CTranslate2 quantises in place.
        return self.tensors[name].detach().to("cpu", torch.float32, copy=True)

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def check_all_taken(self, where: str) -> None:
        """Raise OptionError if a tensor of the model has no place in the export."""
        not_taken = [name for name, tensor in self.tensors.items() if id(tensor) not in self.taken]
        if not_taken:
            raise OptionError(
                f"{where}: there is no place for {len(not_taken)} tensors of this model, such as {not_taken[0]}"
            )
