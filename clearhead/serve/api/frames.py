"""Frames: jobs and events as JSON, between the process that answers requests and the one that has the model.

A frame is its length in four bytes, and a JSON object. A dataclass in it is an object with one name, that of its class,
and the values of its fields. Numbers come out as they went in, to the last bit.

>>> frames = Frames()
>>> data = pack({"drop": [3]}) + pack({"add": []})
>>> frames.take(data[:9]), frames.take(data[9:])
([], [{'drop': [3]}, {'add': []}])
"""

import dataclasses
import json
from typing import Any, final

from clearhead.decoding import Beam, Grammar, Greedy, Hypothesis, Rules, Sample
from clearhead.decoding.scheduler import Job

HEAD = 4
"""Bytes of a frame's length."""
KINDS: dict[str, Any] = {kind.__name__: kind for kind in (Job, Rules, Grammar, Greedy, Sample, Beam, Hypothesis)}
"""All that a job or an event can hold."""
FIELDS = {kind: [field.name for field in dataclasses.fields(kind) if field.compare] for kind in KINDS.values()}


def pack(frame: dict[str, Any]) -> bytes:
    data = json.dumps(frame, separators=(",", ":"), default=write_part).encode()
    return len(data).to_bytes(HEAD) + data


def write_part(part: Any) -> dict[str, list[Any]]:
    return {type(part).__name__: [getattr(part, name) for name in FIELDS[type(part)]]}


def read_part(found: dict[str, Any]) -> Any:
    """Return an object as what it was before `pack`."""
    [name, *others] = found or [""]
    if others or name not in KINDS:
        return found
    kind = KINDS[name]
    return kind(**dict(zip(FIELDS[kind], map(as_tuples, found[name]), strict=True)))


def as_tuples(value: Any) -> Any:
    """Return lists, and lists in them, as the tuples that they were."""
    if not isinstance(value, list):
        return value
    return tuple(map(as_tuples, value) if value and isinstance(value[0], list) else value)


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
            frames.append(json.loads(buffer[begin + HEAD : end], object_hook=read_part))
            begin = end
        del buffer[:begin]
        return frames
