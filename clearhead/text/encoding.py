"""Encode a corpus: records to token ids on disk, training and validation sets apart."""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from clearhead.calls import CodeRepr, public
from clearhead.errors import DataError, OptionError
from clearhead.text.filtering import Deduplicate, LeftOut, TextFilter, TextMinima, judge
from clearhead.text.lines import Problems
from clearhead.text.sources import Record, Source
from clearhead.text.store import IdRow, StoreWriter
from clearhead.text.table_readers import list_names, quote
from clearhead.text.tokenizer import Tokenizer
from clearhead.text.validation_split import TAIL, TextHash

Ids = dict[str, list[int]]
MANY_LABELS = 1 << 17
"""What labels' numbers are below while nobody knows how many there are: a store keeps such a number in 32 bits."""
CHUNK_RECORDS, CHUNK_CHARACTERS = 1024, 1 << 18
"""Records that are tokenised together: so many, or so much text."""
MOST_BYTES = 500_000
"""Most bytes that are held out if the text is one document: its last tenth."""
BY_WORD = ("word", "subword")
NO_LABEL = "-"
"""What is written where a record may have many labels and has none: an empty column is a mistake."""
FATES = {"drop": "they are left out", "cut": "their beginning is kept", "split": "each becomes several", "keep": "kept"}


@final
@public
@dataclass(frozen=True, kw_only=True)
class Corpus(CodeRepr):
    """The user's files.

    Args:
        train: Text to train on.
        dev: Validation text. If None, one record in twenty is held out, at most a thousand: drawn by a hash of the
            text, with each label in proportion, and records of the same text on one side.
        skip_bad: Skip records that cannot be read, instead of an error.
        filters: Rules for which records of the training text stay.
        deduplicate: Leave out training records whose text came before: `exact` apart from case and white space, or also
            `near` copies.
    """

    train: Source
    dev: Source | None = None
    skip_bad: bool = False
    filters: tuple[TextFilter, ...] = ()
    deduplicate: Deduplicate | None = None

    def check(self) -> None:
        """Raise DataError for files that cannot be used, as far as it shows before they are read."""
        for source in (self.train, self.dev):
            if source is not None:
                source.check()


@final
@dataclass(frozen=True, kw_only=True)
class Layout:
    """The fields of a record that a task uses: its texts, its label; and what becomes of one with more tokens than
    `most`.

    `drop` leaves it out and counts it, `cut` keeps its beginning, `split` makes several of it, `keep` takes it whole.
    `end` puts an end token after each document, and how many are held out goes by their bytes. `label_of` says what has
    a label: the `record`; or the record has `many`, with commas between, "-" for none; or each `word` of its first
    text, and then the labels are as many words, and the tokeniser is one of words. With `subword` it is any: a word's
    label is at its first token, and those after it have the number after the last label.
    """

    texts: tuple[str, ...]
    label: str | None = None
    most: int = 512
    too_long: Literal["drop", "cut", "split", "keep"] = "cut"
    end: bool = False
    label_of: Literal["record", "many", "word", "subword"] = "record"

    def __post_init__(self) -> None:
        if self.most < 1:
            raise OptionError(f"there is no room for a token of the text: rows would hold {self.most}; raise --context")

    @property
    def fields(self) -> tuple[str, ...]:
        """Return what a record must have: its texts, and its label if there is one."""
        return self.texts if self.label is None else (*self.texts, self.label)


@dataclass(frozen=True, kw_only=True)
class Survey:
    """The counts of a first reading."""

    records: int
    text_bytes: int
    labels: tuple[str, ...]
    skipped: Mapping[str, int]


def usable_records(
    source: Source, layout: Layout, problems: Problems, known_labels: tuple[str, ...] | None = None
) -> Iterator[Record]:
    """Yield the records without a problem; with known labels, any other label is a problem."""
    source.check_units(words=layout.label_of in BY_WORD)
    known_set = None if known_labels is None else frozenset(known_labels)
    for record in source.records(problems):
        labels = labels_of(source, layout, record)
        words = len(texts_of(source, layout, record)[0].split()) if layout.label_of in BY_WORD else len(labels)
        new = [] if known_set is None else [label for label in labels if label not in known_set]
        if words != len(labels):
            message = f"there are {words} words and {len(labels)} labels; each word needs one"
            problems.add(record.place, message, "labels do not match words")
        elif new:
            listed = list_names(known_labels or ())
            message = f"the label {quote(new[0])} never occurs in the training files, which have {listed}"
            problems.add(record.place, message, "unknown label")
        else:
            yield record


def filtered_records(
    records: Iterable[Record], source: Source, layout: Layout, filters: Sequence[TextFilter], left_out: LeftOut
) -> Iterator[Record]:
    """Yield the records that all filters let stay. A document in pieces is judged by its first one."""
    if not filters:
        yield from records
        return
    begins, reason = True, None
    for chunk in chunks(records):
        heads = [
            record for before, record in zip([begins, *(one.ends for one in chunk)], chunk, strict=False) if before
        ]
        reasons = iter(judge(filters, [texts_of(source, layout, record) for record in heads]))
        for record in chunk:
            reason = next(reasons) if begins else reason
            if reason is None:
                yield record
            else:
                left_out.add(reason, begins, sum(map(utf8_size, texts_of(source, layout, record))))
            begins = record.ends


def texts_of(source: Source, layout: Layout, record: Record) -> list[str]:
    return [record.fields[source.fields.index(name)] for name in layout.texts]


def label_of(source: Source, layout: Layout, record: Record) -> str:
    return record.fields[source.fields.index(layout.label or "")]


def labels_of(source: Source, layout: Layout, record: Record) -> list[str]:
    """Return the labels of a record: its own, or one for each of its words; none if the layout has none."""
    if layout.label is None:
        return []
    text = label_of(source, layout, record)
    if layout.label_of == "many":
        return [] if text.strip() == NO_LABEL else split_labels(text)
    return [text] if layout.label_of == "record" else text.split()


def split_labels(text: str) -> list[str]:
    """Return the labels that a text lists with commas between, each once.

    >>> split_labels("sport, politics,sport")
    ['sport', 'politics']
    """
    return [*dict.fromkeys(name for part in text.split(",") if (name := part.strip()))]


class Entry(NamedTuple):
    """A record as ids, or a piece of a long one: its texts', the bytes that these had, the numbers of its labels, and
    where the record ends the hash of its text, with what finds near copies if that is asked for.
    """

    ids: Mapping[str, IdRow]
    n_bytes: Mapping[str, int]
    numbers: list[int]
    key: bytes | None


class Encoding:
    """Encodes records and writes their ids to disk.

    It counts the records that are `too_long`, and those with no token at all (`nothing`). Where `labels` are None,
    labels get numbers from 1 on as they come, and 0 stands for a token that goes on with a word. `filters` decide which
    records stay, and `left_out` counts the others. With `near`, keys have what finds near copies.
    """

    def __init__(
        self,
        layout: Layout,
        tokenizers: Mapping[str, Tokenizer],
        labels: tuple[str, ...] | None,
        *,
        filters: Sequence[TextFilter] = (),
        near: bool = False,
    ) -> None:
        self.layout, self.tokenizers, self.labels = layout, tokenizers, labels
        self.filters, self.near, self.left_out = filters, near, LeftOut()
        self.numbers = {name: number for number, name in enumerate(labels or ())}
        self.going_on = len(labels or ())
        self.too_long = self.nothing = 0
        self.sizes = {field: tokenizer.vocabulary for field, tokenizer in tokenizers.items()}
        if layout.label is not None:
            subword = layout.label_of == "subword"
            self.sizes[layout.label] = MANY_LABELS if labels is None else len(labels) + subword

    def number_of(self, label: str) -> int:
        return self.numbers.setdefault(label, len(self.numbers) + 1) if self.labels is None else self.numbers[label]

    def usable_records(
        self, source: Source, problems: Problems | None = None, known_labels: tuple[str, ...] | None = None
    ) -> Iterator[Record]:
        known = known_labels if self.labels is None or self.layout.label is None else self.labels
        records = usable_records(source, self.layout, problems or Problems(skip=True), known)
        return filtered_records(records, source, self.layout, self.filters, self.left_out)

    def fill(self, source: Source, store: StoreWriter) -> None:
        """Tokenise every usable record of a source, and add it to the store."""
        for entry in self.encode(source, self.usable_records(source)):
            self.add(store, entry)

    def encode(self, source: Source, records: Iterable[Record]) -> Iterator[Entry]:
        """Tokenise records of a source, many at a time."""
        names = self.layout.texts
        index = [source.fields.index(name) for name in names]
        text_hash, minima = TextHash(), TextMinima() if self.near else None
        for chunk in chunks(records):
            columns = [[record.fields[i] for record in chunk] for i in index]
            pairs = zip(names, columns, strict=True)
            encoded = [self.tokenizers[name].encode_batch(column) for name, column in pairs]
            for record, texts, row in zip(chunk, zip(*columns, strict=True), zip(*encoded, strict=True), strict=True):
                for text in texts:
                    text_hash.add(text)
                    if minima is not None:
                        minima.add(text)
                    if record.ends:
                        text_hash.add_border()
                ids = dict(zip(names, row, strict=True))
                numbers = self.label_numbers(source, record, ids)
                if self.layout.end and record.ends:
                    ids[names[0]].append(self.tokenizers[names[0]].end)
                n_bytes = dict(zip(names, map(utf8_size, texts), strict=True))
                if not record.ends:
                    yield Entry(ids, n_bytes, numbers, None)
                    continue
                yield Entry(ids, n_bytes, numbers, text_hash.key() + (b"" if minima is None else minima.key()))
                text_hash, minima = TextHash(), minima and TextMinima()

    def label_numbers(self, source: Source, record: Record, ids: Ids) -> list[int]:
        numbers = [self.number_of(name) for name in labels_of(source, self.layout, record)]
        if self.layout.label is not None and self.layout.label_of in BY_WORD:
            name = self.layout.texts[0]
            if self.layout.label_of == "subword":
                words = words_of_tokens(self.tokenizers[name], record.fields[source.fields.index(name)])
                before = zip([-1, *words], words, strict=False)
                numbers = [self.going_on if word == last else numbers[word] for last, word in before]
            self.check_words(record, ids, numbers)
        return numbers

    def add(self, store: StoreWriter, entry: Entry) -> None:
        """Add an entry to a store: cut, split or left out, as the layout has it."""
        ids, n_bytes, label = dict(entry.ids), entry.n_bytes, self.layout.label
        if label is not None and self.layout.label_of in BY_WORD:
            ids[label] = entry.numbers
        for part in self.pieces(ids):
            if label is not None and self.layout.label_of not in BY_WORD:
                part[label] = entry.numbers
            store.add(part, n_bytes, ends=entry.key is not None or self.layout.too_long != "keep")
            n_bytes = {}  # the text is the same, and counts once

    def check_words(self, record: Record, ids: Ids, numbers: list[int]) -> None:
        tokens = len(ids[self.layout.texts[0]])
        if tokens != len(numbers):
            raise DataError(
                f"{record.place}: the text has {tokens} tokens for its {len(numbers)} labels: where words have labels, "
                "tokens are words; choose the tokeniser word"
            )

    def pieces(self, ids: dict[str, IdRow]) -> list[dict[str, IdRow]]:
        """Return the records that a record becomes: itself, none, or shorter ones."""
        if self.layout.too_long == "keep":
            return [ids]
        most, lengths = self.layout.most, [len(row) for row in ids.values()]
        longest = max(lengths)
        if not min(lengths):
            self.nothing += 1
            return []
        if longest <= most:
            return [ids]
        self.too_long += 1
        if self.layout.too_long == "drop":
            return []
        starts = range(0, longest, most) if self.layout.too_long == "split" else (0,)
        return [{name: row[start : start + most] for name, row in ids.items()} for start in starts]


def split_records(
    corpus: Corpus, layout: Layout, notes: Mapping[str, Any], copies: NDArray[np.int64] | None = None
) -> Iterator[tuple[Source, Record, bool]]:
    """Yield every record once more with its source, and whether it is held out, as the notes of a stream that is
    prepared have it. `copies` are the numbers of those that were left out as such.
    """
    source = corpus.train
    usable = usable_records(source, layout, Problems(skip=True))
    records = filtered_records(usable, source, layout, corpus.filters, LeftOut())
    if corpus.dev is None and notes["cut"]:
        field = source.fields.index(layout.texts[0])
        yield from ((source, *placed) for placed in cut_in_two(records, notes["text_bytes"], field=field))
        return
    number, held_out, is_copy = 0, frozenset(notes["held_out"]), membership(copies)
    for record in records:
        if not is_copy(number):
            yield source, record, number in held_out
        number += record.ends
    if corpus.dev is not None:
        for record in usable_records(corpus.dev, layout, Problems(skip=True)):
            yield corpus.dev, record, True


def membership(numbers: NDArray[np.int64] | None) -> Callable[[int], bool]:
    """Return a check for whether a number is among these, which ascend and may lie on the disk."""
    if numbers is None or not len(numbers):
        return lambda number: False

    def check(number: int) -> bool:
        place = int(np.searchsorted(numbers, number))
        return place < len(numbers) and int(numbers[place]) == number

    return check


def words_of_tokens(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return for each token of a text the number of the word, between blanks, that it belongs to.

    A token of nothing but the blank before a word belongs to that word.
    """
    ends = [word.end() for word in re.finditer(r"\S+", text)]
    return [min(bisect_right(ends, max(span.stop - 1, 0)), len(ends) - 1) for span in tokenizer.spans(text)]


def utf8_size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def cut_in_two(records: Iterable[Record], n_bytes: int, *, field: int) -> Iterator[tuple[Record, bool]]:
    """Yield a stream of `n_bytes`, its end held out; the document at the cut ends in both."""
    remaining = max(n_bytes * (TAIL - 1) // TAIL, n_bytes - MOST_BYTES)
    unfinished = False
    for record in records:
        text = record.fields[field]
        head = text.encode()[:remaining].decode(errors="ignore")
        remaining = max(0, remaining - utf8_size(text))
        if len(head) == len(text):
            unfinished = not record.ends
            yield record, False
            continue
        if head or unfinished:
            yield with_text(record, field, head)._replace(ends=True), False
            unfinished = False
        yield with_text(record, field, text[len(head) :]), True


def with_text(record: Record, field: int, text: str) -> Record:
    return record._replace(fields=(*record.fields[:field], text, *record.fields[field + 1 :]))


def chunks(records: Iterable[Record]) -> Iterator[list[Record]]:
    """Yield records in lists of CHUNK_RECORDS or CHUNK_CHARACTERS, whichever comes first."""
    chunk: list[Record] = []
    size = 0
    for record in records:
        chunk.append(record)
        for text in record.fields:
            size += len(text)
        if len(chunk) >= CHUNK_RECORDS or size >= CHUNK_CHARACTERS:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
