"""What a run shows of itself, printed or in a notebook: task, size, score, and how to use it."""

from collections.abc import Mapping
from typing import Any, NamedTuple, final

from torch import nn

from clearhead.errors import ClearheadError
from clearhead.model.int8 import count_weights
from clearhead.notebook import Display, facts
from clearhead.training.folder import RunFolder
from clearhead.training.recipe import Origin
from clearhead.training.tasks import Task

LONGEST = 60
"""The most characters of a text that is given as an example."""


@final
class RunCard(NamedTuple):
    """What there is to say of a loaded run; `method` is that of the run which answers texts."""

    folder: RunFolder
    task: Task
    model: nn.Module
    step: int
    method: str

    def draw(self) -> Display:
        """Return what a notebook shows."""
        return Display(f"Run {self.folder.path}", facts(self.find()))

    def describe(self) -> str:
        """Return what is printed: a few lines."""
        lines = [f"Run {self.folder.path}"]
        for name, text in self.find().items():
            first, *rest = [text] if isinstance(text, str) else text
            lines += [f"  {name:8}{first}", *(f"  {'':8}{line}" for line in rest)]
        return "\n".join(lines)

    def find(self) -> dict[str, str | list[str]]:
        """Return the facts by name; lines of code are lists."""
        evaluated = {}
        try:
            evaluated, made = self.folder.best_evaluation(), self.folder.origin()
            origin = f"imported from {made.source}" if isinstance(made, Origin) else f"trained for {self.step:,} steps"
        except ClearheadError as error:  # a display must not fail because a file of the run is missing or damaged
            origin = str(error)
        score = self.format_scores(evaluated)
        return {
            "task": f"{self.task.name}, with {name_family(self.model)}",
            "size": f"{count_weights(self.model):,} parameters{describe_sizes(self.model)}",
            "weights": origin,
            **({"score": score} if score else {}),
            "use": self.list_uses(evaluated),
        }

    def format_scores(self, evaluated: Mapping[str, Any]) -> str:
        """Return the scores that the task is measured by, the main one first."""
        scores = {**evaluated, **evaluated.get("scores", {})}
        measured = [measure for measure in self.task.measures if isinstance(scores.get(measure.key), int | float)]
        text = ", ".join(f"{measure.name} {measure.shown(scores[measure.key])}" for measure in measured)
        if scores.get("labels_asked") == 1:
            text += ", of one label only,"
        step = evaluated.get("step", self.step)
        return f"{text} on held-out text" + ("" if step == self.step else f", at step {step:,}") if text else ""

    def list_uses(self, evaluated: Mapping[str, Any]) -> list[str]:
        """Return what to write to use a run: in Python, to look into it, and on the command line."""
        texts = [sample.get("input") for sample in evaluated.get("samples", ())]
        known = [text for text in texts if isinstance(text, str) and 0 < len(text) <= LONGEST and text.isprintable()]
        text = (*known, "a text")[0]
        given = self.task.example_code(text)
        shell = f"clearhead {self.task.verb} {self.folder.path}"
        return [f"run.{self.method}([{given}])", f"ch.trace(run, {given})", shell]


def name_family(model: nn.Module) -> str:
    """Return what kind of model it is, with its article."""
    return {"EncoderDecoder": "an encoder-decoder", "Encoder": "an encoder"}.get(type(model).__name__, "a decoder")


def describe_sizes(model: Any) -> str:
    """Return blocks, width and vocabulary of a model that was built from a spec."""
    if not hasattr(model, "spec"):
        return ""
    stacks = model.spec.stacks
    blocks = " + ".join(str(len(stack.blocks)) for stack in stacks)
    vocabulary = " and ".join(f"{n:,}" for n in dict.fromkeys(stack.vocabulary for stack in stacks))
    return f": {blocks} blocks, {model.spec.d_model} wide, a vocabulary of {vocabulary}"
