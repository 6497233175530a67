"""Heads and units over many texts: means with their scatter, and the texts that excite one most."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, TypedDict

from clearhead.errors import OptionError
from clearhead.experiments.many_texts import Scatters, Text, exciting_texts, mean_effects, mean_readings, repeats
from clearhead.experiments.tracing import encode_inputs
from clearhead.serve import params, python_lines
from clearhead.serve.budget import Cost
from clearhead.serve.explorer import Explorer
from clearhead.serve.questions.question import Question
from clearhead.training.run import Run

MOST_MEANS, LONGEST_TEXT = 200, 20_000
"""Texts of one question, and characters of each."""
REPEATED = 24
"""Random tokens of a repeat, before they come again."""
MeanKind = Literal["readings", "effects"]


class HeadScatter(TypedDict):
    """A number for each head: its mean over texts, its standard deviation, and how many texts have it."""

    mean: list[float | None]
    deviation: list[float | None]
    n_texts: list[float]


class HeadMeans(TypedDict):
    site: str
    texts: int
    metrics: dict[str, HeadScatter]


@dataclass(frozen=True, kw_only=True)
class AskMeans(Question[HeadMeans]):
    """The metrics of a site's heads, or the effects of ablating them, over `texts` or over repeats of random tokens."""

    sent: ClassVar = True
    site: str
    kind: MeanKind = "readings"
    texts: list[str] = field(default_factory=list, metadata={"limits": {"most": MOST_MEANS, "longest": LONGEST_TEXT}})
    repeats: int = params.bounded(0, below=MOST_MEANS + 1)
    step: int | None = None

    def answer(self, explorer: "Explorer") -> HeadMeans:
        run = explorer.at(self.step)
        if self.site not in explorer.costs.sites:
            raise OptionError(
                f"there is no attention called {self.site!r:.80}; there are {', '.join(explorer.costs.sites)}"
            )
        texts = self.rows(run)
        self.check_cost(explorer, run, texts)
        read = mean_readings if self.kind == "readings" else mean_effects
        found: Scatters = read(run, texts, sites=[self.site])[self.site]
        metrics: dict[str, HeadScatter] = {
            name: {"mean": one.mean.tolist(), "deviation": one.deviation.tolist(), "n_texts": one.n_texts.tolist()}
            for name, one in found.items()
        }
        return {"site": self.site, "texts": len(texts), "metrics": metrics}

    def rows(self, run: Run) -> Sequence[Text]:
        if bool(self.texts) == bool(self.repeats):
            raise OptionError("give texts, or how many repeats of random tokens: one of the two")
        length = min(REPEATED, (run.task.context - 1) // 2)
        return self.texts or repeats(run, count=self.repeats, length=length)

    def check_cost(self, explorer: "Explorer", run: Run, texts: Sequence[Text]) -> None:
        cells = 0
        heads = explorer.costs.sites[self.site].shape.n_heads if self.kind == "effects" else 0
        for text in texts:
            ids = encode_inputs(run, text).ids if isinstance(text, str) else {explorer.costs.answering: text}
            lengths = {side: len(ids.get(side, ids[next(iter(ids))])) for side in explorer.costs.sides}
            cells += explorer.costs.cells(lengths) + heads * explorer.costs.forward(lengths).cells
        explorer.budget.check(Cost(cells=cells), f"{self.kind} over {len(texts)} texts", "send fewer or shorter texts")

    def python(self, explorer: "Explorer") -> list[str]:
        run = explorer.at(self.step)
        length = min(REPEATED, (run.task.context - 1) // 2)
        texts = (
            repr(self.texts) if self.texts else f"ch.experiments.repeats(run, count={self.repeats}, length={length})"
        )
        return [*python_lines.load_lines(run), f"ch.experiments.mean_{self.kind}(run, {texts}, sites=[{self.site!r}])"]


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


@dataclass(frozen=True, kw_only=True)
class AskExciting(Question[ExcitedTexts]):
    """Of `texts`, those in which a unit of the value `at`, or a head of the attention `at`, is excited most."""

    sent: ClassVar = True
    at: str
    index: int
    texts: list[str] = params.bounded(most=MOST_READ, longest=LONGEST_TEXT)
    most: int = params.bounded(10, least=1, below=51)
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
        return [*python_lines.load_lines(explorer.at(self.step)), f"ch.experiments.exciting_texts(run, {asked})"]
