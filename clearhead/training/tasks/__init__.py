"""Tasks: translate, generate, fill and classify, a file each. Each is all that Clearhead knows of what it does."""

from clearhead.errors import OptionError
from clearhead.training.tasks.base import Answer, Batch, Task, close_rows, to_batch
from clearhead.training.tasks.classify import Classify
from clearhead.training.tasks.fill import Fill
from clearhead.training.tasks.generate import Generate
from clearhead.training.tasks.measures import ACCURACY, LOSS, Measure
from clearhead.training.tasks.translate import Translate

__all__ = [
    "ACCURACY",
    "LOSS",
    "TASKS",
    "Answer",
    "Batch",
    "Classify",
    "Fill",
    "Generate",
    "Measure",
    "Task",
    "Translate",
    "close_rows",
    "task_named",
    "to_batch",
]

TASKS: dict[str, type[Task]] = {task.name: task for task in (Translate, Generate, Fill, Classify)}
"""Every task of Clearhead's own, by name."""


def task_named(name: str) -> type[Task]:
    """Return the task with this name; raise OptionError where there is none."""
    if name not in TASKS:
        raise OptionError(f"task: there is no {name!r}; there are {', '.join(TASKS)}")
    return TASKS[name]
