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
        return [index for index, (answer, expected) in pairs if not equal(answer, expected)]


def compare(ask: Ask, text: list[Any], source: list[Any] | None) -> Compared:
    """Compile the program, and give it and the interpreter the same text."""
    texts = [text] if source is None else [text, source]
    with errors_with_line(ask.file):
        if not ask.program.fits(*texts):
            raise OptionError(f"{ask.program.name} is not for {in_words(text)!r}: it is {ask.program.about}")
        plan = ask.plan()
        crafted = plan.build()
        inputs = crafted.tensors(text, source)
        expected = run(ask.program.output, *texts)
    with eval_mode(crafted.model):
        logits = crafted.model(*inputs)[0]
    logits = logits[crafted.layouts["target"].offset :][: len(text)]
    return Compared(
        ask=ask,
        cost=str(plan),
        text=text,
        source=source,
        answers=crafted.read(logits),
        wanted=expected,
        error=error_of(crafted, logits, expected),
    )


def error_of(crafted: CompiledModel, logits: torch.Tensor, expected: Sequence[Any]) -> float:
    """Return the largest error of the logits: from 1 for the right answer and 0 for the others, or from the number."""
    actual = logits[:, [crafted.ids[str(answer)] for answer in crafted.answers]].double()
    if crafted.numeric:
        right = torch.tensor(expected, dtype=torch.float64).unsqueeze(1)
    else:
        right = torch.tensor([[float(value == answer) for answer in crafted.answers] for value in expected]).double()
    return (actual - right.to(actual.device)).abs().max().item()


def equal(answer: Any, expected: Any) -> bool:
    if isinstance(answer, float) and isinstance(expected, int | float):
        return abs(answer - expected) <= CLOSE
    return answer == expected


def as_object(compared: Compared) -> dict[str, Any]:
    return {
        "program": compared.ask.program.name,
        "cost": compared.cost,
        "source": None if compared.source is None else list(map(str, compared.source)),
        "tokens": list(map(str, compared.text)),
        "answers": list(map(as_json_value, compared.answers)),
        "interpreter": list(map(as_json_value, compared.wanted)),
        "equal": not compared.differ,
        "largest_error": compared.error,
    }


def as_json_value(value: Any) -> Any:
    """Return a value that JSON can hold: one that it cannot is written out."""
    return value if value is None or isinstance(value, str | int | float) else str(value)


def run_page(compared: Compared) -> Iterator[RenderableType]:
    yield rule(compared.ask.program.name)
    yield line(compared.cost)
    if compared.source is not None:
        yield line(f"source: {in_words(compared.source)}")
    yield Text()
    columns = [[show_value(value) for value in column] for column in (compared.text, compared.answers, compared.wanted)]
    rows = [("token", "model", "interpreter"), *zip(*columns, strict=True)]
    widths = [max(map(len, column)) + 3 for column in zip(*rows, strict=True)]
    for index, row in enumerate(rows, -1):
        cells = "".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        yield Text(f"  {cells}" + ("differs" if index in compared.differ else ""), style="title" if index < 0 else "")
    yield Text()
    yield line(verdict_of(compared))


def show_value(value: Any) -> str:
    if value is None:
        return NOTHING
    return number(value, 4) if isinstance(value, float) else str(value)


def verdict_of(compared: Compared) -> str:
    places = with_plural(len(compared.text), "place")
    if compared.differ:
        verdict = f"They differ at {len(compared.differ)} of {places}."
    else:
        verdict = f"The model and the interpreter are equal at {'its' if len(compared.text) == 1 else 'all'} {places}."
    return verdict if compared.ask.exact else f"{verdict} The largest error is {compared.error:.2g}."
