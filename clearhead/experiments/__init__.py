"""Experiments on runs: a text traced, patched and taken apart; means over many texts; several models at one budget,
side by side; and probe tasks that measure what one can do.
"""

from clearhead.experiments.many_texts import exciting_texts, mean_effects, mean_readings, repeats
from clearhead.experiments.tracing import align

__all__ = ["align", "exciting_texts", "mean_effects", "mean_readings", "repeats"]
