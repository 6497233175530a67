"""The vocabulary that a text gets by default."""

import pytest

from clearhead.text.vocabulary_size import suggested_size


@pytest.mark.parametrize(
    ("n_bytes", "size"),
    [
        (0, 320),
        (10_000, 320),
        (100_000, 1_024),
        (1_000_000, 4_224),
        (3_900_000, 9_472),
        (10_000_000, 16_704),
        (52_000_000, 32_000),
        (10**12, 32_000),
    ],
)
def test_suggested_size(n_bytes, size):
    assert suggested_size(n_bytes) == size
    assert size % 64 == 0
