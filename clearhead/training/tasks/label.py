"""To label: any number of labels for each text, none included, with an encoder.

Every label is a question of its own, answered yes or no. The label column lists the labels of a record with commas
between them, and "-" if there is none.

To tag: a tag for each word of a text, such as a part of speech or the name of an entity, with an encoder.

Tokens are parts of words: a word's tag is asked at its first token.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.devices import widest_float
from clearhead.model.outputs import Tags
from clearhead.model.sizes import Spec
from clearhead.model.transformers import Transformer
from clearhead.text.batches import Rows
from clearhead.text.encoding import (
    NO_LABEL,
    Corpus,
    Layout,
    chunks,
    labels_of,
    texts_of,
    usable_records,
    words_of_tokens,
)
from clearhead.text.lines import Problems
from clearhead.text.preparing import Prepared
from clearhead.text.sources import Source
from clearhead.text.store import Store
from clearhead.text.validation_split import spread
from clearhead.tracing.trace import Trace
from clearhead.training.losses import NOTHING
from clearhead.training.recipe import Recipe
from clearhead.training.scores import ACCURACY, LOSS, MACRO_F1, EvaluationOptions, Measure, ValidationSet
from clearhead.training.tasks.answering import Answer, one_line
from clearhead.training.tasks.base import Task
from clearhead.training.tasks.classify import Classify, fit_classes, recipe_without_ngrams
from clearhead.training.tasks.learning import Batch, to_batch
from clearhead.training.tasks.texts import frame_rows

YES = 0.5
"""A label is given where its probability is at least this."""
MOST_SCORED = 2000


class LabelScores(NamedTuple):
    """How well sets of labels fit: `micro_f1` over all labels together, `macro_f1` the mean over the labels that
    occur, `exact_match` the share of records whose set is right as a whole.
    """

    micro_f1: float
    macro_f1: float
    exact_match: float
    f1: dict[str, float]
    records_by_label: dict[str, int]
    n: int


@final
class Label(Task):
    """Text with any number of labels: a start token in front, and the mean of all vectors asked for each label."""

    name = "label"
    measures = (
        Measure("micro_f1", "micro F1 %", 100),
        MACRO_F1,
        Measure("exact_match", "exact match %", 100),
        LOSS,
    )
    best_by = "micro_f1"
    outputs = True
    routes = ("/v1/classify",)
    answered = "the label that fits best"

    @staticmethod
    def layout(context: int) -> Layout:
        return replace(Classify.layout(context), label_of="many")

    @classmethod
    def default_recipe(cls, corpus: Corpus, n_bytes: int, on_gpu: bool) -> Recipe:
        """Return the recipe to classify, without label smoothing: it would make rare labels likelier than they are."""
        recipe = recipe_without_ngrams(corpus, n_bytes, on_gpu)
        return replace(recipe, task=cls.name, optimizer=replace(recipe.optimizer, smoothing=0.0))

    def describe_records(self, prepared: Prepared) -> list[str]:
        none = int((np.diff(prepared.train["label"].ends, prepend=0) == 0).sum())
        first, *rest = super().describe_records(prepared)
        return [first + (f"; {none:,} have no label" if none else ""), *rest]

    def fitted(self, spec: Spec) -> Spec:
        return fit_classes(self, spec)

    def read(self, store: Store, rows: Rows, random: np.random.Generator, *, filled: bool) -> Batch:
        frame, pad = self.frame(), self.tokenizer.pad
        tokens, _, lengths = frame_rows(store["text"], rows, rows.width, frame, pad, filled=filled)
        targets = np.zeros((len(rows.which), len(self.labels)), np.int64)
        for index, row in enumerate(rows.which.tolist()):
            targets[index, store["label"][row]] = 1
        return to_batch({"tokens": tokens, "lengths": lengths, "wanted": targets}, rows.full if filled else 0)

    def logits(self, model: Transformer, batch: Batch) -> Float[Tensor, "batch label 2"]:
        """Return the logits of no and yes for each label. That of no is 0, so yes has the sigmoid of its logit."""
        yes = model(batch["tokens"], lengths=batch["lengths"])
        return torch.stack([torch.zeros_like(yes), yes], -1)

    def probabilities(self, model: Transformer, rows: Sequence[Sequence[int]]) -> list[list[float]]:
        """Return the probability of each label for each row of ids. A row longer than the context is cut."""
        frame, most = self.frame(), self.reads
        logits_of_rows = self.predict(model, [frame.around(row, most) for row in rows])
        return [logits.to(widest_float(logits.device)).sigmoid().tolist() for logits in logits_of_rows]

    def choose(self, probabilities: Sequence[float]) -> list[str]:
        return [name for name, share in zip(self.labels, probabilities, strict=True) if share >= YES]

    def answer(self, model: Transformer, texts: Sequence[str]) -> list[Answer]:
        """Return the labels of each text, and the probability of every label, the likeliest first."""
        probabilities = self.probabilities(model, self.tokenizer.encode_batch(list(texts)))
        return [
            {
                "output": write_labels(self.choose(shares)),
                "score": sum(math.log(max(share, 1 - share)) for share in shares),
                "labels": self.choose(shares),
                "probabilities": dict(sorted(zip(self.labels, shares, strict=True), key=lambda pair: -pair[1])),
            }
            for shares in probabilities
        ]

    def entry(self, answer: Answer) -> dict[str, Any]:
        return {"labels": answer.get("labels", []), "probabilities": answer.get("probabilities", {})}

    def score(self, model: Transformer, held: ValidationSet) -> tuple[dict[str, float], list[dict[str, str]]]:
        indices = spread(len(held.store), MOST_SCORED)
        rows = [held.store["text"][i].tolist() for i in indices]
        answers = [self.choose(shares) for shares in self.probabilities(model, rows)]
        truths = [[self.labels[label] for label in held.store["label"][i]] for i in indices]
        scores = score_labels(answers, truths, self.labels)
        samples = [
            {
                "input": self.tokenizer.decode(rows[i]),
                "output": write_labels(answers[i]),
                "reference": write_labels(truths[i]),
            }
            for i in spread(len(indices), held.samples)
        ]
        return {name: getattr(scores, name) for name in ("micro_f1", "macro_f1", "exact_match")}, samples

    def evaluate(self, model: Transformer, source: Source, how: EvaluationOptions) -> tuple[dict[str, Any], list[str]]:
        layout = self.usual_layout()
        answers: list[list[str]] = []
        truths: list[list[str]] = []
        nats = 0.0
        started = time.perf_counter()
        for chunk in chunks(usable_records(source, layout, Problems(skip=True), self.labels)):
            rows = self.tokenizer.encode_batch([texts_of(source, layout, record)[0] for record in chunk])
            for record, shares in zip(chunk, self.probabilities(model, rows), strict=True):
                answers.append(self.choose(shares))
                truths.append(labels_of(source, layout, record))
                nats -= sum(
                    math.log(max(share if name in truths[-1] else 1 - share, 1e-300))
                    for name, share in zip(self.labels, shares, strict=True)
                )
        speed = len(answers) / (time.perf_counter() - started)
        facts = {"loss": nats / (len(answers) * len(self.labels)), "labels": list(self.labels)}
        scores = score_labels(answers, truths, self.labels)._asdict()
        return {**scores, **facts, "sentences_per_second": round(speed, 1)}, [
            one_line(write_labels(a)) for a in answers
        ]


def write_labels(labels: Sequence[str]) -> str:
    """Return labels as the label column has them."""
    return ", ".join(labels) or NO_LABEL


def score_labels(
    answers: Sequence[Sequence[str]], truths: Sequence[Sequence[str]], labels: Sequence[str]
) -> LabelScores:
    """Score a set of labels for each example.

    As scikit-learn has it, a label that nobody used has F1 0, and is left out of the mean over the labels.

    >>> score_labels([["a"], ["a", "b"]], [["a"], ["b"]], ["a", "b", "c"]).f1
    {'a': 0.6666666666666666, 'b': 1.0, 'c': 0.0}
    """
    pairs = [(set(answer), set(truth)) for answer, truth in zip(answers, truths, strict=True)]
    right = {label: sum(label in answer and label in truth for answer, truth in pairs) for label in labels}
    # F1 is 2 TP / (2 TP + FP + FN): the denominator counts a label in answers and in truths.
    counted = {label: sum((label in answer) + (label in truth) for answer, truth in pairs) for label in labels}
    f1_of_used = [2 * right[label] / counted[label] for label in labels if counted[label]]
    return LabelScores(
        micro_f1=2 * sum(right.values()) / (sum(counted.values()) or 1),
        macro_f1=math.fsum(f1_of_used) / (len(f1_of_used) or 1),
        exact_match=sum(answer == truth for answer, truth in pairs) / max(len(pairs), 1),
        f1={label: 2 * right[label] / (counted[label] or 1) for label in labels},
        records_by_label={label: sum(label in truth for _, truth in pairs) for label in labels},
        n=len(pairs),
    )


@final
class Tag(Task):
    """Text with a tag for each word, words being what stands between blanks."""

    name = "tag"
    measures = (ACCURACY, MACRO_F1, LOSS)
    answered = "the tag of the last word"
    place = "last"

    @staticmethod
    def layout(context: int) -> Layout:
        return Layout(texts=("text",), label="label", label_of="subword", most=context - 1, too_long="cut")

    @classmethod
    def default_recipe(cls, corpus: Corpus, n_bytes: int, on_gpu: bool) -> Recipe:
        """Return the recipe to classify, with a tag at each token; capital letters tell names, so they stay."""
        recipe = recipe_without_ngrams(corpus, n_bytes, on_gpu)
        return replace(
            recipe,
            task=cls.name,
            tokenizing=replace(recipe.tokenizing, lower=False),
            model=replace(recipe.model, output=Tags(2)),
            checkpointing=replace(recipe.checkpointing, select="best"),
        )

    def fitted(self, spec: Spec) -> Spec:
        return replace(super().fitted(spec), output=Tags(len(self.labels)))

    def read(self, store: Store, rows: Rows, random: np.random.Generator, *, filled: bool) -> Batch:
        frame, pad = self.frame(), self.tokenizer.pad
        tokens, texts, lengths = frame_rows(store["text"], rows, rows.width, frame, pad, filled=filled)
        first, width = len(frame.before) + len(frame.opening), tokens.shape[1]
        numbers = store["label"].padded(rows.which, width - first, len(self.labels))
        asked = (numbers < len(self.labels)) & (np.arange(width - first) < texts[:, None])
        front = np.full((len(tokens), first), NOTHING)
        targets = np.concatenate([front, np.where(asked, numbers, NOTHING)], 1)
        return to_batch({"tokens": tokens, "lengths": lengths, "wanted": targets}, rows.full if filled else 0)

    def answer(self, model: Transformer, texts: Sequence[str]) -> list[Answer]:
        """Return the tag of each word, and its probability. Words beyond the context have none."""
        frame = self.frame()
        rows = [row[: self.reads] for row in self.tokenizer.encode_batch(list(texts))]
        predicted = self.predict(model, [frame.around(row) for row in rows])
        answers = []
        for text, row, logits in zip(texts, rows, predicted, strict=True):
            words = words_of_tokens(self.tokenizer, text)[: len(row)]
            first = {word: place for place, word in reversed(list(enumerate(words)))}
            shares = logits.to(widest_float(logits.device)).softmax(-1)
            offset, tagged = len(frame.before) + len(frame.opening), []
            for word, place in sorted(first.items()):
                best = int(shares[offset + place].argmax())
                tagged.append((text.split()[word], self.labels[best], float(shares[offset + place, best])))
            answers.append(
                {
                    "output": " ".join(tag for _, tag, _ in tagged),
                    "words": [{"word": word, "tag": tag, "probability": share} for word, tag, share in tagged],
                }
            )
        return answers

    def reference(self, store: Store, record: int) -> str:
        return " ".join(self.labels[number] for number in store["label"][record] if number < len(self.labels))

    def traced_answer(self, source: str, trace: Trace) -> str:
        """Return the tags of a traced text's words, each from its first token."""
        offset, words = len(self.frame().before) + len(self.frame().opening), words_of_tokens(self.tokenizer, source)
        starts = [place for place, word in enumerate(words) if place == 0 or words[place - 1] != word]
        return " ".join(trace.candidates[offset + place][0].text for place in starts)
