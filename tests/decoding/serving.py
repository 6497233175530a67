"""Jobs that come at random times, and what a scheduler makes of them."""

import random

from benchmarks.differences import compare, decode_alone
from clearhead.decoding import Beam, Greedy, Rules, Sample
from clearhead.decoding.scheduler import Chosen, Finished, Job

METHODS = (
    Greedy(),
    Sample(temperature=1.5),
    Sample(top_k=5, top_p=0.9, min_p=0.01),
    Beam(width=3, n_best=2),
    Beam(width=2, stop="early"),
)


def draw_job(draw: random.Random, vocabulary: int, *, encoder: bool, longest: int = 9) -> Job:
    method = draw.choice(METHODS)
    if isinstance(method, Sample):
        method = Sample(
            temperature=method.temperature, top_k=method.top_k, top_p=method.top_p, seeds=draw.randrange(99)
        )
    rules = draw.choice(
        [
            Rules(max_new=draw.randint(1, 6), end=(2,)),
            Rules(max_new=draw.randint(3, 6), end=(2, 5), never=(4,), min_new=2),
            Rules(max_new=5, no_repeat=2, repetition_penalty=1.3),
            Rules(max_new=6, presence_penalty=0.7, frequency_penalty=0.4, logit_bias=((4, 1.0), (5, -2.0))),
        ]
    )
    return Job(
        inputs=tuple(draw.randrange(vocabulary) for _ in range(draw.randint(1, longest))),
        rules=rules,
        method=method,
        prefix=(1, *(draw.randrange(vocabulary) for _ in range(draw.choice((0, 0, 2))))) if encoder else None,
        candidates=draw.choice((0, 0, 3)),
    )


def decode(scheduler, jobs, draw: random.Random | None = None, *, cancelled=()):
    """The hypotheses of each job, in order; they come at once, or at random steps. None for those that are cancelled.

    What was said on the way must be what it came to.
    """
    tickets, told, found, waiting = [], {}, {}, list(jobs)
    while waiting or scheduler.busy:
        while waiting and (draw is None or draw.random() < 0.5):
            tickets.append(scheduler.add(waiting.pop(0)))
            told[tickets[-1]] = []
        for event in scheduler.step():
            assert event.ticket not in found, "nothing comes after the end"
            if isinstance(event, Chosen):
                told[event.ticket].append(event)
            if isinstance(event, Finished):
                found[event.ticket] = event.hypotheses
        for place in cancelled:
            if draw is not None and draw.random() < 0.3 and place < len(tickets) and tickets[place] not in found:
                scheduler.cancel(tickets[place])
                found[tickets[place]] = None
    for ticket, job in zip(tickets, jobs, strict=True):
        if found[ticket] is not None and not isinstance(job.method, Beam):
            [hypothesis] = found[ticket]
            assert tuple(event.token for event in told[ticket]) == hypothesis.tokens
            assert tuple(event.log_prob for event in told[ticket]) == hypothesis.log_probs
            assert tuple(event.candidates for event in told[ticket] if event.candidates) == hypothesis.candidates
    return [found[ticket] for ticket in tickets]


def unlike_alone(model, job, found, tolerance: float = 1e-9) -> list[str]:
    """What differs from the job alone: tokens must be the same but for an exact tie, and numbers to the tolerance."""
    expected = decode_alone(model, job)
    verdict = compare(model, job, found, expected)
    if [one.tokens for one in found] != [one.tokens for one in expected]:
        return [] if verdict.verdict == "tie" and verdict.gap < tolerance else [f"{job}: {verdict} {found} {expected}"]
    unlike = []
    for one, other in zip(found, expected, strict=True):
        size = max([1.0, abs(other.score), *map(abs, other.log_probs)])
        values = zip((one.score, *one.log_probs), (other.score, *other.log_probs), strict=True)
        if max(abs(mine - wanted) for mine, wanted in values) > tolerance * size or one.ended != other.ended:
            unlike.append(f"{job}: {one} {other}")
        if [[token for token, _ in step] for step in one.candidates] != [
            [token for token, _ in step] for step in other.candidates
        ]:
            unlike.append(f"candidates of {job}")
    return unlike
