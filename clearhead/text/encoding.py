"""Encode a corpus: records to token ids on disk, training and validation sets apart."""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar, final

from clearhead.calls import CodeRepr, public
from clearhead.errors import DataError, OptionError
from clearhead.text.lines import Problems
from clearhead.text.sources import Record, Source
from clearhead.text.store import StoreWriter
from clearhead.text.table_readers import list_names, quote
from clearhead.text.tokenizer import Tokenizer
from clearhead.text.validation_split import TAIL, Drawn, DrawnDocument, TextHash, document_quotas, draw, record_quotas

Ids = dict[str, list[int]]
CHUNK_RECORDS, CHUNK_CHARACTERS = 1024, 1 << 18
"""Records that are tokenised together: so many, or so much text."""
MOST_BYTES = 500_000
"""Of a stream that is one document the last tenth is held out, at most so many bytes."""
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
    """

    train: Source
    dev: Source | None = None
    skip_bad: bool = False

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


@final
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


def texts_of(source: Source, layout: Layout, record: Record) -> list[str]:
    return [record.fields[source.fields.index(name)] for name in layout.texts]


def label_of(source: Source, layout: Layout, record: Record) -> str:
    return record.fields[source.fields.index(layout.label or "")]


def labels_of(source: Source, layout: Layout, record: Record) -> list[str]:
    """Return the labels of a record: its own, or one for each of its words; none where the layout has none."""
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


class Placed(NamedTuple):
    """A record, and the store its ids go to."""

    record: Record
    to: StoreWriter

    @property
    def fields(self) -> tuple[str, ...]:
        return self.record.fields


Some = TypeVar("Some", Record, Placed)


class Encoding:
    """Encodes records and writes their ids to disk.

    It counts the records that are `too_long`, and those with no token at all (`nothing`). `copies` of the
    held-out records have the text of training records: some label has too few different texts for anything else.
    """

    def __init__(self, layout: Layout, tokenizers: Mapping[str, Tokenizer], labels: tuple[str, ...]) -> None:
        self.layout, self.tokenizers, self.labels = layout, tokenizers, labels
        self.numbers = {name: number for number, name in enumerate(labels)}
        self.too_long = self.nothing = self.copies = 0
        self.sizes = {field: tokenizer.vocabulary for field, tokenizer in tokenizers.items()}
        if layout.label is not None:
            self.sizes[layout.label] = len(labels) + (layout.label_of == "subword")

    def write(self, corpus: Corpus, survey: Survey, home: Path) -> int:
        """Write the stores `train` and `dev`; return how many records were too long."""
        with StoreWriter(home / "train", self.sizes) as train, StoreWriter(home / "dev", self.sizes) as dev:
            if corpus.dev is not None:
                self.fill(corpus.train, train)
                self.fill(corpus.dev, dev)
            else:
                placed = (
                    Placed(record, dev if held_out else train) for record, held_out in self.split(corpus.train, survey)
                )
                self.spread(corpus.train, placed)
            stores = {"training": train.close({}), "held-out": dev.close({})}
        for name, store in stores.items():
            if not len(store) or (self.layout.end and store.sizes[self.layout.texts[0]].tokens < 2):
                raise DataError(f"there is no {name} record left; give more text, or a dev file of its own")
        return self.too_long

    def split(self, source: Source, survey: Survey) -> Iterator[tuple[Record, bool]]:
        """Return every record, and whether it is held out: of the validation set, not of the training set."""
        if survey.records < 2 and not self.layout.end:
            raise DataError("one record cannot be split into training and held-out ones; give more, or a dev file")
        drawn = self.draw(source, survey)
        if self.layout.end and drawn.short:
            field = source.fields.index(self.layout.texts[0])
            return cut_in_two(self.usable_records(source), survey.text_bytes, field=field)
        self.copies = drawn.copies
        return self.place(source, drawn)

    def draw(self, source: Source, survey: Survey) -> Drawn:
        """Draw the documents that are held out: too little if one is nearly all of the text."""
        if survey.records < 2:
            return Drawn(keys=frozenset(), copies=0, short=True)
        if self.layout.end:
            quotas = document_quotas(survey.text_bytes, survey.records)
        else:
            quotas = record_quotas(self.count_labels(source, survey), survey.records)
        return draw(lambda: self.documents(source), quotas)

    def count_labels(self, source: Source, survey: Survey) -> Counter[str | None]:
        """Return how many records have each label, and under None how many have none."""
        if self.layout.label is None:
            return Counter({None: survey.records})
        rows = (labels_of(source, self.layout, record) or [None] for record in self.usable_records(source))
        return Counter(label for labels in rows for label in dict.fromkeys(labels))

    def place(self, source: Source, drawn: Drawn) -> Iterator[tuple[Record, bool]]:
        """Yield every record, and whether its document was drawn. A long document is hashed before its first piece is
        here, so the corpus is read twice at once instead of being held in memory.
        """
        documents = self.documents(source)
        begins, held_out = True, False
        for record in self.usable_records(source):
            if begins:
                held_out = drawn.has(next(documents))
            yield record, held_out
            begins = record.ends

    def documents(self, source: Source) -> Iterator[DrawnDocument]:
        """Yield every document as the draw sees it."""
        number, text_hash, n_bytes = 0, TextHash(), 0
        for record in self.usable_records(source):
            for text in texts_of(source, self.layout, record):
                text_hash.add(text)
                if record.ends:
                    text_hash.add_border()
                n_bytes += utf8_size(text)
            if record.ends:
                labels = tuple(dict.fromkeys(labels_of(source, self.layout, record))) or (None,)
                amount = n_bytes if self.layout.end else 1
                yield DrawnDocument(text_hash.key(), text_hash.own_key(number), labels, amount)
                number, text_hash, n_bytes = number + 1, TextHash(), 0

    def usable_records(self, source: Source) -> Iterator[Record]:
        known_labels = None if self.layout.label is None else self.labels
        return usable_records(source, self.layout, Problems(skip=True), known_labels)

    def fill(self, source: Source, store: StoreWriter) -> None:
        """Tokenise every usable record of a source, and add it to the store."""
        self.spread(source, (Placed(record, store) for record in self.usable_records(source)))

    def spread(self, source: Source, records: Iterable[Placed]) -> None:
        """Tokenise these records of a source, and add each to its store."""
        names = self.layout.texts
        index = [source.fields.index(name) for name in names]
        for chunk in chunks(records):
            columns = [[record.fields[i] for record in chunk] for i in index]
            pairs = zip(names, columns, strict=True)
            encoded = [self.tokenizers[name].encode_batch(column) for name, column in pairs]
            for (record, to), row, ids in zip(
                chunk, zip(*columns, strict=True), zip(*encoded, strict=True), strict=True
            ):
                ids_of_record = dict(zip(names, ids, strict=True))
                self.add(to, record, ids_of_record, dict(zip(names, map(utf8_size, row), strict=True)), source)

    def add(self, store: StoreWriter, record: Record, ids: Ids, n_bytes: dict[str, int], source: Source) -> None:
        if self.layout.end and record.ends:
            name = self.layout.texts[0]
            ids[name].append(self.tokenizers[name].end)
        numbers = [self.numbers[name] for name in labels_of(source, self.layout, record)]
        if self.layout.label is not None and self.layout.label_of in BY_WORD:
            name = self.layout.texts[0]
            if self.layout.label_of == "subword":
                words = words_of_tokens(self.tokenizers[name], record.fields[source.fields.index(name)])
                before = zip([-1, *words], words, strict=False)
                numbers = [len(self.labels) if word == last else numbers[word] for last, word in before]
            self.check_words(record, ids, numbers)
            ids[self.layout.label] = numbers
        for part in self.pieces(ids):
            if self.layout.label is not None and self.layout.label_of not in BY_WORD:
                part[self.layout.label] = numbers
            store.add(part, n_bytes, ends=record.ends or self.layout.too_long != "keep")
            n_bytes = {}  # the text is the same, and counts once

    def check_words(self, record: Record, ids: Ids, numbers: list[int]) -> None:
        tokens = len(ids[self.layout.texts[0]])
        if tokens != len(numbers):
            raise DataError(
                f"{record.place}: the text has {tokens} tokens for its {len(numbers)} labels: where words have labels, "
                "tokens are words; choose the tokeniser word"
            )

    def pieces(self, ids: Ids) -> list[Ids]:
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


def split_records(corpus: Corpus, layout: Layout, survey: Survey) -> Iterator[tuple[Source, Record, bool]]:
    """Yield every record once more with its source, and whether it is held out, as `Encoding.write` has it."""
    encoding = Encoding(layout, {}, survey.labels)
    parts = [(corpus.train, encoding.split(corpus.train, survey))]
    if corpus.dev is not None:
        train, dev = ((source, encoding.usable_records(source)) for source in (corpus.train, corpus.dev))
        parts = [(train[0], ((record, False) for record in train[1])), (dev[0], ((record, True) for record in dev[1]))]
    for source, records in parts:
        for record, held_out in records:
            yield source, record, held_out


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


def chunks(records: Iterable[Some]) -> Iterator[list[Some]]:
    """Yield records in lists of CHUNK_RECORDS or CHUNK_CHARACTERS, whichever comes first."""
    chunk: list[Some] = []
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
