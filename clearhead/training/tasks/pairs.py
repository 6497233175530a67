"""Pairs of texts, as BERT reads two: one row of tokens, with a segment for each of them.

An imported model reads pairs: its tokenizer says what stands between the two, and its embedding has the vectors of
segments, if there are any. A model that is trained here reads them where its task is `classify-pairs`.
"""

from collections.abc import Sequence
from typing import NamedTuple

from clearhead.errors import OptionError
from clearhead.model.transformers import Transformer
from clearhead.training.tasks.answering import Pair
from clearhead.training.tasks.base import Task
from clearhead.training.tasks.showing import TraceInputs, encode_for_trace


class FramedPairs(NamedTuple):
    """The ids of pairs, each framed as one row; the segment of each token, None for a model that has none."""

    rows: list[list[int]]
    segments: list[list[int]] | None


def frame_pairs(task: Task, model: Transformer, pairs: Sequence[Pair]) -> FramedPairs:
    """Return pairs of texts as the model reads them. Of texts that are too long, the longer one is cut first."""
    frame = task.frame()
    first, second = (task.tokenizer.encode_batch([pair[i] for pair in pairs]) for i in (0, 1))
    framed = [frame.around_pair(a, b, task.context) for a, b in zip(first, second, strict=True)]
    has_segments = model.stacks[0].spec.embedding.segments is not None
    return FramedPairs([ids for ids, _ in framed], [apart for _, apart in framed] if has_segments else None)


def trace_pair(task: Task, pair: Pair) -> TraceInputs:
    """Return a pair of texts as it is traced; a pair that is too long is refused, not cut."""
    frame, (first, second) = task.frame(), task.tokenizer.encode_batch(list(pair))
    needed = len(first) + len(second) + frame.size + len(frame.between)
    ids, segments = frame.around_pair(first, second, needed)
    return encode_for_trace(task, "encoder", ids)._replace(segments=segments if frame.segment else None)


def split_pair(line: str) -> Pair:
    """Return the two texts of a line, which a tab separates.

    >>> split_pair("Is it late?\\tIt is.")
    ('Is it late?', 'It is.')
    """
    first, tab, second = line.partition("\t")
    if not tab or "\t" in second:
        raise OptionError(f"expected two texts with one tab between; came {line!r:.80}")
    return first, second
