"""Draw the validation set of a corpus that comes without one.

Documents are drawn by a hash of their text, so the choice depends on nothing but the corpus: not on the order of the
files, the machine or the number of processes. Texts that differ only in case, white space and Unicode form have the
same hash, and are drawn together. Labels are drawn in proportion. Memory does not grow with the corpus: of each label
only the documents with the smallest hashes are kept. `draw` does this when text is prepared.
docs/decisions/0026-the-validation-set.md has the reasons.

Above it stands another draw, by number: which records of a set are scored (`spread`), or are in a first sample of a
stream (`is_drawn`). A stride would be blind: of records whose labels alternate, every twentieth has the same label. So
one record of each run of neighbours is drawn, at a place that a hash of the run's number decides.
"""

import hashlib
import heapq
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

SEED = b"clearhead 1"
"""The key of every hash. It is fixed: runs with other seeds are scored on the same records, and can be compared."""


def pick(block: int, size: int) -> int:
    """Return which of `size` neighbours is drawn, from 0 on; `block` says which neighbours they are.

    >>> [pick(block, 20) for block in range(6)]
    [15, 16, 8, 18, 10, 16]
    """
    digest = hashlib.blake2b(b"%d of %d" % (block, size), digest_size=8, key=SEED).digest()
    return int.from_bytes(digest, "little") % size


def is_drawn(number: int, every: int) -> bool:
    """Return whether a record is among those drawn: one of each `every` neighbours, and always the first of all.

    >>> [number for number in range(100) if is_drawn(number, 20)]
    [0, 36, 48, 78, 90]
    """
    block, place = divmod(number, every)
    return place == (pick(block, every) if block else 0)


def spread(n: int, count: int) -> list[int]:
    """Return at most so many of n things from all over them: one of each of `count` equal parts.

    >>> spread(100, 3), spread(2, 5), spread(9, 0)
    ([14, 54, 93], [0, 1], [])
    """
    count = min(count, n)
    ends = [part * n // count for part in range(count + 1)] if count else [0]
    return [start + pick(part, end - start) for part, (start, end) in enumerate(pairwise(ends))]


ONE_IN, MOST = 20, 1000
"""One record in twenty is held out, at most a thousand."""
LEAST_IN = 5
"""So that rare labels have a validation record, up to one record in five is held out, of each label and of all."""
FEW, TAIL = 20, 10
"""Of fewer documents than this, those held out are a tenth of the text."""
RULE = (
    "text without case and white space; labels in proportion; copies by hash and number",
    SEED.decode(),
    ONE_IN,
    MOST,
    LEAST_IN,
    FEW,
    TAIL,
)
"""What decides the choice: a part of the key of stored ids. Change the words where the code decides otherwise."""

Key = bytes
Label = str | None
"""The label of a document; None is for documents that have none."""


class DrawnDocument(NamedTuple):
    """A document as the draw sees it: a hash of its text, one of its text and its number, its labels, and how much it
    counts.
    """

    key: Key
    own_key: Key
    labels: tuple[Label, ...]
    amount: int


class TextHash:
    """Hashes the text of a document, which may come in pieces.

    All white space is left out: what remains does not depend on where a long document is cut into pieces.
    """

    def __init__(self) -> None:
        self.digest = hashlib.blake2b(digest_size=16, key=SEED)

    def add(self, text: str) -> None:
        folded = text.lower() if text.isascii() else unicodedata.normalize("NFKC", text).casefold()
        self.digest.update("".join(folded.split()).encode(errors="surrogatepass"))

    def add_border(self) -> None:
        """Mark the end of a field."""
        self.digest.update(b"\0")

    def key(self) -> Key:
        return self.digest.digest()


def own_key(key: Key, number: int) -> Key:
    """Return a key for one document of those with the same text, by its number in the corpus."""
    return hashlib.blake2b(b"%s%d" % (key, number), digest_size=16, key=SEED).digest()


@dataclass(frozen=True, kw_only=True)
class Quotas:
    """How much to hold out: of each label about `wanted`, at least `least` and no more than `most`, and no more than so
    many `documents` in all.
    """

    wanted: Mapping[Label, int]
    least: Mapping[Label, int]
    most: Mapping[Label, int]
    documents: int


def record_quotas(counts: Mapping[Label, int], records: int) -> Quotas:
    """Return what to hold out of records, given how many have each label. A label of a single record has none.

    >>> record_quotas({"a": 60, "b": 36, "c": 3, "d": 1}, 100).wanted
    {'a': 3, 'b': 2, 'c': 1, 'd': 0}
    """
    ranked = sorted(counts, key=lambda label: (-counts[label], label or ""))
    goal = max(1, min((records + ONE_IN // 2) // ONE_IN, MOST))
    exact = {label: goal * counts[label] / records for label in ranked}
    wanted = {label: int(share) if counts[label] > 1 else 0 for label, share in exact.items()}
    missing = round(sum(exact.values())) - sum(wanted.values())
    by_remainder = sorted(ranked, key=lambda label: int(exact[label]) - exact[label])
    for label in [label for label in by_remainder if counts[label] > 1][: max(0, missing)]:
        wanted[label] += 1
    room = max(1, records // LEAST_IN) - sum(wanted.values())
    absent = [label for label in ranked if counts[label] > 1 and not wanted[label]]
    wanted |= dict.fromkeys(absent[: max(0, room)], 1)
    least = {label: (count + 1) // 2 for label, count in wanted.items()}
    # Copies come together, and may be more than are wanted; but not so many that they outweigh the other labels.
    most = {
        label: max(1, min(count // LEAST_IN, max(4, 2 * wanted[label]))) if count > 1 else 0
        for label, count in counts.items()
    }
    return Quotas(wanted=wanted, least=least, most=most, documents=records)


def document_quotas(n_bytes: int, documents: int) -> Quotas:
    """Return what to hold out of a stream of documents, in bytes: they differ in size."""
    if documents < FEW:  # of two documents the smaller one is held out, and it may be half of the text
        wanted, most, count = n_bytes // TAIL, n_bytes * 3 // 5, documents - 1
    else:
        wanted = min(n_bytes // ONE_IN, n_bytes * MOST // documents)
        most, count = n_bytes // LEAST_IN, min(MOST, documents // LEAST_IN)
    wanted = max(1, wanted)
    return Quotas(wanted={None: wanted}, least={None: -(-wanted // TAIL)}, most={None: most}, documents=count)


@dataclass
class Group:
    """Documents with the same text: how much of each label they are, and in how many pools they are."""

    amounts: Counter[Label] = field(default_factory=Counter)
    documents: int = 0
    pools: int = 0


class Drawn(NamedTuple):
    """The keys of the documents that are held out. `copies` of them have the text of training documents; `short` says
    that less was found than is needed.
    """

    keys: Set[Key]
    copies: int
    short: bool

    def has(self, document: DrawnDocument) -> bool:
        return document.key in self.keys or document.own_key in self.keys


def draw(read: Callable[[], Iterable[DrawnDocument]], quotas: Quotas) -> Drawn:
    """Draw the documents to hold out; `read` reads them all from the beginning.

    Documents of the same text are drawn together. Where a label's texts come so often that this cannot be, some of
    their copies are drawn.
    """
    selection = Selection(quotas)
    selection.take(read(), quotas.wanted)
    by_text = selection.documents
    if short := selection.short():
        others = (document._replace(key=document.own_key) for document in read() if document.key not in selection.keys)
        selection.take(others, short)
    return Drawn(selection.keys, selection.documents - by_text, bool(selection.short()))


class Selection:
    """Documents that were drawn so far: their keys, how much they are of each label, and how many."""

    def __init__(self, quotas: Quotas) -> None:
        self.quotas = quotas
        self.keys: set[Key] = set()
        self.taken: Counter[Label] = Counter()
        self.documents = 0

    def short(self) -> dict[Label, int]:
        """Return what is wanted of the labels of which less than the least was drawn."""
        quotas = self.quotas
        return {label: wanted for label, wanted in quotas.wanted.items() if self.taken[label] < quotas.least[label]}

    def take(self, documents: Iterable[DrawnDocument], wanted: Mapping[Label, int]) -> None:
        """Draw from these documents what is wanted of each label, from the rarest label to the most frequent.

        A label's documents come in the order of their hashes; texts that would be most of what is wanted come last.
        """
        groups, pools = find_candidates(documents, wanted)
        for label in sorted(pools, key=lambda label: (wanted[label], self.quotas.most[label], label or "")):
            half = wanted[label] // 2
            for key in sorted(pools[label], key=lambda key: (max(groups[key].amounts[label], half), key)):
                if key not in self.keys and self.allows(groups[key], label):
                    self.keys.add(key)
                    self.taken += groups[key].amounts
                    self.documents += groups[key].documents

    def allows(self, group: "Group", label: Label) -> bool:
        """Return whether a group may be drawn for this label, and leaves enough of all its labels to learn from."""
        quotas, taken = self.quotas, self.taken
        # Documents differ in size: one is added if that comes nearer to what is wanted.
        nearer = group.amounts[label] < 2 * (quotas.wanted[label] - taken[label])
        return (
            (nearer or taken[label] < quotas.least[label])
            and all(taken[name] + amount <= quotas.most[name] for name, amount in group.amounts.items())
            and self.documents + group.documents <= quotas.documents
        )


def find_candidates(
    documents: Iterable[DrawnDocument], wanted: Mapping[Label, int]
) -> tuple[dict[Key, Group], dict[Label, list[Key]]]:
    """Return the documents with the smallest hashes: about twice as many of each label as are wanted.

    A hash that is among the smallest at the end always was, so its documents are counted from the first one on.
    """
    sizes = {label: 2 * min(count, MOST) + 8 for label, count in wanted.items() if count}
    groups: dict[Key, Group] = {}
    pools: dict[Label, set[Key]] = {label: set() for label in sizes}
    heaps: dict[Label, list[tuple[int, Key]]] = {label: [] for label in sizes}
    for document in documents:
        key = document.key
        group = groups.get(key) or Group()
        for label in document.labels:
            if label not in sizes or key in pools[label]:
                continue
            heap = heaps[label]
            negative = -int.from_bytes(key)  # heapq has the smallest first, and the largest hash is to go first
            if len(heap) == sizes[label]:
                if negative < heap[0][0]:
                    continue
                _, gone = heapq.heapreplace(heap, (negative, key))
                pools[label].remove(gone)
                groups[gone].pools -= 1
                if not groups[gone].pools:
                    del groups[gone]
            else:
                heapq.heappush(heap, (negative, key))
            pools[label].add(key)
            group.pools += 1
        if group.pools:
            groups[key] = group
            group.amounts.update(dict.fromkeys(document.labels, document.amount))
            group.documents += 1
    return groups, {label: list(keys) for label, keys in pools.items()}
