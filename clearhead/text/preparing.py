"""Prepare the user's files for training: check, split, tokenise and store them, once for the same content.

The corpus is read once, as a stream, by all processes: each encodes parts of it (`clearhead.text.parts`). Where a
tokeniser is to be trained, it is read once before, to check every line and to draw a sample. What is held out is drawn
from hashes in the parts; only a stream of which the end is held out is tokenised again.
"""

import errno
import hashlib
import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from clearhead.calls import CodeRepr, public
from clearhead.errors import DataError, OptionError, RunError, unreadable
from clearhead.files import check_file_name, read_sealed, replacing_folder, sha256_of_file, write_sealed
from clearhead.options import option
from clearhead.serialization import check_fields, check_regular, check_type, to_json
from clearhead.text.encoding import (
    FATES,
    Corpus,
    Encoding,
    Layout,
    Survey,
    filtered_records,
    labels_of,
    texts_of,
    usable_records,
)
from clearhead.text.filtering import LeftOut, TextFilter
from clearhead.text.kinds import KINDS
from clearhead.text.lines import Problems
from clearhead.text.parts import (
    EncodedPart,
    HeldOut,
    PartJob,
    Team,
    await_parts,
    draw_held_out,
    drop_copies,
    encode_parts,
    estimate_bytes,
    join_parts,
    parts_folder,
    survey_parts,
)
from clearhead.text.remote import identify, is_remote
from clearhead.text.sources import Record, Source
from clearhead.text.store import Store, map_file
from clearhead.text.table_readers import quote
from clearhead.text.token_files import TokenFiles, check_tokens
from clearhead.text.tokenizer import Tokenizer
from clearhead.text.validation_split import RULE, is_drawn

Log = Callable[[str], None]
FORMAT = 5
"""The version of what is stored: another version is another key."""
MOST_LABELS = 1000
MOST_CHANGES = 5
"""Files that were changed since that are named."""
TOKENIZERS = "tokenizers.json"
"""In a folder of parts: which tokeniser each field has. Written when they are all there."""
WHOLE = "whole.json"
"""Written last: where it is, everything else is complete."""
NOTES = {
    "key": str,
    "files": dict[str, str],
    "records": int,
    "text_bytes": int,
    "labels": list[str],
    "skipped": dict[str, int],
    "dev_skipped": dict[str, int],
    "tokenizers": dict[str, str],
    "too_long": int,
    "without_tokens": int,
    "copies": int,
    "cut": bool,
    "held_out": list[int],
    "texts": dict[str, str],
    "left_out": dict[str, list[int]],
}
"""The fields of whole.json beside its seal: `key`, the folder it was made in; `files`, the SHA-256 of those
around it; `texts`, the BLAKE2b of the user's files; `copies`, how many held-out records have the text of training
records; `held_out`, the numbers of the documents of a stream that are held out; `cut`, that it is its end instead;
`left_out`, the records and bytes that filters and deduplication left out, by the reason.
"""
COPIES = "copies.bin"
"""The numbers of the documents that were left out as copies, 64 bits each."""


@final
@public
@dataclass(frozen=True, kw_only=True)
class Tokenizing(CodeRepr):
    """The choice of a tokenizer.

    Args:
        kind: Kind of tokenizer.
        size: Size of the vocabulary; chosen from the corpus if None.
        shared: One tokenizer for source and target.
        lower: Make text lower-case.
        given: A tokenizer.json to use unchanged.
        sample_mb: Megabytes of text that train the tokenizer. In a corpus of twice this or more, one of each n
            neighbouring records is drawn by hash.
        size_factor: Factor for the size that is chosen.

    Raises:
        OptionError: If the kind is unknown, or a number is out of range.

    >>> import clearhead as ch
    >>> tokenizing = ch.training.Tokenizing(kind="bpe", size=8000)
    """

    kind: str = option(
        "bpe",
        f"Kind of tokeniser: {', '.join(KINDS)}; or the path of a tokenizer.json.",
        word="tokenizer",
        takes="KIND",
        names=KINDS,
    )
    size: int | None = option(
        None, "Size of the vocabulary.  [default: chosen from the text]", word="vocabulary", takes="N", least=1
    )
    shared: bool = option(
        True, "translate: one tokeniser per language, instead of one for both.", word="separate_tokenizers"
    )
    lower: bool = option(False, "Lower-case all text, or not.", both=True)
    given: str | None = None
    sample_mb: int = 8
    size_factor: float = 1.0

    def __post_init__(self) -> None:
        if not self.size_factor > 0:
            raise OptionError(f"size_factor must be above 0; came {self.size_factor}")
        if self.sample_mb < 1:
            raise OptionError(f"sample_mb must be 1 or more; came {self.sample_mb}")


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """The text of a run, ready for training. `tokenizers` by field: a shared one is at both."""

    train: Store
    dev: Store
    tokenizers: Mapping[str, Tokenizer]
    labels: tuple[str, ...]
    notes: Mapping[str, Any]

    @property
    def copies(self) -> NDArray[np.int64] | None:
        """Return the numbers of the documents that were left out as copies, mapped; None if there are none."""
        file = self.train.folder.parent / COPIES
        return map_file(file, np.dtype(np.int64)) if file.exists() else None


def prepare(
    corpus: Corpus,
    layout: Layout,
    tokenizing: Tokenizing | Mapping[str, Tokenizer],
    folder: Path,
    log: Log = print,
    *,
    team: Team | None = None,
) -> Prepared:
    """Return the ids of a corpus in this folder: written now, unless they are there from the same content.

    Instead of a choice, `tokenizing` may be the tokenisers themselves, by field: those of a pretrained model. `team`
    are the processes that take part, None for this one alone.
    """
    for source in (corpus.train, corpus.dev):
        if source is not None and not set(layout.fields) <= set(source.fields):
            raise OptionError(
                f"records of {' and '.join(layout.fields)} are needed; these have {' and '.join(source.fields)}"
            )
    near = corpus.deduplicate == "near"
    check_tokens(corpus.train, corpus.dev, layout, changes_text=near or bool(corpus.filters))
    texts = digest_files(files_in(corpus))
    home = folder / content_key(corpus, layout, tokenizing, texts)
    pretrained = None if isinstance(tokenizing, Tokenizing) else tokenizing
    if (home / WHOLE).exists():
        return open_prepared(home, tokenizers=pretrained)
    try:
        with replacing_folder(home) as partial, parts_folder(home, partial) as parts:
            work = PartJob(corpus.train, layout, None, corpus.skip_bad, parts, corpus.filters, near)
            write_prepared(corpus, work, tokenizing, partial, log, key=home.name, texts=texts, team=team or Team())
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST) and (home / WHOLE).exists():
            # Another run with the same text has written the same meanwhile.
            return open_prepared(home, tokenizers=pretrained)
        raise RunError(
            f"{home}: cannot be written to ({error.strerror or error}); make room, or choose another folder"
        ) from error
    return open_prepared(home, verify=False, tokenizers=pretrained)


def open_prepared(home: Path, *, verify: bool = True, tokenizers: Mapping[str, Tokenizer] | None = None) -> Prepared:
    """Return what was prepared before, from its folder alone.

    It reads every file of ids once and compares checksums; `verify=False` is for ids that were written a moment ago.
    `tokenizers` are those of a pretrained model: its special tokens are not in the files here.
    """
    notes = read_notes(home)
    if tokenizers is None:
        loaded = {file: Tokenizer.load(home / file) for file in set(notes["tokenizers"].values())}
        tokenizers = {field: loaded[file] for field, file in notes["tokenizers"].items()}
    prepared = Prepared(
        train=Store(home / "train"),
        dev=Store(home / "dev"),
        tokenizers=tokenizers,
        labels=tuple(notes["labels"]),
        notes=notes,
    )
    if verify:
        for store in (prepared.train, prepared.dev):
            store.verify()
    return prepared


def read_notes(home: Path) -> dict[str, Any]:
    """Read whole.json, and check the tokenisers and stores that it names."""
    try:
        sealed = read_sealed(home / WHOLE)
        content = {name: value for name, value in sealed.items() if name not in ("format", "sha256")}
        notes = check_fields(content, NOTES, WHOLE)
        if notes["key"] != home.name:
            raise ValueError(f"it was made as {notes['key'][:40]}, and lies in another place now")
        for file, expected in notes["files"].items():
            if sha256_of_file(home / file) != expected:
                raise ValueError(f"{file} was changed since it was written: its checksum is wrong")
        for file in notes["tokenizers"].values():
            check_file_name(file, WHOLE)
    except (OSError, ValueError, RunError) as error:
        raise RunError(
            f"{home}: there is no text prepared, or not all of it ({error}); remove the folder, and a new training "
            "makes it anew"
        ) from error
    return notes


def content_key(
    corpus: Corpus,
    layout: Layout,
    tokenizing: Tokenizing | Mapping[str, Tokenizer],
    texts: Mapping[str, str] | None = None,
) -> str:
    """Return a hash of all that decides the ids: the bytes of the files, and every option that affects them.

    `texts` are the files' own hashes, if they are known.
    """
    digest = hashlib.blake2b(digest_size=12)
    if isinstance(tokenizing, Tokenizing):
        tokenizer_files, tokenizer_key = (tokenizing.given,) if tokenizing.given else (), to_json(tokenizing)
        if isinstance(corpus.train, TokenFiles):
            tokenizer_files, tokenizer_key = (corpus.train.tokenizer_file(),), None
    else:
        tokenizer_files = ()
        tokenizer_key = {
            field: [tokenizer.fingerprint(), repr(tokenizer.imported)] for field, tokenizer in tokenizing.items()
        }
    digest.update(json.dumps([FORMAT, RULE, to_json(corpus), to_json(layout), tokenizer_key]).encode())
    digest.update("".join(rule.state() for rule in corpus.filters).encode())
    for path in tokenizer_files:
        with unreadable(path, error=DataError, after="; expected a tokenizer.json"):
            check_regular(path)
    digests = {**digest_files(tokenizer_files), **(digest_files(files_in(corpus)) if texts is None else texts)}
    for path in (*files_in(corpus), *tokenizer_files):
        digest.update(bytes.fromhex(digests[path]))
    return digest.hexdigest()


def files_in(corpus: Corpus) -> list[str]:
    """Return every text file of a corpus, one as often as it is read."""
    sources = [corpus.train] if corpus.dev is None else [corpus.train, corpus.dev]
    return list(itertools.chain.from_iterable(source.files for source in sources))


def digest_files(paths: Iterable[str]) -> dict[str, str]:
    """Return the BLAKE2b of each file, or of the version that a store tells; DataError for one that cannot be read."""
    found: dict[str, str] = {}
    for path in dict.fromkeys(paths):
        if is_remote(path):
            found[path] = identify(path)
            continue
        with unreadable(path, error=DataError), open(path, "rb") as file:
            found[path] = hashlib.file_digest(file, "blake2b").hexdigest()
    return found


def describe_changes(then: Mapping[str, str], corpus: Corpus) -> str | None:
    """Say by name which of the user's files are not those of then; None if all are, or nobody can tell.

    `then` are the files' hashes, as `Prepared.notes` has them in `texts`. Where none of the files is there, their text
    was cleared away or is read from another folder, and nothing is said. Text from elsewhere is not asked for again.
    """
    if any(map(is_remote, then)):
        return None
    there = [path for path in then if os.path.isfile(path)]
    if not there:
        return None
    now = digest_files(there)
    changed = [f"{path} was changed" for path in there if now[path] != then[path]]
    gone = [f"{path} is gone" for path in then if path not in now]
    new = [] if gone else [f"{path} is new" for path in dict.fromkeys(files_in(corpus)) if path not in then]
    said = [*changed, *gone, *new]
    more = f" and {len(said) - MOST_CHANGES:,} more" if len(said) > MOST_CHANGES else ""
    return ", ".join(said[:MOST_CHANGES]) + more or None


def write_prepared(
    corpus: Corpus,
    work: PartJob,
    tokenizing: Tokenizing | Mapping[str, Tokenizer],
    home: Path,
    log: Log,
    *,
    key: str,
    texts: Mapping[str, str],
    team: Team,
) -> None:
    layout = work.layout
    if isinstance(tokenizing, Tokenizing):
        tokenizers = make_tokenizers(corpus, layout, tokenizing, work.folder, log)
    else:
        tokenizers, team = tokenizing, Team()  # the other processes do not have them
    train_job = work._replace(folder=work.folder / "train")
    train = encode_together(train_job, tokenizers, team)
    problems, left_out = Problems(skip=corpus.skip_bad), LeftOut()
    for part in train:
        left_out.add_json(part.left_out)
    copies = drop_copies(train, layout, corpus.deduplicate, left_out)
    survey = survey_parts(train, layout, problems, copies)
    for line in left_out.describe():
        log(line)
    check_survey(corpus.train, layout, survey, problems)
    log(f"{survey.records:,} records, {survey.text_bytes / 1e6:,.1f} MB of text" + describe_skipped(survey.skipped))
    dev, dev_skipped = None, {}
    if corpus.dev is not None:
        known_labels = survey.labels if layout.label else None
        dev_job = work._replace(source=corpus.dev, labels=known_labels, folder=work.folder / "dev", filters=())
        dev = encode_together(dev_job, tokenizers, team)
        problems = Problems(skip=corpus.skip_bad)
        dev_survey = survey_parts(dev, layout, problems)
        check_survey(corpus.dev, layout, dev_survey, problems, known_labels)
        dev_skipped = dict(dev_survey.skipped)
        log(f"{dev_survey.records:,} held-out records" + describe_skipped(dev_skipped))
    held_out = HeldOut() if dev is not None else draw_held_out(train, layout, survey, copies)
    encoding = Encoding(layout, tokenizers, survey.labels, filters=corpus.filters)
    files = save_tokenizers(tokenizers, home)
    join_parts(encoding, train, dev, held_out, source=corpus.train, home=home, copies=copies)
    for line in describe_losses(encoding, held_out):
        log(line)
    if len(copies):
        (home / COPIES).write_bytes(copies.tobytes())
    bound = ("train/store.json", "dev/store.json", *dict.fromkeys(files.values()), *((COPIES,) if len(copies) else ()))
    notes = {
        "key": key,
        "files": {file: sha256_of_file(home / file) for file in bound},
        "records": survey.records,
        "text_bytes": survey.text_bytes,
        "labels": survey.labels,
        "skipped": dict(survey.skipped),
        "dev_skipped": dev_skipped,
        "tokenizers": files,
        "too_long": encoding.too_long,
        "without_tokens": encoding.nothing,
        "copies": held_out.copies,
        "cut": held_out.cut,
        "held_out": sorted(held_out.documents) if layout.end else [],
        "texts": dict(texts),
        "left_out": left_out.to_json(),
    }
    write_sealed(home / WHOLE, notes)


def encode_together(job: PartJob, tokenizers: Mapping[str, Tokenizer], team: Team) -> list[EncodedPart]:
    """Encode the parts of a job with the other processes, and open all of them."""
    job = job.divided()
    job.folder.mkdir(exist_ok=True)
    team.announce(job)
    encode_parts(job, tokenizers, 0, team.count)
    return await_parts(job, tokenizers)


def describe_losses(encoding: Encoding, held_out: HeldOut) -> Iterator[str]:
    """Yield sentences about records that were left out, cut or split, and about copies that had to be held out."""
    layout = encoding.layout
    if encoding.too_long:
        yield f"{encoding.too_long:,} records have more than {layout.most} tokens: {FATES[layout.too_long]}"
    if encoding.nothing:
        yield f"{encoding.nothing:,} records have no token: they are left out"
    if held_out.copies:
        yield (
            f"WARNING: {held_out.copies:,} held-out records have the text of training records, since there are too few "
            "different texts: their scores will be too high; give more text, or a dev file"
        )


def describe_skipped(counts: Mapping[str, int]) -> str:
    return "".join(f"; {count:,} left out: {kind}" for kind, count in counts.items())


def survey(
    source: Source,
    layout: Layout,
    problems: Problems,
    known_labels: tuple[str, ...] | None,
    watch: Callable[[int, Record], None] = lambda number, record: None,
    *,
    filters: Sequence[TextFilter] = (),
) -> Survey:
    """Read everything once, and raise for bad lines. `watch` is called with every usable record and its number."""
    labels: dict[str, None] = {}
    records = text_bytes = 0
    usable = usable_records(source, layout, problems, known_labels)
    for number, record in enumerate(filtered_records(usable, source, layout, filters, LeftOut())):
        watch(number, record)
        text_bytes += sum(len(text.encode()) for text in texts_of(source, layout, record))
        records += record.ends
        if layout.label is not None:
            labels |= dict.fromkeys(labels_of(source, layout, record))
            if len(labels) > MOST_LABELS:
                raise DataError(
                    f"{record.place}: more than {MOST_LABELS} different labels; is {layout.label!r} the right column?"
                )
    found = Survey(records=records, text_bytes=text_bytes, labels=tuple(sorted(labels)), skipped=problems.counts)
    check_survey(source, layout, found, problems, known_labels)
    return found


def check_survey(
    source: Source, layout: Layout, survey: Survey, problems: Problems, known_labels: tuple[str, ...] | None = None
) -> None:
    """Raise DataError for bad lines, for a corpus without a record, and for labels between which there is no choice."""
    problems.settle()
    labels = survey.labels
    if not survey.records:
        raise DataError(f"{', '.join(source.files)}: there is no usable record" + describe_skipped(problems.counts))
    if layout.label is None or known_labels is not None:
        return
    if len(labels) > MOST_LABELS:
        raise DataError(
            f"{source.files[0]}: more than {MOST_LABELS} different labels; is {layout.label!r} the right column?"
        )
    if layout.label_of == "many" and not labels:
        raise DataError(f"{source.files[0]}: no record has a label; there must be one or more in {layout.label!r}")
    if layout.label_of != "many" and len(labels) < 2:
        raise DataError(
            f"{source.files[0]}: every record has the label {quote(next(iter(labels)))}; there must be two or more"
        )


def make_tokenizers(
    corpus: Corpus, layout: Layout, tokenizing: Tokenizing, folder: Path, log: Log
) -> dict[str, Tokenizer]:
    """Return a tokeniser for each text field; the same for all where it is shared or given.

    They are saved in `folder`, for the other processes and for a process that goes on after a kill.
    """
    if isinstance(corpus.train, TokenFiles):
        tokenizers = dict.fromkeys(layout.texts, corpus.train.tokenizer())
    elif tokenizing.given is not None:
        tokenizers = dict.fromkeys(layout.texts, Tokenizer.load(tokenizing.given))
    elif (folder / TOKENIZERS).exists() and {*(found := load_tokenizers(folder))} == {*layout.texts}:
        return found
    else:
        tokenizers = train_tokenizers(corpus, layout, tokenizing, log)
    files = save_tokenizers(tokenizers, folder)
    sums = {file: sha256_of_file(folder / file) for file in files.values()}
    write_sealed(folder / TOKENIZERS, {"tokenizers": files, "files": sums})
    return tokenizers


def train_tokenizers(corpus: Corpus, layout: Layout, tokenizing: Tokenizing, log: Log) -> dict[str, Tokenizer]:
    """Read the training text once: raise for what is wrong with it, and train tokenisers on a sample."""
    every = max(1, estimate_bytes(corpus.train) // (tokenizing.sample_mb * 1_000_000))
    groups = [layout.texts] if tokenizing.shared else [(name,) for name in layout.texts]
    samples: dict[tuple[str, ...], list[str]] = {group: [] for group in groups}

    def sample(number: int, record: Record) -> None:
        if is_drawn(number, every):
            for group, texts in samples.items():
                texts.extend(record.fields[corpus.train.fields.index(name)] for name in group)

    survey(corpus.train, layout, Problems(skip=corpus.skip_bad), None, sample, filters=corpus.filters)
    if every > 1:
        log(f"the tokeniser is trained on one record in {every}, drawn by hash")
    tokenizers: dict[str, Tokenizer] = {}
    for group, texts in samples.items():
        kind, size, factor = tokenizing.kind, tokenizing.size, tokenizing.size_factor
        trained = Tokenizer.train(texts, kind, size, lower=tokenizing.lower, size_factor=factor)
        tokenizers |= dict.fromkeys(group, trained)
    return tokenizers


def load_tokenizers(folder: Path) -> dict[str, Tokenizer]:
    """Load the tokenisers that `make_tokenizers` saved; RunError where a file was changed since."""
    sealed = read_sealed(folder / TOKENIZERS)
    try:
        files, sums = (check_type(sealed.get(name), dict[str, str], name) for name in ("tokenizers", "files"))
        for file in {*files.values()}:
            if sha256_of_file(folder / check_file_name(file, TOKENIZERS)) != sums.get(file):
                raise ValueError(f"{file} was changed since it was written: its checksum is wrong")
        loaded = {file: Tokenizer.load(folder / file) for file in {*files.values()}}
        return {field: loaded[file] for field, file in files.items()}
    except (OSError, ValueError, RunError) as error:
        raise RunError(f"{folder}: these tokenisers are not ours ({error}); they are removed: try again") from error


def save_tokenizers(tokenizers: Mapping[str, Tokenizer], home: Path) -> dict[str, str]:
    """Save each tokeniser once: `tokenizer.json` for one, by field for several. Return the files by field."""
    shared = len({id(tokenizer) for tokenizer in tokenizers.values()}) == 1
    files = {field: "tokenizer.json" if shared else f"tokenizer.{field}.json" for field in tokenizers}
    for field, file in files.items():
        tokenizers[field].save(home / file)
    return files
