"""What is said of an answer."""

from dataclasses import dataclass
from typing import Literal, final

from clearhead.calls import public
from clearhead.exercises.exercise import Language

State = Literal["right", "not yet", "empty", "failed"]
STATES: dict[Language, dict[State, str]] = {
    "en": {"right": "right", "not yet": "not yet", "empty": "not written yet", "failed": "stops with an error"},
    "de": {"right": "richtig", "not yet": "noch nicht", "empty": "noch nicht geschrieben", "failed": "bricht ab"},
}


@final
@public
@dataclass(frozen=True, kw_only=True, repr=False)
class Verdict:
    """Whether an answer is right, and if not, the first thing that is wrong with it.

    Attributes:
        name: Name of the exercise.
        state: `right`, `not yet`, `empty` or `failed`.
        lines: What is wrong.
        language: `en` or `de`.

    >>> from clearhead import exercises
    >>> exercises.check("scale", lambda scores, d: scores / d**0.5).state
    'right'
    """

    name: str
    state: State
    lines: tuple[str, ...] = ()
    language: Language = "en"
    credit: float | None = None
    """For a designed head: the share of all weight that is on the right keys."""
    computed: tuple[tuple[str, str], ...] = ()
    """For a wrong program: its lines by name, and what each computes for the shortest text that shows the mistake."""

    @property
    def is_right(self) -> bool:
        return self.state == "right"

    def __repr__(self) -> str:
        return "\n".join([f"{self.name}: {STATES[self.language][self.state]}", *self.lines])
