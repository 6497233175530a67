"""Where the same job has two results: computed in batches of other shapes, sums are rounded in another order.

Two results may then part, but only where two choices were so close that rounding decides: within 1e-4 in
log-probability, or, of a sample, in the probability that a drawn number is compared with. `compare` finds the first
place where a result leaves that of the job alone, and says how close the choices were there.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, final

import torch

from clearhead.decoding.beam import Beam
from clearhead.decoding.generating import decode, eval_mode, generate
from clearhead.decoding.hypotheses import Considered, Hypothesis
from clearhead.decoding.request import Model, check_request
from clearhead.decoding.sampling import Sample
from clearhead.decoding.scheduler import Job

CLOSE = 1e-4
ROUNDING = 1e-9
"""Of numbers so large that 1e-4 is less than their rounding (models that were never trained have them), this share."""
Verdict = Literal["equal", "tie", "different"]


@final
@dataclass(frozen=True)
class Comparison:
    """How a result compares with the expected one.

    `equal`: the same tokens, and log-probabilities within 1e-4. `tie`: they part at token `place` of hypothesis
    `hypothesis`, where the choices were `gap` apart, 1e-4 or less. `different`: they part and were further apart.
    """

    verdict: Verdict
    gap: float = 0.0
    hypothesis: int = 0
    place: int = 0


@final
class Tally:
    """Counts verdicts, and keeps what was worst of each."""

    def __init__(self) -> None:
        self.counts: Counter[Verdict] = Counter()
        self.widest = 0.0

    def add(self, comparison: Comparison) -> None:
        self.counts[comparison.verdict] += 1
        self.widest = max(self.widest, comparison.gap)

    def join(self, other: "Tally") -> None:
        self.counts.update(other.counts)
        self.widest = max(self.widest, other.widest)

    def __str__(self) -> str:
        counts = ", ".join(f"{self.counts[verdict]:,} {verdict}" for verdict in ("equal", "tie", "different"))
        return f"{counts}; widest gap {self.widest:.2g}"


def decode_alone(model: Model, job: Job) -> list[Hypothesis]:
    """Return the job's hypotheses by `generate`, alone."""
    prefix = None if job.prefix is None else [job.prefix]
    return generate(model, [job.inputs], job.method, rules=job.rules, prefix=prefix, candidates=job.candidates)[0]


def compare(
    model: Model, job: Job, actual: Sequence[Hypothesis], expected: Sequence[Hypothesis] | None = None
) -> Comparison:
    """Compare a job's result with the expected one: by default what `generate` returns for the job alone."""
    expected = decode_alone(model, job) if expected is None else expected
    first = first_difference(actual, expected)
    if first.verdict == "equal" or same_token(first, actual, expected):
        return first
    if isinstance(job.method, Beam):  # beams are chosen by their sums: where two outputs part, tokens need not be close
        gap = beam_gap(model, job)
    elif first.verdict == "tie":
        return first
    elif isinstance(job.method, Sample):
        gap = min(first.gap, sample_gap(model, job, expected[0].tokens[: first.place]))
    else:
        return first
    return Comparison("tie" if gap <= CLOSE else "different", gap, first.hypothesis, first.place)


def first_difference(actual: Sequence[Hypothesis], expected: Sequence[Hypothesis]) -> Comparison:
    """Compare two results by their tokens and log-probabilities alone: all there is to know for greedy decoding.

    Each chose the likeliest token it saw; so where they part, the two log-probabilities are those of the two best.
    """
    for number, (hypothesis, reference) in enumerate(zip(actual, expected, strict=False)):
        pairs = zip(hypothesis.tokens, reference.tokens, hypothesis.log_probs, reference.log_probs, strict=False)
        for index, (token, expected_token, value, expected_value) in enumerate(pairs):
            gap = 0.0 if value == expected_value else abs(value - expected_value)
            close = gap <= max(CLOSE, ROUNDING * abs(expected_value))
            if token != expected_token:
                return Comparison("tie" if close else "different", gap, number, index)
            if not close:  # the same token by other numbers is no tie
                return Comparison("different", gap, number, index)
        if len(hypothesis.tokens) != len(reference.tokens):
            return Comparison("different", float("inf"), number, min(len(hypothesis.tokens), len(reference.tokens)))
    if len(actual) != len(expected):
        return Comparison("different", float("inf"), min(len(actual), len(expected)))
    return Comparison("equal")


def same_token(first: Comparison, actual: Sequence[Hypothesis], expected: Sequence[Hypothesis]) -> bool:
    """Check whether both have the same token at the place where they part: by other numbers, or by other rules."""
    tokens = [
        {
            hypothesis.tokens[first.place]
            for hypothesis in side[first.hypothesis :][:1]
            if first.place < len(hypothesis.tokens)
        }
        for side in (actual, expected)
    ]
    return tokens[0] == tokens[1]


def sample_gap(model: Model, job: Job, tokens: Sequence[int]) -> float:
    """Return how close the draw after these tokens was to falling on another one.

    It was close if the drawn number is near a border between tokens, or a cut (top-p, min-p, top-k) is near a token.
    """
    assert isinstance(job.method, Sample)
    prefix = None if job.prefix is None else [job.prefix]
    request = check_request(model, [job.inputs], prefix, job.rules, job.candidates)
    prompt = [*request.prompts[0], *tokens]
    with eval_mode(model):
        source = [] if model.encoder is None else [torch.tensor(request.inputs)]
        logits = model(*source, torch.tensor([prompt]))[:, -1].double()
        logits = job.rules.change(logits, [prompt], [[*job.begun, *tokens]])
        log_probs = torch.log_softmax(logits, -1)
        log_probs[:, job.rules.forbidden(len(tokens), prompt)] = -torch.inf
        if job.rules.grammar is not None:
            matcher = job.rules.grammar.match(None, [*job.begun, *tokens])
            log_probs[:, ~matcher.allowed(job.rules.end, log_probs.shape[1])] = -torch.inf
        reached = job.method.shares(log_probs)[0][0].cumsum(-1)
        uncut = replace(job.method, top_k=None, top_p=1.0, min_p=0.0).shares(log_probs)[0][0]
        after_top_k = replace(job.method, top_p=1.0, min_p=0.0).shares(log_probs)[0][0]
    [draw] = job.method.draws(1)
    draw_value = [float(torch.rand((), generator=draw)) for _ in range(len(tokens) + 1)][-1]
    gaps = [float((reached - draw_value * reached[-1]).abs().min())]
    if job.method.top_p < 1:
        gaps.append(float((after_top_k.cumsum(-1) - after_top_k - job.method.top_p).abs().min()))
    if job.method.min_p > 0:
        gaps.append(float((after_top_k - after_top_k[0] * job.method.min_p).abs().min()))
    if job.method.top_k is not None and job.method.top_k < len(uncut):
        gaps.append(float(uncut[job.method.top_k - 1] - uncut[job.method.top_k]))
    return min(gaps)


def beam_gap(model: Model, job: Job) -> float:
    """Return the least distance between two neighbours in the search alone: continuations of a step, or outputs.

    All outputs that finished count, not only those that were asked for: the last of these may tie with the next.
    """
    assert isinstance(job.method, Beam)
    gaps, method = [float("inf")], replace(job.method, n_best=job.method.width)

    def watch(step: Considered) -> None:
        gaps.extend(better.total - worse.total for better, worse in pairwise(step.continuations))

    prefix = None if job.prefix is None else [job.prefix]
    request = check_request(model, [job.inputs], prefix, job.rules, job.candidates)
    [hypotheses] = decode(request, method, job.rules, 1, watcher=watch)
    gaps.extend(better.score - worse.score for better, worse in pairwise(hypotheses))
    return min(gaps)
