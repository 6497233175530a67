"""The demo's text: numbers in German and English words, made on the spot, and which of them are held out."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np

from clearhead.errors import OptionError
from clearhead.files import write_text
from clearhead.text.sources import Aligned

BELOW = 1_000_000
ROUND = (*range(100, 10_000, 100), *range(10_000, BELOW, 1_000))
"""Round hundreds and thousands, which people ask for early on. They are never held out."""
SHARES = {1: 0.05, 2: 0.08, 3: 0.10, 4: 0.10, 5: 0.17}
"""What share of the training text has numbers with this many digits. `ROUND_SHARE` is round; the rest has six digits.

Only one number in 100,000 has one digit. Drawn evenly, the model would not learn what people type first, and a score
over all numbers would not show it: a model with 9 % of the one-digit numbers right had 99.9 % of all of them right.
"""
ROUND_SHARE = 0.06
SHORT = ("hundert", "tausend")
"""What people begin a number with where num2words begins it with *einhundert* or *eintausend*."""
HELD_OUT_DIGITS = (3, 4, 5, 6)
"""How many digits held-out numbers have, as many of each. Of the 100 shorter numbers all are learned."""
MOST_HELD_OUT = 1_600
SPOKEN = 20
"""How often *hundert* and *tausend* are in the training text by themselves."""


@final
@dataclass(frozen=True, kw_only=True)
class Numbers:
    """Numbers to learn from, short ones many times, and held-out numbers to ask about. No number is in both."""

    train: tuple[int, ...]
    held_out: tuple[int, ...]


def draw(seed: int, *, train: int = 20_000, held_out: int = 1_000, apart: Collection[int] = ()) -> Numbers:
    """Draw numbers below a million by their number of digits. None of those `apart` is trained on.

    The same seed draws the same numbers.

    >>> numbers = draw(1, train=100, held_out=12)
    >>> len(numbers.train), len(numbers.held_out), set(numbers.train) & set(numbers.held_out)
    (100, 12, set())
    """
    if not 0 < train <= BELOW // 10 or not 0 < held_out <= MOST_HELD_OUT:
        limits = f"from 1 to {BELOW // 10:,} numbers to train on and from 1 to {MOST_HELD_OUT:,} to hold out"
        raise OptionError(f"draw {limits}; came {train:,} and {held_out:,}")
    random = np.random.default_rng([seed, BELOW])
    free = np.ones(BELOW, bool)
    free[list(apart)] = False
    may_be_held_out = free.copy()
    may_be_held_out[list(ROUND)] = False
    ends = np.linspace(0, held_out, len(HELD_OUT_DIGITS) + 1).astype(int)
    by_length = [
        pick(random, with_digits(may_be_held_out, digits), count)
        for digits, count in zip(HELD_OUT_DIGITS, np.diff(ends).tolist(), strict=True)
    ]
    held = random.permutation(np.concatenate(by_length))
    free[held] = False
    chosen = [pick(random, with_digits(free, digits), round(share * train)) for digits, share in SHARES.items()]
    chosen.append(pick(random, np.array(ROUND)[free[list(ROUND)]], round(ROUND_SHARE * train)))
    chosen.append(pick(random, with_digits(free, 6), train - sum(map(len, chosen))))
    train_numbers = random.permutation(np.concatenate(chosen))
    return Numbers(train=tuple(train_numbers.tolist()), held_out=tuple(held.tolist()))


def with_digits(free: np.ndarray, digits: int) -> np.ndarray:
    """Return the free numbers that have this many digits."""
    first = 0 if digits == 1 else 10 ** (digits - 1)
    return first + np.flatnonzero(free[first : 10**digits])


def pick(random: np.random.Generator, candidates: np.ndarray, count: int) -> np.ndarray:
    """Pick numbers in a random order; with fewer candidates than asked for, each equally often."""
    return np.resize(random.permutation(candidates), count)


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


def shorten(words: str) -> str:
    """Return German words as people say them: *hundertdrei* for *einhundertdrei*.

    >>> shorten("einhundertdrei"), shorten("eintausend"), shorten("einundzwanzig")
    ('hundertdrei', 'tausend', 'einundzwanzig')
    """
    rest = words.removeprefix("ein")
    return rest if rest.startswith(SHORT) else words


def write_pairs(numbers: Sequence[int], folder: Path, name: str, *, spoken: Sequence[int] = ()) -> Aligned:
    """Write the two aligned files `name`.de and `name`.en, a number a line, as a user would have them.

    The numbers `spoken` come after the others, in the words that people use.
    """
    folder.mkdir(parents=True, exist_ok=True)
    source, target = folder / f"{name}.de", folder / f"{name}.en"
    words = [*map(german, numbers), *(shorten(german(number)) for number in spoken)]
    write_text(source, "".join(f"{word}\n" for word in words))
    write_text(target, "".join(f"{english(number)}\n" for number in (*numbers, *spoken)))
    return Aligned(source=(str(source),), target=(str(target),))


def spoken_numbers(numbers: Numbers) -> list[int]:
    """Return the numbers that are learned in a second, shorter form too: a hundred and a thousand most of all."""
    short = [number for number in numbers.train if shorten(german(number)) != german(number)]
    return [*(100, 1_000) * SPOKEN, *short]
