"""To classify pairs: a label for two texts, such as whether one follows from the other, with an encoder.

The two are one row of tokens with a token between them. An imported model keeps its own separator, and a BERT
its segments, which tell the texts apart; a model that is trained here has its end token between, and no segments.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import final

import numpy as np
from jaxtyping import Float
from torch import Tensor

from clearhead.errors import OptionError
from clearhead.model.transformers import Transformer
from clearhead.text.batches import BatchPlanner, ByLength, Rows
from clearhead.text.encoding import Corpus, Layout
from clearhead.text.store import Store
from clearhead.training.recipe import Recipe
from clearhead.training.tasks.answering import Answer, Pair, split_pair
from clearhead.training.tasks.base import Task
from clearhead.training.tasks.classify import Class, Classify, OneLabel, recipe_without_ngrams
from clearhead.training.tasks.framing import Framing
from clearhead.training.tasks.learning import Batch, to_batch
from clearhead.training.tasks.showing import TraceInputs, trace_pair


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

    def planner(self, store: Store, tokens: int, seed: int) -> BatchPlanner:
        frame = self.frame()
        extra = frame.size + len(frame.between)
        fields, longest = ("first", "second"), self.context - extra
        return ByLength(store=store, fields=fields, tokens=tokens, seed=seed, longest=longest, extra=extra, joined=True)

    def read(self, store: Store, rows: Rows, random: np.random.Generator, *, filled: bool) -> Batch:
        """Return pairs as rows, padded to the full width if filled. Segments are given only where there are any."""
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
