"""What a task reads: its fields, tokenisers and the special tokens around texts.

Framing: the special tokens around a text.

Each task of ours has its own. An imported model brings another: BERT reads `[CLS] text [SEP]`, Llama `<s> text`, a
Marian writes from `<pad>` on. It is part of the run's model.json, and the task uses it instead of its own.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import ClassVar, Literal, final

import numpy as np
from numpy.typing import NDArray

from clearhead.errors import OptionError
from clearhead.text.batches import Rows
from clearhead.text.encoding import Layout
from clearhead.text.sources import Unit
from clearhead.text.store import Ragged
from clearhead.text.tokenizer import Tokenizer

Ids = NDArray[np.int64]


@final
@dataclass(frozen=True, kw_only=True)
class Framing:
    """Ids of the special tokens `before` and `after` a text.

    `ends` are those that end what the model writes, `never` those that it may not write. `opening` are tokens that it
    writes itself before the text, as BART does with `<s>`.

    >>> Framing(before=(101,), after=(102,)).around([7, 8])
    [101, 7, 8, 102]
    """

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    opening: tuple[int, ...] = ()
    never: tuple[int, ...] = ()
    between: tuple[int, ...] = ()
    """Ids between the two texts of a pair; none if the model does not read pairs."""
    segment: int = 0
    """The number of the segment that the second text of a pair and what comes after it are of."""

    @property
    def size(self) -> int:
        """Return how many tokens it puts around a text."""
        return len(self.before) + len(self.opening) + len(self.after)

    def around(self, ids: Sequence[int], most: int | None = None) -> list[int]:
        """Return the ids with those before and after them; of more than `most` only the first are kept."""
        return [*self.before, *self.opening, *(ids if most is None else ids[:most]), *self.after]

    def around_pair(self, first: Sequence[int], second: Sequence[int], context: int) -> tuple[list[int], list[int]]:
        """Return the ids of two texts as one row of at most `context` tokens, and the segment of each.

        If they are longer, the longer of the two is cut first, as `transformers` does.

        >>> Framing(before=(101,), after=(102,), between=(102,), segment=1).around_pair([7, 8], [9], 6)
        ([101, 7, 8, 102, 9, 102], [0, 0, 0, 0, 1, 1])
        """
        if not self.between:
            raise OptionError("the model reads no pairs of texts: its tokenizer does not say what stands between two")
        lengths = share_room(len(first), len(second), max(0, context - self.size - len(self.between)))
        front = [*self.before, *self.opening, *first[: lengths[0]], *self.between]
        back = [*second[: lengths[1]], *self.after]
        return front + back, [0] * len(front) + [self.segment] * len(back)

    def check(self, vocabulary: int, where: str) -> None:
        """Raise OptionError if an id is none of the model's."""
        for field in fields(self):
            if field.name == "segment":
                continue
            for token_id in getattr(self, field.name):
                if not 0 <= token_id < vocabulary:
                    raise OptionError(f"{where}: {field.name}: the id {token_id} is not one of 0 to {vocabulary - 1}")


def share_room(first: int, second: int, room: int) -> tuple[int, int]:
    """Return how many tokens of two texts are kept, of so many: the longer one gives way, then both alike.

    >>> share_room(2, 9, 6), share_room(9, 2, 6), share_room(9, 9, 7), share_room(1, 2, 6)
    ((2, 4), (4, 2), (3, 4), (1, 2))
    """
    if first + second <= room:
        return first, second
    short = min(first, second)
    long = max(short, room - short)
    if short + long > room:
        short, long = room // 2, room - room // 2
    return (short, long) if first <= second else (long, short)


def frame_rows(
    rows: Ragged, batch: Rows, width: int, framing: Framing, pad: int, *, filled: bool
) -> tuple[Ids, Ids, Ids]:
    """Return framed rows of a store, how many ids of each text are in them, and how long each is in all.

    They are padded to `width` if filled, else to the longest of them; a text that has no room is cut.
    """
    first = (*framing.before, *framing.opening)
    texts = np.minimum(rows.lengths(batch.which), width - framing.size)
    longest = width if filled else int(texts.max()) + framing.size
    ids = rows.padded(batch.which, longest - len(first), pad)
    for offset, token in enumerate(framing.after):
        ids[np.arange(len(ids)), texts + offset] = token
    front = np.broadcast_to(np.array(first, dtype=np.int64), (len(ids), len(first)))
    return np.concatenate([front, ids], 1), texts, texts + framing.size


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
