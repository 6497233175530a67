"""The demo's text: numbers in German and English words, made on the spot, and which of them are held out."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np

from clearhead.errors import OptionError
from clearhead.files import write_text
from clearhead.text.sources import Aligned

__all__ = ["BELOW", "Numbers", "draw", "english", "german", "write_pairs"]

BELOW = 1_000_000
SHARES = (
    (range(1_000), 0.05),
    (range(1_000, 10_000), 0.05),
    (range(10_000, 100_000), 0.15),
    (range(0, BELOW, 1_000), 0.03),
)
"""What share of the training numbers is small, middling or round; the rest is drawn from all that have six digits.

Of all numbers one in a thousand is below a thousand, and one in a thousand is a round thousand: drawn evenly, there
would be too few to learn from, and people ask for them first.
"""
SIX_DIGITS = range(100_000, BELOW)


@final
@dataclass(frozen=True, kw_only=True)
class Numbers:
    """Numbers to learn from, and held-out numbers to ask about. No number is in both."""

    train: tuple[int, ...]
    held_out: tuple[int, ...]


def draw(seed: int, *, train: int = 20_000, held_out: int = 1_000, apart: Collection[int] = ()) -> Numbers:
    """Draw numbers below a million: the held-out ones evenly, of those to train on more that are small or round.

    None of those `apart` is trained on. The same seed draws the same.

    >>> numbers = draw(1, train=100, held_out=10)
    >>> len(numbers.train), len(numbers.held_out), set(numbers.train) & set(numbers.held_out)
    (100, 10, set())
    """
    if not 0 < train <= BELOW // 10 or not 0 < held_out <= BELOW // 10:
        raise OptionError(f"draw from 1 to {BELOW // 10:,} numbers of each kind; came {train:,} and {held_out:,}")
    random = np.random.default_rng([seed, BELOW])
    held = random.choice(BELOW, held_out, replace=False)
    free = np.ones(BELOW, bool)
    free[held] = free[list(apart)] = False
    chosen = np.empty(0, np.int64)
    for among, share in (*SHARES, (SIX_DIGITS, 1.0)):
        candidates = among.start + among.step * np.flatnonzero(free[among.start : among.stop : among.step])
        count = min(round(share * train), train - len(chosen), len(candidates))
        picked = random.choice(candidates, count, replace=False)
        free[picked] = False
        chosen = np.concatenate([chosen, picked])
    return Numbers(train=tuple(random.permutation(chosen).tolist()), held_out=tuple(held.tolist()))


def german(number: int) -> str:
    """Return the number in German words.

    >>> german(24), german(67_000)
    ('vierundzwanzig', 'siebenundsechzigtausend')
    """
    from num2words import num2words

    return num2words(number, lang="de")


def english(number: int) -> str:
    """Return the number in English words.

    >>> english(24), english(67_024)
    ('twenty-four', 'sixty-seven thousand and twenty-four')
    """
    from num2words import num2words

    return num2words(number)


def write_pairs(numbers: Sequence[int], folder: Path, name: str) -> Aligned:
    """Write the two aligned files `name`.de and `name`.en, a number a line, as a user would have them."""
    folder.mkdir(parents=True, exist_ok=True)
    source, target = folder / f"{name}.de", folder / f"{name}.en"
    for path, say in ((source, german), (target, english)):
        write_text(path, "".join(f"{say(number)}\n" for number in numbers))
    return Aligned(source=(str(source),), target=(str(target),))
