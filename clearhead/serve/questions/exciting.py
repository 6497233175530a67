"""The texts in which a unit or a head is excited most."""

from dataclasses import dataclass
from typing import ClassVar, TypedDict, final

from clearhead.serve.budget import Cost
from clearhead.serve.explorer import Explorer
from clearhead.serve.python_lines import load_lines
from clearhead.serve.questions.question import Question, bounded
from clearhead.training.many_texts import exciting_texts
from clearhead.training.tracing import encode_inputs

MOST_READ, LONGEST_TEXT = 500, 20_000
"""Texts of one question, and characters of each."""


class ExcitedText(TypedDict):
    """A text, and the token of it where the value is largest."""

    text: str
    place: int
    token: str
    value: float


class ExcitedTexts(TypedDict):
    texts: list[ExcitedText]


@final
@dataclass(frozen=True, kw_only=True)
class AskExciting(Question[ExcitedTexts]):
    """Of `texts`, those in which a unit of the value `at`, or a head of the attention `at`, is excited most."""

    sent: ClassVar = True
    turn: ClassVar = "weights"
    at: str
    index: int
    texts: list[str] = bounded(most=MOST_READ, longest=LONGEST_TEXT)
    most: int = bounded(10, least=1, below=51)
    step: int | None = None

    def answer(self, explorer: "Explorer") -> ExcitedTexts:
        run, cells = explorer.at(self.step), 0
        for text in self.texts:
            ids = encode_inputs(run, text).ids
            cells += explorer.costs.forward({side: len(ids[next(iter(ids))]) for side in explorer.costs.sides}).cells
        explorer.budget.check(Cost(cells=cells), f"reading {len(self.texts)} texts", "send fewer or shorter texts")
        found = exciting_texts(run, self.texts, self.at, self.index, most=self.most)
        return {
            "texts": [
                {"text": str(one.text), "place": one.place, "token": one.token, "value": one.value} for one in found
            ]
        }

    def python(self, explorer: "Explorer") -> list[str]:
        asked = f"{self.texts!r}, {self.at!r}, {self.index}, most={self.most}"
        return [*load_lines(explorer.at(self.step)), f"ch.training.exciting_texts(run, {asked})"]
