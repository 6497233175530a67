"""Frames: jobs and events as JSON, between the process that answers requests and the one that has the model.

A frame is its length in four bytes, and a JSON object. Numbers come out as they went in, to the last bit.

>>> frames = Frames()
>>> data = pack({"drop": [3]}) + pack({"add": []})
>>> frames.take(data[:9]), frames.take(data[9:])
([], [{'drop': [3]}, {'add': []}])
"""

import dataclasses
import json
from typing import Any, final

from clearhead.decoding.beam import Beam
from clearhead.decoding.grammar import Grammar
from clearhead.decoding.hypotheses import Candidates, Hypothesis
from clearhead.decoding.rules import Rules
from clearhead.decoding.sampling import Greedy, Sample
from clearhead.decoding.scheduler import Job

HEAD = 4
"""Bytes of a frame's length."""
METHODS = {kind.__name__: kind for kind in (Greedy, Sample, Beam)}
"""All that a request can ask for."""
FIELDS = {kind: tuple(field.name for field in dataclasses.fields(kind)) for kind in (Rules, *METHODS.values())}


def pack(frame: dict[str, Any]) -> bytes:
    data = json.dumps(frame, separators=(",", ":"), default=write_part).encode()
    return len(data).to_bytes(HEAD) + data


@final
class Frames:
    """Bytes as they come, cut into frames."""

    def __init__(self) -> None:
        self.buffer = bytearray()

    def take(self, data: bytes) -> list[dict[str, Any]]:
        """Return the frames that are complete with these bytes."""
        buffer, frames, begin = self.buffer, [], 0
        buffer += data
        while len(buffer) >= begin + HEAD:
            end = begin + HEAD + int.from_bytes(buffer[begin : begin + HEAD])
            if len(buffer) < end:
                break
            frames.append(json.loads(buffer[begin + HEAD : end]))
            begin = end
        del buffer[:begin]
        return frames


def write_fields(part: Any) -> list[Any]:
    return [getattr(part, name) for name in FIELDS[type(part)]]


def read_fields(kind: Any, values: list[Any]) -> Any:
    return kind(**dict(zip(FIELDS[kind], map(as_tuples, values), strict=True)))


def read_rules(values: list[Any]) -> Rules:
    *plain, grammar = values
    return read_fields(Rules, [*plain, None if grammar is None else Grammar(*grammar)])


def as_tuples(value: Any) -> Any:
    """Return lists as the tuples that they were."""
    return tuple(map(as_tuples, value)) if isinstance(value, list) else value


def write_part(part: Job | Hypothesis | Grammar) -> list[Any]:
    if isinstance(part, Grammar):
        return [part.kind, part.text]
    return write_job(part) if isinstance(part, Job) else write_hypothesis(part)


def read_command(frame: dict[str, Any]) -> dict[str, Any]:
    """Return commands with their jobs, as they were before `pack`."""
    return {**frame, "add": [(number, each_token, read_job(job)) for number, each_token, job in frame["add"]]}


def read_report(frame: dict[str, Any]) -> dict[str, Any]:
    """Return a report with its tokens and hypotheses, as they were before `pack`."""
    tokens = [(*event, read_candidates(candidates)) for *event, candidates in frame.get("tokens", ())]
    done = [(number, [*map(read_hypothesis, hypotheses)]) for number, hypotheses in frame.get("done", ())]
    return {**frame, "tokens": tokens, "done": done}


def write_job(job: Job) -> list[Any]:
    """Return a job as JSON.

    >>> job = Job(inputs=(4, 5), rules=Rules(max_new=3, end=(2,)), method=Beam(width=2), prefix=(1,))
    >>> read_job(write_job(job)) == job
    True
    """
    method = [type(job.method).__name__, *write_fields(job.method)]
    return [job.inputs, write_fields(job.rules), method, job.prefix, job.candidates, job.begun, job.adapter]


def read_job(values: list[Any]) -> Job:
    inputs, rules, (name, *settings), prefix, candidates, begun, adapter = values
    return Job(
        inputs=tuple(inputs),
        rules=read_rules(rules),
        method=read_fields(METHODS[name], settings),
        prefix=None if prefix is None else tuple(prefix),
        candidates=candidates,
        begun=tuple(begun),
        adapter=adapter,
    )


def write_hypothesis(hypothesis: Hypothesis) -> list[Any]:
    return [hypothesis.tokens, hypothesis.log_probs, hypothesis.score, hypothesis.ended, hypothesis.candidates]


def read_hypothesis(values: list[Any]) -> Hypothesis:
    tokens, log_probs, score, ended, candidates = values
    return Hypothesis(
        tokens=tuple(tokens),
        log_probs=tuple(log_probs),
        score=score,
        ended=ended,
        candidates=tuple(map(read_candidates, candidates)),
    )


def read_candidates(values: list[Any]) -> Candidates:
    return tuple((token, log_prob) for token, log_prob in values)
