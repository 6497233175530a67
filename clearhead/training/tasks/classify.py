"""To classify: a label for each text, with an encoder.

To classify pairs: a label for two texts, such as whether one follows from the other, with an encoder.

The two are one row of tokens with a token between them. An imported model keeps its own separator, and a BERT
its segments, which tell the texts apart; a model that is trained here has its end token between, and no segments.
"""

import math
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple, cast, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.devices import widest_float
from clearhead.errors import OptionError
from clearhead.model.outputs import Classes, NgramLogits, ToClasses
from clearhead.model.presets import Size
from clearhead.model.sizes import Spec
from clearhead.model.transformers import Decoder, Encoder, EncoderSpec, Transformer
from clearhead.text.batches import BatchPlanner, ByLength, Rows
from clearhead.text.encoding import Corpus, Layout, chunks, label_of, texts_of, usable_records
from clearhead.text.lines import Problems
from clearhead.text.preparing import Prepared, Tokenizing
from clearhead.text.sources import Source
from clearhead.text.store import Store
from clearhead.text.validation_split import spread
from clearhead.training.baseline import MOST_BYTES, Figures, fit_in_time
from clearhead.training.recipe import Batching, Budget, Checkpointing, Optimizer, Recipe
from clearhead.training.schedules import CosineDecay, Ema
from clearhead.training.scores import ACCURACY, LOSS, MACRO_F1, EvaluationOptions, score_classes
from clearhead.training.tasks.answering import Answer, Pair, one_line, split_pair
from clearhead.training.tasks.base import Task, TraceInputs, trace_pair
from clearhead.training.tasks.learning import Batch, encoder, epochs, spec_name, to_batch
from clearhead.training.tasks.texts import Framing, frame_rows
from clearhead.training.wide import (
    FittedLinear,
    LinearFit,
    choose_fit,
    choose_shares,
    fit_ngrams,
    letters_of,
    score_logits,
)

LITTLE = 200_000
"""Bytes of text below which a corpus is little: a few hundred records."""
MOST_SCORED = 5000
"""Dev records that the linear model is scored on, and that choose how much it counts."""
MOST_RECORDS, MOST_COST = 200_000, 400_000_000
"""Records that the linear model learns from, and bytes times classes: what the time goes by."""
PILOT_TOKENS = 15_000
"""Tokens of the records whose fit says how many more can be fitted in time."""
THOROUGH = 3.0
"""How many times as long as a quick fit the time must be for one that leaves out no rare n-grams."""


class Class(NamedTuple):
    """A label, its probability, and that of every label."""

    label: str
    probability: float
    probabilities: dict[str, float]


class OneLabel(Task):
    """A label for each text, or for each pair of texts."""

    name = "classify"
    measures = (ACCURACY, MACRO_F1, LOSS)
    outputs = True
    verb = "classify"
    routes = ("/v1/classify",)

    def fitted(self, spec: Spec) -> Spec:
        return fit_classes(self, spec)

    def classify(self, model: Transformer, items: Sequence[str | Pair]) -> list[Class]:
        """Return the class of each text, or of each pair for a model that reads two. What is too long is cut."""
        return name_classes(self.labels, self.predict(model, *self.frame_items(model, items)))

    def answer(self, model: Transformer, texts: Sequence[str]) -> list[Answer]:
        """Return labels with their probabilities, the likeliest first."""
        return list(map(tell_class, self.classify(model, texts)))

    def answer_pairs(self, model: Transformer, pairs: Sequence[Pair]) -> list[Answer]:
        return list(map(tell_class, self.classify(model, pairs)))

    def entry(self, answer: Answer) -> dict[str, Any]:
        shares = answer.get("probabilities", {})
        return {"label": answer["output"], "probability": answer.get("probability"), "probabilities": shares}

    def reference(self, store: Store, record: int) -> str:
        return self.labels[int(store["label"][record][0])]

    def evaluate(self, model: Transformer, source: Source, how: EvaluationOptions) -> tuple[dict[str, Any], list[str]]:
        """Return the scores on labelled records, and the label that each was given."""
        layout = self.usual_layout()
        outputs: list[str] = []
        truths: list[str] = []
        nats = 0.0
        started = time.perf_counter()
        for chunk in chunks(usable_records(source, layout, Problems(skip=True), self.labels)):
            texts = (texts_of(source, layout, record) for record in chunk)
            classes = self.classify(model, [(row[0], row[1]) if row[1:] else row[0] for row in texts])
            true = [label_of(source, layout, record) for record in chunk]
            outputs += [predicted.label for predicted in classes]
            truths += true
            # A probability that is 0 in float64 counts as the least there is: the loss stays finite.
            shares = (predicted.probabilities[name] for predicted, name in zip(classes, true, strict=True))
            nats += sum(-math.log(max(share, sys.float_info.min)) for share in shares)
        speed = len(outputs) / (time.perf_counter() - started)
        scores = asdict(score_classes(outputs, truths, self.labels))
        counts = Counter(truths)
        facts = {
            "loss": nats / len(outputs),
            "labels": list(self.labels),
            "records_by_label": {label: counts[label] for label in self.labels},
            "sentences_per_second": round(speed, 1),
        }
        return {**scores, **facts}, [one_line(output) for output in outputs]


@final
class Classify(OneLabel):
    """Text with a label: a start token in front, from which (or from the mean of all) the class is read."""

    answered = "what it takes the text for"

    @staticmethod
    def layout(context: int) -> Layout:
        return Layout(texts=("text",), label="label", most=context - 1, too_long="cut")

    def baseline(self, corpus: Corpus, prepared: Prepared, *, seconds: float = math.inf) -> FittedLinear | None:
        """Fit a linear model on n-grams to the training records, and score it on the dev records."""
        started, letters, n = time.perf_counter(), letters_of(self.tokenizer), len(prepared.train)
        most = most_records(n, prepared.notes["text_bytes"], len(self.labels))
        tokens = prepared.train.sizes["text"].tokens * most / max(1, n)

        def fit(share: float, seconds: float) -> LinearFit:
            drawn = self.labelled_rows(prepared.train, spread(n, max(1, round(min(1.0, share) * most))))
            return fit_ngrams(*drawn, letters, len(self.labels), quick=share < THOROUGH, seconds=seconds)

        fitted = fit_in_time(fit, pilot=PILOT_TOKENS / max(1, tokens), seconds=seconds)
        held, truths = self.labelled_rows(prepared.dev, spread(len(prepared.dev), MOST_SCORED))
        return choose_fit(fitted, held, truths, seconds=time.perf_counter() - started)

    def labelled_rows(self, store: Store, indices: Sequence[int]) -> tuple[list[list[int]], Tensor]:
        """Return the ids of some records as the model reads them, and the numbers of their labels."""
        frame, reads, at = self.frame(), self.reads, np.array(indices, np.int64)
        # As lists: to ask a file that is mapped for one row after another takes ten times as long.
        text, ids = store["text"], np.asarray(store["text"].ids)
        places = zip(text.starts(at).tolist(), text.lengths(at).tolist(), strict=True)
        rows = [frame.around(ids[start : start + length].tolist(), reads) for start, length in places]
        return rows, torch.from_numpy(store["label"].padded(at, 1, 0)[:, 0])

    def weigh(self, model: Transformer, prepared: Prepared) -> Figures | None:
        """Choose by the dev records how much the Transformer and the wide part count; return the score of the first."""
        output = cast(ToClasses, cast(Encoder | Decoder, model).output)
        if output.wide is None:
            return None
        rows, truths = self.labelled_rows(prepared.dev, spread(len(prepared.dev), MOST_SCORED))
        shares = output.wide.get_buffer("shares")
        logits = list[Tensor]()
        for alone in ((1.0, 0.0), (0.0, 1.0)):
            shares.copy_(torch.tensor(alone))
            logits.append(torch.stack(self.predict(model, rows)).cpu())
        shares.copy_(torch.tensor(choose_shares(logits[0], logits[1], truths)))
        return score_logits(logits[0], truths)

    @classmethod
    def default_recipe(cls, corpus: Corpus, n_bytes: int, on_gpu: bool) -> Recipe:
        """Return the recipe for this much text. Little text has one layer and small batches, so that there are steps
        enough, and its last weights are used: its dev records are too few to choose by.
        docs/decisions/0016-classification-by-default.md has the trials.
        """
        little = n_bytes < LITTLE
        tokens = min(4096, max(512, 1 << round(math.log2(max(n_bytes / 4 / 32, 1)))))
        steps = epochs(4, n_bytes / 4, tokens, least=800)
        output = Classes(2, pool="mean", ngrams=NgramLogits())
        return Recipe(
            task=cls.name,
            corpus=corpus,
            tokenizing=Tokenizing(kind="metaspace", lower=True, size_factor=4.0),
            model=encoder(Size(1 if little else 2, 128, 4, 4, 256), output, 0.4),
            optimizer=Optimizer(
                lr=1e-3,
                schedule=CosineDecay(warmup=steps // 10),
                weight_decay=0.05,
                smoothing=0.1,
                r_drop=2.0,
                averaging=Ema(0.999),
            ),
            batching=Batching(tokens=tokens, context=256),
            budget=Budget(steps=steps, patience=None if little else 10),
            checkpointing=Checkpointing(evaluate=max(50, steps // 20), select="last" if little else "best"),
        )

    def read(self, store: Store, rows: Rows, random: np.random.Generator, *, filled: bool) -> Batch:
        frame, pad = self.frame(), self.tokenizer.pad
        tokens, _, lengths = frame_rows(store["text"], rows, rows.width, frame, pad, filled=filled)
        targets = store["label"].padded(rows.which, 1, 0)[:, 0]
        return to_batch({"tokens": tokens, "lengths": lengths, "wanted": targets}, rows.full if filled else 0)


def most_records(records: int, n_bytes: int, classes: int) -> int:
    """Return how many records of a corpus are enough for a linear model: all of a small one.

    >>> most_records(60_000, 4_000_000, 2), most_records(500_000, 40_000_000, 2)
    (60000, 200000)
    """
    cost = max(1.0, n_bytes / MOST_BYTES, n_bytes * classes / MOST_COST)
    return min(MOST_RECORDS, math.ceil(records / cost))


def recipe_without_ngrams(corpus: Corpus, n_bytes: int, on_gpu: bool) -> Recipe:
    """Return the recipe to classify without its wide part, which is fitted to one text with one class."""
    recipe = Classify.default_recipe(corpus, n_bytes, on_gpu)
    model = cast(EncoderSpec, recipe.model)
    return replace(recipe, model=replace(model, output=replace(cast(Classes, model.output), ngrams=None)))


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
    if (spec.encoder is not None and spec.decoder is not None) or not isinstance(spec.output, Classes):
        raise OptionError(f"to {task.name} takes an encoder with Classes for output; the model is a {spec_name(spec)}")
    return replace(spec, vocabulary=task.tokenizer.vocabulary, output=replace(spec.output, count=len(task.labels)))


def tell_class(predicted: Class) -> Answer:
    """Return a class as an answer, its labels ordered with the likeliest first."""
    return {
        "output": predicted.label,
        "score": math.log(predicted.probability),
        "probability": predicted.probability,
        "probabilities": dict(sorted(predicted.probabilities.items(), key=lambda pair: -pair[1])),
    }


@final
class ClassifyPairs(OneLabel):
    """Two texts with a label: `start first end second`, and the class is read from the mean of all vectors."""

    name = "classify-pairs"
    exports_as = Classify.name
    answered = "what it takes the two texts for"
    trial = "printf 'a text\\tanother\\n' | clearhead VERB {run}"

    @staticmethod
    def layout(context: int) -> Layout:
        return Layout(texts=("first", "second"), label="label", most=context, too_long="cut")

    @classmethod
    def default_recipe(cls, corpus: Corpus, n_bytes: int, on_gpu: bool) -> Recipe:
        return replace(recipe_without_ngrams(corpus, n_bytes, on_gpu), task=cls.name)

    def own_framing(self, field: str) -> Framing:
        tokenizer = self.tokenizers[field]
        return Framing(before=(tokenizer.start,), between=(tokenizer.end,))

    def planner(self, store: Store, tokens: int, seed: int, records: range | None = None) -> BatchPlanner:
        frame = self.frame()
        extra = frame.size + len(frame.between)
        return ByLength(
            store=store,
            fields=("first", "second"),
            tokens=tokens,
            seed=seed,
            longest=self.context - extra,
            extra=extra,
            joined=True,
            records=records,
        )

    def read(self, store: Store, rows: Rows, random: np.random.Generator, *, filled: bool) -> Batch:
        """Return pairs as rows, padded to the full width if filled. Segments are given only if there are any."""
        frame, indices = self.frame(), rows.which.tolist()
        framed = [
            frame.around_pair(store["first"][i].tolist(), store["second"][i].tolist(), rows.width) for i in indices
        ]
        lengths = np.array([len(ids) for ids, _ in framed], np.int64)
        shape = len(framed), rows.width if filled else int(lengths.max())
        arrays = {"tokens": np.full(shape, self.tokenizer.pad, np.int64), "lengths": lengths}
        arrays |= {"segments": np.zeros(shape, np.int64)} if frame.segment else {}
        for row, (ids, apart) in enumerate(framed):
            arrays["tokens"][row, : len(ids)] = ids
            if frame.segment:
                arrays["segments"][row, : len(ids)] = apart
        arrays["wanted"] = store["label"].padded(rows.which, 1, 0)[:, 0]
        return to_batch(arrays, rows.full if filled else 0)

    def logits(self, model: Transformer, batch: Batch) -> Float[Tensor, "batch label"]:
        apart = {"segments": batch["segments"]} if "segments" in batch else {}
        return model(batch["tokens"], lengths=batch["lengths"], **apart)

    def classify(self, model: Transformer, items: Sequence[str | Pair]) -> list[Class]:
        if any(isinstance(item, str) for item in items):
            raise OptionError(f"this run was trained to {self.name}: give each text as a pair of two")
        return super().classify(model, items)

    def answer(self, model: Transformer, texts: Sequence[str]) -> list[Answer]:
        """Return labels with their probabilities, the likeliest first, for lines of two texts with a tab between."""
        return self.answer_pairs(model, [split_pair(text) for text in texts])

    def check_line(self, line: str) -> object:
        return split_pair(line)

    def exported(self) -> Task:
        """Return the task for single texts: its tokenizer.json says how two are joined."""
        framing = {"text": self.frame()}
        return Classify(tokenizers={"text": self.tokenizer}, context=self.context, labels=self.labels, framing=framing)

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Return how many tokens the two texts of each line have together."""
        return [len(row) for row in self.tokenizer.encode_batch([text.replace("\t", " ") for text in texts])]

    @property
    def reads(self) -> int:
        frame = self.frame()
        return self.context - frame.size - len(frame.between)

    def text_at(self, store: Store, record: int) -> str:
        return "\t".join(self.tokenizer.decode(store[field][record].tolist()) for field in ("first", "second"))

    def trace_inputs(self, source: str, target: str | Sequence[int] | None = None) -> TraceInputs:
        return trace_pair(self, split_pair(source))

    def examples(self, store: Store, places: Iterable[int]) -> Iterator[dict[str, str]]:
        yield from ({"source": self.text_at(store, index)} for index in places)

    def example_code(self, text: str) -> str:
        return '("a text", "another text")'
