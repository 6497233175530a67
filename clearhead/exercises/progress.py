"""Progress: what was solved, after how many tries and hints, in a file beside the answers; and the line to hand in.

Nothing is sent anywhere. The checksum of a line guards against slips in copying, not against cheating.
"""

import hashlib
import json
import re
import time
import zlib
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from clearhead.errors import DataError
from clearhead.exercises.exercise import EXERCISES
from clearhead.exercises.verdict import Verdict
from clearhead.files import read_json, write_text

FILE = "learn.json"
LINE = "clearhead-2"
"""The first word of a hand-in line, with the version of its form; web/src/learn/record.svelte.ts writes it too."""
ALL = "exercises"
"""What stands for a lesson's title in a line of the command."""
NAMES, COUNT = r"([\w -]*)", r"([0-9]{1,9})"
FACTS = re.compile(rf"{LINE}; ([^;]*); ([^;]*); {NAMES}; {NAMES}; {COUNT}; {COUNT}; {COUNT}")


@dataclass(frozen=True, kw_only=True)
class Attempts:
    """How far one exercise is: different answers that were tried, hints that were read, and seconds since the epoch."""

    tries: int = 0
    hints: int = 0
    begun: float | None = None
    solved: float | None = None
    last: str = ""
    """A digest of the last answer: the same one again is no further try."""


@dataclass(frozen=True, kw_only=True)
class LearnProgress:
    """The exercises that were begun, by name."""

    records: dict[str, Attempts] = field(default_factory=dict)

    def tried(self, verdict: Verdict, source: str, now: float) -> "LearnProgress":
        """Return the progress after an answer; an empty one, and one that was tried already, count for nothing."""
        record, digest = self.records.get(verdict.name, Attempts()), digest_of(source)
        if verdict.state == "empty":
            return self.begun(verdict.name, now)
        if digest != record.last and record.solved is None:
            record = replace(record, tries=record.tries + 1, last=digest)
        solved = now if verdict.is_right and record.solved is None else record.solved
        return self.with_record(verdict.name, replace(record, begun=record.begun or now, solved=solved))

    def begun(self, name: str, now: float) -> "LearnProgress":
        record = self.records.get(name, Attempts())
        return self.with_record(name, replace(record, begun=record.begun or now))

    def hinted(self, name: str) -> "LearnProgress":
        record = self.records.get(name, Attempts())
        return self.with_record(name, replace(record, hints=record.hints + 1))

    def with_record(self, name: str, record: Attempts) -> "LearnProgress":
        return LearnProgress(records={**self.records, name: record})

    @property
    def solved(self) -> list[str]:
        return [name for name in EXERCISES if name in self.records and self.records[name].solved is not None]

    @property
    def minutes(self) -> int:
        """Return the minutes from the first beginning to the last solution."""
        begun = [each.begun for each in self.records.values() if each.begun is not None]
        solved = [each.solved for each in self.records.values() if each.solved is not None]
        return round((max(solved) - min(begun)) / 60) if begun and solved else 0


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def read_progress(folder: Path) -> LearnProgress:
    """Return the progress that a folder holds; none yet if it has no file of it."""
    path = folder / FILE
    try:
        content = read_json(path, error=DataError)
        return LearnProgress(records={name: read_attempts(record) for name, record in content.items()})
    except FileNotFoundError:
        return LearnProgress()
    except (DataError, TypeError, AttributeError):
        raise DataError(f"{path}: is no progress as Clearhead writes it; move it away to begin anew") from None


def read_attempts(record: dict[str, Any]) -> Attempts:
    """Return a record of the file; TypeError if it is none."""
    found = Attempts(**record)
    counts, times = (found.tries, found.hints), (found.begun, found.solved)
    if not all(isinstance(one, int) for one in counts) or not all(isinstance(one, int | float | None) for one in times):
        raise TypeError
    return found


def write_progress(folder: Path, progress: LearnProgress) -> None:
    content = {name: asdict(record) for name, record in progress.records.items()}
    write_text(folder / FILE, json.dumps(content, indent=1) + "\n")


@dataclass(frozen=True, kw_only=True)
class HandIn:
    """A line that a pupil hands in."""

    name: str
    lesson: str = ALL
    """The title of the lesson, or that it is about the exercises of the command."""
    solved: tuple[str, ...]
    left: tuple[str, ...]
    tries: int
    hints: int
    minutes: int

    def __str__(self) -> str:
        counts = map(str, (self.tries, self.hints, self.minutes))
        line = "; ".join([LINE, self.name, self.lesson, " ".join(self.solved), " ".join(self.left), *counts])
        return f"{line}; {checksum_of(line)}"


def checksum_of(line: str) -> str:
    """Return the CRC-32 of a line, which a page without any library computes too."""
    return f"{zlib.crc32(line.encode()):08x}"


def hand_in(progress: LearnProgress, name: str) -> HandIn:
    """Return the line for a progress; `name` is the pupil's."""
    records = progress.records.values()
    tries, hints = sum(each.tries for each in records), sum(each.hints for each in records)
    plain = " ".join(name.replace(";", ",").split())
    left = tuple(each for each in EXERCISES if each not in progress.solved)
    solved = tuple(progress.solved)
    return HandIn(name=plain, solved=solved, left=left, tries=tries, hints=hints, minutes=progress.minutes)


def read_hand_in(line: str) -> HandIn:
    """Read a line; DataError if it is none, or was changed on its way."""
    facts, _, digest = line.strip().rpartition("; ")
    found = FACTS.fullmatch(facts)
    if found is None:
        raise DataError(
            f"expected a line as `clearhead learn hand-in` or a lesson prints it; came {line.strip()!r:.60}"
        )
    if checksum_of(facts) != digest:
        raise DataError(f"the line does not fit its checksum: a letter was lost or changed; came {line.strip()!r:.60}")
    name, lesson, solved, left, *counts = found.groups()
    tries, hints, minutes = map(int, counts)
    return HandIn(
        name=name,
        lesson=lesson,
        solved=tuple(solved.split()),
        left=tuple(left.split()),
        tries=tries,
        hints=hints,
        minutes=minutes,
    )


def now() -> float:
    return round(time.time())
