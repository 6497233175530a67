"""Parts: the ids of some shards of a corpus, with all that preparing asks of their text, so that it is read once.

Every process encodes parts of its own, and a part that is whole is not made again after a kill. What is made of the
parts is the same for any number of processes: which shards are together goes by their sizes alone.
"""

import itertools
import os
import shutil
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clearhead import files, serialization
from clearhead.errors import ClearheadError, DataError, RunError, ShardError
from clearhead.text.encoding import Encoding, Entry, Layout, Survey, cut_in_two, membership
from clearhead.text.filtering import KEY, Deduplicate, LeftOut, TextFilter, find_copies
from clearhead.text.lines import PACKED_NAME, Problems
from clearhead.text.remote import size_of
from clearhead.text.sources import Record, Source
from clearhead.text.store import STORE, Store, StoreWriter
from clearhead.text.token_files import TokenFiles
from clearhead.text.tokenizer import Tokenizer
from clearhead.text.validation_split import DrawnDocument, document_quotas, draw, own_key, record_quotas

PART_BYTES = 64_000_000
"""Neighbouring shards make a part until they are so large together."""
ABOUT = "about"
"""The field of a part with the bytes of each text, and the hash of a document where it ends, in digits of 16 bits."""
DIGITS = 4
"""Digits of a number of bytes."""
PACKED = 3
"""How much longer packed text is when it is unpacked."""
GLANCE_SECONDS = 0.05
NOTES = {"labels": list[str], "problems": dict[str, Any], "documents": list[int], "left_out": dict[str, list[int]]}
PROBLEMS = {"first": list[str], "counts": dict[str, int], "encodings": dict[str, int]}
"""What store.json of a part has as `notes`, and in it as `problems`. `documents`: how many each of its shards has."""


class PartJob(NamedTuple):
    """What a process has to know to encode a part. `labels` are known ones, None where any is.

    `shards` is how many each part has, as the first process divides them: another might see other sizes.
    """

    source: Source
    layout: Layout
    labels: tuple[str, ...] | None
    skip_bad: bool
    folder: Path
    filters: tuple[TextFilter, ...] = ()
    near: bool = False
    shards: tuple[int, ...] = ()

    def divided(self) -> "PartJob":
        """Return the job with the division into parts that all processes go by."""
        return self._replace(shards=tuple(len(part.shards()) for part in divide(self.source)))

    def parts(self) -> list[Source]:
        """Return the source of each part."""
        shards = self.source.shards()
        if sum(self.shards) != len(shards):
            raise RunError(
                f"the first process sees {sum(self.shards):,} shards of text, and this one {len(shards):,}: the files "
                "must be the same for all, and must not change meanwhile"
            )
        ends = list(itertools.accumulate(self.shards))
        return [self.source.of_shards(shards[end - n : end]) for n, end in zip(self.shards, ends, strict=True)]


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
    return sum(size_here(path) * (PACKED if PACKED_NAME.search(path) else 1) for path in source.files)


def size_here(path: str) -> int:
    try:
        return size_of(path)
    except OSError:
        return 0


def encode_parts(job: PartJob, tokenizers: Mapping[str, Tokenizer], rank: int, count: int) -> None:
    """Encode every `count`-th part of a job from the one with the number `rank` on, except those that are there."""
    for number, source in enumerate(job.parts()):
        if number % count == rank and not (folder := job.folder / f"{number:06}").exists():
            write_part(source, job, tokenizers, folder)


def write_part(source: Source, job: PartJob, tokenizers: Mapping[str, Tokenizer], folder: Path) -> None:
    """Read a source once and write its ids and what else preparing asks of it, whole or not at all."""
    problems = Problems(skip=job.skip_bad)
    encoding = Encoding(job.layout, tokenizers, None, filters=job.filters, near=job.near)
    documents: list[int] = []
    with StoreWriter(folder, vocabularies_of(encoding)) as writer:
        for shard in source.shards():
            documents.append(0)
            tokens = isinstance(shard, TokenFiles)
            records = encoding.usable_records(shard, problems, job.labels)
            for entry in shard.entries(tokenizers) if tokens else encoding.encode(shard, records):
                about = [digit for name in job.layout.texts for digit in split_digits(entry.n_bytes[name])]
                row = {**entry.ids, ABOUT: [*about, *np.frombuffer(entry.key or b"", "<u2").tolist()]}
                writer.add(row if job.layout.label is None else {**row, job.layout.label: entry.numbers}, {})
                documents[-1] += entry.key is not None
        notes = {"labels": list(encoding.numbers), "problems": problems.to_json(), "documents": documents}
        writer.close({**notes, "left_out": encoding.left_out.to_json()})


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
    folders = [job.folder / f"{number:06}" for number in range(len(job.shards))]
    while not all(folder.exists() for folder in folders):
        time.sleep(GLANCE_SECONDS)
    encoding = Encoding(job.layout, tokenizers, None)
    parts = [EncodedPart(folder, encoding) for folder in folders]
    for part, count in zip(parts, job.shards, strict=True):
        if len(part.shards) != count:  # a process that was killed has seen other sizes
            raise RunError(
                f"{part.folder}: has {len(part.shards)} shards of the text, and should have {count}; it is removed: "
                "try again"
            )
    return parts


class EncodedPart:
    """A part that is whole. RunError if its files were changed since, or are of another layout.

    Its store is opened for each reading: thousands of parts would be more files than a process may have open.
    """

    def __init__(self, folder: Path, encoding: Encoding) -> None:
        self.folder, store, layout = folder, Store(folder), encoding.layout
        store.verify()
        try:
            notes = serialization.check_fields(store.notes, NOTES, STORE)
            self.labels: list[str] = notes["labels"]
            self.problems = serialization.check_fields(notes["problems"], PROBLEMS, STORE)
            self.left_out: dict[str, list[int]] = notes["left_out"]
            self.shards: list[int] = notes["documents"]
            if store.vocabularies != vocabularies_of(encoding):
                raise ValueError("it is of other fields or vocabularies")
            if any(store[ABOUT].lengths(np.arange(len(store))) < DIGITS * len(layout.texts)):
                raise ValueError("it lacks the sizes of its texts")
            if layout.label is not None and store[layout.label].ids.max(initial=0) > len(self.labels):
                raise ValueError("it has a label without a name")
        except (ValueError, RunError) as error:
            raise RunError(f"{folder}: is no part of this corpus ({error}); it is removed: try again") from error

    def entries(self, layout: Layout, labels: Sequence[str]) -> Iterator[Entry]:
        """Yield what was encoded, in the order of the text, with the numbers of these labels."""
        place = {name: number for number, name in enumerate(labels)}
        numbers = np.array([len(labels), *(place[name] for name in self.labels)])
        store = Store(self.folder)
        for row in range(len(store)):
            about = store[ABOUT].ids_of(row)
            ids = {name: store[name].ids_of(row) for name in layout.texts}
            label = [] if layout.label is None else numbers[store[layout.label].ids_of(row)].tolist()
            yield Entry(
                ids, dict(zip(layout.texts, bytes_of(about, layout), strict=True)), label, key_of(about, layout)
            )

    def documents(self, layout: Layout) -> Iterator[tuple[bytes, int, tuple[str, ...]]]:
        """Yield the hashes of each document, its bytes and its labels."""
        size, store = 0, Store(self.folder)
        for row in range(len(store)):
            about = store[ABOUT].ids_of(row)
            size += sum(bytes_of(about, layout))
            if (key := key_of(about, layout)) is not None:
                found = () if layout.label is None else store[layout.label].ids_of(row).tolist()
                yield key, size, tuple(self.labels[number - 1] for number in dict.fromkeys(found) if number)
                size = 0


def bytes_of(about: NDArray[np.uint16], layout: Layout) -> list[int]:
    return about[: DIGITS * len(layout.texts)].copy().view("<u8").tolist()


def key_of(about: NDArray[np.uint16], layout: Layout) -> bytes | None:
    return about[DIGITS * len(layout.texts) :].tobytes() or None


@dataclass(frozen=True)
class HeldOut:
    """What is held out of a corpus: documents by their numbers, of which so many have `copies` in the training set; or,
    with `cut`, the end of a stream.
    """

    documents: frozenset[int] = frozenset()
    copies: int = 0
    cut: bool = False


def drop_copies(
    parts: Sequence[EncodedPart], layout: Layout, how: Deduplicate | None, left_out: LeftOut
) -> NDArray[np.int64]:
    """Return the numbers of the documents that are copies of an earlier one, in order, and count them."""
    if how is None:
        return np.empty(0, np.int64)
    found = find_copies((key for part in parts for key, _, _ in part.documents(layout)), how)
    checks = {"copies": membership(found[0]), "near copies": membership(found[1])}
    for number, size in enumerate(size for part in parts for _, size, _ in part.documents(layout)):
        for reason, check in checks.items():
            if check(number):
                left_out.add(reason, 1, size)
    return np.union1d(*found)


def survey_parts(
    parts: Iterable[EncodedPart], layout: Layout, problems: Problems, copies: NDArray[np.int64] | None = None
) -> Survey:
    """Return the counts of all parts except copies; what is wrong with their lines is added to `problems`."""
    records = text_bytes = number = 0
    labels: set[str] = set()
    is_copy = membership(copies)
    for part in parts:
        problems.add_json(part.problems)
        labels.update(part.labels)
        for _, size, _ in part.documents(layout):
            if not is_copy(number):
                records += 1
                text_bytes += size
            number += 1
    return Survey(records=records, text_bytes=text_bytes, labels=tuple(sorted(labels)), skipped=problems.counts)


def draw_held_out(
    parts: Sequence[EncodedPart], layout: Layout, survey: Survey, copies: NDArray[np.int64] | None = None
) -> HeldOut:
    """Draw the documents that are held out: the end of a stream if one document is nearly all of it."""
    if survey.records < 2:
        if layout.end:
            return HeldOut(cut=True)
        raise DataError("one record cannot be split into training and held-out ones; give more, or a dev file")
    is_copy = membership(copies)

    def numbered() -> Iterator[tuple[int, DrawnDocument]]:
        found = (document for part in parts for document in part.documents(layout))
        for number, (keys, size, labels) in enumerate(found):
            key = keys[:KEY]
            if not is_copy(number):
                amount = size if layout.end else 1
                yield number, DrawnDocument(key, own_key(key, number), labels or (None,), amount)

    def documents() -> Iterator[DrawnDocument]:
        return (document for _, document in numbered())

    if layout.end:
        quotas = document_quotas(survey.text_bytes, survey.records)
    elif layout.label is None:
        quotas = record_quotas({None: survey.records}, survey.records)
    else:
        quotas = record_quotas(Counter(label for one in documents() for label in one.labels), survey.records)
    drawn = draw(documents, quotas)
    if layout.end and drawn.short:
        return HeldOut(cut=True)
    numbers = frozenset(number for number, one in numbered() if drawn.has(one))
    return HeldOut(numbers, drawn.copies)


def join_parts(
    encoding: Encoding,
    train: Sequence[EncodedPart],
    dev: Sequence[EncodedPart] | None,
    held_out: HeldOut,
    *,
    source: Source,
    home: Path,
    copies: NDArray[np.int64] | None = None,
) -> None:
    """Write the stores `train` and `dev`. A stream that is cut is read again: where the cut is, tokens are others.

    The notes of `train` say where each source of a mixture ends; of a stream that is cut nobody knows.
    """
    layout, labels = encoding.layout, encoding.labels or ()
    sources: list[dict[str, Any]] = []
    with StoreWriter(home / "train", encoding.sizes) as learned, StoreWriter(home / "dev", encoding.sizes) as held:
        if held_out.cut and isinstance(source, TokenFiles):
            raise DataError("one document is nearly all of the token files, and they are not cut: give a dev file")
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
            number, is_copy = 0, membership(copies)
            ends = iter(source_ends(source, [count for part in train for count in part.shards]))
            name, end = next(ends)
            for entry in (entry for part in train for entry in part.entries(layout, labels)):
                while number == end:
                    sources.append({"name": name, "end": learned.n})
                    name, end = next(ends)
                if not is_copy(number):
                    encoding.add(held if number in held_out.documents else learned, entry)
                number += entry.key is not None
            sources += [{"name": name, "end": learned.n} for name, _ in [(name, end), *ends]]
        for entry in (entry for part in dev or () for entry in part.entries(layout, labels)):
            encoding.add(held, entry)
        stores = {"training": learned.close({"sources": sources}), "held-out": held.close({})}
    for name, store in stores.items():
        if not len(store) or (layout.end and store.sizes[layout.texts[0]].tokens < 2):
            raise DataError(f"there is no {name} record left; give more text, or a dev file of its own")


def source_ends(source: Source, documents: Sequence[int]) -> Iterator[tuple[str, int]]:
    """Yield the name of each source as it was given, and the number of the document after its last one.

    `documents` is how many each shard has, of all sources one after another.
    """
    shards = end = 0
    for each in source.sources():
        count = len(each.shards())
        end += sum(documents[shards : shards + count])
        shards += count
        yield each.name, end


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
        handle = files.lock_folder(folder)
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
