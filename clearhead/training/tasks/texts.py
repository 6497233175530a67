"""What a task reads: its fields, tokenisers and the special tokens around texts."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from clearhead.text.encoding import Layout
from clearhead.text.sources import Unit
from clearhead.text.tokenizer import Tokenizer
from clearhead.training.tasks.framing import Framing

Family = Literal["encoder", "decoder", "encoder-decoder"]
Way = Literal["source", "table", "text"]
AT_ONCE = 8192
"""Tokens of a batch of records: the same anywhere, since which blanks are asked for goes by the batches."""


@dataclass(frozen=True, kw_only=True)
class TaskTexts(ABC):
    """The texts of a task over given tokenisers, with rows of `context` tokens at most.

    `labels` are those of the training text, where the task has any; `documents` is how many documents that text has,
    where it matters. `framing` has, by field, the special tokens around the texts of an imported model; without it
    they are the task's own.
    """

    name: ClassVar[str]
    """What the model was trained to do, in one word: the verb of messages such as "was trained to classify"."""
    family: ClassVar[Family] = "encoder"
    """The kind of model that it takes."""
    ways: ClassVar[tuple[Way, ...]] = ("table",)
    """How text can be given on the command line, by the option that says so, the usual one first."""
    unit: ClassVar[Unit] = "line"
    """What a document is in a file that is given with `--text`."""
    tokenizers: Mapping[str, Tokenizer]
    context: int
    labels: tuple[str, ...] = ()
    documents: int | None = None
    framing: Mapping[str, Framing] | None = None

    @staticmethod
    @abstractmethod
    def layout(context: int) -> Layout:
        """Return what is kept of a record."""

    @classmethod
    def fields(cls) -> tuple[str, ...]:
        """Return what a record holds: the names of a table's columns, unless others are given."""
        return cls.layout(AT_ONCE).fields

    def own_framing(self, field: str) -> Framing:
        """Return the special tokens around a text of this field, in a model that was trained here."""
        return Framing(before=(self.tokenizers[field].start,))

    def frame(self, field: str | None = None) -> Framing:
        """Return the special tokens around a text of this field, or of the first one."""
        field = field or next(iter(self.tokenizers))
        return self.own_framing(field) if self.framing is None else self.framing.get(field, Framing())

    def usual_layout(self) -> Layout:
        """Return what is kept of a record, of texts as long as fit into the context with what is around them."""
        layout = self.layout(self.context)
        if self.framing is None:
            return layout
        return replace(layout, most=self.context - max(self.frame(field).size for field in layout.texts))

    @property
    def reads(self) -> int:
        """Return how many tokens of a text the model reads."""
        return self.usual_layout().most

    @property
    def tokenizer(self) -> Tokenizer:
        """Return the tokeniser of the input."""
        return next(iter(self.tokenizers.values()))

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Return how many tokens each text has, to be compared with `reads`."""
        return [len(row) for row in self.tokenizer.encode_batch(list(texts))]

    def unseen(self, text: str) -> str:
        """Return what of a text the tokeniser has never seen."""
        return self.tokenizer.unseen(text)
