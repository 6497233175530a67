"""Scores: what a trained model's answers are worth, by measures that others report too.

What a model is measured by: a score and how it is shown, the records it is measured on, and the options.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from clearhead.errors import OptionError, no_such
from clearhead.options import check_declared, option
from clearhead.text.store import Store

Name = TypeVar("Name", str, int)
# sacrebleu has more; those need a dictionary that is not installed, or fetch a model when they are first used.
TOKENIZERS = ("13a", "char", "intl", "none", "zh")
"""The ways to split text into words that BLEU may count by."""


@dataclass(frozen=True, kw_only=True)
class TranslationScores:
    """How near outputs come to their references.

    BLEU and chrF are sacrebleu's, over all outputs together, from 0 to 100, each with the signature that says how it
    was counted. `exact_match` is the share from 0 to 1 of outputs that are their reference.
    """

    bleu: float
    bleu_signature: str
    chrf: float
    chrf_signature: str
    exact_match: float
    n: int


@dataclass(frozen=True, kw_only=True)
class ClassScores:
    """How often the answer was the true label, all in all and label by label.

    `confusion` counts the examples: its rows are the true labels, its columns the answers, both in the order of `f1`.
    """

    accuracy: float
    macro_f1: float
    f1: dict[str, float]
    confusion: list[list[int]]
    n: int


@dataclass(frozen=True, kw_only=True)
class TextScores:
    """How well text was foreseen: `loss` is the mean of nats a token, `perplexity` its exponential.

    Both depend on what a token is. `bits_per_byte` does not: by it models with different tokenizers can be compared.
    """

    loss: float
    perplexity: float
    bits_per_byte: float
    tokens: int
    bytes: int


def score_translations(
    outputs: Sequence[str], references: Sequence[str], *, tokenize: str = "13a", lower: bool = False
) -> TranslationScores:
    """Score outputs against one reference each.

    `tokenize` is how BLEU splits words: "13a" for text as people write it, "none" for text that is split at spaces
    already, "zh" for Chinese, "char" for single characters. `lower` makes BLEU and chrF blind to case. An exact match
    is never blind to it; only white space around the text does not count. BLEU counts up to four words in a row:
    where every output is shorter, it is 0, right or wrong.

    >>> scores = score_translations(["the cat sat on the mat"], ["the cat sat on a mat"])
    >>> f"{scores.bleu:.1f} {scores.chrf:.1f} {scores.exact_match:.1f}"
    '53.7 72.1 0.0'
    """
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    if tokenize not in TOKENIZERS:
        raise OptionError(f"tokenize must be one of {', '.join(TOKENIZERS)}; came {tokenize!r}")
    check_pairs(outputs, references, "reference")
    # `force`: it would warn of spaces before full stops, which is how some corpora are written.
    bleu, chrf = BLEU(tokenize=tokenize, lowercase=lower, force=True), CHRF(lowercase=lower)
    bleu_score, chrf_score = (metric.corpus_score(outputs, [references]).score for metric in (bleu, chrf))
    exact = sum(output.strip() == reference.strip() for output, reference in zip(outputs, references, strict=True))
    return TranslationScores(
        bleu=bleu_score,
        bleu_signature=str(bleu.get_signature()),
        chrf=chrf_score,
        chrf_signature=str(chrf.get_signature()),
        exact_match=exact / len(outputs),
        n=len(outputs),
    )


def score_by_length(
    sources: Sequence[str], outputs: Sequence[str], references: Sequence[str], *, lower: bool = False
) -> list[dict[str, int | float]]:
    """Return chrF and exact match of texts by the length of their source, in characters up to each power of two.

    A mean over a corpus says nothing of lengths that are rare in it.

    >>> rows = score_by_length(["vier", "drei", "vierzehn"], ["four", "two", "fourteen"], ["four", "three", "fourteen"])
    >>> [(row["up_to"], row["n"], row["exact_match"]) for row in rows]
    [(4, 2, 0.5), (8, 1, 1.0)]
    """
    groups: dict[int, list[int]] = {}
    for i, source in enumerate(sources):
        groups.setdefault(1 << max(len(source) - 1, 0).bit_length(), []).append(i)
    rows = []
    for up_to, places in sorted(groups.items()):
        some = [[texts[i] for i in places] for texts in (outputs, references)]
        scores = score_translations(*some, lower=lower)
        rows.append({"up_to": up_to, "n": scores.n, "exact_match": scores.exact_match, "chrf": scores.chrf})
    return rows


def score_classes(answers: Sequence[str], truths: Sequence[str], labels: Sequence[str]) -> ClassScores:
    """Score one answer for each example; `labels` are all that there are, in the order of `confusion`.

    The F1 of a label is the harmonic mean of precision and recall, 0 where nothing was right. `macro_f1` is the mean
    over the labels that occur, in truths or in answers, as scikit-learn has it: a label that nobody used has F1 0 and
    is left out of the mean.

    >>> scores = score_classes(["yes", "no", "no"], ["yes", "yes", "no"], ["no", "yes", "maybe"])
    >>> scores.confusion
    [[1, 0, 0], [1, 1, 0], [0, 0, 0]]
    >>> f"{scores.accuracy:.3f} {scores.macro_f1:.3f}"
    '0.667 0.667'
    """
    check_labels(answers, truths, labels)
    counts = Counter(zip(truths, answers, strict=True))
    true, answered = Counter(truths), Counter(answers)
    # 2 right / (truths + answers) is the harmonic mean; `or 1` is for a label that nobody used.
    f1 = {label: 2 * counts[label, label] / (true[label] + answered[label] or 1) for label in labels}
    return ClassScores(
        accuracy=sum(counts[label, label] for label in labels) / len(truths),
        macro_f1=macro_f1(counts),
        f1=f1,
        confusion=[[counts[truth, answer] for answer in labels] for truth in labels],
        n=len(truths),
    )


def macro_f1(counts: Mapping[tuple[Name, Name], int]) -> float:
    """Return the mean F1 of the labels that occur, from how often each pair of true label and answer does; 0 of none.

    >>> macro_f1({("yes", "yes"): 1, ("yes", "no"): 1, ("no", "no"): 1})
    0.6666666666666666
    """
    uses: Counter[Name] = Counter()
    for (truth, answer), count in counts.items():
        uses.update({truth: count})
        uses.update({answer: count})
    # 2 right / (truths + answers) is the harmonic mean of precision and recall.
    f1 = [2 * counts.get((label, label), 0) / used for label, used in uses.items() if used]
    return math.fsum(f1) / (len(f1) or 1)


def score_text(total_nats: float, tokens: int, n_bytes: int) -> TextScores:
    """Score text of `tokens` tokens and `n_bytes` bytes (in UTF-8) from the sum of its tokens' losses.

    >>> score_text(20.0, tokens=20, n_bytes=40)
    TextScores(loss=1.0, perplexity=2.718..., bits_per_byte=0.721..., tokens=20, bytes=40)
    """
    if tokens < 1 or n_bytes < 1:
        raise OptionError(f"there is no text to score: expected tokens and bytes; came {tokens} and {n_bytes}")
    loss = total_nats / tokens
    return TextScores(
        loss=loss,
        perplexity=exponential(loss),
        bits_per_byte=total_nats / math.log(2) / n_bytes,
        tokens=tokens,
        bytes=n_bytes,
    )


def exponential(number: float) -> float:
    """e to that power, infinite where a float cannot hold it."""
    try:
        return math.exp(number)
    except OverflowError:
        return math.inf


def check_pairs(answers: Sequence[str], truths: Sequence[str], truth: str) -> None:
    """Raise unless there are as many of the one as of the other, and any at all."""
    if len(answers) != len(truths):
        raise OptionError(f"each output needs one {truth}; came {len(answers)} and {len(truths)}")
    if not answers:
        raise OptionError("there is nothing to score: expected at least one output; came none")


def check_labels(answers: Sequence[str], truths: Sequence[str], labels: Sequence[str]) -> None:
    """Raise unless every answer and every truth is one of the labels."""
    check_pairs(answers, truths, "true label")
    if len(set(labels)) < len(labels):
        raise OptionError(f"labels must differ from each other; came {', '.join(map(repr, labels))}")
    if strangers := sorted({*answers, *truths} - {*labels}):
        allowed, unknown = (", ".join(map(repr, names)) for names in (labels, strangers))
        raise OptionError(f"every answer and truth must be a label ({allowed}); came {unknown}")


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
        """Return the mean as text and, if there is one, the spread around it.

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
