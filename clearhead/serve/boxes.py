"""The boxes of the model's diagram: every number of a box for one token."""

from collections.abc import Iterator

from jaxtyping import Float
from torch import Tensor

from clearhead.errors import OptionError
from clearhead.tracing.names import DiagramBox, Value
from clearhead.tracing.trace import Trace


class Boxes:
    """The numbers of a trace's boxes, token by token."""

    def __init__(self, trace: Trace) -> None:
        if trace.inner is None:
            raise OptionError("this trace was loaded without its model, which makes the numbers of its boxes")
        self.trace, self.inner = trace, trace.inner
        self.values = {value.name: value for box in self.inner.names.boxes.values() for value in box.values}

    def of_box(
        self, box: DiagramBox, *, token: int, key: int = 0, head: int = 0
    ) -> Iterator[tuple[str, Float[Tensor, "d"]]]:
        section = self.inner.section(box, slice(token, token + 1))
        # Before the values of the box come those that they are computed from.
        read = [name for value in box.values for name in value.operands.values()]
        read += [value.of for value in box.values if value.of and value.rows == "query"]
        for name in dict.fromkeys([*read, *(value.name for value in box.values)]):
            value = self.values[name]
            row = key if value.rows == "key" else token
            rows = section.get(name)
            if rows is None or value.rows == "key":
                rows = self.inner.value(name, slice(row, row + 1))
            if not rows.numel():
                raise OptionError(f"{name}: there is no row {row}")
            yield name, self.vector(value, rows, head)

    def vector(self, value: Value, rows: Tensor, head: int) -> Float[Tensor, "d"]:
        if value.rows == "none":
            return rows
        if not value.per_head:
            return rows[0]
        if head >= len(rows):
            raise OptionError(f"{value.name}: there is no head {head}; there are {len(rows)}, counted from 0")
        return rows[head, 0]

    def row(self, name: str, row: int, head: int) -> Float[Tensor, "d"]:
        """Return one row of a value, of one head where each has its own."""
        if name not in self.values:
            raise OptionError(f"there is no {name[:80]!r} in this model")
        rows = self.inner.value(name, slice(row, row + 1))
        if not rows.numel():
            raise OptionError(f"{name}: there is no row {row}")
        return self.vector(self.values[name], rows, head)

    def box(self, name: str) -> DiagramBox:
        if name not in self.inner.names.boxes:
            raise OptionError(f"there is no box called {name[:80]!r} in this model")
        return self.inner.names.boxes[name]


def as_list(vector: Float[Tensor, "d"]) -> list[float]:
    return vector.detach().float().tolist()
