"""One combination of the grid, made real: tensors, parts, and what the reference and a kernel make of them."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.attention import masks, positions, similarity, weighting
from clearhead.attention.attend import attend, explain
from clearhead.attention.inputs import HALF, Visibility
from clearhead.attention.mask_numbers import Extent
from clearhead.attention.mask_rules import Mask
from clearhead.attention.parts import HeadShape
from clearhead.attention.score_index import Positions, box
from clearhead.errors import ClearheadError

D_HEAD, BATCH = 8, 3
HEADS = {
    "equal": HeadShape(n_heads=4, n_kv_heads=4, d_head=D_HEAD),
    "grouped": HeadShape(n_heads=4, n_kv_heads=2, d_head=D_HEAD),
    "single key": HeadShape(n_heads=4, n_kv_heads=1, d_head=D_HEAD),
    "wide value": HeadShape(n_heads=4, n_kv_heads=4, d_head=D_HEAD),
    "narrow value": HeadShape(n_heads=4, n_kv_heads=2, d_head=D_HEAD),
}
D_VALUE = {"wide value": 11, "narrow value": 5}
LENGTHS = {"square": (7, 7), "more keys": (3, 8), "more queries": (8, 5), "one query": (1, 7), "one of each": (1, 1)}
GRID_DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}
ORDERED = frozenset({"causal", "window", "prefix", "document", "scattered documents"})


TABLES: dict[str, Mapping[str, Any]] = {
    "similarity": similarity.TABLE,
    "weighting": weighting.TABLE,
    "position": positions.TABLE,
    "mask": masks.TABLE,
}
FORMS: dict[str, Callable[[Any], str]] = {
    "similarity": lambda part: part.form,
    "weighting": lambda part: "log kernelized" if part.similarity.form == "log features" else part.form,
    "position": lambda part: part.bias_kind,
    "mask": lambda make: "ordered" if example_mask(make).kinds & ORDERED else "unordered",
}


@functools.lru_cache(maxsize=128)
def example_mask(make: Callable[[Extent], Mask]) -> Mask:
    return make(Extent(BATCH, 4, 7, 7, torch.device("cpu")))


def form_of(axis: str, part: str) -> str | None:
    """Return the form of a part in a table; None if an axis or a choice on it has none."""
    return FORMS[axis](TABLES[axis][part]) if part in TABLES.get(axis, ()) else None


@dataclass(frozen=True)
class Combination:
    """One choice on every axis, and a kernel; `own` holds a part that is in no table."""

    kernel: str
    parts: Mapping[str, str]
    own: Mapping[str, Any] = field(default_factory=dict)
    device: str = "cpu"

    def part(self, axis: str) -> Any:
        return self.own[axis] if axis in self.own else TABLES[axis].get(self.parts[axis])

    def extent(self) -> Extent:
        n_query, n_key = LENGTHS[self.parts["lengths"]]
        return Extent(BATCH, HEADS[self.parts["heads"]].n_heads, n_query, n_key, torch.device(self.device))

    def mask(self) -> Mask:
        return self.part("mask")(self.extent())

    def forms(self) -> dict[str, str]:
        """Return the form of every part that has one: unlisted parts are promised by their form."""
        forms = {axis: FORMS[axis](part) for axis, part in self.own.items()}
        listed = ((axis, form_of(axis, self.parts[axis])) for axis in TABLES if axis not in self.own)
        return forms | {axis: form for axis, form in listed if form is not None}

    def __str__(self) -> str:
        return f"{self.kernel}: " + ", ".join(f"{axis} {part}" for axis, part in self.parts.items())


class Case:
    """The tensors and built parts of a combination. What the mask hides is NaN, so that a leak shows."""

    def __init__(self, combination: Combination, seed: int) -> None:
        self.combination, self.parts = combination, combination.parts
        self.dropout = float(self.parts["dropout"])
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.options = self.make_options()
            self.tensors = self.make_tensors()

    def make_options(self) -> dict[str, Any]:
        shape, dtype = HEADS[self.parts["heads"]], GRID_DTYPES[self.parts["dtype"]]
        wide = torch.promote_types(dtype, torch.float32)
        specs = {
            "similarity": self.combination.part("similarity"),
            "weighting": self.combination.part("weighting"),
            "position": self.combination.part("position"),
        }
        built = {axis: None if part is None else part.build(shape) for axis, part in specs.items()}
        self.modules = [
            part.to(self.combination.device, wide) for part in built.values() if isinstance(part, nn.Module)
        ]
        options = {**built, "mask": self.combination.mask()}
        if self.parts["positions"] == "given":
            default, shift = self.default_positions(), torch.tensor([[-2], [0], [3]], device=self.combination.device)
            options |= {"query_positions": default.query + shift, "key_positions": default.key + shift}
        return options

    def default_positions(self) -> Positions:
        extent = self.combination.extent()
        return Positions.aligned(extent.n_query, extent.n_key, extent.device)

    def make_tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        extent, shape, dtype = self.combination.extent(), HEADS[self.parts["heads"]], GRID_DTYPES[self.parts["dtype"]]
        query = torch.randn(BATCH, shape.n_heads, extent.n_query, D_HEAD, dtype=torch.float64)
        key = torch.randn(BATCH, shape.n_kv_heads, extent.n_key, D_HEAD, dtype=torch.float64)
        key[:, :, -1] = key[:, :, 0]  # a tie
        width = D_VALUE.get(self.parts["heads"], D_HEAD)
        value = torch.randn(BATCH, shape.n_kv_heads, extent.n_key, width, dtype=torch.float64)
        if self.dropout:
            value = torch.eye(extent.n_key, dtype=torch.float64).expand(*value.shape[:2], -1, -1)
        device = self.combination.device
        query, key, value = self.poison(query.to(device), key.to(device), value.to(device))
        return query.to(dtype), key.to(dtype), value.to(dtype)

    def poison(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the tensors with NaN at keys and values that no query sees, and at queries that see no key."""
        extent = self.combination.extent()
        positions = self.default_positions()
        positions = Positions(
            self.options.get("query_positions", positions.query), self.options.get("key_positions", positions.key)
        )
        allowed = self.options["mask"].allowed(box(positions, batch=BATCH, n_heads=extent.n_heads))
        sight = Visibility.of(allowed.expand(BATCH, extent.n_heads, extent.n_query, extent.n_key))
        assert sight.rows is not None
        unseen = ~sight.keys.view(BATCH, key.shape[1], -1, extent.n_key).any(2).unsqueeze(-1)
        nan = float("nan")
        return (
            query.masked_fill(~sight.rows.unsqueeze(-1), nan),
            key.masked_fill(unseen, nan),
            value.masked_fill(unseen, nan),
        )

    def run(self, kernel: str) -> dict[str, Tensor]:
        """Return the context by that kernel, and the gradients of everything that has one, by name."""
        tensors = [tensor.clone() for tensor in self.tensors]
        if self.parts["gradients"] == "not needed" or self.dropout:
            with torch.no_grad():
                return {"context": attend(*tensors, **self.options, kernel=kernel, dropout=self.dropout)}
        named = dict(zip(("query", "key", "value"), (tensor.requires_grad_() for tensor in tensors), strict=True))
        # In half precision a parameter's gradient is a long sum of rounded terms: compared in float32 and float64 only.
        for index, module in enumerate([] if tensors[0].dtype in HALF else self.modules):
            named |= {f"part {index} {name}": parameter for name, parameter in module.named_parameters()}
        context = attend(*tensors, **self.options, kernel=kernel)
        target = torch.linspace(-1, 1, context.numel(), dtype=context.dtype, device=context.device).view_as(context)
        grads = torch.autograd.grad((context * target).sum(), list(named.values()), allow_unused=True)
        gradients = {
            name: torch.zeros((), device=context.device) if grad is None else grad
            for name, grad in zip(named, grads, strict=True)
        }
        return {"context": context.detach(), **gradients}

    def differences(self) -> list[str]:
        """Return where the kernel differs from the reference; empty if they agree."""
        actual = self.run(self.combination.kernel)
        expected = self.thin_weights(actual["context"]) if self.dropout else self.run("reference")
        allowed = TOLERANCE[GRID_DTYPES[self.parts["dtype"]]]
        mismatches = [
            text for name in expected if (text := difference(name, actual[name], expected[name], allowed)) is not None
        ]
        return mismatches + self.broken_laws(allowed)

    def broken_laws(self, tolerance: float) -> list[str]:
        """Return the laws of weights that are broken; kernel and reference could share such a mistake."""
        steps = explain(*self.tensors, **self.options)
        weight, blocked = steps.weight.detach(), ~self.allowed().expand(steps.weight.shape)
        sums = weight.sum(-1)
        expected = (~blocked).any(-1).to(sums.dtype)
        normalised = self.options["weighting"].sums_to_one
        # A row of relu features that meets no key sums to 0.
        off = normalised and bool(((sums - expected).abs().minimum(sums.abs()) > tolerance).any())
        laws = {
            "a weight is not finite": not weight.isfinite().all(),
            "a weight is not 0 where the query may not attend": bool((weight[blocked] != 0).any()),
            "a row of weights sums to neither 1 nor 0. If it is meant to, write sums_to_one = False in the class": off,
        }
        return [law for law, broken in laws.items() if broken]

    def allowed(self) -> Tensor:
        positions = self.default_positions()
        positions = Positions(
            self.options.get("query_positions", positions.query), self.options.get("key_positions", positions.key)
        )
        return self.options["mask"].allowed(box(positions, batch=BATCH, n_heads=self.combination.extent().n_heads))

    def thin_weights(self, context: Tensor) -> dict[str, Tensor]:
        """Return the reference's weights, 0 or doubled as the kernel's dropout had it: values are the identity."""
        weight = explain(*self.tensors, **self.options).weight / (1 - self.dropout)
        return {"context": torch.where(context == 0, 0, weight.detach().to(context.dtype))}

    def refusal(self) -> str | None:
        """Return the error's message; None if there was none."""
        try:
            self.run(self.combination.kernel)
        except ClearheadError as error:
            return str(error)
        return None


def difference(name: str, actual: Tensor, expected: Tensor, allowed: float) -> str | None:
    if not actual.isfinite().all():
        return f"{name} is not finite"
    tolerance = allowed * max(1.0, expected.abs().max().item())
    off = (actual.double() - expected.double()).abs().max().item()
    return None if off <= tolerance else f"{name} is off by {off:.2e}, more than {tolerance:.0e}"
