"""What a model is measured by: a score and how it is shown, the records it is measured on, and the options."""

import math
from dataclasses import dataclass
from typing import NamedTuple, final

from clearhead.errors import OptionError, no_such
from clearhead.options import check_declared, option
from clearhead.text.store import Store
from clearhead.training.scores import TOKENIZERS


class Measure(NamedTuple):
    """A number of a run by its key, and how it is shown: times a factor, with so many digits.

    `higher` says whether more of it is better.
    """

    key: str
    name: str
    factor: float = 1.0
    digits: int = 1
    higher: bool = True

    def shown(self, mean: float, spread: float | None = None) -> str:
        """Return the mean as text and, where there is one, the spread around it.

        >>> Measure("exact_match", "exact match %", 100).shown(0.98, 0.0141)
        '98.0 ± 1.4'
        """
        if math.isnan(mean):
            return "–"
        text = f"{self.factor * mean:,.{self.digits}f}"
        return text if spread is None else f"{text} ± {self.factor * spread:,.{self.digits}f}"


ACCURACY = Measure("accuracy", "accuracy %", 100)
MACRO_F1 = Measure("macro_f1", "macro F1 %", 100)
FEWEST_BATCHES = 8
"""A loss is that of so many batches at least: the scatter of fewer says little."""
LOSS = Measure("loss", "dev loss", digits=3, higher=False)


@final
@dataclass(frozen=True, kw_only=True)
class ValidationSet:
    """The records that a model is assessed on: a store of held-out ones, read in batches of so many tokens.

    `sample`: the loss is that of so many batches from all over them, the same ones each time; None: of all. At
    `deadline`, by `time.perf_counter`, no further batch is begun if `FEWEST_BATCHES` were read.
    """

    store: Store
    tokens: int
    score_records: int
    samples: int
    bfloat16: bool = False
    sample: int | None = None
    deadline: float = math.inf


@final
@dataclass(frozen=True, kw_only=True)
class EvaluationOptions:
    """How to evaluate.

    Translations are made with a `beam` (1 is greedy) and its `length_penalty`; BLEU splits words by `tokenize`, and
    `lower` makes BLEU and chrF blind to case. Text is read in windows of the model's context, of which each after the
    first brings `stride` new tokens: the fewer, the more each of them sees. None is a whole context, the quickest.
    `skip_bad` leaves out lines that cannot be used.
    """

    beam: int = option(5, "translate: beam width; 1 is greedy decoding.", takes="N", least=1)
    length_penalty: float = option(1.0, "translate: above 1 favours long outputs.", takes="X")
    tokenize: str = option(
        "13a", f"translate: how BLEU splits words: {', '.join(TOKENIZERS)}.", takes="NAME", names=TOKENIZERS
    )
    lower: bool = option(False, "translate: ignore case in BLEU and chrF.", word="ignore_case")
    stride: int | None = option(
        None,
        "generate: slide the window by this many tokens; fewer is slower, with more context for each.",
        takes="TOKENS",
        least=1,
    )
    skip_bad: bool = False

    def __post_init__(self) -> None:
        check_declared(self)
        if self.tokenize not in TOKENIZERS:
            raise OptionError(f"tokenize: {no_such(self.tokenize, TOKENIZERS)}")
