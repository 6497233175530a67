"""Draw some of many records by hash: the same ones on every machine, and in step with nothing that repeats in a file.

A stride is blind: of records whose labels alternate, every twentieth has the same label. Here one record of each run of
neighbours is drawn, at a place that a hash of the run's number decides.
"""

import hashlib
from itertools import pairwise

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
