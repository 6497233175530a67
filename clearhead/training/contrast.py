"""Pairs of texts that a run answers differently: what a circuit of a trained model is found with."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import torch
from jaxtyping import Int
from torch import Tensor

from clearhead.calls import public
from clearhead.circuits.forward import run_graph
from clearhead.circuits.graph import Graph
from clearhead.circuits.methods import Contrast
from clearhead.circuits.metrics import LogitDifference
from clearhead.circuits.texts import Texts, pad_texts
from clearhead.errors import OptionError
from clearhead.training.run import Run, as_run
from clearhead.training.tasks.showing import TraceInputs
from clearhead.training.tracing import encode_inputs, with_own_output


@final
@public
@dataclass(frozen=True, kw_only=True, eq=False)
class RunContrast:
    """A contrast of a run's texts, with what is compared in words."""

    contrast: Contrast
    tokens: tuple[str, ...]
    """Of the first clean text, as they are shown."""
    answers: list[tuple[str, str]]
    """For each pair, the clean answer and the other."""


@public
def contrast_texts(run: Run | str | Path, texts: Sequence[str], against: Sequence[str]) -> RunContrast:
    """Return what circuits are found with: each text, the one it is patched from, and the difference of their answers.

    What is compared is the logit of the clean answer less that of the other: of a translator at the first token in
    which the two translations differ, of a language model the next token, of a classifier the label. The texts of a
    pair need as many tokens, and different answers.
    """
    run = as_run(run)
    if len(texts) != len(against) or not texts:
        raise OptionError(f"expected as many texts as texts to patch from; came {len(texts)} and {len(against)}")
    graph = Graph(run.model)
    pairs = [pair_inputs(run, clean, other) for clean, other in zip(texts, against, strict=True)]
    sides, device = list(graph.names.sides), next(run.model.parameters()).device
    rows = [{side: [inputs.ids[side] for inputs in column] for side in sides} for column in zip(*pairs, strict=True)]
    *_, last = sides
    if run.task.target == "writes":  # both read the part of the translations that is the same
        same = [first_difference(one.ids[last], two.ids[last]) for one, two in pairs]
        for column in rows:
            column[last] = [ids[:end] for ids, end in zip(column[last], same, strict=True)]
    clean, other = (pad_texts(column).map(lambda tensor: tensor.to(device)) for column in rows)
    output = graph.names.sides[last][1].spec.output
    if output is None:
        raise OptionError("this model gives vectors and no answers, so there is no difference of answers to explain")
    place = torch.tensor([len(ids) - 1 for ids in rows[0][last]], device=device) if output.by_position else None
    answers = torch.stack([likeliest(graph, batch, place) for batch in (clean, other)], 1)
    for text, (one, two) in zip(texts, answers.tolist(), strict=True):
        if one == two:
            raise OptionError(f"{text!r:.60} has the same answer as the text it is patched from: nothing to compare")
    metric = LogitDifference(answer=answers[:, 0], other=answers[:, 1], place=place)
    words = [run.task.answer_names(row) for row in answers.tolist()]
    return RunContrast(
        contrast=Contrast(graph, clean, other, metric),
        tokens=tuple(pairs[0][0].pieces[sides[0]]),
        answers=[(one, two) for one, two in words],
    )


def pair_inputs(run: Run, clean: str, other: str) -> tuple[TraceInputs, TraceInputs]:
    """Return two texts as the model takes them, a translator's with its translations."""
    one, two = (encode_inputs(run, text) for text in (clean, other))
    if run.task.target == "writes":
        return with_own_output(run, one, ()), with_own_output(run, two, ())
    return one, two


def first_difference(one: Sequence[int], two: Sequence[int]) -> int:
    """Return the first place where two rows differ; the length of the shorter where it begins the other."""
    return next((n for n, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))


def likeliest(graph: Graph, texts: Texts, place: Tensor | None) -> Int[Tensor, "batch"]:
    """Return the likeliest answer to each text."""
    logits = run_graph(graph, texts).logits[0]
    rows = torch.arange(len(texts), device=texts.device)
    return (logits if place is None else logits[rows, place]).argmax(-1)
