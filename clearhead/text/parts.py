"""Parts: the ids of some shards of a corpus, with all that preparing asks of their text, so that it is read once.

Every process encodes parts of its own, and a part that is whole is not made again after a kill. What is made of the
parts is the same for any number of processes: which shards are together goes by their sizes alone.
"""

import os
import shutil
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from clearhead.errors import ClearheadError, DataError, RunError, ShardError
from clearhead.files import lock_folder
from clearhead.serialization import check_fields
from clearhead.text.encoding import Encoding, Entry, Layout, Survey, cut_in_two
from clearhead.text.lines import Problems
from clearhead.text.remote import size_of
from clearhead.text.sources import Record, Source
from clearhead.text.store import STORE, Store, StoreWriter
from clearhead.text.tokenizer import Tokenizer
from clearhead.text.validation_split import DrawnDocument, document_quotas, draw, own_key, record_quotas

PART_BYTES = 64_000_000
"""Neighbouring shards make a part until they are so large together."""
ABOUT = "about"
"""The field of a part with the bytes of each text, and the hash of a document where it ends, in digits of 16 bits."""
DIGITS = 4
"""Digits of a number of bytes."""
PACKED = 3
"""How much longer gzipped text is when it is unpacked."""
GLANCE_SECONDS = 0.05
NOTES = {"labels": list[str], "problems": dict[str, Any]}
PROBLEMS = {"first": list[str], "counts": dict[str, int], "encodings": dict[str, int]}
"""What store.json of a part has as `notes`, and in it as `problems`."""


class PartJob(NamedTuple):
    """What a process has to know to encode a part. `labels` are known ones, None where any is."""

    source: Source
    layout: Layout
    labels: tuple[str, ...] | None
    skip_bad: bool
    folder: Path


@final
@dataclass(frozen=True)
class Team:
    """The processes that prepare a corpus, as the first sees them: `announce` tells the others about a job."""

    count: int = 1
    announce: Callable[[PartJob], None] = lambda job: None


def divide(source: Source) -> list[Source]:
    """Return a source as several: neighbouring shards together, until they have PART_BYTES."""
    parts: list[list[Source]] = []
    size = PART_BYTES
    for shard in source.shards():
        if size >= PART_BYTES:
            parts.append([])
            size = 0
        parts[-1].append(shard)
        size += sum(map(size_here, shard.files))
    return [source.of_shards(part) for part in parts]


def estimate_bytes(source: Source) -> int:
    """Return about how much text a source has, by the sizes of its files."""
    return sum(size_here(path) * (PACKED if path.endswith(".gz") else 1) for path in source.files)


def size_here(path: str) -> int:
    try:
        return size_of(path)
    except OSError:
        return 0


def encode_parts(job: PartJob, tokenizers: Mapping[str, Tokenizer], rank: int, count: int) -> None:
    """Encode every `count`-th part of a job from the one with the number `rank` on, but for those that are there."""
    for number, source in enumerate(divide(job.source)):
        if number % count == rank and not (folder := job.folder / f"{number:06}").exists():
            write_part(source, job, tokenizers, folder)


def write_part(source: Source, job: PartJob, tokenizers: Mapping[str, Tokenizer], folder: Path) -> None:
    """Read a source once and write its ids and what else preparing asks of it, whole or not at all."""
    problems = Problems(skip=job.skip_bad)
    encoding = Encoding(job.layout, tokenizers, None)
    with StoreWriter(folder, vocabularies_of(encoding)) as writer:
        for entry in encoding.encode(source, encoding.usable_records(source, problems, job.labels)):
            about = [digit for name in job.layout.texts for digit in split_digits(entry.n_bytes[name])]
            row = {**entry.ids, ABOUT: [*about, *np.frombuffer(entry.key or b"", "<u2").tolist()]}
            writer.add(row if job.layout.label is None else {**row, job.layout.label: entry.numbers}, {})
        writer.close({"labels": list(encoding.numbers), "problems": problems.to_json()})


def vocabularies_of(encoding: Encoding) -> dict[str, int]:
    return {**encoding.sizes, ABOUT: 1 << 16}


def split_digits(number: int) -> list[int]:
    """Return a number as digits of 16 bits, the lowest first.

    >>> split_digits(65_537)
    [1, 1, 0, 0]
    """
    return np.array([number], "<u8").view("<u2").tolist()


def await_parts(job: PartJob, tokenizers: Mapping[str, Tokenizer]) -> list["EncodedPart"]:
    """Wait until the other processes have written their parts, and open all. One that dies ends the job for all."""
    folders = [job.folder / f"{number:06}" for number in range(len(divide(job.source)))]
    while not all(folder.exists() for folder in folders):
        time.sleep(GLANCE_SECONDS)
    encoding = Encoding(job.layout, tokenizers, None)
    return [EncodedPart(folder, encoding) for folder in folders]


@final
class EncodedPart:
    """A part that is whole, open for reading. RunError if its files were changed since, or are of another layout."""

    def __init__(self, folder: Path, encoding: Encoding) -> None:
        self.store, layout = Store(folder), encoding.layout
        self.store.verify()
        try:
            notes = check_fields(self.store.notes, NOTES, STORE)
            self.labels: list[str] = notes["labels"]
            self.problems = check_fields(notes["problems"], PROBLEMS, STORE)
            if self.store.vocabularies != vocabularies_of(encoding):
                raise ValueError("it is of other fields or vocabularies")
            if any(self.store[ABOUT].lengths(np.arange(len(self.store))) < DIGITS * len(layout.texts)):
                raise ValueError("it lacks the sizes of its texts")
            if layout.label is not None and max(self.store[layout.label].ids, default=0) > len(self.labels):
                raise ValueError("it has a label without a name")
        except (ValueError, RunError) as error:
            raise RunError(f"{folder}: is no part of this corpus ({error}); it is removed: try again") from error

    def entries(self, layout: Layout, labels: Sequence[str]) -> Iterator[Entry]:
        """Yield what was encoded, in the order of the text, with the numbers of these labels."""
        place = {name: number for number, name in enumerate(labels)}
        numbers = np.array([len(labels), *(place[name] for name in self.labels)])
        for row in range(len(self.store)):
            about = self.about(row)
            ids = {name: self.store[name].ids_of(row) for name in layout.texts}
            label = [] if layout.label is None else numbers[self.store[layout.label].ids_of(row)].tolist()
            yield Entry(
                ids, dict(zip(layout.texts, bytes_of(about, layout), strict=True)), label, key_of(about, layout)
            )

    def documents(self, layout: Layout) -> Iterator[tuple[bytes, int, tuple[str, ...]]]:
        """Yield the hash of each document, its bytes and its labels."""
        size = 0
        for row in range(len(self.store)):
            about = self.about(row)
            size += sum(bytes_of(about, layout))
            if (key := key_of(about, layout)) is not None:
                found = () if layout.label is None else self.store[layout.label].ids_of(row).tolist()
                yield key, size, tuple(self.labels[number - 1] for number in dict.fromkeys(found) if number)
                size = 0

    def about(self, row: int) -> NDArray[np.uint16]:
        return self.store[ABOUT].ids_of(row)


def bytes_of(about: NDArray[np.uint16], layout: Layout) -> list[int]:
    return about[: DIGITS * len(layout.texts)].copy().view("<u8").tolist()


def key_of(about: NDArray[np.uint16], layout: Layout) -> bytes | None:
    return about[DIGITS * len(layout.texts) :].tobytes() or None


@final
@dataclass(frozen=True)
class HeldOut:
    """What is held out of a corpus: documents by their numbers, of which so many have `copies` in the training set; or,
    with `cut`, the end of a stream.
    """

    documents: frozenset[int] = frozenset()
    copies: int = 0
    cut: bool = False


def survey_parts(parts: Iterable[EncodedPart], layout: Layout, problems: Problems) -> Survey:
    """Return the counts of all parts; what is wrong with their lines is added to `problems`."""
    records = text_bytes = 0
    labels: set[str] = set()
    for part in parts:
        problems.add_json(part.problems)
        labels.update(part.labels)
        for _, size, _ in part.documents(layout):
            records += 1
            text_bytes += size
    return Survey(records=records, text_bytes=text_bytes, labels=tuple(sorted(labels)), skipped=problems.counts)


def draw_held_out(parts: Sequence[EncodedPart], layout: Layout, survey: Survey) -> HeldOut:
    """Draw the documents that are held out: the end of a stream if one document is nearly all of it."""
    if survey.records < 2:
        if layout.end:
            return HeldOut(cut=True)
        raise DataError("one record cannot be split into training and held-out ones; give more, or a dev file")

    def documents() -> Iterator[DrawnDocument]:
        found = (document for part in parts for document in part.documents(layout))
        for number, (key, size, labels) in enumerate(found):
            yield DrawnDocument(key, own_key(key, number), labels or (None,), size if layout.end else 1)

    if layout.end:
        quotas = document_quotas(survey.text_bytes, survey.records)
    elif layout.label is None:
        quotas = record_quotas({None: survey.records}, survey.records)
    else:
        quotas = record_quotas(Counter(label for one in documents() for label in one.labels), survey.records)
    drawn = draw(documents, quotas)
    if layout.end and drawn.short:
        return HeldOut(cut=True)
    numbers = frozenset(number for number, one in enumerate(documents()) if drawn.has(one))
    return HeldOut(numbers, drawn.copies)


def join_parts(
    encoding: Encoding,
    train: Sequence[EncodedPart],
    dev: Sequence[EncodedPart] | None,
    held_out: HeldOut,
    *,
    source: Source,
    home: Path,
) -> None:
    """Write the stores `train` and `dev`. A stream that is cut is read again: where the cut is, tokens are others."""
    layout, labels = encoding.layout, encoding.labels or ()
    with StoreWriter(home / "train", encoding.sizes) as learned, StoreWriter(home / "dev", encoding.sizes) as held:
        if held_out.cut:
            sizes = sum(size for part in train for _, size, _ in part.documents(layout))
            field = source.fields.index(layout.texts[0])
            stores_of = deque[StoreWriter]()  # of the records that are being tokenised, which are many at a time

            def records() -> Iterator[Record]:
                for record, is_held in cut_in_two(encoding.usable_records(source), sizes, field=field):
                    stores_of.append(held if is_held else learned)
                    yield record

            for entry in encoding.encode(source, records()):
                encoding.add(stores_of.popleft(), entry)
        else:
            number = 0
            for entry in (entry for part in train for entry in part.entries(layout, labels)):
                encoding.add(held if number in held_out.documents else learned, entry)
                number += entry.key is not None
        for entry in (entry for part in dev or () for entry in part.entries(layout, labels)):
            encoding.add(held, entry)
        stores = {"training": learned.close({}), "held-out": held.close({})}
    for name, store in stores.items():
        if not len(store) or (layout.end and store.sizes[layout.texts[0]].tokens < 2):
            raise DataError(f"there is no {name} record left; give more text, or a dev file of its own")


@contextmanager
def parts_folder(home: Path, partial: Path) -> Iterator[Path]:
    """Yield the folder for the parts of what becomes `home`: that of a process that was killed, if there is one.

    If another process is at work in it, or something of that name is not ours, it is one within `partial`. It is
    removed in the end; but an interruption, or a shard that cannot be had, leaves it for the next who tries.
    """
    folder, own = home.with_name(f".{home.name}.parts"), partial / "parts"
    handle = None
    try:
        with suppress(FileExistsError):
            folder.mkdir()
        if folder.is_symlink() or any(path.is_symlink() for path in folder.rglob("*")):
            raise BlockingIOError(f"{folder} leads elsewhere")
        handle = lock_folder(folder)
    except (BlockingIOError, NotADirectoryError):
        folder = own
        folder.mkdir()
    try:
        yield folder
        shutil.rmtree(folder.rename(own))  # a kill leaves it whole, or in what is removed by the next
    except BaseException as error:
        ended = isinstance(error, ClearheadError) and not isinstance(error, ShardError)
        if ended or not any(folder.glob("*/[0-9]*[0-9]")):
            with suppress(OSError):
                folder.rename(own)
            shutil.rmtree(own, ignore_errors=True)
        raise
    finally:
        if handle is not None:
            with suppress(OSError):
                os.close(handle)
