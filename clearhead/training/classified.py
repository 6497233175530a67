"""A filter that asks a trained classifier: for the language of a text, or its quality, by labels of the user's own."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from clearhead.errors import OptionError
from clearhead.registry import register
from clearhead.text.filtering import TextFilter
from clearhead.training.run import Run, load


@final
@dataclass(frozen=True, kw_only=True)
class ClassifierFilter(TextFilter):
    """Leave out records to whose first text a run that classifies gives another label.

    Args:
        run: Folder of the run.
        label: The label of records that stay.
        least: Its probability at least.

    Raises:
        OptionError: If the run has no such label.

    >>> import clearhead as ch
    >>> german = ch.training.ClassifierFilter(run="runs/languages", label="de", least=0.8)
    """

    run: str
    label: str
    least: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.least <= 1:
            raise OptionError(f"ClassifierFilter: least is a probability, from 0 to 1; came {self.least}")

    def judge(self, records: Sequence[Sequence[str]]) -> list[str | None]:
        run = load_classifier(self.run)
        if self.label not in run.task.labels:
            raise OptionError(
                f"ClassifierFilter: {self.run} has no label {self.label!r}; it has {', '.join(run.task.labels)}"
            )
        found = run.classify([texts[0] for texts in records])
        return [None if one.probabilities[self.label] >= self.least else f"not {self.label}" for one in found]

    def state(self) -> str:
        run = load_classifier(self.run)
        return f"{run.folder.id()} {run.step}"

    def refuses(self, texts: Sequence[str]) -> str | None:
        return self.judge([texts])[0]


@functools.cache
def load_classifier(folder: str) -> Run:
    return load(folder, device="cpu")


register(ClassifierFilter, option="classified")
