"""What trains: the recipe, the model that fits, batches and what is asked in them, and what tells a good model; and the
models and lengths that default recipes are made of, whatever the task.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, TypeVar

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from clearhead.attention.heads import Heads
from clearhead.errors import OptionError
from clearhead.model import (
    GELU,
    AttentionSpec,
    BlockSpec,
    DecoderSpec,
    Embedding,
    EncoderSpec,
    Output,
    PreNorm,
    presets,
)
from clearhead.model.presets import Size
from clearhead.model.sizes import Spec
from clearhead.model.transformers import Transformer
from clearhead.text.batches import BatchPlanner, ByLength, Rows
from clearhead.text.encoding import Corpus
from clearhead.text.parts import estimate_bytes
from clearhead.text.preparing import Prepared
from clearhead.text.store import Store
from clearhead.text.table_readers import list_names, quote
from clearhead.training.baseline import Baseline, Figures
from clearhead.training.losses import NOTHING
from clearhead.training.recipe import Recipe
from clearhead.training.scores import ACCURACY, LOSS, Measure
from clearhead.training.tasks.texts import TaskTexts

Batch = dict[str, Tensor]
Ids = NDArray[np.int64]


MOST_SHOWN = 20
"""Labels whose counts are printed one by one; of more, only the most frequent and the rarest."""
RARE = 20
"""A label with fewer training records is named as rare: a model from scratch learns next to nothing of it."""
Own = TypeVar("Own", bound=TaskTexts)
"""The task's own class."""


class Learning(TaskTexts):
    """How a model learns a task.

    A batch is a few tensors of whole numbers, the same few for every task: `tokens` go into the model, `wanted` is what
    should come out (`NOTHING` where nothing is asked), `lengths`, `source`, `source_lengths` and `documents` where the
    task has them.
    """

    measures: ClassVar[tuple[Measure, ...]] = (ACCURACY, LOSS)
    """What tells how good a model is, the main one first. With ACCURACY it is counted at every place that asks."""
    best_by: ClassVar[str] = "accuracy"
    """The score that the best checkpoint has most of; the least loss if there is no such score."""
    options: ClassVar[tuple[str, ...]] = ()
    """The fields of `EvaluationOptions` that bear on its evaluation."""
    outputs: ClassVar[bool] = False
    """Whether its evaluation has an output for each record, which `--output` writes."""
    plain_logits: ClassVar[bool] = True
    """Whether `logits` only calls the model, said anew where it is changed: the loss of a long sequence is then
    computed without all its logits at once.
    """
    sizes: ClassVar[bool] = False
    """Whether the size of its usual model, its dropout and learning rate are fitted to a budget."""

    @classmethod
    def of(cls: type[Own], prepared: Prepared, context: int) -> Own:
        """Return the task for a corpus that is prepared."""
        return cls(tokenizers=prepared.tokenizers, context=context, labels=prepared.labels)

    def describe_records(self, prepared: Prepared) -> list[str]:
        """Return lines about the records that are printed before training: the counts of labels, where it has any."""
        field = self.usual_layout().label
        return [] if field is None else describe_labels(self.labels, prepared, field)

    def baseline(self, corpus: Corpus, prepared: Prepared, *, seconds: float = math.inf) -> Baseline | None:
        """Return a simple model that was fitted to the records in seconds: the line to beat. None if there is none.

        If the task's usual model has a place for it, it becomes a part of what is kept. In so many `seconds` it is
        fitted to as many records as there is time for.
        """
        return None

    def weigh(self, model: Transformer, prepared: Prepared) -> Figures | None:
        """Choose by the dev records how much a trained model and its linear part count, in place.

        Returns the score of the Transformer alone; None if there is no such part.
        """
        return None

    @classmethod
    @abstractmethod
    def default_recipe(cls, corpus: Corpus, n_bytes: int, on_gpu: bool) -> Recipe:
        """Return the recipe for a corpus of so many bytes, on this kind of machine."""

    def fitted(self, spec: Spec) -> Spec:
        """Return the spec for these tokenisers' vocabularies; raise OptionError if it is the wrong kind of model."""
        if spec.kind != self.family or len(spec.stacks) > 1:
            raise OptionError(f"to {self.name} takes {with_article(self.family)}; the model is a {spec_name(spec)}")
        return replace(spec, vocabulary=self.tokenizer.vocabulary)

    def planner(self, store: Store, tokens: int, seed: int, records: range | None = None) -> BatchPlanner:
        """Return the plan of batches of about so many tokens, from these records of a store or from all."""
        layout = self.usual_layout()
        return ByLength(
            store=store,
            fields=layout.texts,
            tokens=tokens,
            seed=seed,
            longest=layout.most,
            extra=self.context - layout.most,
            records=records,
        )

    @abstractmethod
    def read(self, store: Store, rows: Rows, random: np.random.Generator, *, filled: bool) -> Batch:
        """Return the batch itself. `filled` gives it the full shape of its width, with rows that ask for nothing."""

    def logits(self, model: Transformer, batch: Batch) -> Float[Tensor, "*place choice"]:
        """Return what the model says where `wanted` asks. A task with `plain_logits` does nothing else."""
        return model(batch["tokens"], lengths=batch["lengths"])

    def text_at(self, store: Store, record: int) -> str:
        """Return the text of a record, as a line that is answered."""
        return self.tokenizer.decode(store[self.layout(self.context).texts[0]][record].tolist())

    def reference(self, store: Store, record: int) -> str | None:
        """Return the right answer to a record as text; None if there is none."""
        return None

    def goal(self, scores: Mapping[str, float], loss: float) -> float:
        """Return the number by which checkpoints are compared: higher is better."""
        if self.best_by not in scores:
            return -loss
        higher = next((measure.higher for measure in self.measures if measure.key == self.best_by), True)
        return scores[self.best_by] if higher else -scores[self.best_by]

    @classmethod
    def derived_scores(cls, loss: float, held_out: Path) -> dict[str, float]:
        """Return scores that follow from the mean loss over the store in this folder."""
        return {}


def spec_name(spec: Spec) -> str:
    return type(spec).__name__.removesuffix("Spec")


def with_article(family: str) -> str:
    return f"{'an' if family.startswith('e') else 'a'} {family}"


def to_batch(arrays: Mapping[str, Ids], rows: int = 0) -> Batch:
    """Return arrays as tensors, with rows added up to `rows`: copies of the first one that ask for nothing."""
    missing = max(0, rows - len(arrays["wanted"]))
    more = {name: np.repeat(array[:1], missing, 0) for name, array in arrays.items()}
    more["wanted"] = np.full_like(more["wanted"], NOTHING)
    return {name: torch.from_numpy(np.concatenate([array, more[name]])) for name, array in arrays.items()}


def describe_labels(labels: Sequence[str], prepared: Prepared, field: str) -> list[str]:
    """Return a line for the training records and one for the dev records: how many have each label, the most frequent
    first; which are too few to learn, and which no dev record has.
    """
    learned, held = (
        # A number after the last label is that of a token without one, inside a word.
        np.bincount(store[field].ids, minlength=len(labels))[: len(labels)].tolist()
        for store in (prepared.train, prepared.dev)
    )
    rare = [name for name, count in zip(labels, learned, strict=True) if count < RARE]
    line = f"{len(labels)} labels in {len(prepared.train):,} training records: {count_labels(labels, learned)}"
    if rare and max(learned) >= RARE:
        line += f"; too rare to be learned well: {list_names(rare)}. Accuracy says little about them: see macro F1"
    dev_line = f"{len(prepared.dev):,} dev records: {count_labels(labels, held)}"
    absent = [name for name, count in zip(labels, held, strict=True) if not count]
    if len(absent) == len(labels) - 1:
        dev_line += "; they have one label only: accuracy says nothing about the others"
    elif absent:
        dev_line += f"; no dev record has {list_names(absent)}: scores say nothing about them"
    return [line, dev_line]


def count_labels(labels: Sequence[str], counts: Sequence[int]) -> str:
    """Return the labels that occur with their counts, the most frequent first."""
    ranked = sorted(zip(labels, counts, strict=True), key=lambda pair: -pair[1])
    counted = [f"{quote(name)} {count:,}" for name, count in ranked if count]
    if len(counted) > MOST_SHOWN:
        counted = [*counted[: MOST_SHOWN // 2], "…", *counted[-MOST_SHOWN // 2 :]]
    return ", ".join(counted)


PLACEHOLDER = 64
"""A vocabulary until the tokeniser is there."""


def text_bytes(corpus: Corpus) -> int:
    """Return about how much text there is, from the sizes of the files."""
    return estimate_bytes(corpus.train)


def epochs(count: int, n_tokens: float, batch: int, *, least: int = 500, most: int = 20_000) -> int:
    """Return the steps of so many epochs, to the hundred."""
    return int(min(most, max(least, count * n_tokens / batch))) // 100 * 100


def decoder(size: Size, context: int, dropout: float) -> DecoderSpec:
    """Return a decoder as nanoGPT's: norm before, learned positions, GELU, no biases, output tied."""
    spec = presets.gpt2(size, vocabulary=PLACEHOLDER, length=context, dropout=dropout)
    block = replace(
        spec.blocks[0],
        attention=AttentionSpec(heads=Heads(size.n_heads), dropout=dropout),
        feed_forward=GELU(size.d_ff, bias=False),
    )
    return replace(spec, blocks=(block,) * size.n_layers)


def encoder(size: Size, output: Output, dropout: float) -> EncoderSpec:
    """Return an encoder with the norm before and sinusoidal positions."""
    block = BlockSpec(
        attention=AttentionSpec(heads=Heads(size.n_heads)),
        feed_forward=GELU(size.d_ff),
        arrangement=PreNorm(),
        dropout=dropout,
    )
    return EncoderSpec(
        vocabulary=PLACEHOLDER,
        d_model=size.d_model,
        blocks=(block,) * size.n_layers,
        embedding=Embedding(dropout=dropout),
        output=output,
    )
