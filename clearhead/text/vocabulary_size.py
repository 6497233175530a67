"""How large a vocabulary is by default: it follows from the size of the text.

With a budget of minutes on a CPU it may be smaller (`choose_vocabulary` in `training/fitting.py`).
"""

from clearhead.text.kinds import KINDS

MOST_TOKENS = 32_000
"""The largest vocabulary that is chosen."""


def expected_size(n_bytes: int, factor: float = 1.0) -> int:
    """Return the most tokens of a vocabulary whose size is chosen from this many bytes of text."""
    return min(round(factor * suggested_size(n_bytes)), MOST_TOKENS)


def suggested_size(n_bytes: int) -> int:
    """Return a vocabulary size for a corpus of `n_bytes`: 4,200 for a megabyte, 1.5 times as many for twice that.

    >>> [suggested_size(n) for n in (10_000, 1_000_000, 3_900_000, 52_000_000)]
    [320, 4224, 9472, 32000]
    """
    size = 4_200 * (n_bytes / 1e6) ** 0.6
    return min(max(64 * round(size / 64), 320), MOST_TOKENS)


def least_size(kind: str) -> int:
    """Return the fewest tokens that a tokenizer of a kind has, whatever its texts: special ones, and all bytes of a
    kind that falls back to bytes.
    """
    return KINDS[kind].least(KINDS[kind].untrained(), frozenset())
