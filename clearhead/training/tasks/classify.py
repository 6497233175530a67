"""To classify: a label for each text, with an encoder."""

import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple, cast, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clearhead.devices import widest_float
from clearhead.errors import OptionError
from clearhead.model.outputs import Classes, ToClasses
from clearhead.model.presets import Size
from clearhead.model.sizes import Spec
from clearhead.model.transformers import Decoder, DecoderSpec, Encoder, EncoderSpec
from clearhead.model.wide import NgramLogits
from clearhead.text.batches import Rows
from clearhead.text.drawing import is_drawn, spread
from clearhead.text.encoding import Corpus, Layout, Survey, chunks, label_of, read_split, texts_of, usable_records
from clearhead.text.preparing import Prepared, Tokenizing
from clearhead.text.problems import Problems
from clearhead.text.sources import Source
from clearhead.text.store import Store
from clearhead.training.answers import one_line
from clearhead.training.averaging import Ema
from clearhead.training.default_models import encoder, epochs
from clearhead.training.linear import LinearScore, linear_baseline, records_apart
from clearhead.training.recipe import Batching, Budget, Checkpointing, Optimizer, Recipe
from clearhead.training.schedules import CosineDecay
from clearhead.training.scores import score_classes
from clearhead.training.tasks.base import Answer, Batch, Task, spec_name, to_batch
from clearhead.training.tasks.framing import frame_rows
from clearhead.training.tasks.measures import ACCURACY, LOSS, MACRO_F1, EvaluationOptions, ValidationSet
from clearhead.training.tasks.pairs import Pair, frame_pairs
from clearhead.training.wide import fit_wide

LITTLE = 200_000
"""Bytes of text below which a corpus is little: a few hundred records."""
LEAST_SCALE, MUCH = 1 / 16, 3_000_000
"""The Transformer's logits count fully beside the wide part's with so many bytes of text, with less of it less, down to
this factor: in trials 1/8 or less was best up to 270 kB, 1/2 at 2.4 MB and 1 at 3.4 MB."""
MOST_WEIGHTS = 1 << 22
"""The most weights that a table of pairs or triples in a wide part has: with many classes it has fewer rows."""


class Class(NamedTuple):
    """A label, its probability, and that of every label."""

    label: str
    probability: float
    probabilities: dict[str, float]


@final
class Classify(Task):
    """Text with a label: a start token in front, from which (or from the mean of all) the class is read."""

    name = "classify"
    measures = (ACCURACY, MACRO_F1, LOSS)
    outputs = True
    verb = "classify"
    answered = "what it takes the text for"

    @staticmethod
    def layout(context: int) -> Layout:
        return Layout(texts=("text",), label="label", most=context - 1, too_long="cut")

    def baseline(self, corpus: Corpus, prepared: Prepared, *, minutes: float | None = None) -> LinearScore | None:
        """Return the dev accuracy of a linear model on n-grams of the whole texts."""
        surveyed = Survey(
            records=prepared.notes["records"], text_bytes=prepared.notes["text_bytes"], labels=self.labels, skipped={}
        )
        numbers = {name: number for number, name in enumerate(self.labels)}
        texts: dict[bool, list[str]] = {False: [], True: []}
        targets: dict[bool, list[int]] = {False: [], True: []}
        every = records_apart(surveyed.records, surveyed.text_bytes)
        for index, ((text,), (label,), held_out) in enumerate(read_split(corpus, self.layout(self.context), surveyed)):
            if held_out or is_drawn(index, every):
                texts[held_out].append(text)
                targets[held_out].append(numbers[label])
        return linear_baseline(texts[False], targets[False], texts[True], targets[True], classes=len(self.labels))

    @classmethod
    def default_recipe(cls, corpus: Corpus, n_bytes: int, on_gpu: bool) -> Recipe:
        """Return the recipe for this much text. Little text has one layer and small batches, so that there are steps
        enough. The last weights are used: the wide part is nearly as good from the first step on, so a validation
        score of the sum says little about the Transformer. docs/decisions/0016-classification-by-default.md has the
        trials.
        """
        little = n_bytes < LITTLE
        ngrams = NgramLogits(transformer_scale=min(1.0, max(LEAST_SCALE, round(n_bytes / MUCH, 3))))
        tokens = min(4096, max(512, 1 << round(math.log2(max(n_bytes / 4 / 32, 1)))))
        steps = epochs(4, n_bytes / 4, tokens, least=800)
        return Recipe(
            task=cls.name,
            corpus=corpus,
            tokenizing=Tokenizing(kind="metaspace", lower=True, size_factor=4.0),
            model=encoder(Size(1 if little else 2, 128, 4, 4, 256), Classes(2, pool="mean", ngrams=ngrams), 0.4),
            optimizer=Optimizer(
                lr=1e-3,
                schedule=CosineDecay(warmup=steps // 10),
                weight_decay=0.05,
                smoothing=0.1,
                r_drop=2.0,
                averaging=Ema(0.999),
            ),
            batching=Batching(tokens=tokens, context=256),
            budget=Budget(steps=steps),
            checkpointing=Checkpointing(evaluate=max(50, steps // 20), select="last"),
        )

    def fitted(self, spec: Spec) -> Spec:
        return fit_classes(self, spec)

    def initialize(self, model: nn.Module, prepared: Prepared) -> list[str]:
        """Fit the wide part of a model that has one to the training records: it is not trained by steps."""
        wide = cast(ToClasses, cast(Encoder | Decoder, model).output).wide
        if wide is None:
            return []
        started, store, frame = time.perf_counter(), prepared.train, self.frame()
        every = records_apart(len(store), prepared.notes["text_bytes"])
        indices = [index for index in range(len(store)) if is_drawn(index, every)]
        rows = [frame.around(store["text"][i].tolist(), self.reads) for i in indices]
        labels = torch.tensor([int(store["label"][i][0]) for i in indices])
        fit_wide(wide, rows, F.one_hot(labels, len(self.labels)).float(), self.tokenizer)
        return [
            f"the model has a wide part: logits that are linear in the n-grams of its tokens, fitted in "
            f"{time.perf_counter() - started:.1f} s, and the Transformer's logits times {wide.transformer_scale:g}"
        ]

    def read(self, store: Store, rows: Rows, random: np.random.Generator, *, filled: bool) -> Batch:
        frame, pad = self.frame(), self.tokenizer.pad
        tokens, _, lengths = frame_rows(store["text"], rows, rows.width, frame, pad, filled=filled)
        targets = store["label"].padded(rows.which, 1, 0)[:, 0]
        return to_batch({"tokens": tokens, "lengths": lengths, "wanted": targets}, rows.full if filled else 0)

    def classify(self, model: nn.Module, rows: Sequence[Sequence[int]]) -> list[Class]:
        """Return the class of each row of ids. A row longer than the context is cut."""
        frame, most = self.frame(), self.reads
        return name_classes(self.labels, self.predict(model, [frame.around(row, most) for row in rows]))

    def classify_pairs(self, model: nn.Module, pairs: Sequence[Pair]) -> list[Class]:
        """Return the class of each pair of texts, for an imported model that reads two."""
        return classify_pairs(self, model, pairs)

    def answer(self, model: nn.Module, texts: Sequence[str]) -> list[Answer]:
        """Return labels with their probabilities, the likeliest first."""
        return list(map(tell_class, self.classify(model, self.tokenizer.encode_batch(list(texts)))))

    def answer_pairs(self, model: nn.Module, pairs: Sequence[Pair]) -> list[Answer]:
        """Return what `answer` does, for pairs of texts."""
        return list(map(tell_class, self.classify_pairs(model, pairs)))

    def score(self, model: nn.Module, held: ValidationSet) -> tuple[dict[str, float], list[dict[str, str]]]:
        indices = spread(len(held.store), held.samples)
        rows = [held.store["text"][i].tolist() for i in indices]
        classes = self.classify(model, rows) if rows else []
        return {}, [
            {
                "input": self.tokenizer.decode(row),
                "output": predicted.label,
                "reference": self.labels[int(held.store["label"][i][0])],
            }
            for i, row, predicted in zip(indices, rows, classes, strict=True)
        ]

    def evaluate(self, model: nn.Module, source: Source, how: EvaluationOptions) -> tuple[dict[str, Any], list[str]]:
        def answer(records: list[list[str]]) -> list[Class]:
            return self.classify(model, self.tokenizer.encode_batch([text for (text,) in records]))

        return evaluate_classes(self, source, answer)


def recipe_without_ngrams(corpus: Corpus, n_bytes: int, on_gpu: bool) -> Recipe:
    """Return the recipe to classify without its wide part, which is fitted to one text with one class.

    Its validation score is the Transformer's own, so it chooses the weights, unless the records are too few to.
    """
    recipe = Classify.default_recipe(corpus, n_bytes, on_gpu)
    model = cast(EncoderSpec, recipe.model)
    if n_bytes >= LITTLE:
        recipe = replace(
            recipe,
            budget=replace(recipe.budget, patience=10),
            checkpointing=replace(recipe.checkpointing, select="best"),
        )
    return replace(recipe, model=replace(model, output=replace(cast(Classes, model.output), ngrams=None)))


def evaluate_classes(
    task: Task, source: Source, answer: Callable[[list[list[str]]], list[Class]]
) -> tuple[dict[str, Any], list[str]]:
    """Return the scores on labelled records, and the label that each was given; `answer` classifies lists of texts."""
    layout = task.usual_layout()
    outputs: list[str] = []
    truths: list[str] = []
    nats = 0.0
    started = time.perf_counter()
    for chunk in chunks(usable_records(source, layout, Problems(skip=True), task.labels)):
        classes = answer([texts_of(source, layout, record) for record in chunk])
        true = [label_of(source, layout, record) for record in chunk]
        outputs += [predicted.label for predicted in classes]
        truths += true
        # A probability that is 0 in float64 counts as the least there is: the loss stays finite.
        shares = (predicted.probabilities[name] for predicted, name in zip(classes, true, strict=True))
        nats += sum(-math.log(max(share, sys.float_info.min)) for share in shares)
    speed = len(outputs) / (time.perf_counter() - started)
    scores = asdict(score_classes(outputs, truths, task.labels))
    counts = Counter(truths)
    facts = {
        "loss": nats / len(outputs),
        "labels": list(task.labels),
        "records_by_label": {label: counts[label] for label in task.labels},
        "sentences_per_second": round(speed, 1),
    }
    return {**scores, **facts}, [one_line(output) for output in outputs]


def classify_pairs(task: Task, model: nn.Module, pairs: Sequence[Pair]) -> list[Class]:
    """Return the class of each pair of texts."""
    framed = frame_pairs(task, model, pairs)
    return name_classes(task.labels, task.predict(model, framed.rows, framed.segments))


def name_classes(labels: Sequence[str], logits_of_rows: Sequence[Tensor]) -> list[Class]:
    """Return the class that each row of logits says, with the probability of every label."""
    shares = (logits.to(widest_float(logits.device)).softmax(-1).tolist() for logits in logits_of_rows)
    return [
        Class(
            labels[probabilities.index(max(probabilities))],
            max(probabilities),
            dict(zip(labels, probabilities, strict=True)),
        )
        for probabilities in shares
    ]


def fit_classes(task: Task, spec: Spec) -> Spec:
    """Return the spec for the task's vocabulary, with a logit for each of its labels."""
    if not isinstance(spec, EncoderSpec | DecoderSpec) or not isinstance(spec.output, Classes):
        raise OptionError(f"to {task.name} takes an encoder with Classes for output; the model is a {spec_name(spec)}")
    output = replace(spec.output, count=len(task.labels))
    if output.ngrams is not None:
        buckets = max(1, min(output.ngrams.buckets, MOST_WEIGHTS // output.count))
        output = replace(output, ngrams=replace(output.ngrams, buckets=buckets))
    return replace(spec, vocabulary=task.tokenizer.vocabulary, output=output)


def tell_class(predicted: Class) -> Answer:
    """Return a class as an answer, its labels ordered with the likeliest first."""
    return {
        "output": predicted.label,
        "score": math.log(predicted.probability),
        "probability": predicted.probability,
        "probabilities": dict(sorted(predicted.probabilities.items(), key=lambda pair: -pair[1])),
    }
