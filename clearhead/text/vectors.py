"""Pre-trained word vectors in the text format of word2vec and GloVe: a word and its numbers on each line.

word2vec's files begin with a line that says how many vectors there are and how long each is; GloVe's do not. Both are
read as a stream, and only the words that are asked for are kept, so a file of many gigabytes costs no memory.
"""

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from clearhead.errors import DataError
from clearhead.text.lines import Line, Place, Problems, display_name, read_lines


@dataclass(frozen=True, kw_only=True)
class WordVectors:
    """The vectors of some words. `count` is the number of vectors in the file."""

    size: int
    count: int
    vectors: dict[str, list[float]]


def vector_size(path: str) -> int:
    """Return the length of a vector in this file, from its first lines."""
    line, size = next(entries(path))
    split_entry(line, size)
    return size


def read_vectors(path: str, words: Collection[str]) -> WordVectors:
    """Return the vectors of these words, as far as the file has them; of a word that is there twice, the first.

    A line that is no word with its numbers raises DataError with its place. Numbers of words that are not asked for are
    counted, and not read.
    """
    vocabulary = frozenset(words)
    vectors: dict[str, list[float]] = {}
    size = count = 0
    for line, size in entries(path):
        parts, word, numbers = split_entry(line, size)
        if len(parts) > size + 1 and is_number(parts[-size - 1]) and word not in vocabulary:
            raise vector_error(line.place, f"expected a word and {size} numbers; there are more: {shorten(line.text)}")
        count += 1
        if word in vocabulary and word not in vectors:
            vectors[word] = as_numbers(numbers, line.place)
    return WordVectors(size=size, count=count, vectors=vectors)


def split_entry(line: Line, size: int) -> tuple[list[str], str, list[str]]:
    """Return the parts of a line, its word and its numbers; DataError if there are fewer numbers than `size`."""
    parts = line.text.rstrip(" ").split(" ")
    # A token may hold spaces itself (GloVe's "at name@domain.com"), so the numbers are counted from the end.
    word = " ".join(parts[:-size])
    if len(parts) <= size or not word:
        raise vector_error(line.place, f"expected a word and {size} numbers; there are {len(parts)} parts in all")
    return parts, word, parts[-size:]


def entries(path: str) -> Iterator[tuple[Line, int]]:
    """Yield each line with a vector, and how long vectors are in this file."""
    problems = Problems(shown=1)
    size = promised = None
    count = 0
    for line in read_lines(path, problems):
        if line is None:
            problems.settle()
            continue
        if size is None:
            first = line.text.split()
            if len(first) == 2 and all(part.isdecimal() and len(part) < 15 for part in first):
                promised, size = int(first[0]), int(first[1])
                if size < 1:
                    message = f"the header says that vectors have {size} numbers; expected 1 or more"
                    raise vector_error(line.place, message)
                continue
            size = len(line.text.rstrip(" ").split(" ")) - 1
            if size < 1:
                raise vector_error(line.place, f"expected a word and its numbers; came {shorten(line.text)}")
        count += 1
        yield line, size
    problems.settle()
    if promised is not None and count != promised:
        counts = f"its first line promises {promised:,} vectors, and it has {count:,}"
        raise DataError(f"{display_name(path)}: {counts}; is the file whole?")
    if count == 0:
        raise DataError(f"{display_name(path)}: holds no vectors")


def as_numbers(parts: list[str], place: Place) -> list[float]:
    numbers = []
    for part in parts:
        if not is_number(part):
            raise vector_error(place, f"expected numbers after the word; came {shorten(part)}")
        numbers.append(float(part))
    return numbers


def is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def shorten(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:39]}…")


def vector_error(place: Place, message: str) -> DataError:
    return DataError(
        f"{place}: {message}. Vectors are text, as word2vec and GloVe write it: a word and its numbers a line"
    )
