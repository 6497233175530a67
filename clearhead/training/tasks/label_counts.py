"""How many records each label has on either side, and what no score can say: printed before training."""

from collections.abc import Sequence

import numpy as np

from clearhead.text.preparing import Prepared
from clearhead.text.table_readers import list_names, quote

MOST_SHOWN = 20
"""Labels whose counts are printed one by one; of more, only the most frequent and the rarest."""
RARE = 20
"""Of a label with fewer training records, a model from scratch learns next to nothing: it is said."""


def describe_labels(labels: Sequence[str], prepared: Prepared, field: str) -> list[str]:
    """Return a line for the training records and one for the dev records: how many have each label, the most frequent
    first; which are too few to learn, and which no dev record has.
    """
    learned, held = (
        # A number after the last label is that of a token without one, inside a word.
        np.bincount(store[field].ids, minlength=len(labels))[: len(labels)].tolist()
        for store in (prepared.train, prepared.dev)
    )
    rare = [name for name, count in zip(labels, learned, strict=True) if count < RARE]
    line = f"{len(labels)} labels in {len(prepared.train):,} training records: {count_labels(labels, learned)}"
    if rare and max(learned) >= RARE:
        line += f"; too rare to be learned well: {list_names(rare)}. Accuracy says little about them: see macro F1"
    dev_line = f"{len(prepared.dev):,} dev records: {count_labels(labels, held)}"
    absent = [name for name, count in zip(labels, held, strict=True) if not count]
    if len(absent) == len(labels) - 1:
        dev_line += "; they have one label only: accuracy says nothing about the others"
    elif absent:
        dev_line += f"; no dev record has {list_names(absent)}: scores say nothing about them"
    return [line, dev_line]


def count_labels(labels: Sequence[str], counts: Sequence[int]) -> str:
    """Return the labels that occur with their counts, the most frequent first."""
    ranked = sorted(zip(labels, counts, strict=True), key=lambda pair: -pair[1])
    counted = [f"{quote(name)} {count:,}" for name, count in ranked if count]
    if len(counted) > MOST_SHOWN:
        counted = [*counted[: MOST_SHOWN // 2], "…", *counted[-MOST_SHOWN // 2 :]]
    return ", ".join(counted)
