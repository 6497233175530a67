"""The compiler, as Tracr is one: a RASP program becomes an ordinary model, and a plan says its cost first.

>>> from clearhead.rasp import aggregate, compile, indices, plan, select, tokens
>>> shift = aggregate(select(indices, indices, lambda key, query: key == query - 1), tokens)
>>> print(plan(shift, "ab", length=4))
an encoder for up to 4 tokens: 1 layer, 1 head, 11 wide, 0 units in networks
>>> compile(shift, "ab", length=4).run("abba")
[None, 'a', 'b', 'b']

Weights: heads and units as the matrices of a block. Every number is written here, and all else is zero.
"""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from clearhead.attention.heads import Heads
from clearhead.attention.layer import Attention
from clearhead.attention.positions import Learned
from clearhead.attention.similarity import Dot, ScaledDot, Similarity
from clearhead.attention.weighting import Argmax, Weighting
from clearhead.calls import public
from clearhead.errors import ProgramError
from clearhead.model import Decoder, DecoderSpec, Embedding, Encoder, EncoderDecoderSpec, EncoderSpec, NoNorm
from clearhead.model.blocks import AttentionSpec, Block, BlockSpec
from clearhead.model.feedforward import Plain, ReLU
from clearhead.model.outputs import Blanks, NextToken, ToVocabulary
from clearhead.rasp.checks import check_selectors, check_sides, check_weighting, check_written, parts_of
from clearhead.rasp.compiled_model import CompiledModel, TextLayout
from clearhead.rasp.language import Sequence
from clearhead.rasp.lowering import Lowered, lower
from clearhead.rasp.operations import HeadOperation, HiddenUnit
from clearhead.rasp.scheduling import Level, schedule
from clearhead.rasp.spaces import HERE, ONE, SINK, Directions, Space
from clearhead.rasp.values import Possible


@torch.no_grad()
def clear(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.zero_()


@torch.no_grad()
def write_heads(layer: Attention, heads: Iterable[HeadOperation], directions: Directions) -> None:
    """Write the maps of an attention whose heads do this."""
    maps = (getattr(layer, name).linear.weight for name in ("query", "key", "value"))
    query, key, value = (weight.view(layer.shape.n_heads, -1, layer.d_model) for weight in maps)
    output = layer.output.weight.view(len(directions), layer.shape.n_heads, -1)  # pyright: ignore
    for number, head in enumerate(heads):
        write_scores(head, query[number], key[number], directions)
        read = [directions.of(SINK)] if head.values is None else list(directions.all(head.values))
        for dimension, (source, target) in enumerate(zip(read, directions.all(head.out), strict=True)):
            value[number, dimension, source] = 1
            output[target, number, dimension] = 1


def write_scores(head: HeadOperation, query: Tensor, key: Tensor, directions: Directions) -> None:
    """Write a dimension for the sink and one for each value of the keys: 2 where it fits, all in whole numbers."""
    query[0, directions.of(ONE)] = head.sink_score
    key[0, directions.of(SINK)] = 1
    dimension = 1
    for choice in head.choices:
        for key_value in choice.keys.values:
            key[dimension, directions.of(choice.keys, key_value)] = 1
            for query_value in choice.queries.values:
                if choice.predicate(key_value, query_value):
                    query[dimension, directions.of(choice.queries, query_value)] = 2
            dimension += 1


@torch.no_grad()
def write_units(network: Plain, units: Iterable[HiddenUnit], directions: Directions) -> None:
    up, down = network.up.weight, network.down.weight
    for number, unit in enumerate(units):
        for direction, amount in unit.reads.items():
            up[number, directions.of(*direction)] += amount
        for direction, amount in unit.writes.items():
            down[directions.of(*direction), number] += amount


AVERAGING = Argmax(ties="average")


@public
def compile(
    program: Sequence,
    vocabulary: Iterable[Any],
    *,
    length: int,
    source_vocabulary: Iterable[Any] | None = None,
    causal: bool = False,
    weighting: Weighting = AVERAGING,
    sharpness: float = 1.0,
) -> CompiledModel:
    """Compile a RASP program into a model. A program that reads a source becomes an encoder-decoder.

    With `Argmax(ties="average")` the attention is exact. With another weighting the scores, integers two apart, are
    multiplied by `sharpness` first; then `Softmax()` is wrong by about exp(-sharpness).

    Args:
        program: The program.
        vocabulary: Its tokens.
        length: Longest text.
        source_vocabulary: Tokens of the source, if it reads one.
        causal: Make a decoder instead of an encoder.
        weighting: The weighting of every head.
        sharpness: Factor for the scores.

    Returns:
        The model, with `run`.

    Raises:
        ProgramError: If attention cannot compute the program.

    >>> from clearhead import rasp
    >>> rasp.compile(rasp.PROGRAMS["reverse"].output, "abc", length=4).run("abc")
    ['c', 'b', 'a']
    """
    planned = plan(
        program,
        vocabulary,
        length=length,
        source_vocabulary=source_vocabulary,
        causal=causal,
        weighting=weighting,
        sharpness=sharpness,
    )
    return planned.build()


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class ProgramPlan:
    """What a program will cost, and how it will be built.

    Attributes:
        program: The program.
        possible: The values that each sequence can have.
        lowered: The program in terms of attention and feed-forward.
        result: Where the result is in the residual stream.
        levels: By side, what each layer computes.
        directions: Directions of the residual stream.
        kind: `encoder`, `decoder` or `encoder-decoder`.
        weighting: The weighting.
        similarity: The similarity.
        layouts: By side, where a text begins.

    >>> from clearhead import rasp
    >>> rasp.plan(rasp.PROGRAMS["reverse"].output, "abc", length=4).kind
    'encoder'
    """

    program: Sequence
    possible: Possible
    lowered: Lowered
    result: Space
    levels: Mapping[str, list[Level]]
    directions: Directions
    kind: str
    weighting: Weighting
    similarity: Similarity
    layouts: Mapping[str, TextLayout]

    @property
    def layers(self) -> int:
        return sum(len(levels) for levels in self.levels.values())

    @property
    def heads(self) -> int:
        return sum(len(level.own) + len(level.cross) for levels in self.levels.values() for level in levels)

    @property
    def units(self) -> int:
        return sum(len(level.units) for levels in self.levels.values() for level in levels)

    @property
    def d_model(self) -> int:
        return len(self.directions)

    def __str__(self) -> str:
        article = "an" if self.kind[0] == "e" else "a"
        return (
            f"{article} {self.kind} for up to {self.possible.length} tokens: {with_plural(self.layers, 'layer')}, "
            f"{with_plural(self.heads, 'head')}, {self.d_model} wide, {self.units} units in networks"
        )

    def build(self, ids: Mapping[str, int] | None = None) -> CompiledModel:
        """Build the model. `ids` gives the tokens their numbers, by how they are written; by default in order."""
        return Builder(self, ids or self.default_ids()).build()

    def default_ids(self) -> dict[str, int]:
        symbols = ["<s>"]
        for values in (*self.possible.vocabulary.values(), self.answers):
            symbols += [str(value) for value in sorted(values, key=str)]
        return {symbol: number for number, symbol in enumerate(dict.fromkeys(symbols))}

    @property
    def answers(self) -> list[Any]:
        """Return what may come out: the values, or `number`."""
        return ["number"] if self.result.numeric else list(self.result.values)


def with_plural(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


@public
def plan(
    program: Sequence,
    vocabulary: Iterable[Any],
    *,
    length: int,
    source_vocabulary: Iterable[Any] | None = None,
    causal: bool = False,
    weighting: Weighting = AVERAGING,
    sharpness: float = 1.0,
    layouts: Mapping[str, TextLayout] | None = None,
) -> ProgramPlan:
    """Plan how a program is built and what it costs: layers, heads, width.

    Args:
        program: The program.
        vocabulary: Its tokens.
        length: Longest text.
        source_vocabulary: Tokens of the source, if it reads one.
        causal: Plan a decoder instead of an encoder.
        weighting: The weighting of every head.
        sharpness: Factor for the scores.
        layouts: By side, where a text begins.

    Returns:
        The plan.

    Raises:
        ProgramError: If attention cannot compute the program.
    """
    layouts = layouts or {"target": TextLayout(), "source": TextLayout()}
    for tokens in (vocabulary, source_vocabulary or ()):
        if not isinstance(tokens, Iterable) or isinstance(tokens, Tensor):
            raise ProgramError(f"vocabulary: expected a list of tokens; came {type(tokens).__name__}")
    vocabulary, source_vocabulary = list(vocabulary), None if source_vocabulary is None else list(source_vocabulary)
    has_source = any(part.side == "source" for part in parts_of(program))
    if length < 1:
        raise ProgramError(f"length is how many tokens a text may have, 1 or more; came {length}")
    if wrong := [token for token in (*vocabulary, *(source_vocabulary or ())) if not isinstance(token, Hashable)]:
        raise ProgramError(f"vocabulary: tokens are words, numbers or pairs of them; came {wrong[0]!r:.80}")
    check_sides(program, vocabulary, source_vocabulary, layouts)
    check_weighting(weighting, sharpness)
    possible = Possible(vocabulary, length, source_vocabulary or ())
    check_selectors(program, possible, causal=causal or has_source, weighting=weighting)
    lowered, result = lower(program, possible, {side: layout.beside > 0 for side, layout in layouts.items()})
    check_written(f"the values of {program.name}", result.values)
    target = ("own", "cross", "network") if has_source else ("own", "network")
    levels = {"target": schedule(lowered.operations["target"], target)}
    if has_source:
        levels["source"] = schedule(lowered.operations["source"], ("own", "network"))
    spaces = [*lowered.inputs.values(), *(op.out for ops in lowered.operations.values() for op in ops)]
    return ProgramPlan(
        program=program,
        possible=possible,
        lowered=lowered,
        result=result,
        levels=levels,
        directions=Directions(spaces),
        kind="encoder-decoder" if has_source else "decoder" if causal else "encoder",
        weighting=weighting,
        similarity=Dot() if sharpness == 1 else ScaledDot(float(sharpness)),
        layouts=layouts,
    )


class Builder:
    """Builds the model of a plan."""

    def __init__(self, plan: ProgramPlan, ids: Mapping[str, int]) -> None:
        sinks = (layout.sink for side, layout in plan.layouts.items() if side in plan.levels)
        tokens = (token for side in plan.levels for token in plan.possible.vocabulary[side])
        missing = [symbol for symbol in map(str, (*sinks, *tokens, *plan.answers)) if symbol not in ids]
        if missing:
            raise ProgramError(f"ids: every token and answer needs one, and there is none for {missing[0]!r}")
        self.plan, self.ids = plan, ids
        self.vocabulary = max(ids.values()) + 1
        self.directions = plan.directions

    def build(self) -> CompiledModel:
        model = self.spec().build().eval()
        clear(model)
        for side, part in zip(("target", "source"), reversed(model.stacks), strict=False):
            self.write_side(side, part)
        return CompiledModel(
            model=model,
            ids=dict(self.ids),
            vocabulary={
                side: sorted(str(token) for token in self.plan.possible.vocabulary[side]) for side in self.plan.levels
            },
            answers=self.plan.answers,
            numeric=self.plan.result.numeric,
            length=self.plan.possible.length,
            directions=self.directions.names,
            layouts=dict(self.plan.layouts),
        )

    def spec(self) -> EncoderSpec | DecoderSpec | EncoderDecoderSpec:
        common = {"vocabulary": self.vocabulary, "d_model": len(self.directions)}
        blocks = {side: tuple(self.block(level, side) for level in levels) for side, levels in self.plan.levels.items()}
        embedding = {side: self.embedding(side) for side in self.plan.levels}
        target = {**common, "blocks": blocks["target"], "embedding": embedding["target"]}
        if self.plan.kind == "encoder":
            return EncoderSpec(**target, output=Blanks(tied=False, bias=False, transform=False))
        decoder = DecoderSpec(**target, output=NextToken(tied=False))
        if self.plan.kind == "decoder":
            return decoder
        source = EncoderSpec(**common, blocks=blocks["source"], embedding=embedding["source"], output=None)
        return EncoderDecoderSpec(encoder=source, decoder=decoder, tied="none")

    def embedding(self, side: str) -> Embedding:
        length = self.plan.layouts[side].total(self.plan.possible.length)
        return Embedding(position=Learned(length), scaled=False)

    def block(self, level: Level, side: str) -> BlockSpec:
        has_cross = side == "target" and self.plan.kind == "encoder-decoder"
        return BlockSpec(
            attention=self.attention(level.own),
            cross=self.attention(level.cross) if has_cross else None,
            feed_forward=ReLU(len(level.units), bias=False) if level.units else None,
            arrangement=NoNorm(),
        )

    def attention(self, heads: list[HeadOperation]) -> AttentionSpec:
        d_head = max((head.d_head for head in heads), default=1)
        d_value = max((1 if head.values is None else head.values.size for head in heads), default=1)
        layout = Heads(max(1, len(heads)), d_head=d_head, d_value=d_value)
        return AttentionSpec(heads=layout, similarity=self.plan.similarity, weighting=self.plan.weighting)

    @torch.no_grad()
    def write_side(self, side: str, part: Encoder | Decoder) -> None:
        self.write_embedding(side, part.embedding.table, part.embedding.position)
        for block, level in zip(part.stack.blocks, self.plan.levels[side], strict=True):
            self.write_block(block, level)
        if isinstance(part.output, ToVocabulary):
            for answer in self.plan.answers:
                part.output.table[self.ids[str(answer)], self.directions.of(self.plan.result, answer)] = 1

    def write_embedding(self, side: str, table: Tensor, position: nn.Module | None) -> None:
        """Write tokens and places as directions; which tokens are the text, and which is the sink."""
        layout = self.plan.layouts[side]
        of = self.directions.of
        table[:, of(ONE)] = 1
        table[self.ids[layout.sink], of(SINK)] = 1
        text = self.plan.possible.vocabulary[side]
        table[[self.ids[str(token)] for token in text], of(HERE)] = 1
        tokens = self.plan.lowered.inputs.get((side, "tokens"))
        if tokens is not None:
            for token in text:
                table[self.ids[str(token)], of(tokens, token)] = 1
        positions = self.plan.lowered.inputs.get((side, "places"))
        if positions is not None and position is not None:
            for index in positions.values:
                position.table[index + layout.offset, of(positions, index)] = 1  # pyright: ignore

    def write_block(self, block: Block, level: Level) -> None:
        write_heads(block.attention, level.own, self.directions)
        if isinstance(block.cross, Attention):
            write_heads(block.cross, level.cross, self.directions)
        if isinstance(block.feed_forward, Plain):
            write_units(block.feed_forward, level.units, self.directions)
