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

from clearhead.decoding.beam import Considered, beam_search
from clearhead.decoding.beam_state import Beam
from clearhead.decoding.generating import check_request, eval_mode, generate
from clearhead.decoding.hypotheses import Hypothesis
from clearhead.decoding.request import Model
from clearhead.decoding.rules import FORBIDDEN
from clearhead.decoding.sampling import Sample
from clearhead.decoding.scheduler import Job
from clearhead.decoding.session import open_session

__all__ = ["CLOSE", "Comparison", "Tally", "compare", "decode_alone", "first_difference"]

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

    def __str__(self) -> str:
        counts = ", ".join(f"{self.counts[verdict]} {verdict}" for verdict in ("equal", "tie", "different"))
        return f"{counts}; widest gap {self.widest:.2g}"


def decode_alone(model: Model, job: Job) -> list[Hypothesis]:
    """Return the job's hypotheses by `generate`, alone."""
    prefix = None if job.prefix is None else [job.prefix]
    return generate(model, [job.inputs], job.method, rules=job.rules, prefix=prefix, candidates=job.candidates)[0]


def compare(
    model: Model, job: Job, found: Sequence[Hypothesis], expected: Sequence[Hypothesis] | None = None
) -> Comparison:
    """Compare a job's result with the expected one: by default what `generate` returns for the job alone."""
    expected = decode_alone(model, job) if expected is None else expected
    first = first_difference(found, expected)
    if first.verdict == "equal" or same_token(first, found, expected):
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


def first_difference(found: Sequence[Hypothesis], expected: Sequence[Hypothesis]) -> Comparison:
    """Compare two results by their tokens and log-probabilities alone: all there is to know for greedy decoding.

    Each chose the likeliest token it saw; so where they part, the two log-probabilities are those of the two best.
    """
    for number, (one, other) in enumerate(zip(found, expected, strict=False)):
        pairs = zip(one.tokens, other.tokens, one.log_probs, other.log_probs, strict=False)
        for place, (token, wanted, value, wanted_value) in enumerate(pairs):
            gap = 0.0 if value == wanted_value else abs(value - wanted_value)
            close = gap <= max(CLOSE, ROUNDING * abs(wanted_value))
            if token != wanted:
                return Comparison("tie" if close else "different", gap, number, place)
            if not close:  # the same token by other numbers is no tie
                return Comparison("different", gap, number, place)
        if len(one.tokens) != len(other.tokens):
            return Comparison("different", float("inf"), number, min(len(one.tokens), len(other.tokens)))
    if len(found) != len(expected):
        return Comparison("different", float("inf"), min(len(found), len(expected)))
    return Comparison("equal")


def same_token(first: Comparison, found: Sequence[Hypothesis], expected: Sequence[Hypothesis]) -> bool:
    """Check whether both have the same token at the place where they part: by other numbers, or by other rules."""
    here = [
        {one.tokens[first.place] for one in side[first.hypothesis :][:1] if first.place < len(one.tokens)}
        for side in (found, expected)
    ]
    return here[0] == here[1]


def sample_gap(model: Model, job: Job, tokens: Sequence[int]) -> float:
    """Return how close the draw after these tokens was to falling on another one.

    It was close if the drawn number is near a border between tokens, or a cut (top-p, min-p, top-k) is near a token.
    """
    assert isinstance(job.method, Sample)
    prefix = None if job.prefix is None else [job.prefix]
    request = check_request(model, [job.inputs], prefix, job.rules, job.candidates)
    prompt = [*request.prompts[0], *tokens]
    with eval_mode(model):
        session = open_session(request.model, request.inputs, [prompt], 1)
        log_probs = job.rules.forbid(session.log_probs(job.rules, [prompt]), len(tokens), [prompt])
        log_probs = log_probs.double()
        reached = job.method.shares(log_probs)[0][0].cumsum(-1)
        whole = replace(job.method, top_k=None, top_p=1.0, min_p=0.0).shares(log_probs)[0][0]
        left = replace(job.method, top_p=1.0, min_p=0.0).shares(log_probs)[0][0]
    [draw] = job.method.draws(1)
    drawn = [float(torch.rand((), generator=draw)) for _ in range(len(tokens) + 1)][-1]
    gaps = [float((reached - drawn * reached[-1]).abs().min())]
    if job.method.top_p < 1:
        gaps.append(float((left.cumsum(-1) - left - job.method.top_p).abs().min()))
    if job.method.min_p > 0:
        gaps.append(float((left - left[0] * job.method.min_p).abs().min()))
    if job.method.top_k is not None and job.method.top_k < len(whole):
        gaps.append(float(whole[job.method.top_k - 1] - whole[job.method.top_k]))
    return min(gaps)


def beam_gap(model: Model, job: Job) -> float:
    """Return the least distance between two neighbours in the search alone: continuations of a step, or outputs.

    All outputs that finished count, not only those that were asked for: the last of these may tie with the next.
    """
    assert isinstance(job.method, Beam)
    gaps, method = [float("inf")], replace(job.method, n_best=job.method.width)

    def watch(step: Considered) -> None:
        totals = [total for total in step.found.totals if total != FORBIDDEN]
        gaps.extend(one - other for one, other in pairwise(totals))

    prefix = None if job.prefix is None else [job.prefix]
    request = check_request(model, [job.inputs], prefix, job.rules, job.candidates)
    with eval_mode(model):
        session = open_session(request.model, request.inputs, request.prompts, job.rules.max_new)
        found = beam_search(session, request.prompts, method, job.rules, 1, watcher=watch)[0]
    gaps.extend(one.score - other.score for one, other in pairwise(found))
    return min(gaps)
