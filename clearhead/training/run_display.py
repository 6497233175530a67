"""What a run shows of itself, printed or in a notebook: task, size, score, and how to use it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from clearhead.errors import ClearheadError
from clearhead.model.int8 import count_weights
from clearhead.notebook import Display, facts
from clearhead.training.recipe import Origin
from clearhead.training.tasks import ClassifyPairs

if TYPE_CHECKING:
    from clearhead.training.run import Run

__all__ = ["describe_run", "draw_run"]

LONGEST = 60
"""The most characters of a text that is given as an example."""


def draw_run(run: "Run") -> Display:
    """Return what a notebook shows of a run."""
    return Display(f"Run {run.folder.path}", facts(find_facts(run)))


def describe_run(run: "Run") -> str:
    """Return what is printed of a run: a few lines."""
    lines = [f"Run {run.folder.path}"]
    for name, text in find_facts(run).items():
        first, *rest = [text] if isinstance(text, str) else text
        lines += [f"  {name:8}{first}", *(f"  {'':8}{line}" for line in rest)]
    return "\n".join(lines)


def find_facts(run: "Run") -> dict[str, str | list[str]]:
    """Return what there is to say of a run by name; lines of code are lists."""
    evaluated, origin = {}, ""
    try:
        evaluated = run.folder.best_evaluation()
        made = run.folder.origin()
        origin = f"imported from {made.source}" if isinstance(made, Origin) else f"trained for {run.step:,} steps"
    except ClearheadError as error:  # a display must not fail because a file of the run is missing or damaged
        origin = str(error)
    family = {"EncoderDecoder": "encoder-decoder"}.get(type(run.model).__name__, type(run.model).__name__.lower())
    score = format_scores(run, evaluated)
    return {
        "task": f"{run.task.name}, with an {family}" if family[0] == "e" else f"{run.task.name}, with a {family}",
        "size": f"{count_weights(run.model):,} parameters{describe_sizes(run.model)}",
        "weights": origin,
        **({"score": score} if score else {}),
        "use": list_uses(run, evaluated),
    }


def describe_sizes(model: Any) -> str:
    """Return blocks, width and vocabulary of a model that was built from a spec."""
    if not hasattr(model, "spec"):
        return ""
    stacks = model.spec.stacks
    blocks = " + ".join(str(len(stack.blocks)) for stack in stacks)
    vocabulary = " and ".join(f"{n:,}" for n in dict.fromkeys(stack.vocabulary for stack in stacks))
    return f": {blocks} blocks, {model.spec.d_model} wide, a vocabulary of {vocabulary}"


def format_scores(run: "Run", evaluated: Mapping[str, Any]) -> str:
    """Return the scores that the task is measured by, the main one first."""
    scores = {**evaluated, **evaluated.get("scores", {})}
    measured = [measure for measure in run.task.measures if isinstance(scores.get(measure.key), int | float)]
    text = ", ".join(f"{measure.name} {measure.shown(scores[measure.key])}" for measure in measured)
    step = evaluated.get("step", run.step)
    return f"{text} on held-out text" + ("" if step == run.step else f", at step {step:,}") if text else ""


def list_uses(run: "Run", evaluated: Mapping[str, Any]) -> list[str]:
    """Return what to write to use a run: in Python, to look into it, and on the command line."""
    texts = [sample.get("input") for sample in evaluated.get("samples", ())]
    known = [text for text in texts if isinstance(text, str) and 0 < len(text) <= LONGEST and text.isprintable()]
    text = repr((*known, "a text")[0])
    given = '("a text", "another text")' if isinstance(run.task, ClassifyPairs) else text
    method = run.task.verb if hasattr(run, run.task.verb) else "answer"
    shell = f"clearhead {run.task.verb} {run.folder.path}"
    return [f"run.{method}([{given}])", f"ch.trace(run, {given})", shell]
