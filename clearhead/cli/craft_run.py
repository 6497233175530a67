"""Run a compiled RASP program beside its interpreter, and print both place by place, for `clearhead craft run`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from rich.console import RenderableType
from rich.text import Text

from clearhead.cli.craft_program import Ask, errors_with_line, in_words
from clearhead.cli.craft_show import line
from clearhead.cli.screen import number, rule
from clearhead.decoding.generating import eval_mode
from clearhead.errors import OptionError
from clearhead.rasp import CompiledModel, run
from clearhead.rasp.compiler import with_plural

__all__ = ["Compared", "as_object", "compare", "run_page"]

CLOSE = 1e-5
"""How near a number must come to the interpreter's."""
NOTHING = "–"


@final
@dataclass(frozen=True, kw_only=True)
class Compared:
    """The model's answers and the interpreter's; `error` is how far the numbers that answers are read from are off."""

    ask: Ask
    cost: str
    text: list[Any]
    source: list[Any] | None
    answers: list[Any]
    wanted: list[Any]
    error: float

    @property
    def differ(self) -> list[int]:
        """Return the places at which they are not the same."""
        pairs = enumerate(zip(self.answers, self.wanted, strict=True))
        return [place for place, (answer, wanted) in pairs if not equal(answer, wanted)]


def compare(ask: Ask, text: list[Any], source: list[Any] | None) -> Compared:
    """Compile the program, and give it and the interpreter the same text."""
    texts = [text] if source is None else [text, source]
    with errors_with_line(ask.file):
        if not ask.program.fits(*texts):
            raise OptionError(f"{ask.program.name} is not for {in_words(text)!r}: it is {ask.program.about}")
        plan = ask.plan()
        crafted = plan.build()
        given = crafted.tensors(text, source)
        wanted = run(ask.program.output, *texts)
    with eval_mode(crafted.model):
        logits = crafted.model(*given)[0]
    logits = logits[crafted.layouts["target"].offset :][: len(text)]
    return Compared(
        ask=ask,
        cost=str(plan),
        text=text,
        source=source,
        answers=crafted.read(logits),
        wanted=wanted,
        error=error_of(crafted, logits, wanted),
    )


def error_of(crafted: CompiledModel, logits: torch.Tensor, wanted: Sequence[Any]) -> float:
    """Return the largest error of the logits: from 1 for the right answer and 0 for the others, or from the number."""
    said = logits[:, [crafted.ids[str(answer)] for answer in crafted.answers]].double()
    if crafted.numeric:
        right = torch.tensor(wanted, dtype=torch.float64).unsqueeze(1)
    else:
        right = torch.tensor([[float(one == answer) for answer in crafted.answers] for one in wanted]).double()
    return (said - right.to(said.device)).abs().max().item()


def equal(answer: Any, wanted: Any) -> bool:
    if isinstance(answer, float) and isinstance(wanted, int | float):
        return abs(answer - wanted) <= CLOSE
    return answer == wanted


def as_object(found: Compared) -> dict[str, Any]:
    return {
        "program": found.ask.program.name,
        "cost": found.cost,
        "source": None if found.source is None else list(map(str, found.source)),
        "tokens": list(map(str, found.text)),
        "answers": list(map(as_json_value, found.answers)),
        "interpreter": list(map(as_json_value, found.wanted)),
        "equal": not found.differ,
        "largest_error": found.error,
    }


def as_json_value(value: Any) -> Any:
    """Return a value that JSON can hold: one that it cannot is written out."""
    return value if value is None or isinstance(value, str | int | float) else str(value)


def run_page(found: Compared) -> Iterator[RenderableType]:
    yield rule(found.ask.program.name)
    yield line(found.cost)
    if found.source is not None:
        yield line(f"source: {in_words(found.source)}")
    yield Text()
    columns = [[show_value(value) for value in column] for column in (found.text, found.answers, found.wanted)]
    rows = [("token", "model", "interpreter"), *zip(*columns, strict=True)]
    widths = [max(map(len, column)) + 3 for column in zip(*rows, strict=True)]
    for place, row in enumerate(rows, -1):
        cells = "".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        yield Text(f"  {cells}" + ("differs" if place in found.differ else ""), style="title" if place < 0 else "")
    yield Text()
    yield line(verdict_of(found))


def show_value(value: Any) -> str:
    if value is None:
        return NOTHING
    return number(value, 4) if isinstance(value, float) else str(value)


def verdict_of(found: Compared) -> str:
    places = with_plural(len(found.text), "place")
    if found.differ:
        verdict = f"They differ at {len(found.differ)} of {places}."
    else:
        verdict = f"The model and the interpreter are equal at {'its' if len(found.text) == 1 else 'all'} {places}."
    return verdict if found.ask.exact else f"{verdict} The largest error is {found.error:.2g}."
