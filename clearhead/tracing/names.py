"""The names of everything inside a model, the same in code, traces, pictures and changes.

A side is `encoder` or `decoder`; a site is one attention slot: `encoder.0.attention`, `decoder.1.cross`. What is made
inside it follows the dot: `decoder.1.cross.weight`, and so in every other part: `encoder.0.feed_forward.hidden`,
`encoder.0.attention.norm.mean`, `decoder.output.logits`. What flows between the parts is the stream:
`decoder.embedding.out`, `decoder.1.cross.residual`, `decoder.normed`.

A box is what a picture of the model has one of: an embedding, a norm, an attention, a sum. Every name is in one box.

>>> from clearhead.model import presets
>>> names = Names(presets.tiny(vocabulary=20).build())
>>> [*names.sites][-1], [*names.stream.values()][-1]
('decoder.3.cross', 'decoder.3.feed_forward.normed')
>>> [value.name for value in names.boxes["encoder.0.feed_forward"].values]
['encoder.0.feed_forward.pre_activation', 'encoder.0.feed_forward.hidden', 'encoder.0.feed_forward.out']
"""

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from torch import Tensor, nn

from clearhead.attention.heads import LowRankMap, LowRankSliceMap, WholeMap, columns_read, map_up
from clearhead.attention.layer import Attention
from clearhead.errors import OptionError, nearest
from clearhead.model.arrangements import BranchConnection
from clearhead.model.blocks import Block
from clearhead.model.fast_step import Explained, ModuleStep
from clearhead.model.transformers import Decoder, Encoder, Transformer

STEPS = ("query", "key", "value", "score", "scaled", "masked", "weight", "context")
"""The steps of an attention, in their order."""
CONCAT = "concat"
"""The contexts of all heads side by side, which W_O reads."""
FORMULAS = {
    "score": "query · key, or what the similarity has in its place",
    "scaled": "{score} × {scale}",
    "masked": "scaled, plus the position's bias; BLOCKED where the query may not attend",
    "weight": "what the weighting makes of the masked row",
    "context": "the sum of weight · value over the keys",
    CONCAT: "the contexts of all heads, side by side",
}
BY_COLUMN = ("score", "scaled", "masked", "weight")
"""Steps with a column for each key."""
BY_KEY = ("key", "value")
"""Steps with a row for each key."""
OPERAND = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, kw_only=True)
class Value:
    """A named value, and how it follows from others.

    `formula` names its `operands` in braces, and beside them `{scale}`, which each head has its own of. A value with a
    `map` is that linear map of the value `of`. `rows` says what its rows are: `query` or `key` tokens, `none` where
    there is one for all of them, `whole` where it is made of all of them at once; `columns`, whether its last axis
    counts units or keys. `per_head`: its first axis is the head. `neutral`: the number that changes nothing, 1 in
    gamma.
    """

    name: str
    formula: str = ""
    operands: Mapping[str, str] = field(default_factory=dict)
    map: str = ""
    of: str = ""
    rows: str = "query"
    columns: str = "unit"
    per_head: bool = False
    neutral: float = 0.0


@dataclass(frozen=True, kw_only=True)
class DiagramBox:
    """A box of a model's diagram, with the values made in it; `section` is what is computed together."""

    name: str
    kind: str
    side: str
    layer: int | None
    section: tuple[str, ...]
    values: tuple[Value, ...]


def read_all(head: int) -> slice:
    return slice(None)


class LinearMap(NamedTuple):
    """A linear map: the label it is shown with, its effect on vectors `(1, n, d)`, and which of their numbers it reads
    for each head.
    """

    label: str
    apply: Callable[[Tensor], Tensor]
    of: str
    reads: Callable[[int], slice] = read_all


def sides_of(model: nn.Module) -> dict[str, tuple[str, Encoder | Decoder]]:
    """Return the sides of a model by name, each with its path inside the model."""
    if not isinstance(model, Transformer):
        raise OptionError(
            f"expected an Encoder, a Decoder or an EncoderDecoder of clearhead.model; came {type(model).__name__}"
        )
    alone = len(model.stacks) == 1
    return {stack.spec.kind: ("" if alone else f"{stack.spec.kind}.", stack) for stack in model.stacks}


class Names:
    """The names of a model's inner values, and the box in which each is made."""

    def __init__(self, model: nn.Module) -> None:
        self.sites: dict[str, Attention] = {}
        self.stream: dict[str, str] = {}
        """From the path of a tap to the name of what passes there."""
        self.taps: dict[str, str] = {}
        """The same for every tap that a change may act on, those of the stream among them."""
        self.paths: dict[str, str] = {}
        """From the name of a site to its path in the model."""
        self.boxes: dict[str, DiagramBox] = {}
        self.maps: dict[str, LinearMap] = {}
        """The linear maps by the names of the values that they make."""
        self.inputs: dict[tuple[str, ...], str] = {}
        """For each section, the value of the stream that comes into it."""
        self.reads: dict[tuple[str, ...], str] = {}
        """The value that a branch reads, where that is not the stream."""
        self.norms: dict[str, tuple[nn.Module, str]] = {}
        """The norms by the names of their boxes, each with the name of the value that comes into it."""
        self.ends: dict[str, str] = {}
        """The last value of the stream on each side: what the output and the cross-attentions read."""
        self.sides = sides_of(model)
        for side, (path, part) in self.sides.items():
            SideNames(self, side, path, part).add()
        self.box_of = {value.name: box for box in self.boxes.values() for value in box.values}

    @property
    def all(self) -> list[str]:
        """Return every name, in the order of the forward pass."""
        return list(self.box_of)

    def input_map(self, at: str, role: str) -> LinearMap:
        """Return the linear map by which the queries, keys or values of a site read its input."""
        steps = (f"mapped_{role}", f"latent_{role}", f"projected_{role}", role)
        return next(self.maps[name] for step in steps if (name := f"{at}.{step}") in self.maps)

    def check_site(self, name: str) -> None:
        if name not in self.sites:
            raise OptionError(
                f"there is no attention called {name!r} in this model; {list_near(name, list(self.sites))}"
            )


def list_near(name: object, names: Sequence[str]) -> str:
    """Say which of some names was meant, where one is like it, and else which there are.

    >>> list_near("decoder.logits", ["encoder.embedding.out", "decoder.output.logits"])
    'the nearest is decoder.output.logits'
    """
    near = nearest(str(name), names)
    return f"the nearest is {near}" if near else f"there are {', '.join(names)}"


KEPT = "_clearhead_names"


def names_of(model: nn.Module) -> Names:
    """Return the names of a model, kept with it for as long as its modules and their positions are the same.

    To make them takes milliseconds, and a recording asks at every pass.
    """
    sides_of(model)  # raises for what is no model
    modules = list(model.modules())
    parts = [*modules, *(module.position for module in modules if isinstance(module, Attention))]
    before, names = model.__dict__.get(KEPT, ([], None))
    if names is None or len(before) != len(parts) or any(a is not b for a, b in zip(before, parts, strict=True)):
        names = Names(model)
        model.__dict__[KEPT] = parts, names
    return names


class SideNames:
    """A builder that adds the names of one side."""

    def __init__(self, names: Names, side: str, path: str, part: Encoder | Decoder) -> None:
        self.names, self.side, self.path, self.part = names, side, path, part
        self.stream = f"{side}.embedding.out"
        """The value that flows on from what was added last."""

    def add(self) -> None:
        self.add_embedding()
        for number, block in enumerate(self.part.stack.blocks):
            for branch in ("attention", "cross", "feed_forward"):
                if getattr(block, branch) is not None:
                    self.add_branch(number, block, branch)
        if self.part.stack.norm is not None:
            self.add_last_norm(self.part.stack.norm)
        self.names.ends[self.side] = self.stream
        if self.part.output is not None:
            self.add_output(self.part.output)

    def add_box(
        self, name: str, kind: str, section: tuple[str, ...], values: Sequence[Value], layer: int | None = None
    ) -> None:
        self.names.boxes[name] = DiagramBox(
            name=name, kind=kind, side=self.side, layer=layer, section=(self.side, *section), values=tuple(values)
        )

    def add_norm(
        self, name: str, norm: nn.Module, ends: tuple[str, str], section: tuple[str, ...], layer: int | None = None
    ) -> None:
        """Add a norm, from the name of its input to the name of its output."""
        self.names.norms[name] = norm, ends[0]
        self.add_box(name, "norm", section, norm_values(norm, name, *ends), layer)

    def add_embedding(self) -> None:
        embedding, at, section = self.part.embedding, f"{self.side}.embedding", ("embedding",)
        for name in ("token", "segment", "position", "sum", "out"):
            self.names.taps[f"{self.path}embedding.{name}"] = f"{at}.{name}"
        for name in ("token", "segment", "out") if embedding.segment is not None else ("token", "out"):
            self.names.stream[f"{self.path}embedding.{name}"] = f"{at}.{name}"
        token, position, out = f"{at}.token", f"{at}.position", f"{at}.out"
        row = "row of the table" + ("" if embedding.factor == 1 else f" × √{self.part.spec.d_model}")
        values, norm_input = [Value(name=token, formula=row)], token
        parts = {"token": token}
        if embedding.segment is not None:
            parts["segment"] = f"{at}.segment"
            values.append(Value(name=parts["segment"], formula="row of the table of segments"))
        if embedding.position is not None:
            parts["position"] = position
        total = []
        if len(parts) > 1 or embedding.norm is None:
            norm_input = out if embedding.norm is None else f"{at}.sum"
            formula = " + ".join(f"{{{name}}}" for name in parts)
            total = [Value(name=norm_input, formula=formula, operands=parts)]
        if embedding.position is None:
            self.add_box(token, "token", section, [*values, *total])
        else:
            position_value = Value(
                name=position, formula=f"{type(self.part.spec.embedding.position).__name__} position"
            )
            self.add_box(token, "token", section, values)
            self.add_box(position, "position", section, [position_value, *total])
        if embedding.norm is not None:
            self.add_norm(f"{at}.norm", embedding.norm, (norm_input, out), section)

    def add_branch(self, number: int, block: Block, branch: str) -> None:
        at, section = f"{self.side}.{number}.{branch}", (str(number), branch)
        around: BranchConnection = getattr(block, f"around_{branch}")
        taps = f"{self.path}stack.blocks.{number}"
        self.names.inputs[(self.side, *section)] = value_in = self.stream
        if around.reads_input:
            value_in = self.names.inputs[self.side, str(number), "attention"]
            self.names.reads[(self.side, *section)] = value_in
        for step in around.steps:
            if step.box == "norm":
                norm, out = getattr(around, step.module), f"{at}.{step.out}"
                self.add_norm(f"{at}.{step.module}", norm, (value_in, out), section, number)
            elif step.box == "add":
                operands = {"x": self.stream, "branch": value_in}
                total = Value(name=f"{at}.{step.out}", formula="{x} + {branch}", operands=operands)
                self.add_box(f"{at}.add", "add", section, [total], number)
            else:
                values = self.branch_values(block, branch, at, value_in)
                self.add_box(at, branch, section, values, number)
            value_in = f"{at}.{step.out or 'out'}"
            if step.out:
                self.names.taps[f"{taps}.around_{branch}.{step.out}"] = value_in
        branch_taps = (
            (CONCAT, "out")
            if block.feed_forward is None or branch != "feed_forward"
            else [step.name for step in block.feed_forward.steps]
        )
        for name in set(branch_taps) - {step.out for step in around.steps}:
            self.names.taps[f"{taps}.{branch}.{name}"] = f"{at}.{name}"
        self.stream = f"{at}.{around.passes}"
        self.names.stream[f"{taps}.around_{branch}.{around.passes}"] = self.stream

    def branch_values(self, block: Block, branch: str, at: str, branch_input: str) -> list[Value]:
        if branch != "feed_forward" or block.feed_forward is None:
            layer: Attention = getattr(block, branch)
            self.names.sites[at] = layer
            self.names.paths[at] = f"{self.path}stack.blocks.{at.split('.')[1]}.{branch}"
            return list(self.attention_values(layer, at, branch_input, cross=branch == "cross"))
        network, names, values = block.feed_forward, {"x": branch_input}, []
        for step in network.steps:
            names[step.name] = full = f"{at}.{step.name}"
            if step.map:
                self.names.maps[full] = LinearMap(f"W_{step.map}", getattr(network, step.map), names[step.of])
            values.append(self.value(step, names))
        return values

    def attention_values(self, layer: Attention, at: str, branch_input: str, *, cross: bool) -> Iterator[Value]:
        maps, turns = self.names.maps, layer.position.turns
        memory = self.names.ends.get("encoder", "") if cross else branch_input
        for role, label, of in (("query", "W_Q", branch_input), ("key", "W_K", memory), ("value", "W_V", memory)):
            rows, role_map = "key" if role in BY_KEY else "query", getattr(layer, role)
            if not of:
                yield Value(name=f"{at}.{role}", formula=f"{label} of the memory", rows=rows, per_head=True)
                continue
            names, normed = [f"{at}.{role}"], ""
            if turns and role != "value":
                names.insert(0, f"{at}.projected_{role}")
            if isinstance(role_map, WholeMap) and role_map.norm is not None:
                names.insert(0, f"{at}.mapped_{role}")
                normed = "over all heads" if role_map.joint else "in each head"
                role_map = role_map.map_linearly
            reads = functools.partial(columns_read, getattr(layer, role))
            made = {names[0]: LinearMap(label, role_map, of, reads)}
            if isinstance(role_map, LowRankMap | LowRankSliceMap):
                latent, up = f"{at}.latent_{role}", functools.partial(map_latent_up, role_map)
                made = {
                    latent: LinearMap("V_down", role_map.map_down, of, reads),
                    names[0]: LinearMap("V_up", up, latent),
                }
            maps |= made
            for name, linear_map in made.items():
                yield Value(name=name, map=linear_map.label, of=linear_map.of, rows=rows, per_head=True)
            for before, name in pairwise(names):
                after = "turned by its position" if "projected" in before else f"normalised {normed}"
                formula = f"{before.removeprefix(f'{at}.')}, {after}"
                yield Value(name=name, formula=formula, rows=rows, per_head=True)
        blocked = f"{layer.weighting.blocked:g}".replace("-inf", "−∞")
        for name, template in FORMULAS.items():
            formula = template.replace("BLOCKED", blocked)
            columns = "key" if name in BY_COLUMN else "unit"
            operands = {operand: f"{at}.{operand}" for operand in OPERAND.findall(formula) if operand != "scale"}
            yield Value(
                name=f"{at}.{name}", formula=formula, operands=operands, columns=columns, per_head=name != CONCAT
            )
        if isinstance(layer.output, nn.Identity):
            yield Value(name=f"{at}.out", formula="concat itself: there is no W_O")
        else:
            maps[f"{at}.out"] = LinearMap("W_O", layer.output, f"{at}.{CONCAT}")
            yield Value(name=f"{at}.out", map="W_O", of=f"{at}.{CONCAT}")

    def add_last_norm(self, norm: nn.Module) -> None:
        out = f"{self.side}.normed"
        self.names.inputs[self.side, "norm"] = self.stream
        self.add_norm(f"{self.side}.norm", norm, (self.stream, out), ("norm",))
        self.names.stream[f"{self.path}stack.normed"] = self.names.taps[f"{self.path}stack.normed"] = out
        self.stream = out

    def add_output(self, output: nn.Module) -> None:
        at = f"{self.side}.output"
        rows = "query" if self.part.spec.output is not None and self.part.spec.output.by_position else "whole"
        self.names.inputs[self.side, "output"] = self.stream
        names, values = {"x": self.stream}, []
        for step in output.steps if isinstance(output, Explained) else (ModuleStep("logits"),):
            names[step.name] = f"{at}.{step.name}"
            self.names.taps[f"{self.path}output.{step.name}"] = names[step.name]
            if step.map:
                label = "W" if step.map != "fit" else "table"
                self.names.maps[names[step.name]] = LinearMap(label, getattr(output, step.map), names[step.of])
            values.append(self.value(step, names, rows))
        softmax = Value(name=f"{at}.probability", formula="softmax of the logits", rows=rows)
        self.add_box(at, "output", ("output",), [*values, softmax])

    def value(self, step: ModuleStep, names: Mapping[str, str], rows: str = "query") -> Value:
        """Return a step of a part, with the full names of what it follows from."""
        linear_map = self.names.maps.get(names[step.name])
        operands = {operand: names[operand] for operand in OPERAND.findall(step.formula)}
        if linear_map is None:
            return Value(name=names[step.name], formula=step.formula, operands=operands, rows=rows)
        return Value(name=names[step.name], map=linear_map.label, of=linear_map.of, rows=rows)


def map_latent_up(low_rank: LowRankMap | LowRankSliceMap, latent: Tensor) -> Tensor:
    """Return what the V_up of every head makes of one head's latent values `(1, n, rank)`."""
    return map_up(low_rank, latent.unsqueeze(1))


def norm_values(norm: nn.Module, at: str, norm_input: str, out: str) -> list[Value]:
    """Return the values of a norm, from the name of its input to the name of its output."""
    *inner, last = norm.steps if isinstance(norm, Explained) else (ModuleStep("out"),)
    names = {"x": norm_input} | {step.name: f"{at}.{step.name}" for step in inner} | {last.name: out}
    return [
        Value(
            name=names[step.name],
            formula=step.formula,
            operands={operand: names[operand] for operand in OPERAND.findall(step.formula)},
            rows="none" if step.learned else "query",
            neutral=step.neutral,
        )
        for step in (*inner, last)
    ]
