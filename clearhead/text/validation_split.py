"""Draw the validation set of a corpus that comes without one.

Documents are drawn by a hash of their text, so the choice depends on nothing but the corpus: not on the order of the
files, the machine or the number of processes. Texts that differ only in case, white space and Unicode form have the
same hash, and are drawn together. Labels are drawn in proportion. Memory does not grow with the corpus: of each label
only the documents with the smallest hashes are kept. docs/decisions/0026-the-validation-set.md has the reasons.
"""

import hashlib
import heapq
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import NamedTuple, final

from clearhead.text.drawing import SEED

__all__ = ["RULE", "Document", "Quotas", "TextHash", "document_quotas", "draw", "record_quotas"]

ONE_IN, MOST = 20, 1000
"""One record in twenty is held out, at most a thousand."""
LEAST_IN = 5
"""So that rare labels have a validation record, up to one record in five is held out. It is also the largest share that
texts which are the same may have of their label: more of them are learned instead."""
FEW, TAIL = 20, 10
"""Of fewer documents than this, those held out are a tenth of the text."""
TOO_LITTLE = 10
"""Below this part of what was to be held out, a validation set is too small to say anything."""
RULE = ("blake2b of text without case and white space", SEED.decode(), ONE_IN, MOST, LEAST_IN, FEW, TAIL, TOO_LITTLE)
"""All that decides the choice: a part of the key of stored ids."""

Key = bytes
Label = str | None
"""The label of a document; None is for documents that have none."""


class Document(NamedTuple):
    """A document as the draw sees it: a hash of its text, its labels, and how much it counts."""

    key: Key
    labels: tuple[Label, ...]
    amount: int


@final
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


@final
@dataclass(frozen=True, kw_only=True)
class Quotas:
    """How much to hold out: of each label `wanted` and no more than `most`, in `documents` documents at most."""

    wanted: Mapping[Label, int]
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
    most = {label: max(1, count // LEAST_IN) if count > 1 else 0 for label, count in counts.items()}
    return Quotas(wanted=wanted, most=most, documents=records)


def document_quotas(n_bytes: int, documents: int) -> Quotas:
    """Return what to hold out of a stream of documents, in bytes: they differ in size."""
    if documents < FEW:  # of two documents the smaller one is held out, and it may be half of the text
        wanted, most, count = n_bytes // TAIL, n_bytes * 3 // 5, documents - 1
    else:
        wanted = min(n_bytes // ONE_IN, n_bytes * MOST // documents)
        most, count = n_bytes // LEAST_IN, min(MOST, documents // LEAST_IN)
    return Quotas(wanted={None: max(1, wanted)}, most={None: most}, documents=count)


@final
@dataclass
class Group:
    """Documents with the same text: how much of each label they are, and in how many pools they are."""

    amounts: Counter[Label] = field(default_factory=Counter)
    documents: int = 0
    pools: int = 0


def draw(documents: Iterable[Document], quotas: Quotas) -> Set[Key]:
    """Return the keys of the documents to hold out; none where too little could be.

    Labels are filled from the rarest to the most frequent, each with its documents in the order of their hashes. Texts
    that occur so often that they would be most of a label's records come last.
    """
    groups, pools = find_candidates(documents, quotas)
    taken: Counter[Label] = Counter()
    drawn: set[Key] = set()
    n_documents = 0
    for label in sorted(pools, key=lambda label: (quotas.wanted[label], quotas.most[label], label or "")):
        wanted = quotas.wanted[label]
        candidates = sorted(pools[label], key=lambda key: (max(groups[key].amounts[label], wanted // 2), key))
        for key in candidates:
            group = groups[key]
            missing = wanted - taken[label]
            # Documents differ in size: one is added if that comes nearer to what is wanted.
            fits = group.amounts[label] < 2 * missing or taken[label] * TOO_LITTLE < wanted
            allowed = all(taken[name] + amount <= quotas.most[name] for name, amount in group.amounts.items())
            if key in drawn or not fits or not allowed or n_documents + group.documents > quotas.documents:
                continue
            drawn.add(key)
            taken += group.amounts
            n_documents += group.documents
    enough = taken.total() * TOO_LITTLE >= max(1, sum(quotas.wanted.values()))
    return drawn if enough else frozenset()


def find_candidates(documents: Iterable[Document], quotas: Quotas) -> tuple[dict[Key, Group], dict[Label, list[Key]]]:
    """Return the documents with the smallest hashes: about twice as many of each label as are wanted.

    A hash that is among the smallest at the end always was, so its documents are counted from the first one on.
    """
    sizes = {label: 2 * min(wanted, MOST) + 8 for label, wanted in quotas.wanted.items() if wanted}
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
