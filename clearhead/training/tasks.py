"""Tasks: translate, generate, fill, classify. What each reads of a store, and what it asks of a model.

A batch is a few tensors of whole numbers, the same few for every task: `tokens` go into the model, `wanted` is what
should come out, `lengths`, `source`, `source_lengths` and `documents` where the task has them.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, final

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from clearhead.attention import masks
from clearhead.errors import OptionError
from clearhead.model.outputs import Classes
from clearhead.model.sizes import Spec
from clearhead.model.transformers import Decoder, DecoderSpec, EncoderDecoderSpec, EncoderSpec
from clearhead.text.batches import ByLength, Planner, Rows, Windows
from clearhead.text.encoding import Layout
from clearhead.text.store import Ragged, Store
from clearhead.text.tokenizer import Tokenizer
from clearhead.training.losses import NOTHING

__all__ = ["TASKS", "Batch", "Classify", "Fill", "Generate", "Task", "Translate"]

Batch = dict[str, Tensor]
Ids = NDArray[np.int64]
BLANK_SHARE = 0.15


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """A task over given tokenisers, with rows of `context` tokens at most."""

    name: ClassVar[str]
    tokenizers: Mapping[str, Tokenizer]
    context: int
    labels: tuple[str, ...] = ()

    @staticmethod
    @abstractmethod
    def layout(context: int) -> Layout:
        """What it keeps of a record."""

    @abstractmethod
    def fitted(self, spec: Spec) -> Spec:
        """The spec for these tokenisers' vocabularies; raises where it is the wrong kind of model."""

    @abstractmethod
    def planner(self, store: Store, tokens: int, seed: int) -> Planner:
        """Batches of about so many tokens."""

    @abstractmethod
    def read(self, store: Store, rows: Rows, random: np.random.Generator, *, filled: bool) -> Batch:
        """The batch itself. `filled` gives it the full shape of its width, with rows that ask for nothing."""

    @abstractmethod
    def logits(self, model: nn.Module, batch: Batch) -> Float[Tensor, "*place choice"]:
        """What the model says where `wanted` asks."""


@final
class Translate(Task):
    """Pairs: the source with an end token, the target from a start token to an end token."""

    name = "translate"

    @staticmethod
    def layout(context: int) -> Layout:
        return Layout(texts=("source", "target"), most=context - 1, too_long="drop")

    def fitted(self, spec: Spec) -> Spec:
        if not isinstance(spec, EncoderDecoderSpec):
            raise OptionError(f"to translate takes an encoder-decoder; the model is a {kind_of(spec)}")
        source, target = (self.tokenizers[name].vocabulary for name in ("source", "target"))
        shared = self.tokenizers["source"] is self.tokenizers["target"]
        return replace(
            spec,
            encoder=replace(spec.encoder, vocabulary=source),
            decoder=replace(spec.decoder, vocabulary=target),
            tied=spec.tied if shared or spec.tied != "three" else "two",
        )

    def planner(self, store: Store, tokens: int, seed: int) -> Planner:
        fields = ("source", "target")
        return ByLength(store=store, fields=fields, tokens=tokens, seed=seed, longest=self.context - 1)

    def read(self, store: Store, rows: Rows, random: np.random.Generator, *, filled: bool) -> Batch:
        (source, source_lengths), (target, lengths) = (
            closed(store[name], rows, rows.width, self.tokenizers[name], filled=filled) for name in ("source", "target")
        )
        start = np.full((len(target), 1), self.tokenizers["target"].start)
        tokens = np.concatenate([start, target[:, :-1]], 1)
        wanted = np.where(np.arange(target.shape[1]) < lengths[:, None], target, NOTHING)
        found = {"source": source, "source_lengths": source_lengths, "tokens": tokens, "wanted": wanted}
        return tensors(found, rows.full if filled else 0)

    def logits(self, model: nn.Module, batch: Batch) -> Float[Tensor, "*place choice"]:
        return model(batch["source"], batch["tokens"], source_lengths=batch["source_lengths"])


@final
class Generate(Task):
    """A stream of documents, cut into stretches. An end token closes a document, and opens the next one.

    Of a stream of several documents none sees another, and positions begin again with each.
    """

    name = "generate"

    @staticmethod
    def layout(context: int) -> Layout:
        return Layout(texts=("text",), most=context, too_long="keep", end=True)

    def fitted(self, spec: Spec) -> Spec:
        if not isinstance(spec, DecoderSpec):
            raise OptionError(f"to generate takes a decoder; the model is a {kind_of(spec)}")
        return replace(spec, vocabulary=self.tokenizers["text"].vocabulary)

    def planner(self, store: Store, tokens: int, seed: int) -> Planner:
        n_tokens = store.sizes["text"].tokens
        width = max(1, min(self.context, n_tokens - 1))
        return Windows(n_tokens=n_tokens, width=width, rows=max(1, tokens // width), seed=seed)

    def read(self, store: Store, rows: Rows, random: np.random.Generator, *, filled: bool) -> Batch:
        places = rows.which[:, None] + np.arange(rows.width + 1)
        ids = store["text"].ids[places].astype(np.int64)
        found = {"tokens": ids[:, :-1], "wanted": ids[:, 1:]}
        if len(store) > 1:
            found["documents"] = np.cumsum(ids[:, :-1] == self.tokenizers["text"].end, axis=1)
        return tensors(found, rows.full if filled else 0)

    def logits(self, model: nn.Module, batch: Batch) -> Float[Tensor, "*place choice"]:
        assert isinstance(model, Decoder)
        if "documents" not in batch:
            return model(batch["tokens"])
        documents = batch["documents"]
        if model.spec.embedding.position is None:
            # They count up, so each is one run; to look at them would stop a step from being captured.
            return model(batch["tokens"], mask=masks.Document(documents, packed=True))
        return model(batch["tokens"], mask=masks.document(documents, documents), positions=restarting(documents))


@final
class Fill(Task):
    """Text with some tokens blanked: three in twenty are asked for, most of them shown as a blank."""

    name = "fill"

    @staticmethod
    def layout(context: int) -> Layout:
        return Layout(texts=("text",), most=context - 2, too_long="split")

    def fitted(self, spec: Spec) -> Spec:
        if not isinstance(spec, EncoderSpec):
            raise OptionError(f"to fill blanks takes an encoder; the model is a {kind_of(spec)}")
        return replace(spec, vocabulary=self.tokenizers["text"].vocabulary)

    def planner(self, store: Store, tokens: int, seed: int) -> Planner:
        return ByLength(store=store, fields=("text",), tokens=tokens, seed=seed, longest=self.context - 2, extra=2)

    def read(self, store: Store, rows: Rows, random: np.random.Generator, *, filled: bool) -> Batch:
        tokenizer = self.tokenizers["text"]
        text, lengths = closed(store["text"], rows, rows.width - 1, tokenizer, filled=filled)
        start = np.full((len(text), 1), tokenizer.start)
        tokens = np.concatenate([start, text], 1)
        width = tokens.shape[1]
        places = np.arange(width)
        # Drawn for the full width, so that the same blanks are asked for whether the batch is filled or not.
        shape = len(tokens), rows.width
        chance, lot = (random.random(shape)[:, :width] for _ in range(2))
        other = random.integers(0, tokenizer.vocabulary, shape)[:, :width]
        asked = (places > 0) & (places < lengths[:, None]) & (chance < BLANK_SHARE)
        asked[np.arange(len(tokens)), 1 + random.integers(0, np.maximum(lengths - 1, 1))] |= lengths > 1
        shown = np.where(lot < 0.8, tokenizer.mask, np.where(lot < 0.9, other, tokens))
        found = {
            "tokens": np.where(asked, shown, tokens),
            "lengths": lengths + 1,
            "wanted": np.where(asked, tokens, NOTHING),
        }
        return tensors(found, rows.full if filled else 0)

    def logits(self, model: nn.Module, batch: Batch) -> Float[Tensor, "*place choice"]:
        return model(batch["tokens"], lengths=batch["lengths"])


@final
class Classify(Task):
    """Text with a label: a start token in front, from which (or from the mean of all) the class is read."""

    name = "classify"

    @staticmethod
    def layout(context: int) -> Layout:
        return Layout(texts=("text",), label="label", most=context - 1, too_long="cut")

    def fitted(self, spec: Spec) -> Spec:
        if not isinstance(spec, EncoderSpec) or not isinstance(spec.output, Classes):
            raise OptionError(f"to classify takes an encoder with Classes for output; the model is a {kind_of(spec)}")
        output = replace(spec.output, count=len(self.labels))
        return replace(spec, vocabulary=self.tokenizers["text"].vocabulary, output=output)

    def planner(self, store: Store, tokens: int, seed: int) -> Planner:
        return ByLength(store=store, fields=("text",), tokens=tokens, seed=seed, longest=self.context - 1)

    def read(self, store: Store, rows: Rows, random: np.random.Generator, *, filled: bool) -> Batch:
        tokenizer = self.tokenizers["text"]
        lengths = np.minimum(store["text"].lengths(rows.which), self.context - 1)
        width = rows.width if filled else int(lengths.max()) + 1
        text = store["text"].padded(rows.which, width - 1, tokenizer.pad)
        tokens = np.concatenate([np.full((len(text), 1), tokenizer.start), text], 1)
        wanted = store["label"].padded(rows.which, 1, 0)[:, 0]
        return tensors({"tokens": tokens, "lengths": lengths + 1, "wanted": wanted}, rows.full if filled else 0)

    def logits(self, model: nn.Module, batch: Batch) -> Float[Tensor, "*place choice"]:
        return model(batch["tokens"], lengths=batch["lengths"])


TASKS: dict[str, type[Task]] = {task.name: task for task in (Translate, Generate, Fill, Classify)}
"""Every task by name."""


def kind_of(spec: Spec) -> str:
    return type(spec).__name__.removesuffix("Spec")


def closed(rows: Ragged, batch: Rows, width: int, tokenizer: Tokenizer, *, filled: bool) -> tuple[Ids, Ids]:
    """Rows with an end token after each, and their lengths, the end counted.

    They are padded to `width` if filled, else to the longest of them; one that has no room for its end is cut.
    """
    lengths = np.minimum(rows.lengths(batch.which), width - 1)
    ids = rows.padded(batch.which, width if filled else int(lengths.max()) + 1, tokenizer.pad)
    ids[np.arange(len(ids)), lengths] = tokenizer.end
    return ids, lengths + 1


def tensors(arrays: Mapping[str, Ids], rows: int) -> Batch:
    """As tensors, with rows added up to `rows`: copies of the first one, but that they ask for nothing."""
    missing = max(0, rows - len(arrays["wanted"]))
    more = {name: np.repeat(array[:1], missing, 0) for name, array in arrays.items()}
    more["wanted"] = np.full_like(more["wanted"], NOTHING)
    return {name: torch.from_numpy(np.concatenate([array, more[name]])) for name, array in arrays.items()}


def restarting(documents: Tensor) -> Tensor:
    """The place of each token within its document."""
    places = torch.arange(documents.shape[1], device=documents.device).expand_as(documents)
    first = torch.ones_like(documents[:, :1], dtype=torch.bool)
    begins = torch.cat([first, documents[:, 1:] != documents[:, :-1]], 1)
    return places - torch.where(begins, places, 0).cummax(1).values
