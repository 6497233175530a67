"""Find the slip: a small Transformer in which one step is computed wrongly, and the sound one that it should be.

A fault is a function of the steps before it, put in place of one step of one layer. An answer names that place, and
computes the step rightly from the same values. It is right if the model then gives the output of the sound one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from clearhead.attention.heads import Heads
from clearhead.attention.positions import Sinusoidal
from clearhead.calls import public
from clearhead.errors import ClearheadError
from clearhead.exercises.exercise import Exercise
from clearhead.model import BlockSpec, DecoderSpec, Embedding, EncoderSpec, PreNorm, ReLU
from clearhead.model.blocks import AttentionSpec
from clearhead.model.transformers import Transformer
from clearhead.tracing import Trace, trace_model
from clearhead.tracing.edits import Edit

WORDS = ("<pad>", "the", "a", "cat", "dog", "bird", "sees", "and")
TEXTS = ("the cat sees a dog", "a bird sees the cat", "the dog and a bird")
PADDED = ("the cat sees <pad> <pad>", "a bird and a dog", "the dog <pad> <pad> <pad>")
STEPS = (
    "stream",
    "normed",
    "query",
    "key",
    "value",
    "score",
    "scaled",
    "allowed",
    "masked",
    "weight",
    "context",
    "concat",
    "out",
    "residual",
)
"""What an attention computes, in this order; each is made of the ones before it."""
EMBEDDING = ("token", "position", "out")
LAYERS, D_MODEL, HEADS = 2, 4, 2


@dataclass(frozen=True, kw_only=True)
class SlipModel:
    """The model of an exercise, sound and with its fault."""

    exercise: Exercise

    @property
    def place(self) -> tuple[str, str]:
        """Return where the fault is: a site and a step."""
        at, step = self.exercise.checks["place"]
        return at, step

    @property
    def padded(self) -> bool:
        return self.exercise.checks.get("padded", False)

    @property
    def texts(self) -> Sequence[str]:
        return PADDED if self.padded else TEXTS

    @property
    def sites(self) -> list[str]:
        """Return the places that have steps: the embedding, and the attention of each layer."""
        side = "encoder" if self.padded else "decoder"
        return [f"{side}.embedding", *(f"{side}.{layer}.attention" for layer in range(LAYERS))]

    @cached_property
    def model(self) -> Transformer:
        """Return the sound model, with random weights that are always the same."""
        attention = AttentionSpec(heads=Heads(HEADS))
        blocks = (BlockSpec(attention=attention, feed_forward=ReLU(6), arrangement=PreNorm()),) * LAYERS
        spec = EncoderSpec if self.padded else DecoderSpec
        made = spec(vocabulary=len(WORDS), d_model=D_MODEL, blocks=blocks, embedding=Embedding(position=Sinusoidal()))
        generator = torch.manual_seed(int(self.exercise.fact("seed")))
        model = made.build().double().eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.4 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
        return model

    def trace(self, text: str, *, repaired: Tensor | None = None, sound: bool = False) -> Trace:
        """Return every number of the model for a text: with its fault, sound, or with the faulty step repaired."""
        words = text.split()
        ids = torch.tensor([[WORDS.index(word) for word in words]])
        side = self.sites[0].partition(".")[0]
        hidden = [
            Edit(at=at, step="allowed", to=torch.tensor([[word != "<pad>" for word in words]] * len(words)))
            for at in self.sites[1:]
            if self.padded
        ]
        whole = trace_model(self.model, ids, changes=hidden, pieces={side: words})
        if sound:
            return whole
        at, step = self.place
        value = self.exercise.checks["fault"](steps_of(whole, at)) if repaired is None else repaired
        kept = [edit for edit in hidden if (edit.at, edit.step) != (at, step)]
        changes = [*kept, *edits_of(at, step, value)]
        return trace_model(self.model, ids, changes=changes, pieces={side: words})


def edits_of(at: str, step: str, value: Tensor) -> list[Edit]:
    """Return the edits that set a step: one for each head if it has a matrix for each."""
    if value.ndim == 3:
        return [Edit(at=at, step=step, head=head, to=part) for head, part in enumerate(value)]
    return [Edit(at=at, step=step, to=value)]


def steps_of(trace: Trace, at: str) -> dict[str, Any]:
    """Return the steps at a place by name: matrices, those of heads with an axis of heads before; and the words."""
    side, layer, *_ = at.split(".")
    words = {"tokens": list(trace.sides[side].tokens)}
    if layer == "embedding":
        return words | {name: trace.value(f"{at}.{name}") for name in EMBEDDING}
    site = trace.sites[at]
    before = f"{side}.embedding.out" if layer == "0" else f"{side}.{int(layer) - 1}.feed_forward.residual"
    own = {"stream": trace.value(before), "allowed": site.head[0].allowed(0, site.n_query)}
    own |= {edit.step: edit.to for edit in trace.changes if isinstance(edit, Edit) and edit.name == f"{at}.concat"}
    return words | {name: own[name] if name in own else trace.value(f"{at}.{name}") for name in STEPS}


@public
def trace_slip(exercise: Exercise, text: str | None = None) -> Trace:
    """Return the trace of a model with a slip: `trace_slip(EXERCISES["slip-1"])`.

    Args:
        exercise: The exercise.
        text: The text to trace; the exercise's own if None.

    Returns:
        The trace.

    >>> from clearhead.exercises import EXERCISES, trace_slip
    >>> trace_slip(EXERCISES["slip-1"]).kind in ("encoder", "decoder", "encoder-decoder")
    True
    """
    made = SlipModel(exercise=exercise)
    return made.trace(text or made.texts[0])


def slip_cases(exercise: Exercise, where: Any) -> list[dict[str, Any]]:
    """Return what `repair` is tried with: of each text, the steps of the place that is named; or of the true one."""
    made = SlipModel(exercise=exercise)
    at, _ = read_place(exercise, where) or made.place
    return [steps_of(made.trace(text), at) for text in made.texts]


def read_place(exercise: Exercise, where: Any) -> tuple[str, str] | None:
    """Return the place and step that an answer names; None if there is no such."""
    if not isinstance(where, list | tuple) or len(where) != 2 or not all(isinstance(name, str) for name in where):
        return None
    at, step = where
    known = SlipModel(exercise=exercise).sites
    return (at, step) if at in known and step in (EMBEDDING if at == known[0] else STEPS) else None


def output_with(exercise: Exercise, text: str, value: Any) -> Tensor | str:
    """Return the output of a model whose faulty step has this value, or why it cannot have it."""
    made = SlipModel(exercise=exercise)
    try:
        return logits_of(made.trace(text, repaired=value))
    except ClearheadError as error:
        return str(error)


def sound_output(exercise: Exercise, text: str) -> Tensor:
    return logits_of(SlipModel(exercise=exercise).trace(text, sound=True))


def logits_of(trace: Trace) -> Tensor:
    return trace.value(f"{trace.answer_side}.output.logits")
