"""The sum of products that one number of a linear map is."""

from dataclasses import dataclass
from typing import TypedDict, final

from clearhead.errors import OptionError
from clearhead.serve.boxes import as_list
from clearhead.serve.questions.question import TraceQuestion
from clearhead.serve.traced import Traced


class BoxTerms(TypedDict):
    """A number that a linear map makes: the sum of x · weight, and bias."""

    x: list[float]
    weight: list[float]
    bias: float
    value: float
    start: int
    """The place of the first x: in sliced heads, where the head's slice begins."""


@final
@dataclass(frozen=True, kw_only=True)
class AskTerms(TraceQuestion[BoxTerms]):
    """The sum of products that one number of the value `name` is."""

    name: str
    unit: int
    row: int = 0
    head: int = 0

    def answer_of(self, traced: Traced) -> BoxTerms:
        traced.check_box()
        vector = traced.boxes.row(self.name, self.row, self.head)
        if self.unit >= len(vector):
            raise OptionError(f"{self.name}: there is no unit {self.unit}; there are {len(vector)}, counted from 0")
        per_head = traced.boxes.values[self.name].per_head
        unit = (self.head, self.unit) if per_head else (self.unit,)
        products = traced.boxes.inner.products(self.name, self.row, unit)
        return {
            "x": as_list(products.x),
            "weight": as_list(products.weight),
            "bias": products.bias,
            "start": products.start,
            "value": vector[self.unit].item(),
        }

    def python_of(self, traced: Traced) -> list[str]:
        place = f"{self.head}, 0" if traced.boxes.values[self.name].per_head else "0"
        return [f"trace.value({self.name!r}, slice({self.row}, {self.row + 1}))[{place}, {self.unit}]"]
