"""The boxes of the model's diagram: how each is made up, and every number of a box for one token."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, final

from jaxtyping import Float
from torch import Tensor

from clearhead.errors import OptionError
from clearhead.serve import messages
from clearhead.serve.params import Params
from clearhead.tracing.names import Box, Value
from clearhead.tracing.trace import Trace


def box_facts(box: Box) -> dict[str, Any]:
    """Return a box's name, its values, and how each value follows from others."""
    return {
        "name": box.name,
        "kind": box.kind,
        "layer": box.layer,
        "values": [asdict(value) for value in box.values],
    }


@final
class Boxes:
    """The numbers of a trace's boxes, token by token."""

    def __init__(self, trace: Trace) -> None:
        if trace.inner is None:
            raise OptionError("this trace was loaded without its model, which makes the numbers of its boxes")
        self.trace, self.inner = trace, trace.inner
        self.values = {value.name: value for box in self.inner.names.boxes.values() for value in box.values}

    def numbers(self, params: Params) -> dict[str, Any]:
        """Return every number of a box for one token (and, of keys and values, one key) in one head, by name.

        What the box's values follow from is among them.
        """
        box, token, key, head = (
            self.box(params),
            self.token(params),
            params.integer("key", default=0),
            params.integer("head", default=0),
        )
        return {name: as_list(value) for name, value in self.of_box(box, token=token, key=key, head=head)}

    def of_box(self, box: Box, *, token: int, key: int = 0, head: int = 0) -> Iterator[tuple[str, Float[Tensor, "d"]]]:
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

    def terms(self, params: Params) -> messages.BoxTerms:
        """Return the sum of products that one number of a linear map is."""
        name = params.text("name")
        if name not in self.values:
            raise OptionError(f"there is no {name[:80]!r} in this model")
        row, unit, head = params.integer("row", default=0), params.integer("unit"), params.integer("head", default=0)
        value = self.values[name]
        rows = self.inner.value(name, slice(row, row + 1))
        if not rows.numel():
            raise OptionError(f"{name}: there is no row {row}")
        vector = self.vector(value, rows, head)
        if unit >= len(vector):
            raise OptionError(f"{name}: there is no unit {unit}; there are {len(vector)}, counted from 0")
        products = self.inner.products(name, row, (head, unit) if value.per_head else (unit,))
        return {
            "x": as_list(products.x),
            "weight": as_list(products.weight),
            "bias": products.bias,
            "start": products.start,
            "value": vector[unit].item(),
        }

    def box(self, params: Params) -> Box:
        name = params.text("box")
        if name not in self.inner.names.boxes:
            raise OptionError(f"there is no box called {name[:80]!r} in this model")
        return self.inner.names.boxes[name]

    def token(self, params: Params) -> int:
        side = self.trace.sides[self.box(params).side]
        return params.integer("token", below=len(side.ids), default=0)


def as_list(vector: Float[Tensor, "d"]) -> list[float]:
    return vector.detach().float().tolist()
