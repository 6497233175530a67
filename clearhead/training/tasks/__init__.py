"""Tasks: translate, generate, fill, classify, classify-pairs, label, tag, embed, instruct; what your own is made of.

docs/your-own-task.md writes another one.
"""

from dataclasses import replace

from clearhead.calls import public
from clearhead.devices import choose_device
from clearhead.errors import OptionError
from clearhead.registry import find, options, register
from clearhead.serialization import name_in_files
from clearhead.text.encoding import Corpus, Layout
from clearhead.training.losses import NOTHING
from clearhead.training.recipe import Machine, Recipe
from clearhead.training.scores import ACCURACY, LOSS, Measure
from clearhead.training.tasks.answering import Answer
from clearhead.training.tasks.base import Task, encode_for_trace
from clearhead.training.tasks.classify import Classify, ClassifyPairs
from clearhead.training.tasks.embed import Embed
from clearhead.training.tasks.fill import Fill
from clearhead.training.tasks.generate import Generate
from clearhead.training.tasks.instruct import Instruct
from clearhead.training.tasks.label import Label, Tag
from clearhead.training.tasks.learning import Batch, encoder, text_bytes, to_batch
from clearhead.training.tasks.texts import Framing, frame_rows
from clearhead.training.tasks.translate import Translate

__all__ = [
    "ACCURACY",
    "LOSS",
    "NOTHING",
    "OTHERS",
    "TASKS",
    "Answer",
    "Batch",
    "Classify",
    "ClassifyPairs",
    "Embed",
    "Fill",
    "Framing",
    "Generate",
    "Instruct",
    "Label",
    "Layout",
    "Measure",
    "Tag",
    "Task",
    "Translate",
    "default_recipe",
    "encode_for_trace",
    "encoder",
    "frame_rows",
    "name_of",
    "task_named",
    "to_batch",
]

for _task in (Translate, Generate, Fill, Classify, ClassifyPairs, Label, Tag):
    register(_task, option=_task.name)

TASKS: dict[str, type[Task]] = options("task")
"""The tasks that have a short name and can be trained: Clearhead's own, and those that are registered with one."""
OTHERS: dict[str, type[Task]] = {one.name: one for one in (Embed, Instruct)}
"""Tasks with a short name that come from a model: what imported encoders do, and what decoders are fine-tuned for."""


def task_named(name: str) -> type[Task]:
    """Return the task with this name, `fill` or `mine:Tagging`; raise if there is none, or none is registered.

    `embed` is the task of imported encoders alone, which nothing is trained for; `instruct` is for fine-tuning.
    """
    if name in OTHERS:
        return OTHERS[name]
    try:
        return find(name, "task")
    except OptionError as problem:
        raise OptionError(f"task: {problem}") from None


def name_of(task: type[Task]) -> str:
    """Return what recipes and run folders call a task.

    >>> name_of(Fill)
    'fill'
    """
    name = name_in_files(task)
    return name if ":" in name else task.name


@public
def default_recipe(task: str, corpus: Corpus, machine: Machine = Machine()) -> Recipe:
    """Return the recipe for a task, by name, on this corpus.

    Args:
        task: Name of the task.
        corpus: The text.
        machine: Where it will run.

    Returns:
        The recipe.
    """
    kind = task_named(task)
    on_gpu = choose_device(machine.device).type == "cuda"
    return replace(kind.default_recipe(corpus, text_bytes(corpus), on_gpu), task=name_of(kind), machine=machine)
